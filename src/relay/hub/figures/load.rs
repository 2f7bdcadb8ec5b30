//! What the streams do at present, by the newest reports, and the reads of queues that sleeping saves.
//!
//! A *sleeping pair* is a stream and a queue that it names, or one of its patterns, where its newest
//! report states no dequeue task. A polling listener would read that queue once in `assumed_poll`. The
//! number of pairs changes with reports and subscriptions only, so its integral over the time needs no scan. A notification pays for
//! none of this. Plain atomics, and a lock that only this file takes: no decision depends on them.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
};

use super::super::core::Hub;
use crate::{
    base::clock::{Tick, nanos},
    types::WakeReason,
};

/// The load of all streams.
#[derive(Debug, Default)]
pub(crate) struct Load {
    awake: AtomicI64,
    polling: AtomicI64,
    tasks: AtomicI64,
    sleeping: Mutex<SleepingPairs>,
    catch_ups: AtomicU64,
    sentinels: AtomicU64,
    reassigned: AtomicU64,
    /// The greatest number of avoided polls that was computed: the relay may ask for reads faster than
    /// pairs save them, and a counter must not fall.
    polls_avoided: AtomicU64,
}

#[derive(Debug, Default)]
struct SleepingPairs {
    /// Signed: two threads may apply their changes in either order.
    pairs: i64,
    /// The integral of the pairs up to this time.
    at: Tick,
    pair_nanos: u128,
}

/// The effect of a report, or of a subscription that comes or goes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoadChange {
    pub(crate) pairs: i64,
    pub(crate) tasks: i64,
    pub(crate) awake: i64,
    pub(crate) polling: i64,
}

/// The load at one moment.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoadStats {
    pub(crate) awake: u64,
    pub(crate) polling: u64,
    /// Dequeue tasks.
    pub(crate) tasks: u64,
    /// Wake-ups sent without a notification, by reason.
    pub(crate) catch_ups: u64,
    pub(crate) sentinels: u64,
    pub(crate) reassigned: u64,
}

/// Entries of a Wake by which the relay asks for reads without a notification.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestedReads {
    catch_ups: u32,
    sentinels: u32,
    reassigned: u32,
}

impl RequestedReads {
    pub(crate) fn add(&mut self, reason: WakeReason) {
        match reason {
            WakeReason::CatchUp => self.catch_ups += 1,
            WakeReason::Sentinel => self.sentinels += 1,
            WakeReason::Reassigned => self.reassigned += 1,
            _ => {}
        }
    }
}

impl LoadChange {
    /// A subscription with this many pairs was opened; it has no report yet.
    pub(crate) fn of_pairs(pairs: i64) -> Self {
        Self {
            pairs,
            ..Self::default()
        }
    }

    /// The newest report on a queue states another number of tasks.
    pub(crate) fn of_tasks(before: u32, after: u32) -> Self {
        Self {
            pairs: i64::from(after == 0) - i64::from(before == 0),
            tasks: i64::from(after) - i64::from(before),
            ..Self::default()
        }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            pairs: self.pairs + other.pairs,
            tasks: self.tasks + other.tasks,
            awake: self.awake + other.awake,
            polling: self.polling + other.polling,
        }
    }
}

impl SleepingPairs {
    /// Adds the time since the last change, up to the time from which listeners poll.
    fn advance(&mut self, now: Tick, degraded_from: Tick) {
        let span = nanos(now.min(degraded_from).since(self.at));
        let pairs = u64::try_from(self.pairs).unwrap_or_default();
        self.pair_nanos += u128::from(pairs) * u128::from(span);
        self.at = self.at.max(now);
    }
}

impl Load {
    pub(crate) fn note_sent(&self, reads: RequestedReads) {
        if reads == RequestedReads::default() {
            return;
        }
        self.catch_ups.fetch_add(reads.catch_ups.into(), Relaxed);
        self.sentinels.fetch_add(reads.sentinels.into(), Relaxed);
        self.reassigned.fetch_add(reads.reassigned.into(), Relaxed);
    }

    pub(crate) fn stats(&self) -> LoadStats {
        let level = |of: &AtomicI64| u64::try_from(of.load(Relaxed)).unwrap_or_default();
        LoadStats {
            awake: level(&self.awake),
            polling: level(&self.polling),
            tasks: level(&self.tasks),
            catch_ups: self.catch_ups.load(Relaxed),
            sentinels: self.sentinels.load(Relaxed),
            reassigned: self.reassigned.load(Relaxed),
        }
    }

    pub(crate) fn change_pairs(&self, pairs: i64, now: Tick, degraded_from: Tick) -> u128 {
        let sleeping = self.sleeping.lock();
        let mut sleeping = sleeping.unwrap_or_else(PoisonError::into_inner);
        sleeping.advance(now, degraded_from);
        sleeping.pairs += pairs;
        sleeping.pair_nanos
    }
}

impl Hub {
    pub(in super::super) fn change_load(&self, change: LoadChange, now: Tick) {
        if change.pairs != 0 {
            self.load
                .change_pairs(change.pairs, now, self.degraded_from());
        }
        for (level, change) in [
            (&self.load.tasks, change.tasks),
            (&self.load.awake, change.awake),
            (&self.load.polling, change.polling),
        ] {
            if change != 0 {
                level.fetch_add(change, Relaxed);
            }
        }
    }

    /// Returns the reads that sleeping streams have saved, less those that the relay asked for. It
    /// never falls.
    pub(crate) fn polls_avoided(&self, now: Tick) -> u64 {
        let slept = self.load.change_pairs(0, now, self.degraded_from());
        let polls = slept / u128::from(nanos(self.shared.config.assumed_poll).max(1));
        let sent = self.load.stats();
        let asked = [sent.catch_ups, sent.sentinels, sent.reassigned].map(u128::from);
        let asked: u128 = asked.iter().sum();
        let avoided = u64::try_from(polls.saturating_sub(asked)).unwrap_or(u64::MAX);
        let before = self.load.polls_avoided.fetch_max(avoided, Relaxed);
        avoided.max(before)
    }
}
