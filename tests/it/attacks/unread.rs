//! Streams whose windows are never opened, and sockets that are never read.

use std::time::Duration;

use prost::Message as _;

use super::{
    frames::{DATA, END_STREAM, RawPeer, WINDOW_UPDATE, frame, request, settings},
    harness::Trial,
    lists::crowd,
    target::{Scheme, plain_and_tls},
};

const SUBSCRIBE: &str = "/reveille.v1.Relay/Subscribe";
const LIST: &str = "/reveille.v1.Admin/ListListeners";
const SPAN: Duration = Duration::from_secs(1);
/// Streams of one connection; the relay allows 1,000.
const STREAMS: u32 = 900;

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

/// A message with its prefix, in one DATA frame that ends the request.
fn last_data(stream: u32, message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("a short message");
    let bytes = [&[0], &length.to_be_bytes()[..], message].concat();
    frame(DATA, END_STREAM, stream, &bytes)
}

plain_and_tls!(
    subscribers_with_closed_windows_disturb_no_listener,
    sockets_that_are_never_read_take_bounded_memory,
);

/// Opens subscriptions of the good pair's queue on one connection.
pub(super) async fn subscribe_unread(peer: &mut RawPeer, streams: u32) {
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
async fn subscribers_with_closed_windows_disturb_no_listener(scheme: Scheme) {
    let mut trial = Trial::start(scheme, &[]).await;
    let target = trial.target();
    let attack = async move {
        let mut held = Vec::new();
        for window in [0, 1] {
            let mut peer = RawPeer::greeting(&target).await;
            peer.send(&settings(4, window)).await.expect("taken");
            subscribe_unread(&mut peer, STREAMS).await;
            held.push(peer);
        }
        tokio::time::sleep(SPAN).await;
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(48 * 1024);
}

/// The windows are wide open, and the peer reads nothing of its socket.
async fn sockets_that_are_never_read_take_bounded_memory(scheme: Scheme) {
    let mut trial = Trial::start(scheme, &[]).await;
    let target = trial.target();
    let held = crowd(&target, 4, 400).await;
    let attack = async move {
        let mut unread = Vec::new();
        for _ in 0..4 {
            let mut peer = RawPeer::greeting(&target).await;
            let wide = 1_u32 << 30;
            let update = frame(WINDOW_UPDATE, 0, 0, &wide.to_be_bytes());
            let opened = [settings(4, wide), update].concat();
            peer.send(&opened).await.expect("taken");
            for number in 0..STREAMS {
                let stream = 2 * number + 1;
                let list = [request(stream, LIST), last_data(stream, &[])].concat();
                if peer.send(&list).await.is_err() {
                    break;
                }
            }
            unread.push(peer);
        }
        tokio::time::sleep(SPAN).await;
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(96 * 1024);
    drop(held);
}
