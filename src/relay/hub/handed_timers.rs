//! C15: the timers of a relay that ends go to another one.
//!
//! The relay keeps its timers: a timer whose hand-over is acknowledged late may fire on both relays,
//! and is then one wake-up too many.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::{
    core::Hub, counters::Counters, queue_entry::QueueEntry, sync::Ordering, timers::Timer,
};
use crate::{
    base::{clock::Tick, fault::planted},
    error::{Error, ErrorKind, Result},
    types::{
        Limits,
        cluster::{FrameEntry, HandedTimer},
    },
};

/// The queues that had timers, the soonest first.
pub(crate) struct PendingTimers(VecDeque<Arc<QueueEntry>>);

/// The longest delay of a notification. A timer may be moved a little behind it.
const MOST_DELAY: Duration = Limits::DELAY;

impl Hub {
    /// Returns the pending timers, queue by queue.
    pub(crate) fn pending_timers(&self) -> PendingTimers {
        if planted!(LinkTimersNotHandedOver) {
            return PendingTimers(VecDeque::new());
        }
        PendingTimers(self.timers.entries())
    }

    /// Takes over the timers of another relay.
    ///
    /// # Errors
    /// `Exhausted` where there is no room for all of them; none is set then.
    pub(crate) fn take_over_timers(&self, timers: &[HandedTimer], now: Tick) -> Result<()> {
        let limit = self.config.max_timers as u64;
        let set = self.timers_set.load(Ordering::Relaxed);
        if self.is_short_of_memory() {
            let message = "timers: the relay is short of memory";
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        if set + timers.len() as u64 > limit {
            let message = format!("timers: the limit of {limit} delayed wake-ups is reached");
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        let queues: BTreeSet<_> = timers.iter().map(|timer| &timer.increment.queue).collect();
        for queue in queues {
            self.entry(queue, now)?;
        }
        for timer in timers {
            let entry = self.entry(&timer.increment.queue, now)?;
            let wake = Timer::of_increment(&timer.increment);
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
        let timers = state.timers.iter();
        let handed = timers.map(|timer| timer.hand_over(&entry, now));
        Some(handed.collect())
    }
}

impl Timer {
    /// What another relay counts when the timer is due there.
    fn hand_over(&self, entry: &QueueEntry, now: Tick) -> HandedTimer {
        let sums = self.counters.delta_since(&Counters::default());
        HandedTimer {
            due_in: self.at.since(now).min(MOST_DELAY),
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

    fn of_increment(increment: &FrameEntry) -> Self {
        let counters = Counters {
            sequence: 0,
            ..Counters::of_increment(increment)
        };
        let last_event = (increment.notifications > 0).then(|| increment.last_event.clone());
        Self::new(counters, last_event)
    }
}
