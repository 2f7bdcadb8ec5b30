//! The relay's state of one queue: its counters and its listeners.
//!
//! Its size is constant, but for an item per subscriber and a few timers; it buffers no event. An
//! entry is made before its pattern subscribers are known; the first count attaches them. R3: a
//! forgotten entry is marked dead, and a caller that finds it dead looks the queue up again.

use std::sync::Arc;

use super::{
    announced::Announced,
    config::CoordinatorConfig,
    config::SUBSCRIBERS_PER_STEP,
    coordinator::Coordinator,
    counters::Counters,
    mailbox::WakeBatch,
    subscribers::Subscribers,
    sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock},
    timers::{QueueTimers, Timer, TimerOrder, timer_offset},
    wake_builder::EncodingCache,
};
use crate::{
    base::{clock::Tick, fault::planted},
    types::{LastEvent, Notification, QueueAddress, WakeReason},
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
    pub(super) phase: EntryPhase,
    /// The sequence at which its counting began.
    pub(super) start: u64,
    pub(super) counters: Counters,
    /// The hub's revision when all subscribers were told of the newest count, or when this entry was
    /// made; [`UNSETTLED`] while a walk tells them (see `resume`).
    pub(super) changed_at: u64,
    /// The sequence of the newest notification.
    pub(super) notified: u64,
    pub(super) last_event: LastEvent,
    pub(super) active_at: Tick,
    /// When the last subscriber left.
    pub(super) left_at: Tick,
    /// The newest depth that a listener read, and when. [`Tick::NEVER`] means none; an `Option` would
    /// take 8 bytes more for every queue.
    pub(super) depth: (u64, Tick),
    /// Messages counted that the depth may not contain. It grows with each message; only a report
    /// that is certain to have seen messages lowers it (see `backlog`).
    pub(super) since_depth: u64,
    /// Streams whose newest report on the queue is BUSY.
    pub(super) busy: u32,
    /// A listener has reported on the queue since this entry was made.
    pub(super) heard: bool,
    pub(super) subscribers: Subscribers,
    /// The newest wake-up entry's encoding.
    pub(super) encoded: EncodingCache,
    pub(super) bits: EntryBits,
    /// The fan-out has a walk to do.
    walk_pending: bool,
    /// The walks that have not ended.
    walks: u8,
    /// The queue has had a group, so new work is assigned to members.
    pub(super) grouped: bool,
    /// C11: a group's work must be passed on to the other relays.
    pub(super) passed_on: bool,
    /// A subscriber's stream has not taken the sentinel's check yet.
    pub(super) check_pending: bool,
    pub(super) timers: QueueTimers,
    pub(super) coordinator: Option<Box<Coordinator>>,
    /// Its time in the hub's order of timers; [`Tick::NEVER`]: it is not in there.
    pub(super) armed: Tick,
    /// Subscriptions that name the queue and have no cursor yet; they keep the entry. A small type
    /// suffices because each lasts for moments. After an overflow the entry would be made again.
    pub(super) reserved: u16,
    /// What the other relays of a cluster know; made at the first cause in a cluster.
    pub(super) announced: Option<Box<Announced>>,
}

/// Rare facts of an entry, a bit each: one more byte would take 16 for every queue.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct EntryBits(u8);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryPhase {
    /// Made; pattern subscribers may not be attached yet.
    New,
    Live,
    /// Forgotten: removed from the map, or about to be.
    Dead,
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

impl EntryBits {
    /// The log has the line that this queue has no listeners.
    const LOGGED: u8 = 1;
    /// The queue is in the list of those that were notified without a listener.
    pub(super) const UNSERVED: u8 = 1 << 1;
    /// An operator watches the decisions about the queue.
    pub(super) const NOTED: u8 = 1 << 2;

    pub(super) fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    /// Sets a bit; returns whether it was set before.
    pub(super) fn insert(&mut self, bit: u8) -> bool {
        let had = self.has(bit);
        self.0 |= bit;
        had
    }

    pub(super) fn remove(&mut self, bit: u8) {
        self.0 &= !bit;
    }
}

