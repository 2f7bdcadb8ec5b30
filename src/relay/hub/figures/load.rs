//! What the streams do at present, by the newest reports, and the reads of queues that sleeping saves.
//!
//! A *sleeping pair* is a stream and a queue that it names, or one of its patterns, where its newest
//! report states no dequeue task. A polling listener would read that queue once in `assumed_poll`. The
//! number of pairs changes with reports and subscriptions only, and its integral is summed up each time
//! that the figures are read, once a second. A notification pays for none of this. Plain atomics, and a
//! lock that only this file takes: no decision depends on them.

use std::sync::{
    Mutex,
    atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
};

use super::super::{core::Hub, inbox::Inbox, subscription::Subscription};
use crate::{
    base::{
        clock::{Tick, nanos},
        sync::lock,
    },
    types::WakeReason,
};

/// The load of all streams.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// The sums of [`StreamLoad`]. Signed: two threads may apply their changes in either order.
    levels: [AtomicI64; 4],
    slept: Mutex<Slept>,
    requested: [AtomicU64; 3],
}

#[derive(Debug, Default)]
struct Slept {
    /// The integral of the sleeping pairs up to this time.
    at: Tick,
    pair_nanos: u128,
    /// The greatest number of avoided polls that was computed: the relay may ask for reads faster than
    /// pairs save them, and a counter must not fall.
    polls_avoided: u64,
}

/// What one stream does at present, by its newest reports: its sleeping pairs and its dequeue tasks, and 1
/// where it is awake, and where it polls.
pub(crate) type StreamLoad = [i64; 4];

/// Entries of a Wake by which the relay asks for reads without a notification, in the order of
/// [`REQUESTS`].
pub(crate) type RequestedReads = [u32; REQUESTS.len()];

pub(crate) const REQUESTS: [WakeReason; 3] = [
    WakeReason::CatchUp,
    WakeReason::Sentinel,
    WakeReason::Reassigned,
];

impl Load {
    pub(crate) fn note_sent(&self, reads: RequestedReads) {
        let changed = self.requested.iter().zip(reads);
        for (sum, reads) in changed.filter(|(_, reads)| *reads > 0) {
            sum.fetch_add(reads.into(), Relaxed);
        }
    }

    pub(crate) fn requested(&self) -> [u64; REQUESTS.len()] {
        self.requested.each_ref().map(|sum| sum.load(Relaxed))
    }

    /// Returns the sums of [`StreamLoad`].
    pub(crate) fn levels(&self) -> [u64; 4] {
        let levels = self.levels.each_ref();
        levels.map(|level| u64::try_from(level.load(Relaxed)).unwrap_or_default())
    }
}

impl Hub {
    /// Counts what a stream does now, in the place of what it did before. Its inbox is locked, so its
    /// changes come in order.
    pub(in super::super) fn note_load(&self, inbox: &mut Inbox, subscription: &Subscription) {
        let new = inbox.load(subscription);
        let old = std::mem::replace(&mut inbox.noted_load, new);
        for (level, (new, old)) in self.load.levels.iter().zip(new.into_iter().zip(old)) {
            if new != old {
                level.fetch_add(new - old, Relaxed);
            }
        }
    }

    /// Returns the reads that sleeping streams have saved, less those that the relay asked for. It
    /// never falls. The present pairs count for the time since the last call, up to the time from which
    /// listeners poll.
    pub(crate) fn polls_avoided(&self, now: Tick) -> u64 {
        let mut slept = lock(&self.load.slept);
        let span = nanos(now.min(self.degraded_from()).since(slept.at));
        let [pairs, ..] = self.load.levels();
        slept.pair_nanos += u128::from(pairs) * u128::from(span);
        slept.at = slept.at.max(now);
        let polls = slept.pair_nanos / u128::from(nanos(self.shared.config.assumed_poll).max(1));
        let asked: u64 = self.load.requested().iter().sum();
        let avoided = u64::try_from(polls.saturating_sub(asked.into())).unwrap_or(u64::MAX);
        slept.polls_avoided = slept.polls_avoided.max(avoided);
        slept.polls_avoided
    }
}
