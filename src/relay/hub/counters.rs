//! A position in a queue: four counters, and the token that carries them through a subscriber.
//!
//! The totals are 128 bits wide, so the difference of two positions is exact for all values of
//! publishers. It saturates only in a wake-up.

use std::fmt;

use bytes::Bytes;

use crate::types::{Notification, Token, WakeReason, cluster::FrameEntry};

/// One run of a relay: 128 random bits. A token of another run leads to a CATCH_UP.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Epoch(pub(crate) u128);

/// The running totals of a queue, or a subscriber's copy of them: its position.
///
/// Packed: aligned to 16 bytes, it would take 16 bytes more in each queue and 8 in each cursor.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[repr(Rust, packed(8))]
pub(crate) struct Counters {
    /// The number of events: notifications and timed wake-ups.
    pub(crate) sequence: u64,
    pub(crate) notifications: u128,
    pub(crate) payload: u128,
    pub(crate) messages: u128,
}

/// The content of a token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    /// A position of this run of the relay.
    Current(Counters),
    /// A position of another run.
    OtherEpoch,
    /// Not written by a relay.
    Malformed,
}

/// Bytes of the epoch in a token, and of the four lengths after it.
const EPOCH: usize = 16;
const LENGTHS: usize = 2;
/// The most bytes of a sequence in a token.
const SEQUENCE: usize = 8;
/// The most bytes of a total in a token. 96 bits hold 2^32 of the greatest values that one event
/// can state, and a token stays within its 64 bytes.
const SUM: usize = 12;

impl Counters {
    /// Returns the counters of an entry that starts at `sequence`.
    pub(crate) fn starting_at(sequence: u64) -> Self {
        Self {
            sequence,
            ..Self::default()
        }
    }

    /// Reads the increments of a queue that another relay counted.
    pub(crate) fn of_increment(increment: &FrameEntry) -> Self {
        Self {
            sequence: increment.causes,
            notifications: increment.notifications.into(),
            payload: increment.payload_size.into(),
            messages: increment.messages.into(),
        }
    }

    /// Adds a notification's values; the sequence is counted apart.
    pub(crate) fn add(&mut self, notification: &Notification) {
        self.notifications += u128::from(notification.notifications.max(1));
        self.payload += u128::from(notification.payload_size);
        self.messages += u128::from(notification.messages.max(1));
    }

    /// Adds totals; the sequence is counted apart.
    pub(crate) fn add_totals(&mut self, other: &Self) {
        self.notifications += other.notifications;
        self.payload += other.payload;
        self.messages += other.messages;
    }

    /// Returns whether no counter is less than in `other`.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.sequence >= other.sequence
            && self.notifications >= other.notifications
            && self.payload >= other.payload
            && self.messages >= other.messages
    }

    /// Returns the difference since an earlier position, saturating.
    pub(crate) fn delta_since(&self, position: &Self) -> Delta {
        Delta {
            notifications: saturate(self.notifications.saturating_sub(position.notifications)),
            payload: saturate(self.payload.saturating_sub(position.payload)),
            messages: saturate(self.messages.saturating_sub(position.messages)),
        }
    }

    /// Writes the token of this position: the epoch, four lengths of four bits each, and the
    /// counters without their leading zeros. It is in every entry of every Wake, so it is short.
    pub(crate) fn token(&self, epoch: Epoch) -> Token {
        let mut token = Vec::with_capacity(EPOCH + LENGTHS + 16);
        self.write_token(epoch, &mut token);
        Token(token.into())
    }

    /// Appends the token to a buffer.
    pub(crate) fn write_token(&self, epoch: Epoch, token: &mut Vec<u8>) {
        const MOST: u128 = (1 << (8 * SUM)) - 1;
        token.extend_from_slice(&epoch.0.to_le_bytes());
        let lengths = token.len();
        token.extend_from_slice(&[0; LENGTHS]);
        let counters = [
            u128::from(self.sequence),
            self.notifications.min(MOST),
            self.payload.min(MOST),
            self.messages.min(MOST),
        ];
        for (at, counter) in counters.into_iter().enumerate() {
            let bytes = counter.to_le_bytes();
            let zeros = bytes.iter().rev().take_while(|byte| **byte == 0).count();
            token.extend_from_slice(&bytes[..bytes.len() - zeros]);
            let length = u8::try_from(bytes.len() - zeros).expect("at most 12");
            token[lengths + at / 2] |= length << (4 * (at % 2));
        }
    }

    /// Reads a token.
    pub(crate) fn read(token: &Token, epoch: Epoch) -> Decoded {
        let bytes: &Bytes = &token.0;
        let Some(position) = bytes.get(EPOCH..).and_then(Self::from_counters) else {
            return Decoded::Malformed;
        };
        if bytes[..EPOCH] != epoch.0.to_le_bytes() {
            return Decoded::OtherEpoch;
        }
        Decoded::Current(position)
    }

    /// Reads the counters of a token, without its epoch.
    pub(crate) fn from_counters(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.get(LENGTHS..)?;
        let mut counters = [0; 4];
        for (at, counter) in counters.iter_mut().enumerate() {
            let length = usize::from(bytes[at / 2] >> (4 * (at % 2)) & 15);
            let (own, others) = rest.split_at_checked(length)?;
            // A relay writes no leading zeros, and no more bytes than these.
            let most = if at == 0 { SEQUENCE } else { SUM };
            if length > most || own.last() == Some(&0) {
                return None;
            }
            let mut wide = [0; 16];
            wide[..length].copy_from_slice(own);
            (*counter, rest) = (u128::from_le_bytes(wide), others);
        }
        let [sequence, notifications, payload, messages] = counters;
        rest.is_empty().then_some(Self {
            sequence: saturate(sequence),
            notifications,
            payload,
            messages,
        })
    }
}

