//! Hand-over between machines that show each other certificates.

use std::{path::Path, time::SystemTime};

use reveille::auth::{NewToken, Principal, TokenFile};

use super::Machine;
use crate::{support::until, tls::Authority};

/// Starts a machine that asks others for a certificate of `clients`, and shows one of `authority`.
async fn hosted(authority: &Authority, clients: &Authority) -> Machine {
    let mut machine = Machine::new();
    let home = machine.home.path();
    let files = authority.write(home, "host", authority.server());
    let clients = clients.write(home, "clients", clients.server());
    let settings = machine.configure("queues_tls = true\n");
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let (certificate, key) = (text(&files.certificate), text(&files.key));
    let ca = text(&clients.ca);
    let arguments = [
        ["--config", &settings],
        ["--tls-cert", &certificate],
        ["--tls-key", &key],
        ["--tls-client-ca", &ca],
        ["--ca", &ca],
        ["--cert", &certificate],
        ["--key", &key],
    ];
    machine.host(arguments.as_flattened()).await;
    machine
}

#[tokio::test]
async fn messages_go_over_mutual_tls() {
    let authority = Authority::new("machines");
    let (rome, berlin) = (
        hosted(&authority, &authority).await,
        hosted(&authority, &authority).await,
    );
    berlin.create("orders").await;
    let to = berlin.destination("orders");
    rome.run(&["courier", "send", rome.place(), &to, "first"])
        .await;
    until("it is visible", async || {
        rome.destination_status().await["confirmed"] == 1
    })
    .await;
    assert_eq!(berlin.receive("orders").await, ["first"]);
}

#[tokio::test]
async fn a_machine_with_a_foreign_certificate_hands_nothing_over() {
    let (authority, foreign) = (Authority::new("machines"), Authority::new("foreign"));
    let berlin = hosted(&authority, &authority).await;
    let rome = hosted(&foreign, &authority).await;
    berlin.create("orders").await;
    let to = berlin.destination("orders");
    rome.run(&["courier", "send", rome.place(), &to, "first"])
        .await;
    until("both sides say why", async || {
        let refused = "failed in its TLS handshake";
        berlin.log().contains(refused) && rome.log().contains("cannot take them over")
    })
    .await;
    let status = rome.destination_status().await;
    assert_eq!(status["confirmed"], 0, "{status}");
    assert!(berlin.receive("orders").await.is_empty());
}

#[tokio::test]
async fn a_token_lets_a_machine_hand_over_and_goes_to_named_machines_only() {
    let mut berlin = Machine::new();
    let file = |machine: &Machine, name: &str, text: &str| {
        let path = machine.home.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let rules = "tokens = \"tokens.toml\"\n[[rule]]\nprincipals = [\"rome\"]\n\
                 actions = [\"hand_over\"]\nqueues = [\"local/orders\"]\n";
    let rules = file(&berlin, "auth.toml", rules);
    let new = NewToken {
        principal: Principal::new("rome").expect("a name"),
        expires: None,
        note: String::new(),
    };
    let tokens = TokenFile::new(berlin.home.path().join("tokens.toml"));
    let token = tokens.add(&new, SystemTime::now()).expect("added");
    berlin.host(&["--auth", &rules]).await;
    berlin.create("orders").await;
    let to = berlin.destination("orders");

    let mut rome = Machine::new();
    let token = file(&rome, "token", token.reveal());
    rome.host(&["--token-file", &token]).await;
    rome.run(&["courier", "send", rome.place(), &to, "first"])
        .await;
    until("the reason is known", async || {
        let status = rome.run(&["courier", "status", rome.place()]).await;
        status.contains("was shown no credential, because no route and no alias names it")
    })
    .await;
    rome.terminate().await;
    let settings = rome.configure(&format!("[queues.aliases]\nberlin = \"{to}\"\n"));
    rome.host(&["--token-file", &token, "--config", &settings])
        .await;
    until("it is visible", async || {
        rome.destination_status().await["confirmed"] == 1
    })
    .await;
    assert_eq!(berlin.receive("orders").await, ["first"]);

    // The rule names one queue.
    berlin.create("audit").await;
    let audit = berlin.destination("audit");
    rome.run(&["courier", "send", rome.place(), &audit, "forged"])
        .await;
    until("it waits", async || {
        let status = rome.run(&["courier", "status", rome.place()]).await;
        status.contains("`rome` may not hand over messages to queue `audit`")
    })
    .await;
    assert!(berlin.receive("audit").await.is_empty());
}
