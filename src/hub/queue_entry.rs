//! What the relay remembers of one queue: its running totals and who listens.
//!
//! Constant in size but for one entry per subscriber and its few timers; never holds an event back.
//! A record is made before its pattern subscribers are known; whoever first counts in it attaches
//! them. A forgotten one is dead: whoever finds it so looks the queue up again (R3).

use std::{sync::Arc, time::SystemTime};

use super::{
    coordinator::{Coordinator, CoordinatorConfig},
    counters::Counters,
    holders::Holders,
    mailbox::WakeBatch,
    subscribers::{SUBSCRIBERS_PER_STEP, Subscribers},
    sync::{Mutex, MutexGuard, lock},
    timers::{QueueTimers, Timer, TimerOrder, timer_offset},
    wake_builder::EncodedEntry,
};
use crate::{
    clock::Tick,
    fault::{Fault, planted},
    words::{Notification, QueueAddress, WakeReason},
};

/// One queue.
pub(crate) struct QueueEntry {
    address: QueueAddress,
    /// Tells records apart in the order of timers, alike in every simulated run.
    number: u64,
    pub(super) config: Arc<CoordinatorConfig>,
    state: Mutex<QueueState>,
}

/// What the record's lock guards.
pub(super) struct QueueState {
    life: EntryPhase,
    /// Where its counting began.
    pub(super) start: u64,
    pub(super) counters: Counters,
    /// The hub's revision when it last counted, or when this entry was made (see `resume`).
    pub(super) changed_at: u64,
    /// The sequence of the newest notification, and of the newest timed wake-up.
    pub(super) notified: u64,
    pub(super) last_event: LastEvent,
    pub(super) active_at: Tick,
    /// When the last subscriber left: its token is good for as long as a queue is remembered.
    pub(super) left_at: Tick,
    /// Of the newest report that told one. [`Tick::NEVER`]: none did; an `Option` would take 8 bytes
    /// more of every queue.
    pub(super) depth: (u64, Tick),
    pub(super) subscribers: Subscribers,
    /// The newest entry's encoding.
    pub(super) encoded: Encoded,
    /// It was said that nobody listens.
    logged_no_listeners: bool,
    /// A walk by the fan-out is due.
    walk_pending: bool,
    /// A group has been here: what is counted is handed out.
    pub(super) grouped: bool,
    /// The sentinel asks somebody whose stream has not taken the question yet.
    pub(super) check_pending: bool,
    pub(super) timers: QueueTimers,
    pub(super) coordinator: Option<Box<Coordinator>>,
    pub(super) armed: Option<Tick>,
    /// Subscriptions that name the queue and have no cursor here yet: it is kept for them. A small
    /// number, as it is for moments: were it ever too small, the record would be made again.
    reserved: u16,
}

/// The newest notification's details, handed on with a wake-up. Without one, its texts are the empty
/// one that all share.
#[derive(Debug, Default, Clone)]
pub(crate) struct LastEvent {
    pub(crate) publisher: Arc<str>,
    pub(crate) published_at: Option<SystemTime>,
    pub(crate) traceparent: Arc<str>,
}

/// How far a record has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryPhase {
    /// Made; subscribers by pattern may not have been attached.
    New,
    Live,
    /// Forgotten: no longer in the map, or about to leave it.
    Dead,
}

/// What holds a record that was idle for long enough.
pub(super) enum IdleState {
    /// It is needed, or was not idle for so long.
    InUse,
    /// Nothing.
    Unused,
    /// Subscriptions that match it by a pattern, as far as the record knows. It was not needed since
    /// then.
    HeldByPatterns { holders: Holders, since: Tick },
}

/// Why a record did not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotLive {
    /// Attach the subscribers by pattern, then try again.
    Unattached,
    /// Look the queue up again.
    Dead,
}

/// What is left to do for the subscribers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MarkOutcome {
    /// Leave them to the fan-out.
    NeedsWalk,
    /// Nothing: they were marked, or the fan-out has been told already.
    Done,
}

/// The encoding of a queue's newest entry, where several subscribers may be told of it.
#[derive(Default)]
pub(super) struct Encoded(Option<Box<EncodedEntry>>);

