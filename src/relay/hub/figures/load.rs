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

use super::super::{core::Hub, inbox::Inbox, subscription::Subscription};
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

/// What one stream does at present, by its newest reports; none without a subscription.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamLoad {
    /// Its sleeping pairs.
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
    /// Counts what a stream does now, in the place of what it did before. Its inbox is locked, so its
    /// changes come in order.
    pub(in super::super) fn note_load(
        &self,
        inbox: &mut Inbox,
        subscription: &Subscription,
        now: Tick,
    ) {
        let new = inbox.load(subscription);
        let old = std::mem::replace(&mut inbox.noted_load, new);
        if new.pairs != old.pairs {
            let change = new.pairs - old.pairs;
            self.load.change_pairs(change, now, self.degraded_from());
        }
        for (level, new, old) in [
            (&self.load.tasks, new.tasks, old.tasks),
            (&self.load.awake, new.awake, old.awake),
            (&self.load.polling, new.polling, old.polling),
        ] {
            if new != old {
                level.fetch_add(new - old, Relaxed);
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
