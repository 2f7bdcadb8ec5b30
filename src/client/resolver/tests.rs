//! Names with several addresses: their order, and clients of real relays behind one name.

use std::{collections::HashSet, time::Duration};

use tokio::{net::TcpListener, time::Instant};

use super::*;
use crate::{
    client::{Client, Subscription},
    relay::{Node, NodeConfig},
    types::{ListenerId, Notification, QueueAddress, SubscribeOptions, WakeReason, WorkDetected},
};

/// The names of tests, because the system's are not theirs to change: `relays-N.test` has the
/// addresses 127.0.0.1 to 127.0.0.N.
pub(super) fn addresses(name: &str) -> Option<Vec<SocketAddr>> {
    let count = name.strip_prefix("relays-")?.strip_suffix(".test")?;
    let count: u8 = count.parse().ok()?;
    Some((1..=count).map(v4).collect())
}

fn v4(last: u8) -> SocketAddr {
    ([127, 0, 0, last], 0).into()
}

fn v6(last: u16) -> SocketAddr {
    ([0, 0, 0, 0, 0, 0, 0, last], 0).into()
}

#[test]
fn each_turn_begins_with_another_address_and_keeps_the_order() {
    let resolver = Resolver::new();
    let found: Vec<_> = (1..=3).map(v4).collect();
    let first = resolver.order(found.clone());
    assert_eq!(resolver.count(), 3);
    let reversed = found.into_iter().rev().collect();
    assert_eq!(resolver.order(reversed), first, "the system's order is not");
    assert!(resolver.leave(0));
    assert!(!resolver.leave(0), "left before");
    let second = resolver.order(first.clone());
    assert_eq!(second, [first[1], first[2], first[0]]);
    assert!(resolver.leave(1) && resolver.leave(2));
    assert_eq!(resolver.order(second), first, "around");
}

#[test]
fn clients_of_one_name_begin_at_different_addresses() {
    let found: Vec<_> = (1..=3).map(v4).collect();
    let begins = |_| Resolver::new().order(found.clone())[0];
    let begun: HashSet<_> = (0..200).map(begins).collect();
    assert_eq!(begun.len(), 3);
}

#[test]
fn a_machine_with_an_address_of_each_family_is_one_relay() {
    let resolver = Resolver::new();
    assert_eq!(resolver.order(vec![v6(1), v4(1)]), [v6(1), v4(1)]);
    assert_eq!(resolver.count(), 1);
    let ordered = resolver.order(vec![v4(1), v6(1), v4(2), v4(1)]);
    assert_eq!(ordered.len(), 3, "without the copy");
    assert!(ordered[0].is_ipv4(), "the system's preference");
    assert_eq!(resolver.count(), 2);
    assert_eq!(resolver.order(Vec::new()), []);
    assert_eq!(resolver.count(), 1);
}

#[test]
fn a_relay_without_an_address_of_the_preferred_family_has_its_turn() {
    let resolver = Resolver::new();
    let mut firsts = HashSet::new();
    for turn in 0..2 {
        let ordered = resolver.order(vec![v6(1), v4(1), v4(2)]);
        assert_eq!((ordered.len(), resolver.count()), (3, 2));
        firsts.insert(ordered[0]);
        assert!(resolver.leave(turn));
    }
    assert_eq!(firsts, HashSet::from([v4(1), v4(2)]));
}

#[test]
fn an_attempt_tries_few_addresses() {
    let resolver = Resolver::new();
    let ordered = resolver.order((1..=9).map(v4).chain((1..=9).map(v6)).collect());
    assert_eq!(ordered.len(), 4, "three and one of the other family");
    assert_eq!(resolver.count(), 9);
}

fn orders() -> QueueAddress {
    "acct/orders".parse().expect("an address")
}

async fn relay_at(address: SocketAddr) -> Option<Node> {
    let config = NodeConfig {
        listen: address,
        admin_listen: None,
        ..NodeConfig::default()
    };
    Node::start(config).await.ok()
}

