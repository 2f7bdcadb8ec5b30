//! Relays of one cluster with one id serve on; a relay that cannot serve is no member.

use std::time::Instant;

use reveille::Client;

use super::{
    processes::notify,
    witness::{Witness, names},
};
use crate::{
    binary::{Binary, reveille, stderr},
    support::{figure, nats::NatsServer, until, within},
};

/// Starts a relay with this id, whose store is a file of this directory.
async fn relay(broker: &NatsServer, home: &std::path::Path, id: &str, file: &str) -> Binary {
    let store = format!("sqlite:{}", home.join(file).display());
    let url = broker.url();
    let arguments = ["--store", &store, "--cluster", &url, "--relay-id", id];
    Binary::serve_with(&arguments, &[]).await
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
async fn two_relays_of_one_id_serve() {
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
