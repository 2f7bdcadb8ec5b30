//! Whether an entry is idle, what holds it, and how it is marked dead.

use std::sync::Arc;

use super::{
    coordinator::Coordinator,
    counters::Counters,
    mailbox::SubscriptionId,
    queue_entry::{EntryPhase, QueueEntry, QueueState},
    subscribers::{Subscriber, Subscribers},
    timers::TimerOrder,
};
use crate::base::{clock::Tick, fault::planted};

/// The reason why an idle entry can or cannot be forgotten.
pub(super) enum IdleState {
    /// The queue is in use, or was not idle for long enough.
    InUse,
    /// No subscriber, member or timer needs it.
    Unused,
    /// Only pattern subscriptions hold it, as far as the entry knows. It has been idle since
    /// `since`.
    HeldByPatterns {
        holders: PatternHolders,
        since: Tick,
    },
}

/// The subscriptions that hold an idle entry by a pattern, and the entry's state at that time.
pub(super) struct PatternHolders {
    pub(super) holders: Vec<(SubscriptionId, u32)>,
    pub(super) counters: Counters,
    pub(super) changes: u64,
}

impl PatternHolders {
    /// Returns the holders of an entry, or `None` where one of them names the queue or work is
    /// pending for a group.
    pub(super) fn of(state: &QueueState) -> Option<Self> {
        let mut holders = Vec::new();
        for one in state.subscribers.iter() {
            if !one.by_pattern {
                return None;
            }
            holders.push((one.mailbox.id, one.cursor));
        }
        let mut all_by_pattern = true;
        let mut add = |one: &Subscriber| {
            all_by_pattern &= one.by_pattern;
            holders.push((one.mailbox.id, one.cursor));
        };
        let idle = state.coordinator.as_ref().is_none_or(|coordinator| {
            coordinator.each_member(&mut add);
            coordinator.is_idle(&state.head())
        });
        (idle && all_by_pattern).then(|| Self {
            holders,
            counters: state.counters,
            changes: state.changes(),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.holders.len()
    }

    /// Returns whether the entry is unchanged.
    pub(super) fn still_match(&self, state: &QueueState) -> bool {
        state.counters == self.counters && state.changes() == self.changes
    }
}

impl QueueEntry {
    /// Returns since when the queue has been idle and how many patterns hold it, or `None` where it
    /// is in use. [`QueueEntry::idle_state`] compares the holders.
    pub(super) fn idle_since(&self) -> Option<(Tick, usize)> {
        let state = self.lock();
        let named = state.subscribers.iter().next();
        let needed = state.reserved > 0 || state.is_listed() || state.is_walked();
        let named = needed || named.is_some_and(|one| !one.by_pattern);
        let idle = state.phase != EntryPhase::Dead && state.timers.len() == 0 && !named;
        idle.then(|| (state.idle_since(), state.listeners()))
    }

    /// Returns the state of an entry that may be idle since `since`, or since `pattern_since` where
    /// patterns match it.
    pub(super) fn idle_state(&self, since: Tick, pattern_since: Option<Tick>) -> IdleState {
        let state = self.lock();
        let idle_since = state.idle_since();
        let timed = state.has_timers();
        let needed = timed || state.reserved > 0 || state.is_listed() || state.is_walked();
        if state.phase == EntryPhase::Dead || needed || idle_since > since {
            return IdleState::InUse;
        }
        if state.subscribers.len() == 0 && !state.grouped {
            return IdleState::Unused;
        }
        // Compared before the holders are collected, because there may be many.
        let Some(since) = pattern_since.filter(|since| idle_since <= *since) else {
            return IdleState::InUse;
        };
        let holders = PatternHolders::of(&state);
        holders.map_or(IdleState::InUse, |holders| IdleState::HeldByPatterns {
            holders,
            since,
        })
    }

    /// Marks this entry dead where nothing has needed it since `idle_since`, raising `floor` first.
    /// R3: sequences of this name never start again in this epoch. `floor` also gets the revision
    /// of the last change.
    pub(super) fn forget(
        self: &Arc<Self>,
        holders: Option<&PatternHolders>,
        idle_since: Tick,
        timers: &TimerOrder<Self>,
        floor: impl FnOnce(u64, u64),
    ) -> bool {
        let mut state = self.lock();
        let timed = state.has_timers();
        let held = match holders {
            None => state.subscribers.len() > 0 || state.grouped,
            Some(holders) => !holders.still_match(&state),
        };
        let held = held || state.reserved > 0;
        let needed = timed || held || state.is_listed() || state.is_walked();
        if state.phase == EntryPhase::Dead || needed || state.idle_since() > idle_since {
            return false;
        }
        floor(state.counters.sequence + 1, state.changed_at);
        if !planted!(DeadNotMarked) {
            state.phase = EntryPhase::Dead;
        }
        (state.coordinator, state.grouped, state.check_pending) = (None, false, false);
        state.subscribers = Subscribers::default();
        // Its sentinel's time may still be in the timers' order. Without this, a dead entry would
        // come up for ever.
        let _ = state.rearm(self, timers);
        true
    }
}

impl Coordinator {
    fn each_member(&self, each: &mut impl FnMut(&Subscriber)) {
        self.all_groups().for_each(|group| group.each_member(each));
    }
}
