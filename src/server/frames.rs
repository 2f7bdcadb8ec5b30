//! Watches a connection's frames as they pass: floods, and frames that do not end.
//!
//! Reads the nine bytes of each frame's header and skips its payload. HTTP/2 itself is hyper's.

use std::time::Duration;

use crate::clock::Tick;

/// Finds frame headers in a stream of bytes, however it is cut into pieces.
#[derive(Debug, Default)]
struct Frames {
    header: [u8; HEADER],
    /// Bytes of the next header that have come.
    filled: usize,
    /// Bytes of the present payload that have not.
    payload: usize,
}

/// What a connection has received and sent.
#[derive(Debug, Default)]
pub(super) struct FrameWatch {
    received: Frames,
    sent: Frames,
    /// A header block has begun, and its last frame has not come.
    in_header_block: bool,
    window: Window,
}

/// PING and SETTINGS frames of the present ten seconds.
#[derive(Debug, Default)]
struct Window {
    since: Tick,
    received: u32,
    /// DATA and HEADERS frames that the relay has sent meanwhile. A client may measure the line by
    /// a PING for each of them, as grpc-go does.
    earned: u32,
}

/// What the bytes of one read contained.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received {
    /// A frame has ended, and no header block is open.
    pub(super) progress: bool,
    /// More PING and SETTINGS frames than are allowed.
    pub(super) flood: bool,
}

/// A frame header's bytes (RFC 9113, section 4.1).
const HEADER: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
/// PING and SETTINGS frames that a peer may send in [`WINDOW`], beyond those it has earned. An
/// honest client sends a few a minute.
const ALLOWED: u32 = 200;
const WINDOW: Duration = Duration::from_secs(10);

impl FrameWatch {
    /// Takes bytes that were received. Reads the clock only where a PING or SETTINGS frame came.
    pub(super) fn received(&mut self, bytes: &[u8], now: impl Fn() -> Tick) -> Received {
        let mut flood = false;
        let (block, window) = (&mut self.in_header_block, &mut self.window);
        let ended = self.received.feed(bytes, |kind, flags| match kind {
            HEADERS | CONTINUATION => *block = flags & END_HEADERS == 0,
            PING | SETTINGS => flood |= window.exceeded_by_one_more(now()),
            _ => {}
        });
        Received {
            progress: ended && !self.in_header_block,
            flood,
        }
    }

    /// Takes bytes that were sent.
    pub(super) fn sent(&mut self, bytes: &[u8]) {
        let earned = &mut self.window.earned;
        self.sent.feed(bytes, |kind, _| {
            if matches!(kind, DATA | HEADERS) {
                *earned = earned.saturating_add(1);
            }
        });
    }

    /// Returns whether a frame or a header block has begun that has not ended.
    pub(super) fn is_unfinished(&self) -> bool {
        self.in_header_block || self.received.filled > 0
    }
}

impl Frames {
    /// Takes bytes, and calls `found` with type and flags of each frame whose header is complete.
    /// Returns whether a frame has ended.
    fn feed(&mut self, mut bytes: &[u8], mut found: impl FnMut(u8, u8)) -> bool {
        let mut ended = false;
        while !bytes.is_empty() {
            if self.filled < HEADER {
                let count = bytes.len().min(HEADER - self.filled);
                self.header[self.filled..self.filled + count].copy_from_slice(&bytes[..count]);
                self.filled += count;
                bytes = &bytes[count..];
                if self.filled < HEADER {
                    break;
                }
                let [a, b, c, kind, flags, ..] = self.header;
                self.payload = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                found(kind, flags);
            }
            let count = bytes.len().min(self.payload);
            self.payload -= count;
            bytes = &bytes[count..];
            if self.payload == 0 {
                self.filled = 0;
                ended = true;
            }
        }
        ended
    }
}

impl Window {
    fn exceeded_by_one_more(&mut self, now: Tick) -> bool {
        if now.since(self.since) >= WINDOW {
            *self = Self {
                since: now,
                ..Self::default()
            };
        }
        self.received += 1;
        self.received > ALLOWED.saturating_add(self.earned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).expect("short").to_be_bytes();
        let mut bytes = length[1..].to_vec();
        bytes.extend([kind, flags, 0, 0, 0, 1]);
        bytes.resize(HEADER + payload, 7);
        bytes
    }

    #[test]
    fn frames_are_found_however_the_bytes_are_cut() {
        let bytes = [
            frame(SETTINGS, 0, 0),
            frame(DATA, 0, 300),
            frame(PING, 0, 8),
            frame(HEADERS, END_HEADERS, 5),
        ]
        .concat();
        for piece in 1..bytes.len() {
            let (mut frames, mut kinds) = (Frames::default(), Vec::new());
            for piece in bytes.chunks(piece) {
                frames.feed(piece, |kind, _| kinds.push(kind));
            }
            assert_eq!(kinds, [SETTINGS, DATA, PING, HEADERS], "by {piece}");
            assert_eq!(frames.filled, 0);
        }
    }

    #[test]
    fn a_flood_is_more_than_200_in_ten_seconds() {
        let (mut watch, ping) = (FrameWatch::default(), frame(PING, 0, 8));
        let start = Tick::default() + Duration::from_secs(60);
        for _ in 0..ALLOWED {
            assert!(!watch.received(&ping, || start).flood);
        }
        let later = start + WINDOW;
        assert!(
            !watch.received(&ping, || later).flood,
            "a window of its own"
        );
        for _ in 1..ALLOWED {
            watch.received(&ping, || later);
        }
        assert!(watch.received(&frame(SETTINGS, 0, 0), || later).flood);
    }

    #[test]
    fn each_data_frame_that_is_sent_earns_a_ping() {
        let mut watch = FrameWatch::default();
        let ping = frame(PING, 0, 8);
        for _ in 0..10 * ALLOWED {
            watch.sent(&frame(DATA, 0, 20));
            assert!(!watch.received(&ping, Tick::default).flood);
        }
        // An acknowledgement earns nothing.
        for _ in 0..ALLOWED {
            watch.sent(&ping);
            assert!(!watch.received(&ping, Tick::default).flood);
        }
        assert!(watch.received(&ping, Tick::default).flood);
    }

    #[test]
    fn a_header_block_ends_with_its_last_frame() {
        let mut watch = FrameWatch::default();
        assert!(watch.received(&frame(DATA, 0, 9), Tick::default).progress);
        assert!(
            !watch
                .received(&frame(HEADERS, 0, 9), Tick::default)
                .progress
        );
        assert!(watch.is_unfinished());
        assert!(
            !watch
                .received(&frame(CONTINUATION, 0, 9), Tick::default)
                .progress
        );
        assert!(watch.is_unfinished());
        let last = frame(CONTINUATION, END_HEADERS, 9);
        assert!(!watch.received(&last[..12], Tick::default).progress);
        assert!(watch.is_unfinished());
        assert!(watch.received(&last[12..], Tick::default).progress);
        assert!(!watch.is_unfinished());
    }
}
