//! Timed wake-ups: the timers of a queue, and the hub's order of queues by their next timer.
//!
//! R7: timers only add, none is cancelled. Near times merge upwards, so that a message is never
//! polled for before it is visible: times lie on a grid of at most 1/16 of the delay. A queue with
//! more than 64 timers merges the timer that this makes least late for its delay. Some hundred
//! delays between a second and 14 days then wait a quarter longer at most.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::super::{
    core::Hub,
    counters::Counters,
    queue::QueueEntry,
    sync::{AtomicWaker, Mutex, lock},
};
use crate::{
    base::{clock::Tick, fault::planted},
    error::Result,
    types::{
        LastEvent, Limits, Notification, QueueAddress,
        cluster::{FrameEntry, HandedTimer, queue_hash},
    },
};

/// The most timers of one queue.
pub(crate) const PER_QUEUE: usize = 64;
/// The most reported timers of one queue while the hub is at its limit. Between one second and 14
/// days, neighbours then differ by a factor of six.
pub(crate) const FEW: usize = 8;

/// The timed wake-ups of one queue, by time.
#[derive(Debug, Default)]
pub(crate) struct QueueTimers {
    /// Sorted, so the first is the next; no allocation for a queue without timers.
    due: Vec<Timer>,
}

/// One timed wake-up. The default has no notification, and its time is not set yet.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    pub(crate) at: Tick,
    /// The earliest requested time, and the shortest delay: they limit how far the timer may be
    /// postponed.
    due: Tick,
    delay: Duration,
    /// The values of its delayed notifications, but for the sequence; zero for a reported time.
    pub(crate) counters: Counters,
    /// Details of the newest delayed notification.
    pub(crate) last_event: Option<LastEvent>,
}

/// The entries that have timers, by their next one; each is here exactly once.
pub(crate) struct TimerOrder<E> {
    pub(crate) order: Mutex<BTreeMap<(Tick, u64), Arc<E>>>,
    /// Woken when a new timer is the first.
    pub(crate) waker: AtomicWaker,
}

impl QueueTimers {
    pub(crate) fn len(&self) -> usize {
        self.due.len()
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.due.capacity()
    }

    /// Returns the next one's time.
    pub(crate) fn next(&self) -> Option<Tick> {
        self.due.first().map(|timer| timer.at)
    }

    /// Returns the numbers of timers with a delayed notification, and of others.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let reported = self.due.iter().filter(|one| one.is_reported()).count();
        (self.due.len() - reported, reported)
    }

    /// Adds a wake-up after `delay`. It merges with a timer at the same point of the queue's grid;
    /// `offset` gives each queue its own grid. With `is_full` the hub is at its limit of reported times: above
    /// [`FEW`] of them, or above their present number, two merge upwards. No delayed notification is
    /// postponed for it.
    pub(crate) fn add(
        &mut self,
        (now, offset): (Tick, u64),
        delay: Duration,
        mut timer: Timer,
        is_full: bool,
    ) {
        let (_, before) = self.counts();
        timer.at = now.after_on_moved_grid(delay, offset);
        (timer.due, timer.delay) = (now + delay, delay);
        if planted!(TimersMergeDown) {
            timer.at = now + delay / 2;
        }
        match self.due.binary_search_by_key(&timer.at, |other| other.at) {
            Ok(same) => self.due[same].merge(timer),
            Err(index) => self.due.insert(index, timer),
        }
        if self.due.len() > PER_QUEUE {
            self.merge_closest(now, |_| true);
        }
        if is_full && self.counts().1 > before.max(FEW) {
            self.merge_closest(now, |early| early.is_reported() && early.at > now);
        }
    }

    /// Takes the first timer, where it is due.
    pub(crate) fn pop_due(&mut self, now: Tick) -> Option<Timer> {
        self.due.first().filter(|timer| timer.at <= now)?;
        let timer = self.due.remove(0);
        if self.due.is_empty() {
            self.due = Vec::new();
        }
        Some(timer)
    }

    /// Merges one timer into the next: the one made least late for its delay, among
    /// those that `may` be postponed. Lateness counts from the requested time, so repeated merges
    /// do not drift.
    fn merge_closest(&mut self, now: Tick, may: impl Fn(&Timer) -> bool) {
        let late = |early: &Timer, into: &Timer| match early.at > now {
            true => (into.at.since(early.due).as_nanos() << 32) / early.delay.as_nanos().max(1),
            // About to fire.
            false => u128::MAX,
        };
        let pairs = (1..self.due.len()).filter(|&i| may(&self.due[i - 1]));
        let Some(second) = pairs.min_by_key(|&i| late(&self.due[i - 1], &self.due[i])) else {
            return;
        };
        let early = self.due.remove(second - 1);
        self.due[second - 1].merge(early);
    }
}

