//! The relay's state of one queue: its counters and its listeners.
//!
//! Its size is constant, but for an item per subscriber and a few timers; it buffers no event. An
//! entry is made before its pattern subscribers are known; the first count attaches them. R3: a
//! forgotten entry is marked dead, and a caller that finds it dead looks the queue up again.

use std::sync::Arc;

use super::{
    config::CoordinatorConfig,
    coordinator::Coordinator,
    counters::{Counters, LastEvent},
    mailbox::WakeBatch,
    pattern_holders::PatternHolders,
    subscribers::{SUBSCRIBERS_PER_STEP, Subscribers},
    sync::{Mutex, MutexGuard, lock},
    timers::{QueueTimers, Timer, TimerOrder, timer_offset},
    wake_builder::EncodingCache,
};
use crate::{
    base::{
        clock::Tick,
        fault::{Fault, planted},
    },
    types::{Notification, QueueAddress, WakeReason},
};

pub(crate) struct QueueEntry {
    address: QueueAddress,
    /// Orders entries with equal timers; the same in every simulated run.
    number: u64,
    pub(super) config: Arc<CoordinatorConfig>,
    state: Mutex<QueueState>,
}

/// The part of an entry that its lock guards.
pub(super) struct QueueState {
    phase: EntryPhase,
    /// The sequence at which its counting began.
    pub(super) start: u64,
    pub(super) counters: Counters,
    /// The hub's revision when the queue last counted, or when this entry was made (see `resume`).
    pub(super) changed_at: u64,
    /// The sequence of the newest notification, and of the newest timed wake-up.
    pub(super) notified: u64,
    pub(super) last_event: LastEvent,
    pub(super) active_at: Tick,
    /// When the last subscriber left. Its token stays valid while the queue is remembered.
    pub(super) left_at: Tick,
    /// The depth in the newest report that stated one, and its time. [`Tick::NEVER`] means none; an
    /// `Option` would take 8 bytes more for every queue.
    pub(super) depth: (u64, Tick),
    pub(super) subscribers: Subscribers,
    /// The newest wake-up entry's encoding.
    pub(super) encoded: EncodingCache,
    /// The log has the line that this queue has no listeners.
    logged_no_listeners: bool,
    /// The fan-out has a walk to do.
    walk_pending: bool,
    /// The queue has had a group, so new work is assigned to members.
    pub(super) grouped: bool,
    /// A subscriber's stream has not taken the sentinel's check yet.
    pub(super) check_pending: bool,
    pub(super) timers: QueueTimers,
    pub(super) coordinator: Option<Box<Coordinator>>,
    pub(super) armed: Option<Tick>,
    /// Subscriptions that name the queue and have no cursor yet; they keep the entry. A small type
    /// suffices because each lasts for moments. After an overflow the entry would be made again.
    reserved: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryPhase {
    /// Made; pattern subscribers may not be attached yet.
    New,
    Live,
    /// Forgotten: removed from the map, or about to be.
    Dead,
}

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

/// The reason why an entry cannot count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotLive {
    /// Attach the pattern subscribers, then try again.
    Unattached,
    /// Look the queue up again.
    Dead,
}

/// The remaining work for the subscribers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MarkOutcome {
    /// The fan-out must walk them.
    NeedsWalk,
    /// None: they are marked, or a walk is pending already.
    Done,
}

/// The key of a walk that has marked all subscribers and only chooses members.
const WALKED: u64 = u64::MAX;

impl QueueEntry {
    pub(super) fn new(
        address: QueueAddress,
        number: u64,
        (start, changed_at): (u64, u64),
        now: Tick,
        config: &Arc<CoordinatorConfig>,
    ) -> Self {
        let state = QueueState {
            phase: EntryPhase::New,
            start,
            counters: Counters::starting_at(start),
            changed_at,
            notified: 0,
            last_event: LastEvent::default(),
            active_at: now,
            left_at: now,
            depth: (0, Tick::NEVER),
            subscribers: Subscribers::default(),
            encoded: EncodingCache::default(),
            logged_no_listeners: false,
            walk_pending: false,
            grouped: false,
            check_pending: false,
            timers: QueueTimers::default(),
            coordinator: None,
            armed: None,
            reserved: 0,
        };
        Self {
            address,
            number,
            config: Arc::clone(config),
            state: Mutex::new(state),
        }
    }

