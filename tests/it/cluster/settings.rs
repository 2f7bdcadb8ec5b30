//! Relays of one cluster whose settings do not fit each other serve on, and say so in their logs.

use std::time::{Duration, Instant};

use reveille::Client;

use super::{
    processes::notify,
    witness::{Witness, names},
};
use crate::{
    binary::{Binary, reveille, stderr},
    support::{figure, nats::NatsServer, until, within},
};

const SAME_ID: &str = "another relay of the cluster has the id of this one";
const OTHER_STORE: &str = "another relay of the cluster uses another store";
/// Several heartbeats.
const WHILE: Duration = Duration::from_secs(3);

/// Starts a relay with this id, whose store is a file of this directory.
async fn relay(broker: &NatsServer, home: &std::path::Path, id: &str, file: &str) -> Binary {
    let store = format!("sqlite:{}", home.join(file).display());
    let url = broker.url();
    let arguments = ["--store", &store, "--cluster", &url, "--relay-id", id];
    Binary::serve_with(&arguments, &[]).await
}

/// Returns how many lines of a relay's log have this text.
fn lines(relay: &Binary, text: &str) -> usize {
    relay.log().matches(text).count()
}

pub(super) async fn see_each_other(relays: &[Binary]) {
    for relay in relays {
        let (admin, others) = (relay.admin(), relays.len() as u64 - 1);
        until("each sees the others", async || {
            figure(admin, "reveille_cluster_relays").await == others
        })
        .await;
    }
}

/// Notifies through each relay; the subscribers of all are told. Returns the subscribers.
pub(super) async fn each_serves_all(relays: &[Binary]) -> Vec<Witness> {
    let queues = names("served", relays.len());
    let mut witnesses = Vec::new();
    for (number, relay) in relays.iter().enumerate() {
        let id = format!("worker-{number}");
        witnesses.push(Witness::of(&relay.url(), &id, &queues).await);
    }
    for (relay, name) in relays.iter().zip(&queues) {
        let began = Instant::now();
        notify(&Client::new(&relay.url()).expect("a URL"), name).await;
        for witness in &witnesses {
            witness.told(name, began).await;
        }
    }
    witnesses
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_relays_of_one_id_say_so_once_and_serve() {
    let (broker, home) = (
        NatsServer::start(),
        tempfile::tempdir().expect("a directory"),
    );
    let mut relays = Vec::new();
    for id in ["twin", "twin", "other"] {
        relays.push(relay(&broker, home.path(), id, "flags.db").await);
    }
    see_each_other(&relays).await;
    drop(each_serves_all(&relays).await);
    for relay in &relays[..2] {
        until("it is logged", async || lines(relay, SAME_ID) > 0).await;
    }
    tokio::time::sleep(WHILE).await;
    let counts: Vec<_> = relays.iter().map(|relay| lines(relay, SAME_ID)).collect();
    assert_eq!(counts, [1, 1, 0]);
    for relay in &relays {
        assert_eq!(lines(relay, OTHER_STORE), 0, "{}", relay.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_was_killed_and_started_again_is_no_second_one_of_its_id() {
    let (broker, home) = (
        NatsServer::start(),
        tempfile::tempdir().expect("a directory"),
    );
    let mut relays = Vec::new();
    for id in ["first", "second"] {
        relays.push(relay(&broker, home.path(), id, "flags.db").await);
    }
    relays[0].crash().await;
    tokio::time::sleep(WHILE).await;
    for relay in &relays {
        assert_eq!(lines(relay, SAME_ID), 0, "{}", relay.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_of_two_stores_on_one_cluster_name_say_so_once_and_serve() {
    let (broker, home) = (
        NatsServer::start(),
        tempfile::tempdir().expect("a directory"),
    );
    let mut relays = Vec::new();
    for (id, file) in [("first", "one.db"), ("second", "two.db")] {
        relays.push(relay(&broker, home.path(), id, file).await);
    }
    see_each_other(&relays).await;
    drop(each_serves_all(&relays).await);
    for relay in &relays {
        until("it is logged", async || lines(relay, OTHER_STORE) > 0).await;
    }
    tokio::time::sleep(WHILE).await;
    for relay in &relays {
        let counts = (lines(relay, OTHER_STORE), lines(relay, SAME_ID));
        assert_eq!(counts, (1, 0), "{}", relay.log());
    }
}

/// A supervisor starts it again and again, and each member that goes missing would cost checks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_cannot_serve_does_not_become_a_member() {
    let (broker, home) = (
        NatsServer::start(),
        tempfile::tempdir().expect("a directory"),
    );
    let first = relay(&broker, home.path(), "relay-0", "flags.db").await;
    let store = format!("sqlite:{}", home.path().join("flags.db").display());
    let admin = first.admin().to_string();
    for (listen, admin) in [(first.address(), "off"), ("127.0.0.1:0", &admin)] {
        let arguments = [
            ["serve", "--listen", listen, "--admin-listen", admin],
            [
                "--store",
                &store,
                "--cluster",
                &broker.url(),
                "--relay-id=b",
            ],
        ];
        let serve = reveille(&home, &arguments.concat()).output();
        let output = within("its end", serve).await.expect("it runs");
        assert_eq!(output.status.code(), Some(1));
        assert!(
            stderr(&output).contains("cannot listen"),
            "{}",
            stderr(&output)
        );
    }
    let members = figure(first.admin(), "reveille_cluster_relays").await;
    assert_eq!(members, 0);
}
