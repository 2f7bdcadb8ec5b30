//! Peers that say nothing, say something else, or never read.

use std::time::Duration;

use reveille::{
    Client, Node, NodeConfig, Notification, Notifier, ServerLimits, testing::TestRelay,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

#[cfg(target_os = "linux")]
use crate::binary::Binary;
use crate::support::{figure, listening, queue, until, within, woken};

/// Waits until the relay has closed the connection; returns how many bytes it sent before.
async fn closed(stream: &mut TcpStream) -> usize {
    let mut bytes = [0; 64];
    let mut count = 0;
    loop {
        match within("the relay closes it", stream.read(&mut bytes)).await {
            Ok(0) | Err(_) => return count,
            Ok(more) => count += more,
        }
    }
}

#[tokio::test]
async fn a_peer_that_says_nothing_is_closed() {
    let relay = TestRelay::start().await.expect("a relay");
    let address = relay.node().expect("it runs").address();
    let mut silent = TcpStream::connect(address).await.expect("it listens");
    let mut half = TcpStream::connect(address).await.expect("it listens");
    half.write_all(b"PRI * HT").await.expect("written");
    // The first bytes have 5 s; twice that is patience for a busy machine.
    let both = async {
        assert_eq!(closed(&mut silent).await, 0);
        assert_eq!(closed(&mut half).await, 0);
    };
    tokio::time::timeout(Duration::from_secs(10), both)
        .await
        .expect("closed by the deadline for first bytes");
}

#[tokio::test]
async fn a_peer_that_speaks_something_else_is_closed_at_once() {
    let relay = TestRelay::start().await.expect("a relay");
    let address = relay.node().expect("it runs").address();
    for garbage in [
        &b"GET / HTTP/1.1\r\nhost: relay\r\n\r\n"[..],
        &[0x16, 3, 1, 0, 200, 1, 0],
        &[0; 24],
    ] {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(garbage).await.expect("written");
        let ended = tokio::time::timeout(Duration::from_secs(4), closed(&mut stream));
        assert_eq!(ended.await.expect("before the deadline"), 0, "told nothing");
    }
}

/// HTTP/2's preface and empty settings: an honest beginning.
const BEGINNING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[tokio::test]
async fn a_full_relay_that_shuts_down_takes_nobody_in() {
    let config = NodeConfig {
        listen: ([127, 0, 0, 1], 0).into(),
        admin_listen: None,
        limits: ServerLimits {
            max_connections: Some(1),
            ..ServerLimits::default()
        },
        ..NodeConfig::default()
    };
    let node = Node::start(config).await.expect("a relay");
    let address = node.address();
    // Never answers the PING with which a connection is ended: it holds its place until the grace
    // period is over.
    let mut held = TcpStream::connect(address).await.expect("it listens");
    held.write_all(BEGINNING).await.expect("written");
    within("settings", held.read_exact(&mut [0; 9]))
        .await
        .expect("read");

    let grace = Duration::from_secs(60);
    let shutdown = tokio::spawn(node.shutdown(grace));
    // Whoever comes now is told at once to go elsewhere, instead of waiting in the backlog.
    until("refused", async || {
        TcpStream::connect(address).await.is_err()
    })
    .await;
    assert!(!shutdown.is_finished(), "the grace period is not over");
    drop(held);
    within("the end", shutdown).await.expect("no panic");
}

#[tokio::test]
async fn a_full_relay_that_shuts_down_ends_by_the_end_of_the_grace_period() {
    let config = NodeConfig {
        limits: ServerLimits {
            max_connections: Some(2),
            ..ServerLimits::default()
        },
        ..NodeConfig::default()
    };
    let mut relay = TestRelay::with_config(config).await.expect("a relay");
    let address = relay.node().expect("it runs").address();
    let mut held = Vec::new();
    for _ in 0..5 {
        let mut one = TcpStream::connect(address).await.expect("it listens");
        one.write_all(BEGINNING).await.expect("written");
        held.push(one);
    }
    within("the end", relay.stop()).await;
    for one in &mut held {
        closed(one).await;
    }
}

#[tokio::test]
async fn a_reader_that_does_not_read_is_owed_one_entry() {
    let relay = TestRelay::start().await.expect("a relay");
    let admin = relay.admin_address().expect("an admin port");
    let client = relay.client().expect("a client");
    let mut reader = client
        .subscribe(listening("reader", &["acct/orders"]))
        .expect("options");
    woken(&mut reader).await;
    let mut idle = client
        .subscribe(listening("idle", &["acct/orders"]))
        .expect("options");
    woken(&mut idle).await;

    let publisher = relay.node().expect("it runs").relay().publisher("burst");
    let thousand = vec![Notification::new(queue("acct/orders")); 1000];
    for _ in 0..1000 {
        publisher.notify(thousand.clone()).await.expect("counted");
    }
    let mut told = 0;
    while told < 1_000_000 {
        told += woken(&mut reader).await.notifications;
    }
    assert_eq!(told, 1_000_000);
    // What was sent to both is far below what was notified: nothing was kept for either.
    let entries = figure(admin, "reveille_wake_entries_total").await;
    assert!(entries < 100_000, "{entries} entries");
    let mut late = 0;
    while late < 1_000_000 {
        late += woken(&mut idle).await.notifications;
    }
    assert_eq!(late, 1_000_000, "it is told of each all the same");
    drop((reader, idle));
    until("both have ended", async || {
        figure(admin, "reveille_subscriptions").await == 0
    })
    .await;
}

/// What a million notifications cost the relay's process, in KiB, where the subscriber does or does
/// not read.
#[cfg(target_os = "linux")]
async fn cost(reads: bool) -> u64 {
    let relay = Binary::serve().await;
    let client = Client::new(&relay.url()).expect("a client");
    let mut wakes = client
        .subscribe(listening("reader", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    let publisher = client.publisher("p");
    let thousand = vec![Notification::new(queue("acct/orders")); 1000];
    let publish = async {
        for _ in 0..1000 {
            publisher
                .notify_all(thousand.clone())
                .await
                .expect("counted");
        }
    };
    if reads {
        let read = async {
            let mut told = 0;
            while told < 1_000_000 {
                told += woken(&mut wakes).await.notifications;
            }
        };
        tokio::join!(publish, read);
    } else {
        publish.await;
    }
    relay.resident()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_reader_that_does_not_read_costs_no_more_memory() {
    let (reading, silent) = (cost(true).await, cost(false).await);
    // Far below what a million notifications would take; pages come and go by this much.
    let allowed = reading + 4 * 1024;
    assert!(
        silent <= allowed,
        "{silent} KiB, with a reader {reading} KiB"
    );
}
