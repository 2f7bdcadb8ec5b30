//! HTTP/2 that costs the relay more than its peer: resets, long headers, floods of frames, and messages
//! that would grow when they are unpacked.

use std::{io::Write as _, time::Duration};

use flate2::{Compression, write::GzEncoder};
use http::Request;

use super::{
    frames::{
        END_HEADERS, HEADERS, PING, RST_STREAM, RawPeer, SETTINGS, WINDOW_UPDATE, frame, post,
        repeatedly, request,
    },
    harness::Trial,
    peer::{Peer, Unfinished, ended},
    target::Scheme,
};
use crate::support::within;

const NOTIFY_STREAM: &str = "/reveille.v1.Relay/NotifyStream";
/// Time of each attack.
const SPAN: Duration = Duration::from_secs(1);
/// Streams of one write.
const TOGETHER: u32 = 100;
/// Bytes that a flooding connection sends.
const BYTES: usize = 4 * 1024 * 1024;

/// Opens this many streams, each with these frames, on connections that the relay must close.
async fn are_disconnected(streams: u32, each: fn(u32) -> Vec<u8>) {
    let mut trial = Trial::start(Scheme::Plain, &[]).await;
    let target = trial.target();
    let attack = async move {
        repeatedly(SPAN, &target, move |peer| async move {
            let pieces = (0..streams / TOGETHER).map(|piece| {
                let numbers = piece * TOGETHER..(piece + 1) * TOGETHER;
                numbers.flat_map(|number| each(2 * number + 1)).collect()
            });
            peer.closed_after(pieces).await;
        })
        .await
    };
    let (_, damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
}

/// CVE-2023-44487.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rapid_resets_are_disconnected() {
    let open_and_reset = |stream| {
        let reset = frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]);
        [request(stream, NOTIFY_STREAM), reset].concat()
    };
    are_disconnected(100_000, open_and_reset).await;
}

/// CVE-2025-8671 (MadeYouReset), with a window that overflows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_that_overflow_are_disconnected() {
    let overflow = |stream| {
        let update = frame(WINDOW_UPDATE, 0, stream, &[0x7f, 0xff, 0xff, 0xff]);
        [request(stream, NOTIFY_STREAM), update].concat()
    };
    are_disconnected(20_000, overflow).await;
}

/// A literal that enters HPACK's dynamic table as its first field (index 62), with a value of 4,000
/// bytes.
fn long_field() -> Vec<u8> {
    // The length 4,000 with a prefix of seven bits is 127 + 3,873 (RFC 7541, section 5.1).
    [&[0x40, 1, b'x', 0x7f, 0xa1, 0x1e], &[b'a'; 4_000][..]].concat()
}

/// Lists of 12 KB, where 8 KiB are allowed: each request is refused, and its connection is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn header_lists_beyond_the_limit_are_refused() {
    let mut trial = Trial::start(Scheme::Plain, &[]).await;
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

/// No other connection waits for a connection that floods the relay with frames that HTTP/2 allows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_frames_delay_no_other_connection() {
    let mut trial = Trial::start(Scheme::Plain, &[]).await;
    for flooding in [frame(PING, 0, 0, &[0; 8]), frame(SETTINGS, 0, 0, &[])] {
        let target = trial.target();
        let attack = async move {
            repeatedly(SPAN, &target, move |mut peer: RawPeer| {
                let many = flooding.repeat(64 * 1024 / flooding.len());
                async move {
                    peer.open(1, NOTIFY_STREAM).await;
                    peer.flood(&many, BYTES / many.len()).await;
                }
            })
            .await
        };
        let (_, damage) = trial.under(attack).await;
        damage.is_within(8 * 1024);
    }
}

/// 64 MiB of zeros as one gRPC message of 64 KiB with the flag of compression.
fn bomb() -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    for _ in 0..64 {
        encoder.write_all(&[0; 1024 * 1024]).expect("memory");
    }
    let packed = encoder.finish().expect("memory");
    let mut message = Unfinished::prefix(packed.len());
    message[0] = 1;
    message.extend(packed);
    message
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compressed_message_is_refused_and_not_unpacked() {
    let bomb = bomb();
    let mut trial = Trial::start(Scheme::Plain, &[]).await;
    let target = trial.target();
    let attack = async move {
        let peer = Peer::connect(&target, 64 * 1024).await;
        for number in 0..200 {
            let mut request = Request::post("http://relay/reveille.v1.Relay/Notify")
                .header("content-type", "application/grpc")
                .header("te", "trailers");
            // Without a name of the compression the flag is an error (INTERNAL).
            let code = match number % 2 {
                0 => {
                    request = request.header("grpc-encoding", "gzip");
                    "12"
                }
                _ => "13",
            };
            let body = Unfinished::ending(bomb.clone());
            let request = request.body(body).expect("a request");
            let answer = within("an answer", peer.send(request)).await;
            let (status, message) = ended(answer.expect("answered")).await;
            assert_eq!(status, code, "{message}");
        }
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
}
