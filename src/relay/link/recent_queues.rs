//! The queues of the newest frames, as heartbeats name them (C4).
//!
//! The list is complete for all frames above `complete_above`: a queue that leaves it raises this
//! number to its newest frame.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use super::RECENT_FOR;
use crate::{
    base::{
        clock::{Tick, nanos},
        fault::planted,
    },
    types::cluster::ClusterLimits,
};

/// The queues of the newest frames, at most 5,000.
#[derive(Debug, Default)]
pub(super) struct RecentQueues {
    /// The newest frame of each hash.
    frames: HashMap<u64, u64>,
    /// The same pairs, by frame: the oldest leave first, and heartbeats are the same in each run.
    by_frame: BTreeSet<(u64, u64)>,
    /// When frames were confirmed: the time, and the newest frame. One for each [`STEP`].
    confirmed: VecDeque<(Tick, u64)>,
    pub(super) complete_above: u64,
}

/// Frames that are confirmed within one step expire together, so that `confirmed` stays short.
const STEP: Duration = Duration::from_millis(100);

impl RecentQueues {
    /// Adds the queues with causes of a new frame.
    pub(super) fn add(&mut self, frame: u64, hashes: impl Iterator<Item = u64>) {
        for hash in hashes {
            if let Some(before) = self.frames.insert(hash, frame) {
                self.by_frame.remove(&(before, hash));
            }
            self.by_frame.insert((frame, hash));
        }
        while self.frames.len() > ClusterLimits::RECENT_QUEUES {
            self.remove_oldest();
        }
    }

    pub(super) fn confirm(&mut self, frame: u64, now: Tick) {
        let step = |at: Tick| at.as_nanos() / nanos(STEP);
        match self.confirmed.back_mut() {
            // The time is the last frame's: that of the first would let the last expire too early.
            Some(last) if step(last.0) == step(now) => *last = (now, frame),
            _ => self.confirmed.push_back((now, frame)),
        }
    }

    /// Removes the queues whose newest frame was confirmed long ago.
    pub(super) fn expire(&mut self, now: Tick) {
        while let Some((at, newest)) = self.confirmed.front().copied()
            && now.since(at) >= RECENT_FOR
        {
            self.confirmed.pop_front();
            while self
                .by_frame
                .first()
                .is_some_and(|(frame, _)| *frame <= newest)
            {
                self.remove_oldest();
            }
        }
    }

    /// Returns the hashes, and by how much each one's frame is older than the newest.
    pub(super) fn list(&self, newest: u64) -> (Vec<u64>, Vec<u64>) {
        let queues = self.by_frame.iter();
        queues.map(|(frame, hash)| (*hash, newest - frame)).unzip()
    }

    fn remove_oldest(&mut self) {
        let Some((frame, hash)) = self.by_frame.pop_first() else {
            return;
        };
        self.frames.remove(&hash);
        if planted!(LinkRecentCutSilently) {
            return;
        }
        self.complete_above = self.complete_above.max(frame);
    }
}
