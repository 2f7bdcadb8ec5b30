//! Messages that pass through other machines, by the route tables of configuration files.

use serde_json::Value;

use super::Machine;
use crate::{binary::free_address, support::until};

#[tokio::test]
async fn a_message_goes_over_a_machine_of_the_route_table() {
    let [mut rome, mut gate, paris] = [Machine::new(), Machine::new(), Machine::hosted(&[]).await];
    paris.create("orders").await;
    let route = |hop: &str| route(&paris.address, hop);
    let alias = format!("[queues.aliases]\nparis = \"{}\"\n", paris.destination("x"));
    let config = rome.configure(&(route(&gate.address) + &alias));
    rome.host(&["--config", &config]).await;
    // Without a route of its own the gate would pass nothing on.
    let passing = gate.configure(&route(&paris.address));
    gate.host(&["--config", &passing]).await;
    let send = ["courier", "send", rome.place(), "orders@paris", "tea"];
    let sent = rome
        .run(&[&send[..], &["--config", &config]].concat())
        .await;
    let id = sent.trim();
    until("it has arrived", async || {
        paris.knows(id).await && paris.message(id).await["state"] == "arrived"
    })
    .await;
    until("both machines before have confirmed", async || {
        let states = [rome.message(id).await, gate.message(id).await];
        states.iter().all(|one| one["state"] == "confirmed")
    })
    .await;
    // The sender knows the first machine on the way, and that machine the next one.
    for (machine, hop) in [(&rome, &gate), (&gate, &paris)] {
        let one = machine.message(id).await;
        assert_eq!(one["destination"], paris.destination("orders"), "{one}");
        assert_eq!(one["hop"], Value::from(&*hop.address), "{one}");
        assert_eq!(one["last_known"], Value::from(&*hop.address), "{one}");
    }
    assert_eq!(paris.receive("orders").await, ["tea"]);
    let history = gate.json(&["courier", "history", gate.place()]).await;
    assert_eq!(history[0]["message_id"], id, "{history}");
}

#[tokio::test]
async fn a_message_in_a_loop_of_routes_is_a_dead_letter_with_the_reason() {
    let [mut rome, mut gate] = [Machine::new(), Machine::new()];
    let nowhere = free_address();
    let to_gate = rome.configure(&route(&nowhere, &gate.address));
    let to_rome = gate.configure(&route(&nowhere, &rome.address));
    rome.host(&["--config", &to_gate]).await;
    gate.host(&["--config", &to_rome]).await;
    let to = format!("reveille://{nowhere}/orders");
    let send = ["courier", "send", rome.place(), &to, "tea"];
    let sent = rome
        .run(&[&send[..], &["--config", &to_gate]].concat())
        .await;
    let id = sent.trim();
    until("it is a dead letter", async || {
        gate.knows(id).await && gate.message(id).await["state"] == "dead_letter"
    })
    .await;
    let dead = gate.json(&["courier", "dead", gate.place()]).await;
    assert_eq!(dead[0]["message_id"], id, "{dead}");
    let reason = dead[0]["reason"].as_str().expect("a reason");
    assert!(reason.contains(&nowhere), "{reason}");
    assert!(reason.contains("form a loop"), "{reason}");
    let table = gate.run(&["courier", "dead", gate.place()]).await;
    assert!(table.contains(reason), "{table}");
    assert_eq!(gate.message(id).await["reason"], reason);
    // The sender knows that the gate has it.
    let one = rome.message(id).await;
    assert_eq!(one["last_known"], Value::from(&*gate.address), "{one}");
    let dead = rome.json(&["courier", "dead", rome.place()]).await;
    assert_eq!(dead, Value::Array(Vec::new()));
}

/// Returns an entry of the route table.
fn route(pattern: &str, hop: &str) -> String {
    format!("[[queues.routes]]\npattern = \"{pattern}\"\nhop = \"{hop}\"\n")
}
