//! The maximum age of the connection between two machines.

use crate::{
    binary::{Binary, limits, stderr},
    support::{figure, until},
};

use super::Machine;

/// A connection without a message lasts for a minute.
#[tokio::test]
async fn the_maximum_age_of_a_connection_is_no_failure_of_the_hand_over() {
    let home = tempfile::tempdir().expect("a directory");
    let place = home.path().to_str().expect("text");
    let arguments = [
        "--queues",
        place,
        "--config",
        &limits("max_connection_age = '1s'"),
    ];
    let berlin = Binary::serve_with(&arguments, &[]).await;
    let queue = format!("sqlite:{place}/queues.db?queue=orders");
    let to = format!("reveille://{}/orders", berlin.address());
    let created = berlin.run(&["queue", "create", &queue]).await;
    assert!(created.status.success(), "{}", stderr(&created));
    let rome = Machine::hosted(&[]).await;
    for sent in 1..=3 {
        rome.run(&["courier", "send", rome.place(), &to, "tea"])
            .await;
        until("it is visible", async || {
            rome.destination_status().await["confirmed"] == sent
        })
        .await;
        until("the connection has ended", async || {
            figure(berlin.admin(), "reveille_connections").await == 0
        })
        .await;
    }
    let log = rome.log();
    assert!(!log.contains("cannot take them over"), "{log}");
    let status = rome.destination_status().await;
    assert!(!status.to_string().contains("has ended"), "{status}");
}
