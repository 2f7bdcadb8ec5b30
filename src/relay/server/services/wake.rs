//! An encoded Wake: entries are appended as bytes, and all subscribers of a queue at the same
//! position share one encoding.

use crate::{
    relay::hub::{Target, WakeEntry, WakeSink},
    types::Limits,
    wire::{EntryFields, encode_entry},
};

/// The entries of one Wake (R1: a Wake is bounded, at most 256 entries and 32 KiB).
#[derive(Debug, Default)]
pub(crate) struct EncodedWake {
    pub(crate) bytes: Vec<u8>,
    entries: usize,
    /// Number of entries expected in total.
    expected: usize,
}

impl EncodedWake {
    /// Keeps the bytes appended after `before` if they fit, or removes them.
    fn commit(&mut self, before: usize) -> bool {
        let fits = self.entries < Limits::WAKE_ENTRIES && self.bytes.len() <= Limits::WAKE_BYTES;
        match fits {
            true => self.entries += 1,
            false => self.bytes.truncate(before),
        }
        fits
    }
}

impl WakeSink for EncodedWake {
    fn expect(&mut self, entries: usize) {
        self.expected = entries.min(Limits::WAKE_ENTRIES);
    }

    fn push(&mut self, entry: &WakeEntry<'_>, shared: Option<&mut Vec<u8>>) -> bool {
        let before = self.bytes.len();
        let Some(encoded) = shared else {
            encode(entry, &mut self.bytes);
            return self.commit(before);
        };
        if encoded.is_empty() {
            encode(entry, encoded);
        }
        if before == 0 {
            // The entries of one Wake have similar lengths: one allocation for all.
            let all = encoded.len().saturating_mul(self.expected);
            self.bytes.reserve(all.min(Limits::WAKE_BYTES));
        }
        self.bytes.extend_from_slice(encoded);
        self.commit(before)
    }
}

fn encode(entry: &WakeEntry<'_>, out: &mut Vec<u8>) {
    let text = match entry.target {
        Target::Queue(address) => address.as_str(),
        Target::Pattern(selector) => selector.as_str(),
    };
    let (account, queue) = text.split_once('/').unwrap_or((text, ""));
    let fields = EntryFields {
        account,
        queue,
        payload_size: entry.work.delta.payload,
        sequence: entry.work.sequence,
        notifications: entry.work.delta.notifications,
        reason: entry.work.reason,
        last_event: entry.last_event,
        messages: entry.work.delta.messages,
    };
    encode_entry(&fields, out);
}