/// A walk that has only members left to choose.
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
            life: EntryPhase::New,
            start,
            counters: Counters::starting_at(start),
            changed_at,
            notified: 0,
            last_event: LastEvent::default(),
            active_at: now,
            left_at: now,
            depth: (0, Tick::NEVER),
            subscribers: Subscribers::default(),
            encoded: Encoded::default(),
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

    /// Returns what sets this queue's grid of timers apart from those of others.
    pub(super) fn timer_offset(&self) -> u64 {
        timer_offset(&self.address)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, QueueState> {
        lock(&self.state)
    }

    /// Marks one step's subscribers with keys from `from` on, then the members that are chosen;
    /// returns where to go on, or `None` at the end.
    pub(super) fn walk(&self, from: u64, batch: &mut WakeBatch) -> Option<u64> {
        let mut state = self.lock();
        if from == 0 && !planted!(self.config.fault, MarkClearedAfterWalk) {
            state.walk_pending = false;
        }
        let mut next = state.subscribers.mark(from, SUBSCRIBERS_PER_STEP, batch);
        if next.is_none() && state.grouped && state.assign(batch) {
            next = Some(WALKED);
        }
        next
    }

    /// Says that the walk that was due is over, or not coming.
    pub(super) fn end_walk(&self, ended: bool) {
        let late = planted!(self.config.fault, MarkClearedAfterWalk);
        if late || !ended && !planted!(self.config.fault, WalkLeavesMark) {
            self.lock().walk_pending = false;
        }
    }

    /// Says that the subscribers by pattern have been attached.
    pub(super) fn set_live(&self) {
        let mut state = self.lock();
        if state.life == EntryPhase::New {
            state.life = EntryPhase::Live;
        }
    }

    /// Keeps the record for a subscription that names the queue, until [`QueueEntry::unreserve`]; `false`
    /// where it is dead.
    #[must_use]
    pub(super) fn reserve(&self) -> bool {
        let mut state = self.lock();
        let live = state.life != EntryPhase::Dead;
        state.reserved = state.reserved.saturating_add(u16::from(live));
        live
    }

    pub(super) fn unreserve(&self) {
        let mut state = self.lock();
        state.reserved = state.reserved.saturating_sub(1);
    }

    /// Returns since when the queue has not been needed and how many hold it by a pattern, or `None`
    /// where something needs it. What they need is looked at by [`QueueEntry::idle`].
    pub(super) fn idle_since(&self) -> Option<(Tick, usize)> {
        let state = self.lock();
        let named = state.subscribers.iter().next();
        let named = state.reserved > 0 || named.is_some_and(|one| !one.by_pattern);
        let idle = state.life != EntryPhase::Dead && state.timers.len() == 0 && !named;
        idle.then(|| (state.idle_since(self.config.fault), state.listeners()))
    }

    /// Returns what holds a record that was not needed since `since`, or since `pattern_since` where
    /// patterns match it.
    pub(super) fn idle_state(&self, since: Tick, pattern_since: Option<Tick>) -> IdleState {
        let state = self.lock();
        let idle_since = state.idle_since(self.config.fault);
        let timed = state.timers.len() > 0 && !planted!(self.config.fault, ForgetWithTimer);
        let needed = timed || state.reserved > 0;
        if state.life == EntryPhase::Dead || needed || idle_since > since {
            return IdleState::InUse;
        }
        if state.subscribers.len() == 0 && !state.grouped {
            return IdleState::Unused;
        }
        // Compared before the holders are collected, which may be many.
        let Some(since) = pattern_since.filter(|since| idle_since <= *since) else {
            return IdleState::InUse;
        };
        if planted!(self.config.fault, PatternPinsQueue) {
            return IdleState::InUse;
        }
        let holders = Holders::of(&state);
        holders.map_or(IdleState::InUse, |holders| IdleState::HeldByPatterns {
            holders,
            since,
        })
    }

    /// Marks this record dead where nothing has needed it since then, raising `floor` first: a queue
    /// of this name never counts again what was counted here (R3). `floor` is also told when it
    /// changed last.
    pub(super) fn forget(
        self: &Arc<Self>,
        holders: Option<&Holders>,
        idle_since: Tick,
        timers: &TimerOrder,
        floor: impl FnOnce(u64, u64),
    ) -> bool {
        let mut state = self.lock();
        let timed = state.timers.len() > 0 && !planted!(self.config.fault, ForgetWithTimer);
        let held = match holders {
            None => state.subscribers.len() > 0 || state.grouped,
            Some(holders) => !holders.still_match(&state),
        };
        let needed = timed || held || state.reserved > 0;
        if state.life == EntryPhase::Dead
            || needed
            || state.idle_since(self.config.fault) > idle_since
        {
            return false;
        }
        floor(state.counters.sequence + 1, state.changed_at);
        if !planted!(self.config.fault, DeadNotMarked) {
            state.life = EntryPhase::Dead;
        }
        if planted!(self.config.fault, ForgetWithTimer) {
            state.timers = QueueTimers::default();
        }
        (state.coordinator, state.grouped, state.check_pending) = (None, false, false);
        state.subscribers = Subscribers::default();
        // Its sentinel's time may still stand in the order: a dead record would come up for ever.
        let _ = state.rearm(self, timers);
        true
    }
}

