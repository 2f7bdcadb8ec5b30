//! Monitors a connection's frames: floods of control frames, and incomplete frames.
//!
//! Reads the nine bytes of each frame's header and skips its payload. hyper implements HTTP/2.

use std::time::Duration;

use crate::base::clock::Tick;

/// Finds frame headers in a byte stream that arrives in arbitrary pieces.
#[derive(Debug, Default)]
struct FrameParser {
    header: [u8; HEADER],
    /// Received bytes of the next header.
    filled: usize,
    /// Missing bytes of the current payload.
    payload: usize,
}

/// What a parser finds in its bytes.
enum Part {
    Header {
        kind: u8,
        flags: u8,
        /// Bytes of the payload.
        length: usize,
    },
    /// The end of a frame.
    End,
}

/// Monitors the frames that a connection receives and sends.
#[derive(Debug, Default)]
pub(crate) struct FrameWatch {
    received: FrameParser,
    sent: FrameParser,
    /// A header block is incomplete.
    in_header_block: bool,
    /// PING and SETTINGS frames, which HTTP/2 answers.
    answered: RateWindow,
    /// All other frames without a request.
    other: RateWindow,
}

/// Counts limited frames of one kind in the current ten seconds.
#[derive(Debug, Default)]
struct RateWindow {
    since: Tick,
    /// Received frames beyond the earned ones.
    received: u32,
    /// Frames that the peer may send in addition to the limit.
    earned: u32,
}

/// The result of one read.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Received {
    /// A frame is complete, and no header block was open at its end.
    pub(crate) progress: bool,
    /// The control frames exceed the limit.
    pub(crate) flood: bool,
    /// Payload of the DATA frames whose header was received, in bytes.
    pub(crate) data: usize,
}

/// A frame header's bytes (RFC 9113, section 4.1).
const HEADER: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
/// PING and SETTINGS frames, each of which the relay answers, that a peer may send in [`WINDOW`]
/// beyond the earned ones. A regular client sends a few a minute. A client may also measure latency
/// with a PING for each DATA or HEADERS frame that it gets, as grpc-go does.
const MAX_ANSWERED: u32 = 200;
/// All other frames without a request: WINDOW_UPDATE, RST_STREAM, PRIORITY and unknown ones. A
/// client may end all of its 1,000 streams at once. It may also widen two windows for each DATA
/// frame that it gets, even if it reads the frame much later; so earned frames do not expire.
const MAX_OTHER: u32 = 4_000;
const EARNED_OTHER: u32 = 4;
const WINDOW: Duration = Duration::from_secs(10);

impl FrameWatch {
    /// Processes received bytes. Reads the clock only for a control frame beyond the earned ones.
    pub(crate) fn received(&mut self, bytes: &[u8], now: impl Fn() -> Tick) -> Received {
        let mut received = Received::default();
        let block = &mut self.in_header_block;
        let (answered, other) = (&mut self.answered, &mut self.other);
        self.received.feed(bytes, |part| match part {
            // At each end, so that the result does not depend on how the bytes are split.
            Part::End => received.progress |= !*block,
            Part::Header {
                kind,
                flags,
                length,
            } => match kind {
                HEADERS | CONTINUATION => {
                    *block = flags & END_HEADERS == 0;
                    other.earn(1);
                }
                DATA => {
                    received.data += length;
                    other.earn(1);
                }
                PING | SETTINGS => received.flood |= answered.add_exceeds(MAX_ANSWERED, &now),
                _ => received.flood |= other.add_exceeds(MAX_OTHER, &now),
            },
        });
        received
    }

    /// Processes sent bytes. Returns the payload of the DATA frames whose header was sent, in bytes.
    pub(crate) fn sent(&mut self, bytes: &[u8]) -> usize {
        let (answered, other) = (&mut self.answered, &mut self.other);
        let mut data = 0;
        self.sent.feed(bytes, |part| {
            if let Part::Header {
                kind: kind @ (DATA | HEADERS),
                length,
                ..
            } = part
            {
                answered.earn(1);
                other.earn(EARNED_OTHER);
                data += if kind == DATA { length } else { 0 };
            }
        });
        data
    }

    /// Returns whether a frame or a header block is incomplete.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.in_header_block || self.received.filled > 0
    }
}

impl FrameParser {
    /// Processes bytes, and calls `found` with each complete header and each end of a frame.
    fn feed(&mut self, mut bytes: &[u8], mut found: impl FnMut(Part)) {
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
                found(Part::Header {
                    kind,
                    flags,
                    length: self.payload,
                });
            }
            let count = bytes.len().min(self.payload);
            self.payload -= count;
            bytes = &bytes[count..];
            if self.payload == 0 {
                self.filled = 0;
                found(Part::End);
            }
        }
    }
}

impl RateWindow {
    fn earn(&mut self, frames: u32) {
        self.earned = self.earned.saturating_add(frames);
    }

