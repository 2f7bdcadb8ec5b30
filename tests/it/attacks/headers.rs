//! Header blocks that never end, and header blocks that grow when they are decoded.

use std::time::Duration;

use super::{
    frames::{CONTINUATION, END_HEADERS, HEADERS, RawPeer, field, frame, post, repeatedly},
    harness::Trial,
    target::{Scheme, plain_and_tls},
};

const NOTIFY_STREAM: &str = "/reveille.v1.Relay/NotifyStream";
const SPAN: Duration = Duration::from_secs(1);
/// The longest payload of a frame.
const FRAME: usize = 16 * 1024;

/// Sends `first`, and `then` for each further piece, on connections that the relay must close.
async fn is_disconnected(
    scheme: Scheme,
    first: Vec<u8>,
    then: impl Fn(u32) -> Vec<u8> + Clone + Send + Sync + 'static,
) {
    let mut trial = Trial::start(scheme, &[]).await;
    let target = trial.target();
    let attack = async move {
        repeatedly(SPAN, &target, move |peer: RawPeer| {
            let pieces = std::iter::once(first.clone()).chain((1..2_000).map(then.clone()));
            async move {
                peer.closed_after(pieces).await;
            }
        })
        .await
    };
    let (_, damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
}

plain_and_tls!(
    a_flood_of_continuations_is_disconnected,
    a_flood_of_empty_continuations_is_disconnected,
);

async fn a_flood_of_continuations_is_disconnected(scheme: Scheme) {
    let begun = frame(HEADERS, 0, 1, &post(NOTIFY_STREAM));
    let fields = field("name", &"v".repeat(100)).repeat(FRAME / 107);
    let more = frame(CONTINUATION, 0, 1, &fields);
    is_disconnected(scheme, begun, move |_| more.clone()).await;
}

async fn a_flood_of_empty_continuations_is_disconnected(scheme: Scheme) {
    let begun = frame(HEADERS, 0, 1, &post(NOTIFY_STREAM));
    let more = frame(CONTINUATION, 0, 1, &[]).repeat(1_000);
    is_disconnected(scheme, begun, move |_| more.clone()).await;
}

/// A literal that enters HPACK's dynamic table as its first field (index 62), with a value of 4,000
/// bytes.
fn long_field() -> Vec<u8> {
    // The length 4,000 with a prefix of seven bits is 127 + 3,873 (RFC 7541, section 5.1).
    [&[0x40, 1, b'x', 0x7f, 0xa1, 0x1e], &[b'a'; 4_000][..]].concat()
}

plain_and_tls!(
    a_header_block_that_grows_a_thousandfold_is_disconnected,
    endless_changes_of_the_header_table_are_disconnected,
    header_lists_beyond_the_limit_are_refused,
);

/// An HPACK bomb: each byte of the second block stands for 4 KB.
async fn a_header_block_that_grows_a_thousandfold_is_disconnected(scheme: Scheme) {
    let block = [post(NOTIFY_STREAM), long_field()].concat();
    let first = frame(HEADERS, END_HEADERS, 1, &block);
    let bomb = [post(NOTIFY_STREAM), vec![0xbe; FRAME - 200]].concat();
    is_disconnected(scheme, first, move |number| {
        frame(HEADERS, END_HEADERS, 2 * number + 1, &bomb)
    })
    .await;
}

/// Changes of the table's size, each of which drops its fields.
async fn endless_changes_of_the_header_table_are_disconnected(scheme: Scheme) {
    // To 0 and to 4,096, again and again (RFC 7541, section 6.3). They may not follow a field.
    let changes = [0x20, 0x3f, 0xe1, 0x1f].repeat((FRAME - 200) / 4);
    let block = [changes, post(NOTIFY_STREAM), vec![0xff; 9]].concat();
    is_disconnected(scheme, Vec::new(), move |number| {
        frame(HEADERS, END_HEADERS, 2 * number - 1, &block)
    })
    .await;
}

/// Lists of 12 KB, where 8 KiB are allowed: each request is refused, and its connection is kept.
async fn header_lists_beyond_the_limit_are_refused(scheme: Scheme) {
    let mut trial = Trial::start(scheme, &[]).await;
    let target = trial.target();
    let attack = async move {
        repeatedly(SPAN, &target, |mut peer: RawPeer| async move {
            let first = [post(NOTIFY_STREAM), long_field(), vec![0xbe; 2]].concat();
            let again = [post(NOTIFY_STREAM), vec![0xbe; 3]].concat();
            for number in 0..200 {
                let block = if number == 0 { &first } else { &again };
                let headers = frame(HEADERS, END_HEADERS, 2 * number + 1, block);
                peer.send(&headers).await.expect("kept");
                // 431, Request Header Fields Too Large.
                loop {
                    let (kind, answer) = peer.next_frame().await;
                    if kind == HEADERS {
                        let text = answer.windows(3).any(|text| text == b"431");
                        assert!(text || answer.len() < 40, "{answer:x?}");
                        break;
                    }
                }
            }
        })
        .await
    };
    let (_, damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
}
