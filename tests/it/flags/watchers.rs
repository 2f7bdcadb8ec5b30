//! Waiting and missing nodes, and the values that a second unleash keeps, with the real verbs.

use serde_json::Value;
use tokio::process::Child;

use super::{ended, parked, released, spawned};
use crate::binary::{Binary, stderr, stdout};

/// Parks a node at this relay.
fn park(relay: &Binary, flag: &str, node: &str) -> Child {
    spawned(relay.verb(&["wait", flag, "--id", node]))
}

async fn json(relay: &Binary, arguments: &[&str]) -> Value {
    let output = relay.run(&[arguments, &["-o", "json"]].concat()).await;
    serde_json::from_str(&stdout(&output)).expect("JSON")
}

#[tokio::test]
async fn a_parked_fleet_is_shown_by_name_and_waiting_time() {
    let relay = Binary::serve().await;
    let fleet = ["node-1", "node-2"].map(|node| park(&relay, "go", node));
    let other = park(&relay, "other", "node-9");
    parked(&relay, 3).await;

    let flag = json(&relay, &["flag", "get", "go"]).await;
    let waiting = flag["waiting"].as_array().expect("who waits");
    let names: Vec<_> = waiting.iter().map(|one| &one["listener_id"]).collect();
    assert_eq!(names, ["node-1", "node-2"]);
    for one in waiting {
        assert!(one["connected_for_ms"].is_u64(), "{one}");
        assert_eq!(
            (&one["streams"], &one["acknowledged"]),
            (&1.into(), &false.into())
        );
    }
    let table = stdout(&relay.run(&["flag", "get", "go"]).await);
    assert!(
        table.contains("node-1 ") && table.contains("node-2 "),
        "{table}"
    );
    assert!(!table.contains("node-9"), "{table}");

    ended(&relay.run(&["unleash", "go", "--expect", "2"]).await, 0);
    for node in fleet {
        released(node).await;
    }
    drop(other);
}

#[tokio::test]
async fn an_unmet_barrier_counts_the_missing_listeners() {
    let relay = Binary::serve().await;
    let mut fleet = ["node-1", "node-2", "node-3"].map(|node| park(&relay, "go", node));
    parked(&relay, 3).await;
    let gone = &mut fleet[2];
    gone.kill().await.expect("killed");
    parked(&relay, 2).await;
    let arguments = [
        "unleash",
        "go",
        "--expect",
        "4",
        "--timeout",
        "2s",
        "-o",
        "json",
    ];
    let output = relay.run(&arguments).await;
    let complaint = ended(&output, 6);
    let told: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(
        (&told["acknowledged"], &told["expected"]),
        (&2.into(), &4.into())
    );
    let missing = told["missing"].as_array().expect("names");
    assert_eq!(missing.len(), 0, "{told}: it does not watch any more");
    assert!(
        complaint.contains("missing: 2 that do not watch now"),
        "{complaint}"
    );
}

#[tokio::test]
async fn a_second_unleash_keeps_expiry_and_reason_and_can_remove_the_expiry() {
    let relay = Binary::serve().await;
    let first = ["unleash", "go", "--ttl", "1h", "--reason", "the night run"];
    ended(&relay.run(&first).await, 0);
    let before = json(&relay, &["flag", "get", "go"]).await;

    let again = relay.run(&["unleash", "go"]).await;
    let note = ended(&again, 0);
    assert_eq!(note, "");
    assert!(
        stdout(&again).contains("the night run"),
        "{}",
        stdout(&again)
    );
    let kept = json(&relay, &["flag", "get", "go"]).await;
    assert_eq!(kept["reason"], "the night run");
    let minute = |flag: &Value| flag["expires_at"].as_str().map(|at| at[..16].to_owned());
    assert_eq!(minute(&kept), minute(&before));

    let both = relay
        .run(&["unleash", "go", "--ttl", "1h", "--no-ttl"])
        .await;
    assert!(ended(&both, 2).contains("--no-ttl"), "{}", stderr(&both));
    let off = relay
        .run(&["unleash", "go", "--no-ttl", "--reason", "for good"])
        .await;
    assert_eq!(ended(&off, 0), "");
    let off = json(&relay, &["flag", "get", "go"]).await;
    assert_eq!(
        (&off["expires_at"], &off["reason"]),
        (&Value::Null, &"for good".into())
    );
    assert_eq!(off["generation"], before["generation"]);

    let log = relay.log();
    assert!(log.contains("reason=for good watchers=0"), "{log}");
    ended(
        &relay
            .run(&["leash", "go", "--set-by", "ann", "--reason", "done"])
            .await,
        0,
    );
    let log = relay.log();
    assert!(
        log.contains("cleared_by=ann reason=done watchers=0"),
        "{log}"
    );
}
