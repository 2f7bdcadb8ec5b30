//! The checks of a connection's bytes: the HTTP/2 preface, and the frames after it.
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

pub(super) fn frames(data: &[u8]) {
    let (first, bytes) = split_first(data);
    let size = usize::from(first).max(1);
    check_preface(bytes, size);
    let now = Tick::default() + Duration::from_secs(60);
    let (mut whole, mut pieces) = (FrameWatch::default(), FrameWatch::default());
    let received = whole.received(bytes, || now);
    let mut merged = Received::default();
    for piece in bytes.chunks(size) {
        let one = pieces.received(piece, || now);
        merged.progress |= one.progress;
        merged.flood |= one.flood;
    }
    assert_eq!(whole.is_unfinished(), pieces.is_unfinished());
    assert_eq!(received.flood, merged.flood);
    assert!(merged.progress || !received.progress);
    let expected = Expected::of(bytes);
    assert_eq!(received.flood, expected.flood);
    assert_eq!(whole.is_unfinished(), expected.unfinished);
    // A frame that the relay sends earns others, and its pieces count as the whole.
    let (mut one, mut many) = (FrameWatch::default(), FrameWatch::default());
    one.sent(bytes);
    bytes.chunks(size).for_each(|piece| many.sent(piece));
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

/// The result of a plain reading of all frames at once (RFC 9113, section 4.1).
struct Expected {
    flood: bool,
    unfinished: bool,
}

impl Expected {
    fn of(mut bytes: &[u8]) -> Self {
        let (mut pings, mut others, mut earned) = (0, 0, 0);
        let (mut flood, mut open_block, mut cut) = (false, false, false);
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
            flood |= pings > PINGS || others > OTHERS;
            let payload = u32::from_be_bytes([0, a, b, c]) as usize;
            cut = payload > rest.len();
            bytes = rest.get(payload..).unwrap_or_default();
        }
        Self {
            flood,
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