/// The difference of two positions, as a wake-up states it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delta {
    pub(crate) notifications: u64,
    pub(crate) payload: u64,
    pub(crate) messages: u64,
}

impl Delta {
    pub(crate) fn add(&mut self, other: &Self) {
        self.notifications = self.notifications.saturating_add(other.notifications);
        self.payload = self.payload.saturating_add(other.payload);
        self.messages = self.messages.saturating_add(other.messages);
    }

    /// Returns the number of messages to find listeners for: at least one for each notification,
    /// and at least one in all.
    pub(crate) fn needs(&self) -> u64 {
        self.messages.max(self.notifications).max(1)
    }

    /// Splits off a part with this many messages. The first part has all notifications and payload,
    /// so that the parts add up.
    pub(crate) fn split(&mut self, messages: u64, first: bool) -> Self {
        let messages = messages.min(self.messages);
        self.messages -= messages;
        let whole = if first { *self } else { Self::default() };
        if first {
            (self.notifications, self.payload) = (0, 0);
        }
        Self { messages, ..whole }
    }
}

/// The queue's counters, and the sequences of its newest notification and its newest timed wake-up.
/// Positions are compared with it. Other causes are resyncs (C6).
#[derive(Debug, Clone, Copy)]
pub(super) struct QueueHead {
    pub(super) counters: Counters,
    pub(super) notified: u64,
    pub(super) timed: u64,
    /// Own causes wait for a frame to the other relays of a cluster.
    pub(super) has_increments: bool,
}

impl QueueHead {
    /// Returns why a subscriber at `position` gets a wake-up, or `None` where it is up to date.
    pub(super) fn wake_reason(&self, position: &Counters) -> Option<WakeReason> {
        if position.sequence >= self.counters.sequence {
            return None;
        }
        Some(if self.notified > position.sequence {
            WakeReason::Notified
        } else if self.timed > position.sequence {
            WakeReason::Timed
        } else {
            WakeReason::CatchUp
        })
    }
}

pub(crate) fn saturate(sum: u128) -> u64 {
    u64::try_from(sum).unwrap_or(u64::MAX)
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_no_relay_has_written_is_malformed() {
        let epoch = Epoch(7);
        let read = |lengths: [u8; LENGTHS], counters: &[u8]| {
            let bytes = [&epoch.0.to_le_bytes()[..], &lengths, counters].concat();
            Counters::read(&Token(bytes.into()), epoch)
        };
        let own = Counters {
            notifications: 9,
            ..Counters::starting_at(7)
        };
        assert_eq!(read([0x11, 0], &[7, 9]), Decoded::Current(own));
        let long = [9; 15];
        for (lengths, counters) in [
            ([0x12, 0], &[7, 0, 9][..]),
            ([0x09, 0], &long[..9]),
            ([0xd0, 0], &long[..13]),
            ([0, 0xf0], &long[..15]),
        ] {
            assert_eq!(read(lengths, counters), Decoded::Malformed, "{lengths:x?}");
        }
    }
}
