//! One Wake: its entries, and the room left in it (R1: a Wake is bounded. One too large for a stock
//! client fails; the client reconnects and gets the same Wake, for ever).
//!
//! A sink takes the entries as the stream's transport needs them: as values for a subscriber in
//! this process, as encoded bytes for the network. The hub knows neither form.

use super::super::members::Assignment;
use crate::{
    base::fault::planted,
    types::{LastEvent, Limits, QueueAddress, Selector, WorkDetected},
};

/// The queue or pattern of an entry.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target<'a> {
    Queue(&'a QueueAddress),
    /// A pattern's own name: the listener checks all matching queues that it knows.
    Pattern(&'a Selector),
}

/// One entry, before it is written. It borrows from the queue's entry, under its lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WakeEntry<'a> {
    pub(crate) target: Target<'a>,
    pub(crate) work: Assignment,
    /// Details of the newest event.
    pub(crate) last_event: &'a LastEvent,
}

/// The encoding of a queue's newest wake-up entry, shared by all subscribers at the same position: with
/// that position's sequence, and the entry's.
#[derive(Default)]
pub(crate) struct EncodingCache(Option<Box<(u64, u64, Vec<u8>)>>);

/// Takes the entries of one Wake.
pub(crate) trait WakeSink {
    /// States the most entries that follow.
    fn expect(&mut self, entries: usize) {
        _ = entries;
    }

    /// Appends an entry; `false` where it does not fit, and then nothing was appended. An empty
    /// Wake accepts any entry, because its texts have limits. `shared` has its encoding, or is empty and
    /// gets it for other subscribers.
    fn push(&mut self, entry: &WakeEntry<'_>, shared: Option<&mut Vec<u8>>) -> bool;
}

/// A Wake as values: at most 256 entries and 32 KiB, computed with each entry's greatest size.
#[derive(Debug, Default)]
pub(crate) struct WakeBuilder {
    pub(crate) work: Vec<WorkDetected>,
    bytes: usize,
}

impl EncodingCache {
    /// Returns the bytes for the entry from a position at the first sequence to the second one; empty until
    /// they are encoded.
    pub(crate) fn get(&mut self, from: u64, sequence: u64) -> &mut Vec<u8> {
        let (known_from, known, bytes) = &mut **self.0.get_or_insert_default();
        if (*known_from, *known) != (from, sequence) {
            (*known_from, *known) = (from, sequence);
            bytes.clear();
        }
        bytes
    }
}

impl WakeSink for WakeBuilder {
    fn push(&mut self, entry: &WakeEntry<'_>, _: Option<&mut Vec<u8>>) -> bool {
        let delta = &entry.work.delta;
        let work = WorkDetected {
            queue: match entry.target {
                Target::Queue(address) => address.into(),
                Target::Pattern(selector) => selector.clone(),
            },
            reason: entry.work.reason,
            sequence: entry.work.sequence,
            notifications: delta.notifications,
            payload_size: delta.payload,
            messages: delta.messages,
            last_event: entry.last_event.clone(),
        };
        let bytes = self.bytes + work.encoded_at_most();
        let has_room = self.work.len() < Limits::WAKE_ENTRIES && bytes <= Limits::WAKE_BYTES;
        let fits = has_room || planted!(WakeUnbounded);
        if fits {
            self.bytes = bytes;
            self.work.push(work);
        }
        fits
    }
}
