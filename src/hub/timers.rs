//! Timed wake-ups: a queue's own few, and the hub's order of who is next.
//!
//! A timer is never cancelled (R7). Near times merge upwards, so that a message is never looked for
//! before it is visible: times lie on a grid of at most 1/16 of the delay. Where a queue would hold
//! more than 64 of them all the same, the two that lie closest for their distance merge.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    place::Tally,
    record::{Newest, Record},
    sync::{AtomicWaker, Mutex, lock},
};
use crate::{
    clock::Tick,
    fault::{Fault, planted},
};

/// Timers that one queue holds at most.
pub(super) const PER_QUEUE: usize = 64;

/// The timed wake-ups of one queue, by their time.
#[derive(Debug, Default)]
pub(super) struct QueueTimers {
    /// Sorted; boxed in one piece, and nothing where a queue has none.
    due: Vec<Timer>,
}

/// One timed wake-up.
#[derive(Debug)]
pub(super) struct Timer {
    pub(super) at: Tick,
    /// What the delayed notifications in it state; zero for a report's.
    pub(super) sums: Tally,
    /// The newest delayed notification's details.
    pub(super) newest: Option<Newest>,
}

/// The records that hold timers, by their next one: exactly one entry for each.
pub(super) struct Timers {
    next: Mutex<BTreeMap<(Tick, u64), Arc<Record>>>,
    /// Woken when a timer became the first.
    pub(super) waker: AtomicWaker,
}

impl QueueTimers {
    pub(super) fn len(&self) -> usize {
        self.due.len()
    }

    /// Returns the next one's time.
    pub(super) fn next(&self) -> Option<Tick> {
        self.due.first().map(|timer| timer.at)
    }

    /// Adds a wake-up after `delay`, merging it with what is due at the same point of the grid.
    pub(super) fn add(&mut self, now: Tick, delay: Duration, mut timer: Timer, fault: Fault) {
        timer.at = round_up(now, delay);
        if planted!(fault, TimersMergeDown) {
            timer.at = now + delay / 2;
        }
        if planted!(fault, TimersCancelled) {
            self.due.clear();
        }
        match self.due.binary_search_by_key(&timer.at, |other| other.at) {
            Ok(same) => self.due[same].merge(timer),
            Err(place) => self.due.insert(place, timer),
        }
        if self.due.len() > PER_QUEUE {
            self.merge_closest(now);
        }
    }

    /// Takes the first timer, where it is due.
    pub(super) fn pop_due(&mut self, now: Tick) -> Option<Timer> {
        (self.next()? <= now).then(|| self.due.remove(0))
    }

    /// Merges the timer that is postponed least for its distance into the one after it.
    fn merge_closest(&mut self, now: Tick) {
        let postponed = |early: &Timer, late: &Timer| {
            let gap = late.at.since(early.at).as_nanos() << 32;
            gap / early.at.since(now).as_nanos().max(1)
        };
        let Some(first) =
            (1..self.due.len()).min_by_key(|&i| postponed(&self.due[i - 1], &self.due[i]))
        else {
            return;
        };
        let early = self.due.remove(first - 1);
        self.due[first - 1].merge(early);
    }
}

impl Timer {
    fn merge(&mut self, other: Self) {
        self.sums.add_sums(&other.sums);
        if other.newest.is_some() {
            self.newest = other.newest;
        }
    }
}

impl Timers {
    pub(super) fn new() -> Self {
        Self {
            next: Mutex::new(BTreeMap::new()),
            waker: AtomicWaker::new(),
        }
    }

    /// Moves a record to its next timer's time; returns whether it is now the first of all, so that
    /// whoever runs the timers has to be woken. Called under the record's lock, so that entries and
    /// records never disagree.
    #[must_use]
    pub(super) fn rearm(
        &self,
        record: &Arc<Record>,
        armed: &mut Option<Tick>,
        next: Option<Tick>,
    ) -> bool {
        if *armed == next {
            return false;
        }
        let mut order = lock(&self.next);
        if let Some(old) = armed.take() {
            order.remove(&(old, record.number()));
        }
        let Some(at) = next else { return false };
        *armed = Some(at);
        let key = (at, record.number());
        order.insert(key, Arc::clone(record));
        order
            .first_key_value()
            .is_some_and(|(first, _)| *first == key)
    }

    /// Returns a record whose next timer is due. The entry stays until the record moves it.
    pub(super) fn due(&self, now: Tick) -> Option<Arc<Record>> {
        let order = lock(&self.next);
        let ((at, _), record) = order.first_key_value()?;
        (*at <= now).then(|| Arc::clone(record))
    }

    /// Returns the time of the next timer of all.
    pub(super) fn next(&self) -> Option<Tick> {
        lock(&self.next).first_key_value().map(|((at, _), _)| *at)
    }
}

/// Returns the first point of the grid at or after `now + delay`: its steps are the greatest power
/// of two nanoseconds that is at most 1/16 of the delay.
pub(super) fn round_up(now: Tick, delay: Duration) -> Tick {
    let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
    let step = (nanos / 16).checked_ilog2().map_or(1, |bits| 1u64 << bits);
    let due = (now + delay).as_nanos();
    Tick::from_nanos(due.checked_next_multiple_of(step).unwrap_or(u64::MAX))
}
