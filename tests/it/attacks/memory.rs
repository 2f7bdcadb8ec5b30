//! Clients that make the relay hold more than its limit of memory.

use std::time::Duration;

use reveille::{Client, Notification};
use tokio::{io::AsyncWriteExt, task::JoinSet};

use super::frames::{DATA, RawPeer, frame};
use crate::{
    binary::Binary,
    support::{figure, listening, queue, until, within, woken},
};

const NOTIFY_STREAM: &str = "/reveille.v1.Relay/NotifyStream";
/// The limit of the relay, and what may arrive before the relay acts, in KiB.
const LIMIT: u64 = 96 * 1024;
const SLACK: u64 = 24 * 1024;
/// Connections, and streams of each with an unfinished request of 128 KiB: 127 MiB together.
const PEERS: usize = 60;
const STREAMS: u32 = 17;
const WINDOW: usize = 128 * 1024;
const FRAME: usize = 16 * 1024;

/// Opens the streams, without a request.
async fn opened(relay: &Binary) -> RawPeer {
    let address = relay.address().parse().expect("an address");
    let mut peer = RawPeer::greeting(address).await;
    for stream in 0..STREAMS {
        peer.open(1 + 2 * stream, NOTIFY_STREAM).await;
    }
    peer
}

/// Begins a long request on each stream, as far as HTTP/2 allows it.
async fn begin_requests(mut peer: RawPeer) -> RawPeer {
    let mut request = vec![0, 0, 7, 0, 0];
    request.resize(WINDOW, 0);
    for stream in 0..STREAMS {
        for piece in request.chunks(FRAME) {
            let data = frame(DATA, 0, 1 + 2 * stream, piece);
            if peer.0.write_all(&data).await.is_err() {
                return peer;
            }
        }
    }
    peer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_number_of_unfinished_requests_takes_more_than_the_limit_of_memory() {
    let relay = Binary::serve_with(&["--max-memory", "96MiB"], &[]).await;
    let client = Client::new(&relay.url()).expect("a client");
    let mut wakes = client
        .subscribe(listening("good", &["good/pair"]))
        .expect("options");
    woken(&mut wakes).await;
    let publisher = client.publisher("good");
    let mut peers = Vec::new();
    for _ in 0..PEERS {
        peers.push(opened(&relay).await);
    }
    let mut attack: JoinSet<_> = peers.into_iter().map(begin_requests).collect();
    let (mut most, mut held) = (0, Vec::new());
    while !attack.is_empty() || held.len() < 20 {
        let notified = publisher.notify(Notification::new(queue("good/pair")));
        within("a known queue is counted", notified)
            .await
            .expect("counted");
        woken(&mut wakes).await;
        most = most.max(relay.resident());
        held.extend(attack.try_join_next());
    }
    let closed = "reveille_connections_closed_for_memory_total";
    until("the greediest are closed", async || {
        figure(relay.admin(), closed).await > 0
    })
    .await;
    println!("at most {most} KiB of {LIMIT}");
    assert!(most <= LIMIT + SLACK, "{most} KiB");
    assert!(most >= LIMIT * 7 / 8, "the attack is too weak: {most} KiB");
    drop(held);
    until("there is memory again", async || {
        figure(relay.admin(), "reveille_short_of_memory").await == 0
    })
    .await;
    let mut later = client
        .subscribe(listening("later", &["good/later"]))
        .expect("options");
    woken(&mut later).await;
    tokio::time::sleep(Duration::ZERO).await;
}
