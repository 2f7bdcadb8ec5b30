//! Three relays as processes on one broker, while relays and the broker are killed and frozen. Each
//! acknowledged notification reaches each subscriber: as itself, or as a check afterwards.

use std::time::Duration;

use reveille::{Client, Notification, PublisherOptions, Subscription, WakeReason};

use super::{settings::see_each_other, witness::Witness};
use crate::{
    binary::Binary,
    support::{Wire, listening, nats::NatsServer, queue, within, woken},
};

/// Three relays on one store, and a client of all of them.
pub(super) struct Fleet {
    _home: tempfile::TempDir,
    pub(super) broker: NatsServer,
    pub(super) relays: Vec<Binary>,
    pub(super) client: Client,
}

impl Fleet {
    pub(super) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts the relays with further arguments.
    pub(super) async fn start_with(further: &[&str]) -> Self {
        let broker = NatsServer::start();
        let url = broker.url();
        Self::on(broker, [&url, &url, &url], further).await
    }

    /// Starts the relays; the first one reaches the broker by a wire.
    pub(super) async fn start_with_a_wire() -> (Self, Wire) {
        let broker = NatsServer::start();
        let wire = Wire::to(([127, 0, 0, 1], broker.port()).into()).await;
        let (by_wire, url) = (format!("nats://{}", wire.address()), broker.url());
        let fleet = Self::on(broker, [&by_wire, &url, &url], &[]).await;
        (fleet, wire)
    }

    /// Starts a relay for each URL of the broker.
    async fn on(broker: NatsServer, urls: [&str; 3], further: &[&str]) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let store = format!("sqlite:{}", home.path().join("flags.db").display());
        let mut relays = Vec::new();
        for (number, url) in urls.into_iter().enumerate() {
            let id = format!("relay-{number}");
            let arguments = ["--store", &store, "--cluster", url, "--relay-id", &id];
            relays.push(Binary::serve_with(&[&arguments, further].concat(), &[]).await);
        }
        // A relay may be ready a moment before it has heard the others.
        see_each_other(&relays).await;
        let urls: Vec<String> = relays.iter().map(Binary::url).collect();
        Self {
            _home: home,
            broker,
            client: Client::new(&urls.join(",")).expect("URLs"),
            relays,
        }
    }

    /// Returns the URLs of all relays, with commas between them.
    pub(super) fn urls(&self) -> String {
        let urls: Vec<String> = self.relays.iter().map(Binary::url).collect();
        urls.join(",")
    }

    /// Subscribes to the queues at each relay, and keeps the times of the wake-ups.
    pub(super) async fn witnesses(&self, queues: &[String]) -> Vec<Witness> {
        let mut all = Vec::new();
        for (number, relay) in self.relays.iter().enumerate() {
            all.push(Witness::of(&relay.url(), &format!("worker-{number}"), queues).await);
        }
        all
    }

    /// Opens a subscription of the queue at each relay.
    pub(super) async fn subscribe(&self, name: &str) -> Vec<Subscription> {
        let mut streams = Vec::new();
        for (number, relay) in self.relays.iter().enumerate() {
            let client = Client::new(&relay.url()).expect("a URL");
            let options = listening(&format!("worker-{number}"), &[name]);
            let mut wakes = client.subscribe(options).expect("options");
            woken(&mut wakes).await;
            streams.push(wakes);
        }
        streams
    }
}

/// Notifies once, and repeats until a relay has confirmed it.
pub(super) async fn notify(client: &Client, name: &str) {
    let publisher = client.publisher_with(PublisherOptions {
        name: "tests".to_owned(),
        ..PublisherOptions::default()
    });
    let notified = publisher.notify(Notification::new(queue(name)));
    within("a confirmation", notified).await.expect("confirmed");
}

/// Waits until each subscriber was told of one of these notifications, or was asked to check.
pub(super) async fn each_is_told(streams: &mut [Subscription]) {
    for wakes in streams {
        let work = woken(wakes).await;
        assert!(
            matches!(work.reason, WakeReason::Notified | WakeReason::CatchUp),
            "{work:?}"
        );
    }
}

/// Takes the wake-ups that still arrive within a while.
pub(super) async fn quiet(streams: &mut [Subscription]) {
    for wakes in streams {
        while tokio::time::timeout(Duration::from_millis(300), wakes.next())
            .await
            .is_ok()
        {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_confirmed_notification_outlives_the_relay_that_confirmed_it() {
    let mut fleet = Fleet::start().await;
    let mut streams = fleet.subscribe("acct/orders").await;
    let mut killed = streams.remove(0);
    for _ in 0..3 {
        // The publisher's relay dies at once after its answer.
        let first = Client::new(&fleet.relays[0].url()).expect("a URL");
        notify(&first, "acct/orders").await;
        fleet.relays[0].crash().await;
        each_is_told(&mut streams).await;
        // The subscriber of that relay checks when the relay is there again.
        each_is_told(std::slice::from_mut(&mut killed)).await;
        quiet(&mut streams).await;
        quiet(std::slice::from_mut(&mut killed)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_are_told_of_what_was_notified_around_a_broker_that_is_killed() {
    let mut fleet = Fleet::start().await;
    let mut streams = fleet.subscribe("acct/orders").await;
    for _ in 0..3 {
        fleet.broker.kill();
        let (client, name) = (fleet.client.clone(), "acct/orders");
        let notified = tokio::spawn(async move { notify(&client, name).await });
        tokio::time::sleep(Duration::from_millis(700)).await;
        fleet.broker.restart();
        within("a confirmation", notified).await.expect("no panic");
        each_is_told(&mut streams).await;
        quiet(&mut streams).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_broker_degrades_all_relays_and_loses_nothing() {
    let fleet = Fleet::start().await;
    let mut streams = fleet.subscribe("acct/orders").await;
    fleet.broker.freeze();
    let (client, name) = (fleet.client.clone(), "acct/orders");
    let notified = tokio::spawn(async move { notify(&client, name).await });
    for relay in &fleet.relays {
        let admin = relay.admin();
        crate::support::until("the relay is degraded", async || {
            crate::support::get(admin, "/readyz").await.0 == 503
        })
        .await;
    }
    fleet.broker.resume();
    within("a confirmation", notified).await.expect("no panic");
    each_is_told(&mut streams).await;
}
