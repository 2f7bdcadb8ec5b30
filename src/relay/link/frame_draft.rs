//! A frame while the hub fills it. Keeps the limits of a message.

use crate::{
    types::cluster::{ClusterLimits, FlagHint, Frame, FrameEntry},
    wire::{flag_hint_len, frame_entry_len},
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

    /// Returns whether any entry and any flag has room.
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

    /// Adds a flag. The caller has asked [`FrameDraft::has_room`].
    pub(crate) fn push_flag(&mut self, flag: FlagHint) {
        debug_assert!(self.has_room());
        self.bytes += flag_hint_len(&flag);
        self.frame.flags.push(flag);
    }

    /// States that more flags were written than the frames name.
    pub(crate) fn omit_flags(&mut self) {
        self.frame.flags_omitted = true;
    }

    pub(crate) fn is_empty(&self) -> bool {
        let frame = &self.frame;
        frame.entries.is_empty() && frame.flags.is_empty() && !frame.flags_omitted
    }
}