/// The revision of a change that some subscriber was not told of: later than all others.
const UNSETTLED: u64 = u64::MAX;

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
            since_depth: 0,
            busy: 0,
            heard: false,
            subscribers: Subscribers::default(),
            encoded: EncodingCache::default(),
            bits: config.decisions.entry_bits(&address),
            walk_pending: false,
            walks: 0,
            grouped: false,
            passed_on: false,
            check_pending: false,
            timers: QueueTimers::default(),
            coordinator: None,
            armed: Tick::NEVER,
            reserved: 0,
            announced: None,
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
            // R5: the mark is cleared before the subscribers are read.
            state.walk_pending = planted!(MarkClearedAfterWalk);
        }
        let mut next = state.subscribers.mark(from, SUBSCRIBERS_PER_STEP, batch);
        if next.is_none() && state.grouped && state.assign(batch) {
            next = Some(WALKED);
        }
        next
    }

    /// A walk has marked all subscribers.
    pub(super) fn end_walk(&self, revision: &AtomicU64) {
        let mut state = self.lock();
        if planted!(MarkClearedAfterWalk) {
            state.walk_pending = false;
        }
        state.walks -= 1;
        if !planted!(ResumeNumberTooNew) {
            state.settle(revision);
        }
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
}

impl QueueState {
    /// Returns whether a timer keeps the entry.
    pub(super) fn has_timers(&self) -> bool {
        self.timers.len() > 0
    }

    /// An entry without listeners is kept from the time when the last one left, because a
    /// subscriber may come back and resume. With other listeners it is not: rotating streams would
    /// keep every queue of their pattern, and a missing entry costs only a CATCH_UP.
    pub(super) fn idle_since(&self) -> Tick {
        let members = self
            .coordinator
            .as_ref()
            .map_or(0, |coordinator| coordinator.members());
        match self.subscribers.len() + members {
            0 => self.active_at.max(self.left_at),
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

    /// Returns the causes that this relay has counted and not told to others; of a relay alone, all.
    pub(super) fn own_causes(&self) -> u64 {
        let known = self.announced.as_ref();
        let others = known.map_or(self.start, |known| known.counters.sequence);
        self.counters.sequence.saturating_sub(others)
    }

    /// Returns whether the queue has no listener and this was not logged yet.
    pub(super) fn first_without_listeners(&mut self) -> bool {
        self.listeners() == 0 && !self.bits.insert(EntryBits::LOGGED)
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
        self.add_to_backlog(notification.messages.max(1).into());
        self.notified = self.counters.sequence;
        self.active_at = now;
        self.last_event.replace(publisher, notification);
    }

    /// Counts a timed wake-up, with the delayed notification in it.
    pub(super) fn count_timed(&mut self, timer: Timer, now: Tick) {
        self.counters.sequence += 1;
        self.counters.add_totals(&timer.counters);
        self.add_to_backlog(timer.counters.messages);
        self.note_timed();
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
    pub(super) fn rearm(
        &mut self,
        entry: &Arc<QueueEntry>,
        timers: &TimerOrder<QueueEntry>,
    ) -> bool {
        let next = match &self.coordinator {
            Some(coordinator) if coordinator.reconcile_at != Tick::NEVER => {
                let timer = self.timers.next().unwrap_or(Tick::NEVER);
                Some(timer.min(coordinator.reconcile_at))
            }
            _ => self.timers.next(),
        };
        timers.rearm(entry.number(), entry, &mut self.armed, next)
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
            self.walks += 1;
            MarkOutcome::NeedsWalk
        }
    }

    /// The queue has changed, and all subscribers are marked unless a walk has them to mark. The
    /// revision is read after that, under this lock (see `resume`).
    pub(super) fn settle(&mut self, revision: &AtomicU64) {
        self.changed_at = match self.walks {
            1.. if !planted!(ResumeNumberTooNew) => UNSETTLED,
            _ => revision.load(Ordering::Relaxed),
        };
    }

    /// Returns whether a walk has subscribers to mark.
    pub(super) fn is_walked(&self) -> bool {
        self.walks > 0
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
