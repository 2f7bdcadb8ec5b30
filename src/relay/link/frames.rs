//! This relay's frames: filled within the limits of a message, then sent one at a time and repeated until
//! they return (C2).

use bytes::Bytes;

use super::{BURST, BURST_PAUSE, RETURN_WITHIN, SecondMachine};
use crate::{
    base::clock::Tick,
    types::cluster::{ClusterLimits, Frame, FrameEntry},
    wire::frame_entry_len,
};

/// A frame without a number.
#[derive(Debug, Default)]
pub(crate) struct FrameDraft {
    pub(super) frame: Frame,
    bytes: usize,
}

/// The newest own frame.
#[derive(Debug, Default)]
pub(super) struct FrameSender {
    pub(super) number: u64,
    /// Its bytes, which never change.
    pub(super) bytes: Bytes,
    in_flight: Option<InFlight>,
    /// After a burst the next frame waits until then.
    paused_until: Tick,
    /// No new frame is made until this own heartbeat, or a later one, has returned.
    after_heartbeat: u64,
}

#[derive(Debug, Clone, Copy)]
struct InFlight {
    since: Tick,
    repeat_at: Tick,
    /// It did not return in time.
    overdue: bool,
}

/// The largest entry: four texts of 128 bytes, 32 groups of 128 bytes, and the numbers.
pub(super) const LARGEST_ENTRY: usize = 5 * 1024;

impl FrameDraft {
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

impl FrameSender {
    /// Returns when the next frame may be made, or `None` while one is in flight or no heartbeat
    /// has returned since the last connect.
    pub(super) fn due_at(&self, returned: u64) -> Option<Tick> {
        let ready = self.in_flight.is_none() && returned >= self.after_heartbeat;
        ready.then_some(self.paused_until)
    }

    pub(super) fn sent(&mut self, frame: &Frame, bytes: Bytes, now: Tick) {
        self.number = frame.number;
        self.bytes = bytes;
        self.in_flight = Some(InFlight {
            since: now,
            repeat_at: now + RETURN_WITHIN,
            overdue: false,
        });
        if frame
            .entries
            .iter()
            .any(|entry| entry.notifications >= BURST)
        {
            self.paused_until = now + BURST_PAUSE;
        }
    }

    /// Returns the bytes of the frame in flight, to be published again.
    pub(super) fn repeat(&mut self, now: Tick) -> Option<Bytes> {
        let in_flight = self.in_flight.as_mut()?;
        in_flight.repeat_at = now + RETURN_WITHIN;
        Some(self.bytes.clone())
    }

    pub(super) fn repeat_at(&self) -> Tick {
        self.in_flight.map_or(Tick::NEVER, |frame| frame.repeat_at)
    }

    /// Returns whether the frame in flight is newly overdue.
    pub(super) fn check_overdue(&mut self, now: Tick) -> bool {
        match &mut self.in_flight {
            Some(frame) if !frame.overdue && now.since(frame.since) >= RETURN_WITHIN => {
                frame.overdue = true;
                true
            }
            _ => false,
        }
    }

    /// Returns whether the frame in flight is confirmed now.
    ///
    /// # Errors
    /// If this relay has not sent these bytes. Those of older frames are not known any more.
    pub(super) fn on_return(&mut self, number: u64, bytes: &Bytes) -> Result<bool, SecondMachine> {
        if number < self.number {
            return Ok(false);
        }
        if number > self.number || *bytes != self.bytes {
            return Err(SecondMachine);
        }
        Ok(self.in_flight.take().is_some())
    }

    /// The connection is new: the next heartbeat must return before a new frame is made.
    pub(super) fn wait_for(&mut self, heartbeat: u64) {
        self.after_heartbeat = heartbeat;
    }

    pub(super) fn in_flight_since(&self) -> Option<Tick> {
        self.in_flight.map(|frame| frame.since)
    }
}
