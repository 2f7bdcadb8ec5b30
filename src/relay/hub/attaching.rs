//! The queues of a subscription that are not attached yet.

use std::sync::Arc;

use super::queue_entry::QueueEntry;
use crate::types::{QueueAddress, Selector};

/// The queues of a subscription that are not attached yet.
pub(super) struct Attaching {
    /// Index of the next selector: exact ones are attached, patterns collected.
    pub(super) selectors: usize,
    /// The entries of the exact selectors that are still to come.
    pub(super) reserved: Reserved,
    /// Patterns whose queues are still to be walked, and the last queue of the present walk.
    pub(super) patterns: Vec<Selector>,
    pub(super) walked: Option<QueueAddress>,
    /// The subscriber has all changes up to this revision.
    pub(super) resumed: Option<u64>,
}

/// The entries of named queues without a cursor yet, in the order of the selectors. None of them is
/// forgotten before it is used, or before this is dropped.
#[derive(Default)]
pub(super) struct Reserved {
    pub(super) entries: Vec<Option<Arc<QueueEntry>>>,
    pub(super) next: usize,
}

impl Reserved {
    /// Uses the next entry, then releases it.
    pub(super) fn use_next(&mut self, with: impl FnOnce(&Arc<QueueEntry>)) {
        let next = self.entries.get_mut(self.next);
        self.next += 1;
        if let Some(entry) = next.and_then(Option::take) {
            with(&entry);
            entry.unreserve();
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.entries
            .iter()
            .flatten()
            .for_each(|entry| entry.unreserve());
    }
}
