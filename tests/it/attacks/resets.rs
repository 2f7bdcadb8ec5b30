//! Streams that are reset as soon as they are open, by the peer or, because of the peer, by the relay.

use std::time::Duration;

use super::{
    frames::{
        DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, WINDOW_UPDATE, field, frame, post,
        repeatedly, request,
    },
    harness::Trial,
    target::{Scheme, plain_and_tls},
};

const NOTIFY_STREAM: &str = "/reveille.v1.Relay/NotifyStream";
const SPAN: Duration = Duration::from_secs(1);
/// Streams of one write.
const TOGETHER: u32 = 100;
const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// Opens this many streams, each with these frames, on connections that the relay must close.
async fn are_disconnected(scheme: Scheme, streams: u32, each: fn(u32) -> Vec<u8>) {
    let mut trial = Trial::start(scheme, &[]).await;
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

plain_and_tls!(rapid_resets_are_disconnected);

/// CVE-2023-44487.
async fn rapid_resets_are_disconnected(scheme: Scheme) {
    let open_and_reset = |stream| {
        let reset = frame(RST_STREAM, 0, stream, &CANCEL);
        [request(stream, NOTIFY_STREAM), reset].concat()
    };
    are_disconnected(scheme, 100_000, open_and_reset).await;
}

plain_and_tls!(
    windows_that_overflow_are_disconnected,
    data_after_the_end_of_a_request_is_disconnected,
    data_beyond_the_declared_length_is_disconnected,
);

/// CVE-2025-8671 (MadeYouReset), with a window that overflows.
async fn windows_that_overflow_are_disconnected(scheme: Scheme) {
    let overflow = |stream| {
        let update = frame(WINDOW_UPDATE, 0, stream, &[0x7f, 0xff, 0xff, 0xff]);
        [request(stream, NOTIFY_STREAM), update].concat()
    };
    are_disconnected(scheme, 20_000, overflow).await;
}

/// CVE-2025-8671, with DATA on a stream that the peer has ended.
async fn data_after_the_end_of_a_request_is_disconnected(scheme: Scheme) {
    let data_after_end = |stream| {
        let ended = END_HEADERS | END_STREAM;
        let headers = frame(HEADERS, ended, stream, &post(NOTIFY_STREAM));
        [headers, frame(DATA, 0, stream, &[0])].concat()
    };
    are_disconnected(scheme, 20_000, data_after_end).await;
}

/// CVE-2025-8671, with more DATA than `content-length` states.
async fn data_beyond_the_declared_length_is_disconnected(scheme: Scheme) {
    let more_data = |stream| {
        let block = [post(NOTIFY_STREAM), field("content-length", "1")].concat();
        let headers = frame(HEADERS, END_HEADERS, stream, &block);
        [headers, frame(DATA, 0, stream, &[0; 2])].concat()
    };
    are_disconnected(scheme, 20_000, more_data).await;
}

plain_and_tls!(resets_of_accepted_streams_disturb_no_listener);

/// As rapid resets, but slowly enough that the relay has begun each request.
async fn resets_of_accepted_streams_disturb_no_listener(scheme: Scheme) {
    let mut trial = Trial::start(scheme, &[]).await;
    let target = trial.target();
    let attack = async move {
        repeatedly(SPAN, &target, |mut peer| async move {
            for number in 0..500 {
                let stream = 2 * number + 1;
                peer.open(stream, "/grpc.health.v1.Health/Watch").await;
                let request = frame(DATA, END_STREAM, stream, &[0; 5]);
                peer.send(&request).await.expect("kept");
                while peer.next_frame().await.0 != DATA {}
                let reset = frame(RST_STREAM, 0, stream, &CANCEL);
                peer.send(&reset).await.expect("kept");
            }
        })
        .await
    };
    let (_, damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
}
