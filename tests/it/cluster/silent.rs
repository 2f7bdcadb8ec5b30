//! The connection of one relay to the broker stays open and carries nothing, in both directions or in
//! one, as where a network drops packets. Publishers notify at all relays in the meantime.

use std::time::{Duration, Instant};

use reveille::Client;

use super::{
    processes::Fleet,
    witness::{Confirmed, all_are_told, names, publish},
};
use crate::support::{Way, figure, until, within};

const SILENT: Duration = Duration::from_secs(10);
const QUEUES: usize = 90;
const PAUSE: Duration = Duration::from_millis(250);
/// The bound after the end of a fault for a relay that was cut off, and the time in which its last
/// attempt to connect may hang.
const CUT_OFF: Duration = Duration::from_millis(4500 + 1000);
/// A connection that answers no ping is found after this time.
const FOUND: Duration = Duration::from_secs(6);

/// Notifies a third of the queues at each relay, while `fault` runs.
async fn notified(
    fleet: &Fleet,
    queues: &[String],
    fault: impl Future<Output = Instant>,
) -> (Vec<Confirmed>, Instant) {
    let mut publishing = Vec::new();
    for (relay, part) in fleet.relays.iter().zip(queues.chunks(QUEUES / 3)) {
        let client = Client::new(&relay.url()).expect("a URL");
        publishing.push(tokio::spawn(publish(client, part.to_vec(), PAUSE)));
    }
    let healed = fault.await;
    let mut all = Vec::new();
    for publishing in publishing {
        all.extend(within("confirmations", publishing).await.expect("no panic"));
    }
    (all, healed)
}

async fn is_isolated_and_told_all(way: Way) {
    let (fleet, wire) = Fleet::start_with_a_wire().await;
    let queues = names("silent", QUEUES);
    let witnesses = fleet.witnesses(&queues).await;
    let fault = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        wire.stall_way(way);
        tokio::time::sleep(SILENT).await;
        let degraded = figure(fleet.relays[0].admin(), "reveille_cluster_degraded").await;
        assert_eq!(degraded, 1, "{way:?}");
        wire.mend();
        Instant::now()
    };
    let (all, healed) = notified(&fleet, &queues, fault).await;
    assert_eq!(all.len(), QUEUES);
    for witness in &witnesses {
        all_are_told(witness, &all, healed, CUT_OFF).await;
    }
    for relay in &fleet.relays {
        let degraded = async || figure(relay.admin(), "reveille_cluster_degraded").await;
        until("no relay is degraded", async || degraded().await == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_whose_connection_carries_nothing_is_told_all_when_it_does_again() {
    is_isolated_and_told_all(Way::Both).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_only_sends_is_isolated_and_told_all_later() {
    is_isolated_and_told_all(Way::Down).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_only_hears_is_isolated_and_the_others_are_told_all_later() {
    is_isolated_and_told_all(Way::Up).await;
}

/// The connection carries nothing any more, and new ones work.
async fn is_replaced_and_told_all(way: Way) {
    let (fleet, wire) = Fleet::start_with_a_wire().await;
    let queues = names("half-open", QUEUES);
    let witnesses = fleet.witnesses(&queues).await;
    let connections = wire.connections();
    let isolations =
        async || figure(fleet.relays[0].admin(), "reveille_cluster_isolations_total").await;
    let before = isolations().await;
    let fault = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        wire.silence(way);
        Instant::now() + FOUND
    };
    let (all, found) = notified(&fleet, &queues, fault).await;
    for witness in &witnesses {
        all_are_told(witness, &all, found, CUT_OFF).await;
    }
    assert!(wire.connections() > connections, "no new connection");
    assert_eq!(isolations().await, before + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_connection_to_the_broker_is_replaced_and_its_relay_told_all() {
    is_replaced_and_told_all(Way::Both).await;
}

/// The client's own pings do not find it, because each message of the others counts as an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_to_the_broker_that_only_hears_is_replaced_and_its_relay_told_all() {
    is_replaced_and_told_all(Way::Up).await;
}
