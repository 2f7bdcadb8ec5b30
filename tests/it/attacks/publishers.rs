//! Publishers that send requests faster than they read answers.

use std::time::Duration;

use super::{
    frames::{ACK, DATA, GOAWAY, RST_STREAM, RawPeer, SETTINGS, WINDOW_UPDATE, frame, settings},
    target::Target,
};
use crate::binary::Binary;

const NOTIFY_STREAM: &str = "/reveille.v1.Relay/NotifyStream";
/// A complete `NotifyRequest` of one event on `acct/orders`, with its prefix: one of the shortest.
const REQUEST: &[u8] = b"\0\0\0\0\x10\x0a\x0e\x0a\x04acct\x12\x06orders";
/// Maximum of unanswered requests that the protocol allows on a connection.
const REQUESTS: usize = 2_000;

/// Opens a stream whose answers have a window of this many bytes, and sends the requests, each in a
/// separate frame, without reading the answers.
async fn burst(relay: &Binary, window: u32) -> RawPeer {
    let target = Target::plain(relay);
    let mut peer = RawPeer::greeting(&target).await;
    peer.send(&settings(4, window)).await.expect("taken");
    assert_eq!(peer.next_frame().await.0, SETTINGS);
    // Until then the stream has HTTP/2's default window.
    let taken = frame(SETTINGS, ACK, 0, &[]);
    peer.send(&taken).await.expect("taken");
    peer.open(1, NOTIFY_STREAM).await;
    let all = frame(DATA, 0, 1, REQUEST).repeat(REQUESTS);
    peer.send(&all).await.expect("taken");
    peer
}

/// Reads until every request was answered.
async fn all_answered(peer: &mut RawPeer) {
    let (mut answers, mut body) = (0, Vec::new());
    while answers < REQUESTS {
        let (kind, payload) = peer.next_frame().await;
        assert!(
            !matches!(kind, GOAWAY | RST_STREAM),
            "frame {kind} after {answers} answers: {payload:?}"
        );
        if kind == DATA {
            body.extend(payload);
            answers += take_messages(&mut body);
        }
    }
}

/// Removes the complete messages; returns their number.
fn take_messages(body: &mut Vec<u8>) -> usize {
    let (mut count, mut end) = (0, 0);
    while let Some([_, length @ .., _]) = body.get(end..end + 6) {
        let length: [u8; 4] = length.try_into().expect("four bytes");
        let next = end + 5 + u32::from_be_bytes(length) as usize;
        if next > body.len() {
            break;
        }
        (count, end) = (count + 1, next);
    }
    body.drain(..end);
    count
}

#[tokio::test]
async fn a_burst_of_small_requests_is_answered() {
    let relay = Binary::serve().await;
    let mut peer = burst(&relay, 1 << 30).await;
    all_answered(&mut peer).await;
}

#[tokio::test]
async fn a_publisher_that_reads_its_answers_late_gets_all_of_them() {
    let relay = Binary::serve().await;
    let mut peer = burst(&relay, 0).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let more = (1_u32 << 30).to_be_bytes();
    let update = frame(WINDOW_UPDATE, 0, 1, &more);
    peer.send(&update).await.expect("kept");
    all_answered(&mut peer).await;
}
