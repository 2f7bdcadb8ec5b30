//! What a full hub does: new queues, cursors and timers are refused or take the place of what is
//! needed least.
//!
//! All of a request is checked before a record is made for any of it. The longest idle queue without
//! listeners gives way to a new one: a subscriber that comes back to it is told to catch up, as after
//! any forgetting (R3). Nothing that a subscriber or a timer needs is ever given up.

use std::{borrow::Borrow, collections::HashSet, ops::Bound, sync::Arc, time::Duration};

use super::{
    core::Hub,
    cursors::Cursors,
    record::{Idle, Record},
    subscription::Subscription,
    sync::{Ordering, lock},
};
use crate::{
    clock::Tick,
    error::{Error, ErrorKind, Result},
    fault::planted,
    words::{GroupName, Notification, QueueAddress, Selector, SubscribeOptions},
};

/// Where the search for queues that may give way goes on.
#[derive(Default)]
pub(super) struct Eviction {
    hand: Option<QueueAddress>,
    /// The last search was in vain: none before this time.
    not_before: Tick,
}

/// Queues of one step of the search, of which the longest idle give way, and of one search.
const STEP: usize = 256;
const SEARCH: usize = 4096;
/// A full table is searched so often at most, however often it is asked for room.
const AGAIN: Duration = Duration::from_millis(100);
/// A table that refused a queue is told to be full for so long.
const REFUSED: Duration = Duration::from_secs(10);
/// A queue that only patterns match gives way when it was idle for so long.
const PATTERN_IDLE: Duration = Duration::from_secs(60);

impl Hub {
    /// Returns each notification's record, making those that are missing, all or none.
    pub(super) fn records_of(
        &self,
        notifications: &[Notification],
        now: Tick,
    ) -> Result<Vec<Arc<Record>>> {
        let mut records: Vec<Option<Arc<Record>>> = Vec::with_capacity(notifications.len());
        let mut missing = Vec::new();
        for notification in notifications {
            let record = match records.last() {
                Some(Some(last)) if *last.address() == notification.queue => Some(Arc::clone(last)),
                _ => self.records.get(&notification.queue),
            };
            if record.is_none() {
                missing.push(&notification.queue);
            }
            records.push(record);
        }
        if !missing.is_empty() {
            let own = || notifications.iter().map(|one| &one.queue).collect();
            self.make_missing(&missing, own, now)?;
        }
        let records = records.into_iter().zip(notifications);
        let made = records.map(|(record, notification)| {
            record.unwrap_or_else(|| self.make_record(&notification.queue, now))
        });
        Ok(made.collect())
    }