/// Returns an offset that gives each queue its own grid of timers: a hash of its address that is
/// the same in every run. A collision by chosen names does no harm.
pub(crate) fn timer_offset(queue: &QueueAddress) -> u64 {
    let hash = queue_hash(queue);
    // Names that differ only at their ends still have similar hashes, so SplitMix64's steps mix the
    // bits.
    let mixed = (hash ^ hash >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed ^ mixed >> 27
}

impl Timer {
    /// Makes a delayed notification.
    pub(crate) fn for_notification(publisher: &Arc<str>, notification: &Notification) -> Self {
        let mut timer = Self::default();
        timer.counters.add(notification);
        timer.last_event = Some(LastEvent::new(publisher, notification));
        timer
    }

    fn is_reported(&self) -> bool {
        self.last_event.is_none()
    }

    fn merge(&mut self, other: Self) {
        self.due = self.due.min(other.due);
        self.delay = self.delay.min(other.delay);
        self.counters.add_totals(&other.counters);
        if other.last_event.is_some() {
            self.last_event = other.last_event;
        }
    }
}

impl<E> TimerOrder<E> {
    pub(crate) fn new() -> Self {
        Self {
            order: Mutex::new(BTreeMap::new()),
            waker: AtomicWaker::new(),
        }
    }

    /// Moves the entry with this number to its next timer's time, or removes it at [`Tick::NEVER`];
    /// returns whether it is now the first of all, so that the timers' task must be woken. Called under
    /// the entry's lock, so that order and entry never disagree.
    #[must_use]
    pub(crate) fn rearm(&self, number: u64, entry: &Arc<E>, armed: &mut Tick, at: Tick) -> bool {
        if *armed == at {
            return false;
        }
        let mut order = lock(&self.order);
        order.remove(&(std::mem::replace(armed, at), number));
        if at == Tick::NEVER {
            return false;
        }
        let key = (at, number);
        order.insert(key, Arc::clone(entry));
        order
            .first_key_value()
            .is_some_and(|(first, _)| *first == key)
    }

    /// Returns an entry whose next timer is due. It stays in the order until the entry moves it.
    pub(crate) fn due(&self, now: Tick) -> Option<Arc<E>> {
        let order = lock(&self.order);
        let ((at, _), entry) = order.first_key_value()?;
        (*at <= now).then(|| Arc::clone(entry))
    }

    /// Returns how many entries have timers.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        lock(&self.order).len()
    }

    /// Returns the time of the next timer of all.
    pub(crate) fn next(&self) -> Option<Tick> {
        lock(&self.order).first_key_value().map(|((at, _), _)| *at)
    }
}

/// The queues that had timers, the soonest first.
pub(crate) struct PendingTimers(VecDeque<Arc<QueueEntry>>);

impl Hub {
    /// Returns the pending timers, queue by queue.
    pub(crate) fn pending_timers(&self) -> PendingTimers {
        if planted!(LinkTimersNotHandedOver) {
            return PendingTimers(VecDeque::new());
        }
        let order = lock(&self.timers().order);
        PendingTimers(order.values().map(Arc::clone).collect())
    }

    /// Takes over the timers of another relay.
    ///
    /// # Errors
    /// `Exhausted` where there is no room for all of them; none is set then.
    pub(crate) fn take_over_timers(&self, timers: &[HandedTimer], now: Tick) -> Result<()> {
        self.check_timers("timers", timers.len())?;
        let entries = timers.iter();
        let entries = entries.map(|timer| self.entry(&timer.increment.queue, now));
        for (entry, timer) in entries.collect::<Result<Vec<_>>>()?.into_iter().zip(timers) {
            let increment = &timer.increment;
            let last_event = (increment.notifications > 0).then(|| increment.last_event.clone());
            let wake = Timer {
                counters: Counters::of_increment(increment),
                last_event,
                ..Timer::default()
            };
            self.wake_after(entry, timer.due_in, wake, now);
        }
        Ok(())
    }
}

impl PendingTimers {
    /// Returns the timers of the next queue, at most 64; `None` after the last one.
    pub(crate) fn next_queue(&mut self, now: Tick) -> Option<Vec<HandedTimer>> {
        let entry = self.0.pop_front()?;
        let state = entry.lock();
        let timers = state.timers.due.iter();
        let handed = timers.map(|timer| timer.hand_over(&entry, now));
        Some(handed.collect())
    }
}

impl Timer {
    /// What another relay counts when the timer is due there.
    fn hand_over(&self, entry: &QueueEntry, now: Tick) -> HandedTimer {
        let sums = self.counters.delta_since(&Counters::default());
        HandedTimer {
            // It may have been moved a little behind the longest delay.
            due_in: self.at.since(now).min(Limits::DELAY),
            increment: FrameEntry {
                queue: entry.address().clone(),
                causes: 1,
                notifications: sums.notifications,
                payload_size: sums.payload,
                messages: sums.messages,
                last_event: self.last_event.clone().unwrap_or_default(),
                served_groups: Vec::new(),
                checked: false,
            },
        }
    }
}