impl QueueState {
    /// A subscriber that left may come back with its token, and the queue is kept for that. Where
    /// others are there, it is not: streams that end in turn would keep every queue that their
    /// pattern matches, and a missing entry costs a CATCH_UP.
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

    /// Returns a number that grows with each subscriber and member that comes.
    pub(super) fn changes(&self) -> u64 {
        let members = self
            .coordinator
            .as_ref()
            .map_or(0, |coordinator| coordinator.joined());
        self.subscribers.joined() + members
    }

    pub(super) fn is_dead(&self) -> bool {
        self.life == EntryPhase::Dead
    }

    pub(super) fn listeners(&self) -> usize {
        let members = match &self.coordinator {
            Some(coordinator) if self.grouped => coordinator.members(),
            _ => 0,
        };
        self.subscribers.len() + members
    }

    /// Returns whether this is the first time that nobody listens.
    pub(super) fn first_without_listeners(&mut self) -> bool {
        self.listeners() == 0 && !std::mem::replace(&mut self.logged_no_listeners, true)
    }

    /// Refuses to count in a record that is not live.
    pub(super) fn check_live(&self) -> Result<(), NotLive> {
        match self.life {
            EntryPhase::New => Err(NotLive::Unattached),
            EntryPhase::Live => Ok(()),
            EntryPhase::Dead => Err(NotLive::Dead),
        }
    }

    /// Counts one notification that is effective at once.
    pub(super) fn count(&mut self, publisher: &Arc<str>, notification: &Notification, now: Tick) {
        self.counters.sequence += 1;
        self.counters.add(notification);
        self.notified = self.counters.sequence;
        self.active_at = now;
        self.last_event.replace(publisher, notification);
    }

    /// Counts a timed wake-up; a delayed notification in it is counted now.
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

    /// Tells the hub's order of this record's next timer; returns whether it is the first of all.
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

    /// Marks the subscribers of what was just counted where there are no more than `inline`, or leaves
    /// them to the fan-out; the same where there is `more` to hand out to groups than one step may.
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

    /// Returns why a subscriber at `place` is owed a wake-up, or `None` where it is not.
    pub(super) fn wake_reason(&self, position: &Counters) -> Option<WakeReason> {
        self.head().wake_reason(position)
    }

    /// Returns how much its lists hold room for: subscribers and timers.
    #[cfg(test)]
    pub(super) fn capacities(&self) -> [usize; 2] {
        [self.subscribers.capacity(), self.timers.capacity()]
    }

    /// Takes out a subscriber; returns whether there is something to do for it.
    pub(super) fn remove_subscriber(&mut self, key: u64, now: Tick) -> bool {
        self.subscribers.remove(key);
        self.left_at = now;
        if self.subscribers.len() < 2 {
            self.encoded = Encoded::default();
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

impl Encoded {
    /// Returns the bytes for the entry from this place to this sequence: empty unless they are known.
    pub(super) fn of(&mut self, from: &Counters, sequence: u64) -> &mut Vec<u8> {
        let entry = self.0.get_or_insert_with(|| {
            Box::new(EncodedEntry {
                from: *from,
                sequence,
                bytes: Vec::new(),
            })
        });
        if entry.sequence != sequence || entry.from != *from {
            (entry.from, entry.sequence) = (*from, sequence);
            entry.bytes.clear();
        }
        &mut entry.bytes
    }
}

impl LastEvent {
    pub(super) fn new(publisher: &Arc<str>, notification: &Notification) -> Self {
        Self {
            publisher: Arc::clone(publisher),
            published_at: notification.published_at,
            traceparent: Arc::clone(&notification.traceparent),
        }
    }

    /// Takes on another notification's details, without counting references where they are the
    /// same texts: a burst comes from one publisher.
    fn replace(&mut self, publisher: &Arc<str>, notification: &Notification) {
        for (kept, new) in [
            (&mut self.publisher, publisher),
            (&mut self.traceparent, &notification.traceparent),
        ] {
            if !Arc::ptr_eq(kept, new) {
                *kept = Arc::clone(new);
            }
        }
        self.published_at = notification.published_at;
    }
}