    /// Makes the records of these queues, where there is room for all of them. None of the request's
    /// `own` queues gives way.
    fn make_missing<'a>(
        &self,
        missing: &[&QueueAddress],
        own: impl FnOnce() -> HashSet<&'a QueueAddress>,
        now: Tick,
    ) -> Result<()> {
        let limit = self.config.max_queues;
        let mut eviction = lock(&self.eviction);
        let mut distinct = HashSet::new();
        let new = |address: &&&QueueAddress| {
            self.records.get(address).is_none() && distinct.insert((**address).clone())
        };
        let new: Vec<_> = missing.iter().filter(new).collect();
        let excess = (self.records.len() + new.len()).saturating_sub(limit);
        if excess > 0 && !self.evict(&mut eviction, excess, &own(), now) {
            let first = new.first().expect("there is an excess");
            if planted!(self.config.fault, RefusalLeavesQueues) {
                self.make_record(first, now);
            }
            return Err(too_many_queues(limit, first));
        }
        for address in new {
            self.make_record(address, now);
        }
        Ok(())
    }

    /// Returns the queue's record, making it where there is room.
    pub(super) fn record(&self, address: &QueueAddress, now: Tick) -> Result<Arc<Record>> {
        if let Some(found) = self.records.get(address) {
            return Ok(found);
        }
        self.make_missing(&[address], HashSet::new, now)?;
        Ok(self.make_record(address, now))
    }

    /// Returns the queue's record, made whether there is room or not: for queues that were admitted.
    pub(super) fn make_record(&self, address: &QueueAddress, now: Tick) -> Arc<Record> {
        self.records.get_or_insert(address, || {
            let number = self.record_number.fetch_add(1, Ordering::Relaxed);
            let start = self.floor.load(Ordering::Acquire);
            let changed_at = match planted!(self.config.fault, NewQueueNotStamped) {
                true => 0,
                false => self.revision.load(Ordering::Relaxed),
            };
            let start = (start, changed_at);
            Arc::new(Record::new(address.clone(), number, start, now, &self.pace))
        })
    }

    /// Checks that there is room for the queues that are named exactly and for their cursors.
    pub(super) fn check_room(&self, options: &SubscribeOptions, now: Tick) -> Result<()> {
        let exact = options.selectors.iter().filter_map(Selector::as_address);
        let exact: Vec<_> = exact.collect();
        let limit = self.config.max_cursors_per_stream;
        if exact.len() > limit {
            return Err(too_many_cursors("a stream", limit));
        }
        let limit = self.config.max_cursors;
        if self.cursors.load(Ordering::Relaxed) + exact.len() as u64 > limit as u64 {
            return Err(too_many_cursors("this relay", limit));
        }
        let known = |address: &QueueAddress| self.records.get(address);
        let mut unknown = HashSet::new();
        for address in &exact {
            match (known(address), &options.group) {
                (Some(record), Some(group)) => self.check_group(&record, group)?,
                (Some(_), None) => {}
                (None, _) => _ = unknown.insert(address),
            }
        }
        let limit = self.config.max_queues;
        let excess = (self.records.len() + unknown.len()).saturating_sub(limit);
        let Some(first) = unknown.iter().next().filter(|_| excess > 0) else {
            return Ok(());
        };
        let own = exact.iter().collect();
        match self.evict(&mut lock(&self.eviction), excess, &own, now) {
            true => Ok(()),
            false => Err(too_many_queues(limit, first)),
        }
    }

    fn check_group(&self, record: &Record, group: &GroupName) -> Result<()> {
        let state = record.lock();
        if state
            .company
            .as_ref()
            .is_none_or(|company| company.has_room(group))
        {
            return Ok(());
        }
        let (limit, queue) = (self.config.pace.max_groups, record.address());
        let message = format!("group: the limit of {limit} groups of `{queue}` is reached");
        Err(Error::new(ErrorKind::Exhausted, message))
    }

    /// Returns whether a pattern's subscription may have one more cursor on this queue. Where it may
    /// not, it is told of the queues that it lacks under the pattern's own name.
    pub(super) fn has_cursor_room(
        &self,
        subscription: &Subscription,
        cursors: &Cursors,
        record: &Record,
    ) -> bool {
        let all = self.cursors.load(Ordering::Relaxed);
        let room = all < self.config.max_cursors as u64
            && cursors.list.len() < self.config.max_cursors_per_stream;
        let group = subscription.group.as_ref();
        room && group.is_none_or(|group| self.check_group(record, group).is_ok())
    }

    /// Checks that there is room for the timers of these notifications.
    pub(super) fn check_timers(&self, notifications: &[Notification]) -> Result<()> {
        let delayed = notifications.iter().filter(|one| !one.delay.is_zero());
        let (new, limit) = (delayed.count() as u64, self.config.max_timers as u64);
        if new > 0 && self.timers_set.load(Ordering::Relaxed) + new > limit {
            let message = format!("delay: the limit of {limit} delayed wake-ups is reached");
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        Ok(())
    }

    /// Returns the limits that are reached, a line each. A table of queues is full where none of them
    /// could give way to a new one lately.
    pub(crate) fn full(&self, now: Tick) -> Vec<String> {
        let config = &self.config;
        let refused_at = lock(&self.eviction).not_before;
        let refused = refused_at > Tick::default() && now < refused_at + REFUSED;
        let queues = refused && self.records.len() >= config.max_queues;
        let cursors = self.cursors.load(Ordering::Relaxed);
        let timers = self.timers_set.load(Ordering::Relaxed);
        let limits = [
            (queues, "queues", config.max_queues),
            (
                cursors >= config.max_cursors as u64,
                "subscribed queues",
                config.max_cursors,
            ),
            (
                timers >= config.max_timers as u64,
                "delayed wake-ups",
                config.max_timers,
            ),
        ];
        let full = limits.into_iter().filter(|(is_full, ..)| *is_full);
        full.map(|(_, what, limit)| format!("full: the limit of {limit} {what} is reached"))
            .collect()
    }

    /// Forgets as many queues that are idle and have no listeners, but for those of the request that
    /// needs their places; returns whether there were as many.
    fn evict(
        &self,
        eviction: &mut Eviction,
        mut excess: usize,
        own: &HashSet<&QueueAddress>,
        now: Tick,
    ) -> bool {
        if now < eviction.not_before {
            return false;
        }
        let mut searched = 0;
        while excess > 0 && searched < SEARCH.max(4 * excess) {
            let from = eviction.hand.as_ref();
            let from = from.map_or(Bound::Unbounded, |hand| Bound::Excluded(hand.borrow()));
            let records = self.records.range(from, STEP);
            searched += records.len().max(1);
            eviction.hand = records.last().map(|record| record.address().clone());
            let others = records.iter().filter(|one| !own.contains(one.address()));
            let idle = others.filter_map(|record| {
                let since = record.idle_since()?;
                Some((since, record))
            });
            let mut idle: Vec<_> = idle.collect();
            idle.sort_by_key(|(since, _)| *since);
            for (_, record) in idle {
                if excess > 0 && self.forget_one(record, (now, now), PATTERN_IDLE) {
                    excess -= 1;
                }
            }
            if records.is_empty() && searched > STEP && self.records.len() < STEP {
                break;
            }
        }
        if excess > 0 {
            eviction.not_before = now + AGAIN;
        }
        excess == 0
    }

    /// Forgets a queue that was not needed since then; returns whether it did.
    pub(super) fn forget_one(
        &self,
        record: &Arc<Record>,
        (idle_since, now): (Tick, Tick),
        pattern_idle: Duration,
    ) -> bool {
        let floor = |floor, changed_at| {
            self.forgotten_at.fetch_max(changed_at, Ordering::AcqRel);
            if !planted!(self.config.fault, FloorForgotten) {
                self.floor.fetch_max(floor, Ordering::AcqRel);
            }
        };
        let dead = match record.idle(idle_since) {
            Idle::No => false,
            Idle::Alone => record.forget(None, idle_since, &self.timers, floor),
            Idle::Patterns(holders) => {
                let since = idle_since.as_nanos();
                let since = since.checked_sub(super::core::nanos(pattern_idle));
                since.is_some_and(|since| {
                    let since = Tick::from_nanos(since);
                    holders.up_to_date(self, record, now)
                        && record.forget(Some(&holders), since, &self.timers, floor)
                        && holders.release(self, record)
                })
            }
        };
        if dead {
            self.records.remove(record);
            self.counters.forgotten.fetch_add(1, Ordering::Relaxed);
        }
        dead
    }
}

#[cold]
fn too_many_queues(limit: usize, address: &QueueAddress) -> Error {
    let message = format!("the limit of {limit} queues is reached, `{address}` is one more");
    Error::new(ErrorKind::Exhausted, message)
}

#[cold]
fn too_many_cursors(of: &str, limit: usize) -> Error {
    let message = format!("selectors: the limit of {limit} subscribed queues of {of} is reached");
    Error::new(ErrorKind::Exhausted, message)
}
