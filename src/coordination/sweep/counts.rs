//! Counts of blobs by outcome.

use serde::{Deserialize, Serialize};

/// Blobs of a sweep, by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Counts {
    /// Seen.
    pub seen: u64,
    /// Without an expiry.
    pub unmarked: u64,
    /// Not expired.
    pub alive: u64,
    /// Deleted.
    pub deleted: u64,
    /// Moved to a dead-blob container.
    pub moved: u64,
    /// Changed or deleted during the work, and left to the next round.
    pub changed: u64,
    /// Left alone for a reason that an operator must remove.
    pub left: u64,
    /// Failed. The next round retries them.
    pub failed: u64,
}

impl Counts {
    /// Returns the number of blobs that were deleted or moved.
    pub fn removed(&self) -> u64 {
        self.deleted.saturating_add(self.moved)
    }

    /// Returns each count with its name.
    pub fn named(&self) -> [(&'static str, u64); 8] {
        [
            ("seen", self.seen),
            ("unmarked", self.unmarked),
            ("alive", self.alive),
            ("deleted", self.deleted),
            ("moved", self.moved),
            ("changed", self.changed),
            ("left", self.left),
            ("failed", self.failed),
        ]
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds other counts.
    pub fn add(&mut self, other: &Self) {
        let all = [
            (&mut self.seen, other.seen),
            (&mut self.unmarked, other.unmarked),
            (&mut self.alive, other.alive),
            (&mut self.deleted, other.deleted),
            (&mut self.moved, other.moved),
            (&mut self.changed, other.changed),
            (&mut self.left, other.left),
            (&mut self.failed, other.failed),
        ];
        for (sum, more) in all {
            *sum = sum.saturating_add(more);
        }
    }
}
