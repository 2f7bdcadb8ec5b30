//! One wake: its entries, and what still fits into it (R1).

use super::{
    place::{Epoch, Sums, Tally},
    record::Newest,
};
use crate::{
    fault::{Fault, planted},
    words::{Limits, QueueAddress, Selector, Token, WakeReason, WorkDetected},
};

/// A wake in the making: at most 256 entries and 32 KiB. An entry is never refused by an empty one:
/// its texts have limits of their own.
pub(super) struct Room {
    pub(super) work: Vec<WorkDetected>,
    bytes: usize,
    unbounded: bool,
}

impl Room {
    pub(super) fn new(fault: Fault) -> Self {
        Self {
            work: Vec::new(),
            bytes: Limits::WAKE_BYTES,
            unbounded: planted!(fault, WakeUnbounded),
        }
    }

    /// Takes on an entry, where it fits.
    pub(super) fn take(&mut self, entry: WorkDetected) -> bool {
        let left = self.bytes.checked_sub(entry.encoded_at_most());
        let fits = self.work.len() < Limits::WAKE_ENTRIES && left.is_some();
        if fits || self.unbounded {
            self.bytes = left.unwrap_or(0);
            self.work.push(entry);
        }
        fits || self.unbounded
    }
}

pub(super) fn wake_up(
    address: &QueueAddress,
    reason: WakeReason,
    sums: Sums,
    head: &Tally,
    newest: Newest,
    epoch: Epoch,
) -> WorkDetected {
    WorkDetected {
        queue: address.into(),
        reason,
        sequence: head.sequence,
        notifications: sums.notifications,
        payload_size: sums.payload,
        messages: sums.messages,
        publisher: newest.publisher,
        published_at: newest.published_at,
        traceparent: newest.traceparent,
        token: head.token(epoch),
    }
}

/// A pattern's look: at all the queues you know that match.
pub(super) fn look_at_all(selector: &Selector, reason: WakeReason) -> WorkDetected {
    let Newest {
        publisher,
        published_at,
        traceparent,
    } = Newest::default();
    WorkDetected {
        queue: selector.clone(),
        reason,
        sequence: 0,
        notifications: 0,
        payload_size: 0,
        messages: 0,
        publisher,
        published_at,
        traceparent,
        token: Token::default(),
    }
}