/// Starts relays at 127.0.0.1 to 127.0.0.N, on one port.
async fn relays(count: u8) -> Vec<Node> {
    for _ in 0..20 {
        let mut relays = Vec::new();
        relays.extend(relay_at(v4(1)).await);
        let port = relays[0].address().port();
        for last in 2..=count {
            let address = SocketAddr::new(v4(last).ip(), port);
            relays.extend(relay_at(address).await);
        }
        if relays.len() == usize::from(count) {
            return relays;
        }
    }
    panic!("no port is free on {count} addresses");
}

fn client(relays: u8, port: u16) -> Client {
    Client::new(&format!("http://relays-{relays}.test:{port}")).expect("a client")
}

async fn woken(wakes: &mut Subscription) -> WorkDetected {
    let woken = tokio::time::timeout(Duration::from_secs(10), wakes.next()).await;
    let woken = woken.expect("in time").expect("open");
    woken.expect("a wake-up")
}

/// Returns which of the relays has the stream.
async fn with_stream(relays: &[Node]) -> usize {
    let mut found = Vec::new();
    for (number, relay) in relays.iter().enumerate() {
        let client = Client::new(&format!("http://{}", relay.address())).expect("a client");
        let listeners = client.listeners().await.expect("listed");
        found.extend((!listeners.is_empty()).then_some(number));
    }
    assert_eq!(found.len(), 1, "one stream: {found:?}");
    found[0]
}

// Other systems have one loopback address.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_a_name_leaves_an_address_whose_relay_ends() {
    let mut relays = relays(3).await;
    let client = client(3, relays[0].address().port());
    let listener = ListenerId::new("worker-1").expect("an id");
    let options = SubscribeOptions::new(listener, [orders()]);
    let mut wakes = client.subscribe(options).expect("options");
    assert_eq!(woken(&mut wakes).await.reason, WakeReason::CatchUp);
    let mut draining = Vec::new();
    for left in [2, 1] {
        // These relays know nothing of each other: the publisher is at the one of the stream.
        let publisher = client.publisher("billing");
        let notified = publisher.notify(Notification::new(orders()));
        assert_eq!(notified.await.expect("counted").listeners, 1);
        assert_eq!(woken(&mut wakes).await.reason, WakeReason::Notified);
        assert_eq!(client.listeners().await.expect("listed").len(), 1);
        let used = relays.remove(with_stream(&relays).await);
        let began = Instant::now();
        match left {
            // It refuses new streams, and its address can still be reached.
            2 => {
                used.relay().drain();
                draining.push(used);
            }
            _ => drop(used),
        }
        assert_eq!(woken(&mut wakes).await.reason, WakeReason::CatchUp);
        let moved = began.elapsed();
        assert!(moved < Duration::from_secs(5), "{moved:?}");
        with_stream(&relays).await;
    }
    let publisher = client.publisher("billing");
    let notified = publisher.notify(Notification::new(orders()));
    assert_eq!(notified.await.expect("counted").listeners, 1);
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_a_name_leaves_an_address_that_does_not_answer() {
    let relays = relays(2).await;
    let port = relays[0].address().port();
    // A stopped relay: the system takes its connections, and nothing answers.
    let silent = TcpListener::bind(SocketAddr::new(v4(3).ip(), port)).await;
    let _silent = silent.expect("a free address");
    let mut seen = HashSet::new();
    for _ in 0..100 {
        let client = client(3, port);
        let began = Instant::now();
        client.queues().await.expect("listed at another address");
        let took = began.elapsed();
        assert!(took < Duration::from_secs(4), "{took:?}");
        // The client stays at the address that has answered.
        let again = Instant::now();
        client.queues().await.expect("listed again");
        assert!(again.elapsed() < Duration::from_secs(1));
        // Clients begin at different addresses.
        seen.insert(took > Duration::from_secs(1));
        if seen.len() == 2 {
            return;
        }
    }
    panic!("no client began at the silent address, or all did");
}
