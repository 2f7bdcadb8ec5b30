//! One relay loses its link to the broker, or all relays do, while clients publish.

use std::time::{Duration, Instant};

use reveille::{Client, Notification, Publisher, PublisherOptions};

use super::processes::{Fleet, each_is_told, quiet};
use crate::support::{Wire, figure, listening, queue, until, within, woken};

/// Each begins at any relay, so that it is sure that one begins at each.
const PUBLISHERS: usize = 24;

async fn notify(publisher: &Publisher, number: usize) {
    let name = format!("acct/orders-{number}");
    let notified = publisher.notify(Notification::new(queue(&name)));
    within("a confirmation", notified).await.expect("confirmed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_of_several_relays_leaves_one_that_cannot_confirm() {
    let (fleet, wire) = Fleet::start_with_a_wire().await;
    let mut publishers = Vec::new();
    for number in 0..PUBLISHERS {
        let client = Client::new(&fleet.urls()).expect("URLs");
        let publisher = client.publisher_with(PublisherOptions {
            name: "tests".to_owned(),
            ..PublisherOptions::default()
        });
        notify(&publisher, number).await;
        publishers.push(publisher);
    }
    let admin = fleet.relays[0].admin();
    let connections = figure(admin, "reveille_connections").await;
    assert!(connections > 0, "no publisher began at the first relay");
    wire.cut();
    for (number, publisher) in publishers.iter().enumerate() {
        notify(publisher, number).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_local_acknowledgements_publishers_need_no_broker_and_the_others_are_told_later() {
    let mut fleet = Fleet::start_with(&["--cluster-ack", "local"]).await;
    let mut streams = fleet.subscribe("acct/orders").await;
    fleet.broker.kill();
    quiet(&mut streams).await;
    let first = Client::new(&fleet.relays[0].url()).expect("a URL");
    let publisher = first.publisher("tests");
    let began = Instant::now();
    let notified = publisher.notify(Notification::new(queue("acct/orders")));
    within("an answer", notified).await.expect("counted");
    let took = began.elapsed();
    assert!(
        took < Duration::from_millis(900),
        "waited for a broker: {took:?}"
    );
    each_is_told(&mut streams[..1]).await;
    fleet.broker.restart();
    each_is_told(&mut streams[1..]).await;
}

/// A listener polls at a relay that is cut off. The others may be well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_of_several_relays_leaves_one_that_is_cut_off_for_long() {
    let (fleet, wire) = Fleet::start_with_a_wire().await;
    let first = fleet.relays[0].url();
    let client = loop {
        let client = Client::new(&fleet.urls()).expect("URLs");
        if client.url() == first {
            break client;
        }
    };
    let mut wakes = client
        .subscribe(listening("worker", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    let link = wakes.link();
    let reader = tokio::spawn(async move {
        loop {
            woken(&mut wakes).await;
        }
    });
    wire.cut();
    until("it polls", async || link.borrow().degraded).await;
    until("it is at another relay", async || !link.borrow().degraded).await;
    assert_ne!(client.url(), first);
    reader.abort();
}

/// A balancer leads new connections to a relay that is well, and an open one stays where it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_behind_one_address_leaves_a_relay_that_is_cut_off() {
    let (fleet, wire) = Fleet::start_with_a_wire().await;
    let address = |number: usize| {
        let url = fleet.relays[number].url();
        let address = url.strip_prefix("http://").expect("plain text");
        address.parse().expect("an address")
    };
    let balancer = Wire::to(address(0)).await;
    let client = Client::new(&balancer.url()).expect("a URL");
    let publisher = client.publisher("tests");
    notify(&publisher, 0).await;
    wire.cut();
    balancer.lead_to(address(1));
    notify(&publisher, 1).await;
    assert!(balancer.connections() > 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notification_that_is_repeated_in_an_outage_is_counted_once_at_each_relay() {
    let mut fleet = Fleet::start().await;
    let publisher = fleet.client.publisher("tests");
    notify(&publisher, 7).await;
    fleet.broker.kill();
    let repeated = tokio::spawn(async move {
        notify(&publisher, 7).await;
    });
    // Several rounds of the relays.
    tokio::time::sleep(Duration::from_secs(12)).await;
    fleet.broker.restart();
    within("a confirmation", repeated).await.expect("confirmed");
    let listed = async || {
        let queues = fleet.client.queues().await.expect("listed").entries;
        let queue = queues.iter().find(|queue| queue.queue_name == "orders-7");
        queue.map_or(0, |queue| queue.messages)
    };
    for relay in &fleet.relays {
        let degraded = async || figure(relay.admin(), "reveille_cluster_degraded").await;
        until("no relay is degraded", async || degraded().await == 0).await;
    }
    // What each has counted in the outage is in an earlier frame.
    for (number, relay) in fleet.relays.iter().enumerate() {
        let client = Client::new(&relay.url()).expect("a URL");
        notify(&client.publisher("tests"), 10 + number).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let messages = listed().await;
    assert!(messages <= 1 + 3, "{messages} for two");
}