    fn add_exceeds(&mut self, allowed: u32, now: impl Fn() -> Tick) -> bool {
        if let Some(left) = self.earned.checked_sub(1) {
            self.earned = left;
            return false;
        }
        let now = now();
        if now.since(self.since) >= WINDOW {
            (self.since, self.received) = (now, 0);
        }
        self.received += 1;
        self.received > allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRIORITY: u8 = 2;
    const RST_STREAM: u8 = 3;
    const WINDOW_UPDATE: u8 = 8;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).expect("short").to_be_bytes();
        let mut bytes = length[1..].to_vec();
        bytes.extend([kind, flags, 0, 0, 0, 1]);
        bytes.resize(HEADER + payload, 7);
        bytes
    }

    #[test]
    fn frames_are_found_in_pieces_of_any_size() {
        let bytes = [
            frame(SETTINGS, 0, 0),
            frame(DATA, 0, 300),
            frame(PING, 0, 8),
            frame(HEADERS, END_HEADERS, 5),
        ]
        .concat();
        for piece in 1..bytes.len() {
            let (mut frames, mut kinds) = (FrameParser::default(), Vec::new());
            for piece in bytes.chunks(piece) {
                frames.feed(piece, |part| match part {
                    Part::Header { kind, .. } => kinds.push(kind),
                    Part::End => {}
                });
            }
            assert_eq!(kinds, [SETTINGS, DATA, PING, HEADERS], "by {piece}");
            assert_eq!(frames.filled, 0);
        }
    }

    #[test]
    fn more_than_200_pings_in_ten_seconds_are_a_flood() {
        let (mut watch, ping) = (FrameWatch::default(), frame(PING, 0, 8));
        let start = Tick::default() + Duration::from_secs(60);
        for _ in 0..MAX_ANSWERED {
            assert!(!watch.received(&ping, || start).flood);
        }
        let later = start + WINDOW;
        assert!(!watch.received(&ping, || later).flood, "a new window");
        for _ in 1..MAX_ANSWERED {
            watch.received(&ping, || later);
        }
        assert!(watch.received(&frame(SETTINGS, 0, 0), || later).flood);
    }

    #[test]
    fn each_data_frame_that_is_sent_earns_a_ping() {
        let mut watch = FrameWatch::default();
        let ping = frame(PING, 0, 8);
        for _ in 0..10 * MAX_ANSWERED {
            watch.sent(&frame(DATA, 0, 20));
            assert!(!watch.received(&ping, Tick::default).flood);
        }
        // An acknowledgement earns nothing.
        for _ in 0..MAX_ANSWERED {
            watch.sent(&ping);
            assert!(!watch.received(&ping, Tick::default).flood);
        }
        assert!(watch.received(&ping, Tick::default).flood);
    }

    #[test]
    fn ending_all_streams_and_widening_windows_is_no_flood() {
        let mut watch = FrameWatch::default();
        let start = Tick::default() + Duration::from_secs(60);
        // The peer reads these frames late.
        for _ in 0..10_000 {
            watch.sent(&frame(DATA, 0, 20));
        }
        let (update, reset) = (frame(WINDOW_UPDATE, 0, 4), frame(RST_STREAM, 0, 4));
        for _ in 0..10_000 {
            for _ in 0..2 {
                assert!(!watch.received(&update, || start).flood);
            }
        }
        for _ in 0..1_000 {
            assert!(!watch.received(&reset, || start).flood);
        }
    }

    #[test]
    fn all_kinds_of_frames_without_a_request_have_a_limit() {
        for kind in [PRIORITY, RST_STREAM, WINDOW_UPDATE, 0x55] {
            let mut watch = FrameWatch::default();
            let (other, start) = (frame(kind, 0, 4), Tick::default());
            for _ in 0..MAX_OTHER {
                assert!(!watch.received(&other, || start).flood, "{kind}");
            }
            assert!(watch.received(&other, || start).flood, "{kind}");
            // A new window, and an answer that earns more frames.
            let later = start + WINDOW;
            watch.sent(&frame(HEADERS, END_HEADERS, 9));
            for _ in 0..MAX_OTHER + EARNED_OTHER {
                assert!(!watch.received(&other, || later).flood, "{kind}");
            }
            assert!(watch.received(&other, || later).flood, "{kind}");
        }
    }

    #[test]
    fn progress_does_not_depend_on_how_the_bytes_are_split() {
        let block = |flags| frame(CONTINUATION, flags, 9);
        for (bytes, progress) in [
            // The last frame of the block has not ended.
            (
                [frame(HEADERS, 0, 9), block(END_HEADERS)[..12].to_vec()],
                false,
            ),
            // A frame ended before the block began.
            ([frame(DATA, 0, 9), frame(HEADERS, 0, 9)], true),
        ] {
            let bytes = bytes.concat();
            for piece in 1..=bytes.len() {
                let mut watch = FrameWatch::default();
                let mut pieces = bytes.chunks(piece);
                let any = pieces.any(|piece| watch.received(piece, Tick::default).progress);
                assert_eq!(any, progress, "by {piece}");
            }
        }
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
