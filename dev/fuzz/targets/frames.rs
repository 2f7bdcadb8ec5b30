//! The checks of a connection's bytes: the HTTP/2 preface, the frames after it, and the messages in
//! the body of a call.
//!
//! The first byte gives the size of the pieces in which the rest arrives.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::io::{AsyncRead, ReadBuf};

use super::split_first;
use crate::{
    base::clock::Tick,
    relay::server::{
        body::MessageScanner,
        frames::{FrameWatch, Received},
        preface::{self, PREFACE},
    },
};

/// Bytes that arrive in pieces.
struct Pieces<'a> {
    bytes: &'a [u8],
    size: usize,
}

/// The frames of a flood in the first ten seconds, without an answer.
const PINGS: usize = 200;
const OTHERS: usize = 4_000;
/// The longest message of a body.
const MAX_MESSAGE: usize = 300;

pub(super) fn frames(data: &[u8]) {
    let (first, bytes) = split_first(data);
    let size = usize::from(first).max(1);
    check_preface(bytes, size);
    check_messages(bytes, size);
    let now = Tick::default() + Duration::from_secs(60);
    let (mut whole, mut pieces) = (FrameWatch::default(), FrameWatch::default());
    let received = whole.received(bytes, || now);
    let mut merged = Received::default();
    for piece in bytes.chunks(size) {
        let one = pieces.received(piece, || now);
        merged.progress |= one.progress;
        merged.flood |= one.flood;
        merged.data += one.data;
    }
    assert_eq!(whole.is_unfinished(), pieces.is_unfinished());
    assert_eq!(received, merged);
    let expected = Expected::of(bytes);
    assert_eq!(received, expected.received);
    assert_eq!(whole.is_unfinished(), expected.unfinished);
    // A frame that the relay sends earns others, and its pieces count as the whole.
    let (mut one, mut many) = (FrameWatch::default(), FrameWatch::default());
    let data = one.sent(bytes);
    let of_pieces: usize = bytes.chunks(size).map(|piece| many.sent(piece)).sum();
    assert_eq!((data, of_pieces), (received.data, received.data));
    let (one, many) = (one.received(bytes, || now), many.received(bytes, || now));
    assert_eq!(one, many);
    assert!(received.flood || !one.flood);
}

fn check_preface(bytes: &[u8], size: usize) {
    let mut stream = Pieces { bytes, size };
    let read = preface::read(&mut stream).now_or_never();
    let read = read.expect("all bytes are there");
    assert_eq!(read.is_ok(), bytes.starts_with(PREFACE));
    if read.is_ok() {
        assert_eq!(stream.bytes.len(), bytes.len() - PREFACE.len());
    }
}

/// Compares a scan of pieces with a plain reading: a flag, four bytes of length, the message.
fn check_messages(bytes: &[u8], size: usize) {
    let (mut rest, mut count, mut oversized) = (bytes, 0, None);
    while let Some(([_, length @ ..], tail)) = rest.split_first_chunk::<5>() {
        let length = u32::from_be_bytes(*length);
        if length as usize > MAX_MESSAGE {
            oversized = Some(length);
            break;
        }
        let Some(tail) = tail.get(length as usize..) else {
            break;
        };
        (rest, count) = (tail, count + 1);
    }
    let mut scanner = MessageScanner::new(MAX_MESSAGE);
    let (mut at, mut found, mut end) = (0, 0, 0);
    for piece in bytes.chunks(size) {
        let scanned = scanner.scan(piece);
        found += scanned.count;
        if scanned.complete > 0 {
            end = at + scanned.complete;
        }
        at += piece.len();
        if scanned.oversized.is_some() {
            assert_eq!(scanned.oversized, oversized);
            break;
        }
    }
    assert_eq!((found, end), (count, bytes.len() - rest.len()));
    assert_eq!(scanner.is_unfinished(), !rest.is_empty());
}

/// The result of a plain reading of all frames at once (RFC 9113, section 4.1).
struct Expected {
    received: Received,
    unfinished: bool,
}

impl Expected {
    fn of(mut bytes: &[u8]) -> Self {
        let (mut pings, mut others, mut earned) = (0, 0, 0);
        let (mut received, mut open_block, mut cut) = (Received::default(), false, false);
        while let Some((header, rest)) = bytes.split_first_chunk::<9>() {
            let [a, b, c, kind, flags, ..] = *header;
            match kind {
                1 | 9 => {
                    open_block = flags & 4 == 0;
                    earned += 1;
                }
                0 => earned += 1,
                4 | 6 => pings += 1,
                _ if earned > 0 => earned -= 1,
                _ => others += 1,
            }
            received.flood |= pings > PINGS || others > OTHERS;
            let payload = u32::from_be_bytes([0, a, b, c]) as usize;
            received.data += if kind == 0 { payload } else { 0 };
            cut = payload > rest.len();
            received.progress |= !cut && !open_block;
            bytes = rest.get(payload..).unwrap_or_default();
        }
        Self {
            received,
            unfinished: open_block || cut || !bytes.is_empty(),
        }
    }
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let count = self.size.min(self.bytes.len()).min(buf.remaining());
        let (piece, rest) = self.bytes.split_at(count);
        buf.put_slice(piece);
        self.bytes = rest;
        Poll::Ready(Ok(()))
    }
}
