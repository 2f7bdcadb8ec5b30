//! Clients that make the relay hold as much memory as they can.

use std::time::Duration;

use prost::Message as _;
use reveille::{Client, Notification};
use tokio::{task::JoinSet, time::Instant};

use super::{
    frames::{ACK, DATA, END_STREAM, RawPeer, SETTINGS, frame, settings},
    harness::Trial,
    peer::{Peer, Unfinished},
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
/// Time in which the relay reads what was sent.
const READ_WITHIN: Duration = Duration::from_secs(2);
/// The windows of HTTP/2 that docs/limits.md multiplies by the connections, in KiB.
const CONNECTION_WINDOW: u64 = 1152;
/// Connections that fill their windows, and streams of each, which fill more than that together.
const GREEDY: usize = 48;
const GREEDY_STREAMS: usize = 20;
/// The shortest request: one event on `a/b`, with its prefix.
const REQUEST: &[u8] = b"\0\0\0\0\x08\x0a\x06\x0a\x01a\x12\x01b";
/// Streams of one connection that never let the relay send a wake-up; the relay allows 1,000.
const UNREAD_STREAMS: u32 = 900;

/// The first fields of a `SubscribeRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct Subscribe {
    #[prost(string, tag = "1")]
    listener_id: String,
    #[prost(message, repeated, tag = "2")]
    selectors: Vec<Queue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Queue {
    #[prost(string, tag = "1")]
    storage_account: String,
    #[prost(string, tag = "2")]
    queue_name: String,
}

/// Opens the streams without a request, and never lets the relay send an answer.
async fn opened(target: &Target) -> RawPeer {
    let mut peer = RawPeer::greeting(target).await;
    peer.send(&settings(4, 0)).await.expect("taken");
    assert_eq!(peer.next_frame().await.0, SETTINGS);
    peer.send(&frame(SETTINGS, ACK, 0, &[]))
        .await
        .expect("taken");
    for stream in 0..STREAMS {
        peer.open(1 + 2 * stream, SUBSCRIBE).await;
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

/// Fills all streams of all connections, beside a publisher and a subscriber that must not notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn near_its_limit_of_memory_a_relay_receives_no_large_request() {
    let mut unfinished = vec![0, 0, 16, 0, 0];
    unfinished.resize(WINDOW, 0);
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
        peers.push(opened(&target).await);
    }
    let fill_all = peers.into_iter().map(|peer| fill(peer, unfinished.clone()));
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

/// The worst that a peer can do with requests that are answered: it reads no answer, and sends
/// requests as long as the windows allow it. HTTP/2 holds what a service does not read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_windows_bound_what_unread_answers_take() {
    let mut trial = Trial::start(Scheme::Plain, &[]).await;
    let target = trial.target();
    // Far more than the windows.
    let requests = REQUEST.repeat(1024 * 1024 / REQUEST.len());
    let attack = async move {
        let mut held = Vec::new();
        for _ in 0..GREEDY {
            let peer = Peer::connect(&target, 1).await;
            let endless = || Unfinished::begun(requests.clone());
            let answers = peer.call_often(GREEDY_STREAMS, NOTIFY_STREAM, endless);
            held.extend(answers.await);
        }
        tokio::time::sleep(READ_WITHIN).await;
        held.len()
    };
    let (held, damage) = trial.under(attack).await;
    assert_eq!(held, GREEDY * GREEDY_STREAMS);
    let windows = GREEDY as u64 * CONNECTION_WINDOW;
    let filled = damage.growth > windows / 2;
    assert!(filled, "the windows are not filled: {damage}");
    damage.is_within(windows * 2);
}

/// A message with its prefix, in one DATA frame that ends the request.
fn last_data(stream: u32, message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("a short message");
    let bytes = [&[0], &length.to_be_bytes()[..], message].concat();
    frame(DATA, END_STREAM, stream, &bytes)
}

/// Opens subscriptions of the good pair's queue on one connection.
async fn subscribe_unread(peer: &mut RawPeer, streams: u32) {
    for number in 0..streams {
        let stream = 2 * number + 1;
        let queue = Queue {
            storage_account: "good".to_owned(),
            queue_name: "pair".to_owned(),
        };
        let subscribe = Subscribe {
            listener_id: format!("unread-{number}"),
            selectors: vec![queue],
        };
        peer.open(stream, SUBSCRIBE).await;
        let request = last_data(stream, &subscribe.encode_to_vec());
        peer.send(&request).await.expect("taken");
    }
}

/// Subscribes to the good pair's queue, so that each of its notifications is owed to each stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_with_closed_windows_disturb_no_listener() {
    let mut trial = Trial::start(Scheme::Plain, &[]).await;
    let target = trial.target();
    let attack = async move {
        let mut held = Vec::new();
        for window in [0, 1] {
            let mut peer = RawPeer::greeting(&target).await;
            peer.send(&settings(4, window)).await.expect("taken");
            subscribe_unread(&mut peer, UNREAD_STREAMS).await;
            held.push(peer);
        }
        tokio::time::sleep(READ_WITHIN).await;
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(48 * 1024);
}
