//! Clients that make the relay hold as much memory as they can.

use std::time::Duration;

use reveille::{Client, Notification};
use tokio::{task::JoinSet, time::Instant};

use super::{
    deadlines::with_rules,
    frames::{ACK, DATA, RawPeer, SETTINGS, frame, settings},
    harness::Trial,
    peer::{Peer, Unfinished, ended},
    target::{Scheme, Target},
};
use crate::{
    binary::Binary,
    support::{figure, listening, queue, until, within, woken},
};

const SUBSCRIBE: &str = "/reveille.v1.Relay/Subscribe";
const NOTIFY_STREAM: &str = "/reveille.v1.Relay/NotifyStream";
/// The limit of the relay, and what may arrive before the relay acts, in KiB.
const LIMIT: u64 = 64 * 1024;
const SLACK: u64 = 56 * 1024;
/// Connections, and streams of each, with 128 KiB in each stream: 127 MiB together.
const PEERS: usize = 60;
const STREAMS: u32 = 17;
const WINDOW: usize = 128 * 1024;
const FRAME: usize = 16 * 1024;
/// The shortest request: one event on `a/b`, with its prefix.
const REQUEST: &[u8] = b"\0\0\0\0\x08\x0a\x06\x0a\x01a\x12\x01b";

/// Opens the streams without a request, and never lets the relay send an answer.
async fn opened(target: &Target, path: &str) -> RawPeer {
    let mut peer = RawPeer::greeting(target).await;
    peer.send(&settings(4, 0)).await.expect("taken");
    assert_eq!(peer.next_frame().await.0, SETTINGS);
    peer.send(&frame(SETTINGS, ACK, 0, &[]))
        .await
        .expect("taken");
    for stream in 0..STREAMS {
        peer.open(1 + 2 * stream, path).await;
    }
    peer
}

/// Sends these bytes on each stream, as far as HTTP/2 allows it.
async fn fill(mut peer: RawPeer, bytes: Vec<u8>) -> RawPeer {
    for stream in 0..STREAMS {
        for piece in bytes.chunks(FRAME) {
            let data = frame(DATA, 0, 1 + 2 * stream, piece);
            // The relay may close the connection.
            if peer.send(&data).await.is_err() {
                return peer;
            }
        }
    }
    peer
}

/// Time in which the relay reads what was sent.
const READ_WITHIN: Duration = Duration::from_secs(2);

/// Fills all streams of all connections with these bytes, beside a publisher and a subscriber that must
/// not notice.
async fn attack(bytes: &[u8]) {
    let relay = Binary::serve_with(&["--max-memory", "64MiB"], &[]).await;
    let client = Client::new(&relay.url()).expect("a client");
    let mut wakes = client
        .subscribe(listening("good", &["good/pair"]))
        .expect("options");
    woken(&mut wakes).await;
    let publisher = client.publisher("good");
    let target = Target::plain(&relay);
    let mut peers = Vec::new();
    for _ in 0..PEERS {
        peers.push(opened(&target, SUBSCRIBE).await);
    }
    let fill_all = peers.into_iter().map(|peer| fill(peer, bytes.to_vec()));
    let mut filling: JoinSet<_> = fill_all.collect();
    let short = async || figure(relay.admin(), "reveille_short_of_memory").await;
    let (mut most, mut held) = (0, Vec::new());
    let began = Instant::now();
    // What was sent is read some time later.
    while !filling.is_empty() || began.elapsed() < READ_WITHIN {
        let notified = publisher.notify(Notification::new(queue("good/pair")));
        let counted = within("a known queue is counted", notified).await;
        counted.expect("counted");
        woken(&mut wakes).await;
        most = most.max(relay.resident());
        held.extend(filling.try_join_next());
    }
    most = most.max(relay.resident());
    println!("at most {most} KiB, with a limit of {LIMIT} KiB");
    assert!(most <= LIMIT + SLACK, "{most} KiB");
    // Also while the peers stay.
    until("there is memory again", async || short().await == 0).await;
    let refused = figure(
        relay.admin(),
        "reveille_connections_refused_for_memory_total",
    );
    assert!(refused.await > 0, "nothing was refused");
    println!("{} KiB when there is memory again", relay.resident());
    let mut later = client
        .subscribe(listening("later", &["good/later"]))
        .expect("options");
    woken(&mut later).await;
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn near_its_limit_of_memory_a_relay_receives_no_large_request() {
    let mut unfinished = vec![0, 0, 16, 0, 0];
    unfinished.resize(WINDOW, 0);
    attack(&unfinished).await;
}

/// HTTP/2 holds what a service does not read, up to its windows: the worst that a peer can do with
/// requests that are answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_windows_bound_what_unread_answers_take() {
    let mut trial = Trial::start(Scheme::Plain, &[]).await;
    let target = trial.target();
    let requests = REQUEST.repeat(64 * 1024 / REQUEST.len());
    let attack = async move {
        let mut peers = JoinSet::new();
        for _ in 0..PEERS {
            let peer = opened(&target, NOTIFY_STREAM).await;
            peers.spawn(fill(peer, requests.clone()));
        }
        let held = peers.join_all().await;
        tokio::time::sleep(READ_WITHIN).await;
        held.len()
    };
    let (held, damage) = trial.under(attack).await;
    assert_eq!(held, PEERS);
    // A stream has a window of 64 KiB, and 16 KiB of answers: together less than the window of a
    // connection.
    damage.is_within(PEERS as u64 * u64::from(STREAMS) * (64 + 16) * 5 / 4);
}

/// Checks of the health and the calls of KEDA are received before their caller is known.
#[tokio::test]
async fn callers_that_are_not_known_hold_little() {
    let home = tempfile::tempdir().expect("a directory");
    let (relay, _) = with_rules(home.path()).await;
    let target = Target::plain(&relay);
    let before = relay.resident();
    for path in [
        "/grpc.health.v1.Health/Check",
        "/externalscaler.ExternalScaler/IsActive",
    ] {
        let peer = Peer::connect(&target, 64 * 1024).await;
        let answers = peer.call_often(900, path, || Unfinished::message(64 * 1024));
        for answer in answers.await {
            let (code, message) = ended(answer.expect("answered")).await;
            assert_eq!(code, "8", "{path}: {message}");
        }
    }
    let grown = relay.resident().saturating_sub(before);
    // All of it would be 112 MiB.
    assert!(grown < 48 * 1024, "{grown} KiB");
}
