//! Queue files that are replaced or restored from an older copy.

use std::fs;

use super::Machine;
use crate::support::{Way, Wire, until};

impl Machine {
    /// Kills the host.
    async fn kill(&mut self) {
        let mut host = self.host.take().expect("a host");
        host.kill().await.expect("killed");
    }

    /// Removes the queue file; returns its content and its log.
    fn remove_file(&self) -> [Vec<u8>; 2] {
        ["queues.db", "queues.db-wal"].map(|name| {
            let path = self.home.path().join(name);
            let content = fs::read(&path).unwrap_or_default();
            drop(fs::remove_file(&path));
            content
        })
    }

    fn restore_file(&self, [file, log]: &[Vec<u8>; 2]) {
        drop(fs::remove_file(self.home.path().join("queues.db-shm")));
        fs::write(self.home.path().join("queues.db"), file).expect("written");
        fs::write(self.home.path().join("queues.db-wal"), log).expect("written");
    }

    async fn confirmed(&self, messages: u64) {
        until("the messages are visible there", async || {
            self.destination_status().await["confirmed"] == messages
        })
        .await;
    }
}

#[tokio::test]
async fn a_replaced_queue_file_gets_messages_only_after_the_operator_says_so() {
    let (mut rome, mut berlin) = (Machine::hosted(&[]).await, Machine::hosted(&[]).await);
    berlin.create("orders").await;
    let to = berlin.destination("orders");
    let send = async |rome: &Machine, body: &str| {
        rome.run(&["courier", "send", rome.place(), &to, body])
            .await;
    };
    send(&rome, "first").await;
    rome.confirmed(1).await;
    // The connection is open, so that the next message may be at Berlin.
    rome.kill().await;
    send(&rome, "second").await;
    berlin.kill().await;
    berlin.remove_file();
    berlin.create("orders").await;
    berlin.host(&[]).await;
    rome.host(&[]).await;
    until("the new file is refused", async || {
        let error = rome.destination_status().await["last_error"].clone();
        let forget = format!("courier forget DIR {}", berlin.address);
        error.as_str().is_some_and(|error| error.contains(&forget))
    })
    .await;
    assert!(berlin.receive("orders").await.is_empty());

    let forget = ["courier", "forget", rome.place(), &berlin.address];
    let forgotten = rome.json(&forget).await;
    assert_eq!(forgotten["given_up"], 0, "{forgotten}");
    assert_eq!(forgotten["sent_again"], 1, "{forgotten}");
    rome.confirmed(2).await;
    assert_eq!(berlin.receive("orders").await, ["second"]);
}

#[tokio::test]
async fn a_restored_host_confirms_messages_that_its_file_does_not_know() {
    let (mut rome, berlin) = (Machine::hosted(&[]).await, Machine::hosted(&[]).await);
    berlin.create("orders").await;
    let wire = Wire::to(berlin.address.parse().expect("an address")).await;
    let to = format!("reveille://{}/orders", wire.address());
    rome.run(&["courier", "send", rome.place(), &to, "first"])
        .await;
    rome.confirmed(1).await;
    rome.kill().await;
    let copy = rome.remove_file();
    rome.restore_file(&copy);

    // The stream is open now. Rome is killed when Berlin has stored the third message, before Rome is
    // told so.
    rome.host(&[]).await;
    rome.run(&["courier", "send", rome.place(), &to, "second"])
        .await;
    rome.confirmed(2).await;
    wire.stall_way(Way::Down);
    rome.run(&["courier", "send", rome.place(), &to, "third"])
        .await;
    until("Berlin has the message", async || {
        let status = berlin.json(&["courier", "status", berlin.place()]).await;
        status["accepted"] == 1
    })
    .await;
    rome.kill().await;

    // The copy has no message for Berlin.
    rome.remove_file();
    rome.restore_file(&copy);
    wire.mend();
    rome.host(&[]).await;
    until("Berlin shows the message", async || {
        let status = berlin.json(&["courier", "status", berlin.place()]).await;
        status["accepted"] == 0
    })
    .await;
    assert_eq!(berlin.receive("orders").await, ["first", "second", "third"]);
}

/// A listener deletes messages without a transaction, as `queue get --delete` does.
#[tokio::test]
async fn a_restored_sender_brings_no_message_that_was_deleted() {
    let (mut rome, berlin) = (Machine::new(), Machine::hosted(&[]).await);
    berlin.create("orders").await;
    let to = berlin.destination("orders");
    rome.run(&["courier", "send", rome.place(), &to, "first", "--create"])
        .await;
    let copy = rome.remove_file();
    rome.restore_file(&copy);
    rome.host(&[]).await;
    rome.confirmed(1).await;
    let queue = berlin.queue("orders");
    let got = berlin.run(&["queue", "get", &queue, "--delete"]).await;
    assert!(got.contains("first"), "{got}");
    rome.kill().await;
    rome.remove_file();
    rome.restore_file(&copy);
    rome.host(&[]).await;
    rome.confirmed(1).await;
    let depth = berlin.run(&["queue", "depth", &queue]).await;
    assert_eq!(depth.trim(), "0");
}
