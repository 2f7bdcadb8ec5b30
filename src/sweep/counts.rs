//! What became of the blobs, counted.

use serde::{Deserialize, Serialize};

/// What a sweep did, in blobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Counts {
    /// Looked at.
    pub seen: u64,
    /// Without a time to live.
    pub unmarked: u64,
    /// With one that has not come.
    pub alive: u64,
    /// Deleted.
    pub deleted: u64,
    /// Moved to a dead-blob container.
    pub moved: u64,
    /// Changed or gone while they were worked on, and so left to the next round.
    pub changed: u64,
    /// Left alone for a reason that stays until somebody does something about it.
    pub left: u64,
    /// Failed, and tried again in the next round.
    pub failed: u64,
}

impl Counts {
    /// Returns how many are there no more.
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
