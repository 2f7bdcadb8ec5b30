//! Two routed brokers with a relay at each, while their route is cut and joined again.

use std::time::{Duration, Instant};

use reveille::{Client, FlagName, FlagWatch as _, ListenerId, UnleashOptions, WakeReason};

use super::witness::{SLACK, Witness, all_are_told, names, publish};
use crate::{
    binary::{Binary, limits},
    nats::routes::{RoutedServers, passes},
    support::{Wire, figure, until, within},
};

/// Returns how many other relays a relay sees.
async fn others(relay: &Binary) -> u64 {
    figure(relay.admin(), "reveille_cluster_relays").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_of_parted_brokers_serve_their_sides_and_tell_all_when_these_are_joined() {
    serve_their_sides_and_tell_all(Wire::cut).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_route_that_carries_nothing_parts_its_sides_as_one_that_is_cut() {
    serve_their_sides_and_tell_all(Wire::stall).await;
}

async fn serve_their_sides_and_tell_all(part: fn(&Wire)) {
    let servers = RoutedServers::start().await;
    let home = tempfile::tempdir().expect("a directory");
    let store = format!("sqlite:{}", home.path().join("flags.db").display());
    let mut relays = Vec::new();
    let mut brokers = Vec::new();
    for server in [&servers.first, &servers.second] {
        let (url, file) = (server.url(), limits("flag_refresh = '0'"));
        let arguments = ["--store", &store, "--cluster", &url, "--config", &file];
        relays.push(Binary::serve_with(&arguments, &[]).await);
        let connected = within("a connection", async_nats::connect(server.url())).await;
        brokers.push(connected.expect("connected"));
    }
    for relay in &relays {
        until("each sees the other", async || others(relay).await == 1).await;
    }
    let sides = [names("first", 20), names("second", 20)];
    let queues = sides.concat();
    let mut witnesses = Vec::new();
    for (number, relay) in relays.iter().enumerate() {
        let id = format!("worker-{number}");
        witnesses.push(Witness::of(&relay.url(), &id, &queues).await);
    }

    let clients = [0, 1].map(|side: usize| Client::new(&relays[side].url()).expect("a URL"));
    let (flag, node) = (FlagName::new("go"), ListenerId::new("parked"));
    let flag = flag.expect("a name");
    let mut parked = clients[1].watch_flag(flag.clone(), node.expect("a name"));
    let first = within("the state", parked.next()).await.expect("not ended");
    assert!(!first.expect("read").set);

    part(&servers.route);
    for relay in &relays {
        until("each misses the other", async || others(relay).await == 0).await;
    }
    let mut notified = Vec::new();
    for (side, relay) in relays.iter().enumerate() {
        let began = Instant::now();
        let client = Client::new(&relay.url()).expect("a URL");
        let all = publish(client, sides[side].clone(), Duration::ZERO).await;
        all_are_told(&witnesses[side], &all, began, Duration::from_millis(150)).await;
        for one in &all {
            let told = witnesses[side].told(&one.queue, one.began).await;
            assert_eq!(told.reason, WakeReason::Notified, "{}", one.queue);
            let across = witnesses[1 - side].was_told(&one.queue, began);
            assert!(!across, "{} was told across the cut", one.queue);
        }
        notified.push(all);
    }

    // A flag is set and cleared while no message passes (R21).
    let (admin, options) = (clients[0].flags(), UnleashOptions::default());
    let set = admin.unleash(&flag, &options);
    let set = within("an answer", set).await.expect("stored").flag;
    let cleared = within("an answer", admin.leash(&flag)).await;
    assert!(!cleared.expect("cleared").set);

    servers.route.mend();
    let (first, second) = (&brokers[0], &brokers[1]);
    until("joined", async || passes(first, second).await).await;
    let joined = Instant::now();
    let told = within("the set", parked.next()).await.expect("not ended");
    let told = told.expect("read");
    assert_eq!((told.set, told.generation), (true, set.generation));
    for (side, all) in notified.iter().enumerate() {
        let bound = Duration::from_millis(4500);
        all_are_told(&witnesses[1 - side], all, joined, bound).await;
    }
    for relay in &relays {
        until("each sees the other", async || others(relay).await == 1).await;
    }
    // Afterwards one side tells the other without a check.
    let again = Instant::now();
    let client = Client::new(&relays[0].url()).expect("a URL");
    let name = &sides[0][..1];
    tokio::time::sleep(SLACK).await;
    publish(client, name.to_vec(), Duration::ZERO).await;
    let told = witnesses[1].told(&name[0], again + SLACK).await;
    assert_eq!(told.reason, WakeReason::Notified);
}
