//! One relay loses its link to the broker, or all relays do, while clients publish.

use std::time::{Duration, Instant};

use reveille::{Client, Notification, Publisher, PublisherOptions};

use super::processes::{Fleet, each_is_told, quiet};
use crate::support::{figure, queue, within};

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