    pub(super) fn address(&self) -> &QueueAddress {
        &self.address
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns an offset that gives each queue its own grid of timers.
    pub(super) fn timer_offset(&self) -> u64 {
        timer_offset(&self.address)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, QueueState> {
        lock(&self.state)
    }

    /// Marks one step's subscribers with keys from `from` on, then the chosen members; returns the
    /// next key, or `None` at the end.
    pub(super) fn walk(&self, from: u64, batch: &mut WakeBatch) -> Option<u64> {
        let mut state = self.lock();
        if from == 0 {
            self.start_walk(&mut state);
        }
        let mut next = state.subscribers.mark(from, SUBSCRIBERS_PER_STEP, batch);
        if next.is_none() && state.grouped && state.assign(batch) {
            next = Some(WALKED);
        }
        next
    }

    /// Notes that the pending walk has ended, or that it was dropped.
    pub(super) fn end_walk(&self, ended: bool) {
        if planted!(self.config.fault, MarkClearedAfterWalk) {
            self.lock().walk_pending = false;
        }
        if planted!(self.config.fault, WalkLeavesMark) {
            return;
        }
        if !ended {
            self.lock().walk_pending = false;
        }
    }

    /// R5: the mark is cleared before the subscribers are read.
    fn start_walk(&self, state: &mut QueueState) {
        if planted!(self.config.fault, MarkClearedAfterWalk) {
            return;
        }
        state.walk_pending = false;
    }

    /// Notes that the pattern subscribers have been attached.
    pub(super) fn set_live(&self) {
        let mut state = self.lock();
        if state.phase == EntryPhase::New {
            state.phase = EntryPhase::Live;
        }
    }

    /// Keeps the entry for a subscription that names the queue, until [`QueueEntry::unreserve`];
    /// `false` where the entry is dead.
    #[must_use]
    pub(super) fn reserve(&self) -> bool {
        let mut state = self.lock();
        let live = state.phase != EntryPhase::Dead;
        state.reserved = state.reserved.saturating_add(u16::from(live));
        live
    }

    pub(super) fn unreserve(&self) {
        let mut state = self.lock();
        state.reserved = state.reserved.saturating_sub(1);
    }

    /// Returns since when the queue has been idle and how many patterns hold it, or `None` where it
    /// is in use. [`QueueEntry::idle_state`] compares the holders.
    pub(super) fn idle_since(&self) -> Option<(Tick, usize)> {
        let state = self.lock();
        let named = state.subscribers.iter().next();
        let named = state.reserved > 0 || named.is_some_and(|one| !one.by_pattern);
        let idle = state.phase != EntryPhase::Dead && state.timers.len() == 0 && !named;
        idle.then(|| (state.idle_since(self.config.fault), state.listeners()))
    }

    /// Returns the state of an entry that may be idle since `since`, or since `pattern_since` where
    /// patterns match it.
    pub(super) fn idle_state(&self, since: Tick, pattern_since: Option<Tick>) -> IdleState {
        let state = self.lock();
        let idle_since = state.idle_since(self.config.fault);
        let timed = state.has_timers(self.config.fault);
        let needed = timed || state.reserved > 0;
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
        if planted!(self.config.fault, PatternPinsQueue) {
            return IdleState::InUse;
        }
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
        timers: &TimerOrder,
        floor: impl FnOnce(u64, u64),
    ) -> bool {
        let mut state = self.lock();
        let timed = state.has_timers(self.config.fault);
        let held = match holders {
            None => state.subscribers.len() > 0 || state.grouped,
            Some(holders) => !holders.still_match(&state),
        };
        let needed = timed || held || state.reserved > 0;
        if state.phase == EntryPhase::Dead
            || needed
            || state.idle_since(self.config.fault) > idle_since
        {
            return false;
        }
        floor(state.counters.sequence + 1, state.changed_at);
        if !planted!(self.config.fault, DeadNotMarked) {
            state.phase = EntryPhase::Dead;
        }
        if planted!(self.config.fault, ForgetWithTimer) {
            state.timers = QueueTimers::default();
        }
        (state.coordinator, state.grouped, state.check_pending) = (None, false, false);
        state.subscribers = Subscribers::default();
        // Its sentinel's time may still be in the timers' order. Without this, a dead entry would
        // come up for ever.
        let _ = state.rearm(self, timers);
        true
    }
}

impl QueueState {
    /// Returns whether a timer keeps the entry.
    fn has_timers(&self, fault: Fault) -> bool {
        self.timers.len() > 0 && !planted!(fault, ForgetWithTimer)
    }

    /// An entry without listeners is kept from the time when the last one left, because a
    /// subscriber may come back with its token. With other listeners it is not: rotating streams
    /// would keep every queue of their pattern, and a missing entry costs only a CATCH_UP.
    fn idle_since(&self, fault: Fault) -> Tick {
        let stays = planted!(fault, EndedStreamPinsQueue);
        let members = self
            .coordinator
            .as_ref()
            .map_or(0, |coordinator| coordinator.members());
        match self.subscribers.len() + members {
            len if len == 0 || stays => self.active_at.max(self.left_at),
            _ => self.active_at,
        }
    }

    /// Returns a number that grows with each new subscriber and member.
    pub(super) fn changes(&self) -> u64 {
        let members = self
            .coordinator
            .as_ref()
            .map_or(0, |coordinator| coordinator.joined());
        self.subscribers.joined() + members
    }

    pub(super) fn is_dead(&self) -> bool {
        self.phase == EntryPhase::Dead
    }

    pub(super) fn listeners(&self) -> usize {
        let members = match &self.coordinator {
            Some(coordinator) if self.grouped => coordinator.members(),
            _ => 0,
        };
        self.subscribers.len() + members
    }

    /// Returns whether the queue has no listener and this was not logged yet.
    pub(super) fn first_without_listeners(&mut self) -> bool {
        self.listeners() == 0 && !std::mem::replace(&mut self.logged_no_listeners, true)
    }

    /// Fails where the entry is not live.
    pub(super) fn check_live(&self) -> Result<(), NotLive> {
        match self.phase {
            EntryPhase::New => Err(NotLive::Unattached),
            EntryPhase::Live => Ok(()),
            EntryPhase::Dead => Err(NotLive::Dead),
        }
    }

    /// Counts one notification without a delay.
    pub(super) fn count(&mut self, publisher: &Arc<str>, notification: &Notification, now: Tick) {
        self.counters.sequence += 1;
        self.counters.add(notification);
        self.notified = self.counters.sequence;
        self.active_at = now;
        self.last_event.replace(publisher, notification);
    }

    /// Counts a timed wake-up, with the delayed notification in it.
    pub(super) fn count_timed(&mut self, timer: Timer, now: Tick) {
        self.counters.sequence += 1;
        self.counters.add_totals(&timer.counters);
        self.active_at = now;
        if let Some(last_event) = timer.last_event {
            self.last_event = last_event;
        }
    }

    /// Counts the timers that are due; returns how many.
    pub(super) fn count_due(&mut self, now: Tick) -> u64 {
        let mut fired = 0;
        while let Some(timer) = self.timers.pop_due(now) {
            self.count_timed(timer, now);
            fired += 1;
        }
        fired
    }

    /// Moves this entry in the hub's order of timers; returns whether its next timer is the first
    /// of all.
    #[must_use]
    pub(super) fn rearm(&mut self, entry: &Arc<QueueEntry>, timers: &TimerOrder) -> bool {
        let next = match &self.coordinator {
            Some(coordinator) if coordinator.reconcile_at != Tick::NEVER => {
                let timer = self.timers.next().unwrap_or(Tick::NEVER);
                Some(timer.min(coordinator.reconcile_at))
            }
            _ => self.timers.next(),
        };
        timers.rearm(entry, &mut self.armed, next)
    }

    /// Marks the subscribers after a count, where there are no more than `inline`; otherwise leaves
    /// them to the fan-out. With `more`, members are left to assign, and the fan-out assigns them.
    pub(super) fn mark_subscribers(
        &mut self,
        inline: Option<usize>,
        more: bool,
        batch: &mut WakeBatch,
    ) -> MarkOutcome {
        let few = |inline: usize| self.subscribers.len() <= inline.min(SUBSCRIBERS_PER_STEP);
        if !more && inline.is_some_and(few) {
            self.subscribers.mark(0, SUBSCRIBERS_PER_STEP, batch);
            MarkOutcome::Done
        } else if std::mem::replace(&mut self.walk_pending, true) {
            MarkOutcome::Done
        } else {
            MarkOutcome::NeedsWalk
        }
    }

    /// Returns why a subscriber at `position` gets a wake-up, or `None` where it is up to date.
    pub(super) fn wake_reason(&self, position: &Counters) -> Option<WakeReason> {
        self.head().wake_reason(position)
    }

    /// Returns the capacities of its lists: subscribers and timers.
    #[cfg(test)]
    pub(super) fn capacities(&self) -> [usize; 2] {
        [self.subscribers.capacity(), self.timers.capacity()]
    }

    /// Removes a subscriber; returns whether the coordinator must be reconciled.
    pub(super) fn remove_subscriber(&mut self, key: u64, now: Tick) -> bool {
        self.subscribers.remove(key);
        self.left_at = now;
        if self.subscribers.len() < 2 {
            self.encoded = EncodingCache::default();
        }
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.subscriber_left(key, now);
        }
        self.drop_unused_coordinator();
        self.coordinator
            .as_ref()
            .is_some_and(|coordinator| coordinator.needs_reconcile)
    }
}
