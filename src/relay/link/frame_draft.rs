//! A frame while the hub fills it. Keeps the limits of a message.

use crate::{
    types::cluster::{ClusterLimits, Frame, FrameEntry},
    wire::frame_entry_len,
};

/// A frame without a number.
#[derive(Debug, Default)]
pub(crate) struct FrameDraft {
    pub(super) frame: Frame,
    bytes: usize,
}

/// The largest entry: four texts of 128 bytes, 32 groups of 128 bytes, and the numbers.
pub(super) const LARGEST_ENTRY: usize = 5 * 1024;

impl FrameDraft {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Returns whether any entry has room.
    pub(crate) fn has_room(&self) -> bool {
        self.frame.entries.len() < ClusterLimits::ENTRIES
            && self.bytes + LARGEST_ENTRY <= ClusterLimits::FRAME_BYTES
    }

    /// Adds a queue. The caller has asked [`FrameDraft::has_room`].
    pub(crate) fn push_entry(&mut self, mut entry: FrameEntry) {
        debug_assert!(self.has_room());
        entry.served_groups.truncate(ClusterLimits::GROUPS);
        entry.causes = entry.causes.min(ClusterLimits::CAUSES);
        self.bytes += frame_entry_len(&entry);
        self.frame.entries.push(entry);
    }

    /// States that flags were written here.
    pub(crate) fn note_flags_written(&mut self) {
        self.frame.flags_written = true;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frame.entries.is_empty() && !self.frame.flags_written
    }
}
