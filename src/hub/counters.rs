//! A place in a queue: four counters, and the token that carries them through a subscriber.
//!
//! The sums are 128 bits wide, so that the difference of two places is exact whatever publishers
//! state, and saturates only where it is told.

use std::fmt;

use bytes::Bytes;

use crate::words::{Notification, Token};

/// One life of a relay: 128 random bits. Tokens of another life are doubts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Epoch(pub(crate) u128);

/// The running totals of a queue, or a copy of them: a subscriber's place.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Every cause to wake so far.
    pub(crate) sequence: u64,
    pub(crate) notifications: u128,
    pub(crate) payload: u128,
    pub(crate) messages: u128,
}

/// What a token says, where it can be read at all.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    /// A place of this relay's life.
    Current(Counters),
    /// A place of another life.
    OtherEpoch,
    /// Nothing that this relay has written.
    Malformed,
}

/// Bytes of the epoch in a token, and of the four lengths after it.
const EPOCH: usize = 16;
const LENGTHS: usize = 2;
/// Bytes of a sum in a token at most: 96 bits hold 2^32 of the greatest values that one event can
/// state, and a token stays within its 64 bytes.
const SUM: usize = 12;

impl Counters {
    /// Returns the totals of a record that starts at `sequence`.
    pub(crate) fn starting_at(sequence: u64) -> Self {
        Self {
            sequence,
            ..Self::default()
        }
    }

    /// Counts what a notification states; the sequence is counted apart.
    pub(crate) fn add(&mut self, notification: &Notification) {
        self.notifications += u128::from(notification.notifications.max(1));
        self.payload += u128::from(notification.payload_size);
        self.messages += u128::from(notification.messages.max(1));
    }

    /// Adds sums; the sequence is counted apart.
    pub(crate) fn add_totals(&mut self, other: &Self) {
        self.notifications += other.notifications;
        self.payload += other.payload;
        self.messages += other.messages;
    }

    /// Returns whether each counter has come at least as far as in `other`.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.sequence >= other.sequence
            && self.notifications >= other.notifications
            && self.payload >= other.payload
            && self.messages >= other.messages
    }

    /// Returns the sums counted since `place`, which this tally covers, saturating.
    pub(crate) fn delta_since(&self, position: &Self) -> Delta {
        Delta {
            notifications: saturate(self.notifications.saturating_sub(position.notifications)),
            payload: saturate(self.payload.saturating_sub(position.payload)),
            messages: saturate(self.messages.saturating_sub(position.messages)),
        }
    }

    /// Writes the token of this place: the epoch, four lengths of four bits each, and the counters
    /// without their leading zeros. It stands in every entry of every Wake, so it is kept short.
    pub(crate) fn token(&self, epoch: Epoch) -> Token {
        let mut token = Vec::with_capacity(EPOCH + LENGTHS + 16);
        self.write_token(epoch, &mut token);
        Token(token.into())
    }

    /// Appends the same to a buffer.
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

/// Delta as a wake-up tells them.
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

    /// Returns for how many messages listeners are needed: at least one for each notification, and
    /// at least one at all.
    pub(crate) fn needs(&self) -> u64 {
        self.messages.max(self.notifications).max(1)
    }

    /// Takes a part with so many messages; the first part has all notifications and payload, so
    /// that the parts add up.
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
