//! A full hub: new queues, cursors and timers are refused, or a new queue replaces an idle one.
//!
//! A request of a publisher gets room for as many of its queues as there is. The longest idle queue
//! without listeners gives way to a new one. A subscriber that comes back to it gets a CATCH_UP, as
//! after any forgetting (`forgetting`).

use std::{collections::HashSet, sync::Arc, time::Duration};

use super::super::{
    core::Hub,
    queue::QueueEntry,
    subscription::Subscription,
    sync::{Ordering, lock},
};
use crate::{
    base::clock::Tick,
    error::{Error, ErrorKind, Result},
    types::{QueueAddress, Report, ReportState},
};

/// The use of a limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LimitUse {
    /// What it limits, as in "the limit of 10 queues".
    pub(crate) what: &'static str,
    pub(crate) used: u64,
    pub(crate) limit: u64,
    /// Further ones are refused.
    pub(crate) is_full: bool,
}

/// A table counts as full for this long after it refused a queue.
const FULL_FOR: Duration = Duration::from_secs(10);

impl Hub {
    /// Makes the missing entries of as many of a request's queues as there is room for, with no more than
    /// `most` in the table, or with `all_or_none` of none where there is no room for all. Returns the others.
    /// Idle queues give way, but none of the request's own.
    pub(in super::super) fn make_missing<'a>(
        &self,
        queues: &[&'a QueueAddress],
        most: usize,
        all_or_none: bool,
        now: Tick,
    ) -> HashSet<&'a QueueAddress> {
        let mut eviction = lock(&self.eviction);
        let mut own = HashSet::new();
        let mut new: Vec<_> = queues.to_vec();
        new.retain(|address| own.insert(*address) && self.entries.get(address).is_none());
        let excess = (self.entries.len() + new.len()).saturating_sub(most);
        let mut room = new.len();
        if room > 0 && excess > 0 {
            room = room.saturating_sub(self.evict(&mut eviction, excess, &own, now));
        }
        if all_or_none && room < new.len() {
            room = 0;
        }
        let without = new.split_off(room);
        for address in new {
            self.make_entry(address, now);
        }
        without.into_iter().collect()
    }

    pub(in super::super) fn most_queues(&self) -> usize {
        match self.is_short_of_memory() {
            true => self.entries.len().min(self.shared.config.max_queues),
            false => self.shared.config.max_queues,
        }
    }

    #[cold]
    pub(in super::super) fn no_room(&self, address: &QueueAddress, now: Tick) -> Error {
        if self.is_short_of_memory() {
            return short_of_memory("queue");
        }
        let limit = self.shared.config.max_queues;
        let message = format!("the limit of {limit} queues is reached, `{address}` is one more");
        // Queues that wait for a frame do not give way; another relay may have room.
        let kind = match self.is_degraded(now) {
            true => ErrorKind::Unavailable,
            false => ErrorKind::Exhausted,
        };
        Error::new(kind, message)
    }

    /// Returns the queue's entry, and makes it where there is room.
    pub(in super::super) fn entry(
        &self,
        address: &QueueAddress,
        now: Tick,
    ) -> Result<Arc<QueueEntry>> {
        if let Some(found) = self.entries.get(address) {
            return Ok(found);
        }
        let refused = self.make_missing(&[address], self.most_queues(), false, now);
        match refused.is_empty() {
            true => Ok(self.make_entry(address, now)),
            false => Err(self.no_room(address, now)),
        }
    }

    /// Returns the queue's entry, and makes it even without room: in the place of a dead one, or
    /// after room was made.
    pub(in super::super) fn make_entry(
        &self,
        address: &QueueAddress,
        now: Tick,
    ) -> Arc<QueueEntry> {
        self.entries.get_or_insert(address, || {
            let number = self.entry_number.fetch_add(1, Ordering::Relaxed);
            let start = self.floor.load(Ordering::Acquire);
            let start = (start, self.shared.revision.load(Ordering::Relaxed));
            let address = address.clone();
            Arc::new(QueueEntry::new(address, number, start, now, &self.shared))
        })
    }

    /// Checks that there is room for so many more delayed notifications, which this field states.
    pub(in super::super) fn check_timers(&self, field: &str, count: usize) -> Result<()> {
        if self.is_short_of_memory() {
            return Err(short_of_memory(field));
        }
        let limit = self.shared.config.max_timers as u64;
        if self.timers_set.load(Ordering::Relaxed) + count as u64 > limit {
            let message = format!("{field}: the limit of {limit} delayed wake-ups is reached");
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        Ok(())
    }

    /// Checks that there is room for the timer that a listener reports, or for the cursor that a
    /// busy listener needs (R8: its end sets a timer). Without room both are made on a queue that a
    /// publisher has notified or that the subscription names: listeners cannot make up any number
    /// of those.
    ///
    /// R7: timers merge upwards only, so a time cannot merge with an earlier one instead: its
    /// message would not be visible by then.
    pub(in super::super) fn check_report(
        &self,
        subscription: &Subscription,
        report: &Report,
    ) -> Result<()> {
        let waits = report.visible_in.is_some_and(|delay| !delay.is_zero());
        let timer = waits && (self.reported_timers_are_full() || self.is_short_of_memory());
        let busy = report.state == ReportState::Busy && self.shared.cursors.is_full_beyond();
        if !timer && !busy || subscription.names(&report.queue) {
            return Ok(());
        }
        let entry = self.entries.get(&report.queue);
        let is_known = |entry: Arc<QueueEntry>| {
            entry.lock().notified > 0 || !timer && subscription.lock().get(&entry).is_some()
        };
        if entry.is_some_and(is_known) {
            return Ok(());
        }
        let message = match timer {
            true => "visible_in: the limit of wake-ups that listeners report is reached",
            false => "state: the limit of subscribed queues with busy listeners is reached",
        };
        Err(Error::new(ErrorKind::Exhausted, message))
    }

    pub(in super::super) fn reported_timers_are_full(&self) -> bool {
        self.timers_reported.load(Ordering::Relaxed) >= self.shared.config.max_timers as u64
    }

    /// Takes on no new queue, cursor and timer, as if their limits were reached.
    pub(crate) fn set_short_of_memory(&self, is_short: bool) {
        let is_short_of_memory = &self.shared.is_short_of_memory;
        is_short_of_memory.store(is_short, Ordering::Relaxed);
    }

    pub(in super::super) fn is_short_of_memory(&self) -> bool {
        self.shared.is_short_of_memory.load(Ordering::Relaxed)
    }

    /// Returns the use of each limit. The table of queues is full where none of them could give way
    /// to a new one lately.
    pub(crate) fn limits(&self, now: Tick) -> [LimitUse; 4] {
        let config = &self.shared.config;
        let most_timers = config.max_timers;
        let refused_at = lock(&self.eviction).not_before;
        let refused = refused_at > Tick::default() && now < refused_at + FULL_FOR;
        let (queues, cursors) = (self.entries.len() as u64, self.shared.cursors.taken());
        let set = self.timers_set.load(Ordering::Relaxed);
        let reported = self.timers_reported.load(Ordering::Relaxed);
        let of = |what, used, limit: usize| LimitUse {
            what,
            used,
            limit: limit as u64,
            is_full: used >= limit as u64,
        };
        let mut limits = [
            of("queues", queues, config.max_queues),
            of("subscribed queues", cursors, config.max_cursors),
            of("delayed wake-ups", set, most_timers),
            of("wake-ups that listeners report", reported, most_timers),
        ];
        limits[0].is_full &= refused;
        limits
    }
}

/// The limit of memory is a setting of the process, which the hub does not know.
#[cold]
fn short_of_memory(field: &str) -> Error {
    let message = format!("{field}: max_memory: the relay is near its limit of memory");
    Error::new(ErrorKind::Exhausted, message)
}
