//! Admits subscriptions: the queues that one names, and their cursors, are reserved from its
//! request on, however long it takes to attach them.
//!
//! The entries are made in the one call and kept from being forgotten; they are cheap. The cursors
//! are attached in steps, and count from the request on. All of a request is checked before any
//! entry is made for it.

use std::{collections::HashSet, sync::Arc};

use super::{
    attaching::Reserved,
    config::CoordinatorConfig,
    core::Hub,
    queue_entry::{QueueEntry, QueueState},
    subscription::Subscription,
    sync::{Ordering, lock},
};
use crate::{
    base::clock::Tick,
    error::{Error, ErrorKind, Result},
    types::{GroupName, QueueAddress, Selector},
};

impl Hub {
    /// Reserves the queues that the subscription names, and their cursors.
    ///
    /// # Errors
    /// `Exhausted` where a limit is reached; nothing was reserved then.
    pub(super) fn admit(&self, subscription: &Subscription, now: Tick) -> Result<Reserved> {
        let exact = subscription.selectors.iter();
        let exact: Vec<_> = exact.filter_map(Selector::as_address).collect();
        let limit = self.config.max_cursors_per_stream;
        if exact.len() > limit {
            return Err(too_many_cursors("a stream", limit));
        }
        if !self.take_cursors(subscription, exact.len() as u64, self.config.max_cursors) {
            return Err(self.too_many_cursors(subscription, exact.len()));
        }
        let reserved = self.reserve(&exact, subscription.group.as_ref(), now);
        match &reserved {
            Ok(_) => {
                let reserved = u32::try_from(exact.len());
                subscription.lock().reserved = reserved.expect("bounded by a request");
            }
            Err(_) => self.cursors_left(subscription, exact.len() as u64),
        }
        reserved
    }

    fn reserve(
        &self,
        exact: &[QueueAddress],
        group: Option<&GroupName>,
        now: Tick,
    ) -> Result<Reserved> {
        let mut reserved = Reserved::default();
        let mut missing = Vec::new();
        let mut new_groups = 0;
        for (at, address) in exact.iter().enumerate() {
            let entry = self.entries.get(address);
            if let Some(group) = group {
                new_groups += self.check_group(address, entry.as_ref(), (group, new_groups))?;
            }
            let kept = entry.filter(|entry| entry.reserve());
            if kept.is_none() {
                missing.push(at);
            }
            reserved.entries.push(kept);
        }
        if missing.is_empty() {
            return Ok(reserved);
        }
        // Under this lock no queue gives way to another request before it is reserved.
        let mut eviction = lock(&self.eviction);
        if self.entries.len() + missing.len() > self.config.max_queues {
            // Another request may have made some of them.
            missing.retain(|at| {
                let entry = self.entries.get(&exact[*at]);
                reserved.entries[*at] = entry.filter(|entry| entry.reserve());
                reserved.entries[*at].is_none()
            });
            let new: Vec<_> = missing.iter().map(|at| &exact[*at]).collect();
            self.make_room(&mut eviction, &new, HashSet::new, now)?;
        }
        for at in missing {
            reserved.entries[at] = Some(self.make_reserved(&exact[at], now));
        }
        Ok(reserved)
    }

    fn make_reserved(&self, address: &QueueAddress, now: Tick) -> Arc<QueueEntry> {
        loop {
            let entry = self.make_entry(address, now);
            if entry.reserve() {
                return entry;
            }
            // Forgotten, and about to leave the map.
            self.entries.remove(&entry);
        }
    }

    /// Returns the groups that joining this one makes, 0 or 1, where the request makes `new` before
    /// it. Where other groups take the room before this one joins, it is not made: see
    /// [`Subscription::attach`].
    fn check_group(
        &self,
        address: &QueueAddress,
        entry: Option<&Arc<QueueEntry>>,
        (group, new): (&GroupName, u64),
    ) -> Result<u64> {
        let config = &self.coordinator_config;
        let state = entry.map(|entry| entry.lock());
        let coordinator = state.as_ref().and_then(|state| state.coordinator.as_ref());
        if coordinator.is_some_and(|coordinator| coordinator.knows(group)) {
            return Ok(0);
        }
        let is_full = !config.has_room(new);
        let has_room = coordinator.is_none_or(|coordinator| coordinator.has_room(group));
        if has_room && !is_full {
            return Ok(1);
        }
        let message = match is_full {
            true => format!(
                "group: the limit of {} groups of this relay is reached",
                config.max_groups
            ),
            false => format!(
                "group: the limit of {} groups of `{address}` is reached",
                config.max_groups_per_queue
            ),
        };
        Err(Error::new(ErrorKind::Exhausted, message))
    }

    /// Returns the limit of cursors for patterns. A quarter of all is left for named queues,
    /// because their wake-ups cannot go under a pattern's name.
    pub(super) fn cursors_for_patterns(&self) -> usize {
        self.config.max_cursors - self.config.max_cursors / 4
    }

    /// Takes `count` cursors below a limit, and below that of the subscription's pool, all or none.
    pub(super) fn take_cursors(
        &self,
        subscription: &Subscription,
        count: u64,
        limit: usize,
    ) -> bool {
        if count == 0 {
            return true;
        }
        let pool = subscription.pool.as_deref();
        if pool.is_some_and(|pool| !pool.take(count)) {
            return false;
        }
        let limit = limit as u64;
        let more = |all: u64| all.checked_add(count).filter(|all| *all <= limit);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let taken = self.cursors.fetch_update(set, fetch, more).is_ok();
        if !taken && let Some(pool) = pool {
            pool.give_back(count);
        }
        taken
    }

    /// Takes a cursor that is needed even beyond the limits.
    pub(super) fn take_cursor_beyond(&self, subscription: &Subscription) {
        self.cursors.fetch_add(1, Ordering::Relaxed);
        if let Some(pool) = &subscription.pool {
            pool.take_beyond();
        }
    }

    /// Returns `count` cursors, attached or reserved, to the limits.
    pub(super) fn cursors_left(&self, subscription: &Subscription, count: u64) {
        self.cursors.fetch_sub(count, Ordering::Relaxed);
        if let Some(pool) = &subscription.pool {
            pool.give_back(count);
        }
    }

    /// Names the limit that left no room for this many named queues.
    fn too_many_cursors(&self, subscription: &Subscription, named: usize) -> Error {
        match &subscription.pool {
            Some(pool) if pool.taken() + named as u64 > pool.limit() => too_many_cursors(
                "a principal",
                usize::try_from(pool.limit()).unwrap_or(usize::MAX),
            ),
            _ => too_many_cursors("this relay", self.config.max_cursors),
        }
    }
}

impl QueueState {
    /// Returns whether the queue and the relay have room for this group.
    pub(super) fn has_room(&self, config: &CoordinatorConfig, group: &GroupName) -> bool {
        match &self.coordinator {
            Some(coordinator) => coordinator.has_room(group),
            None => config.has_room(0),
        }
    }
}

#[cold]
fn too_many_cursors(of: &str, limit: usize) -> Error {
    let message = format!("selectors: the limit of {limit} subscribed queues of {of} is reached");
    Error::new(ErrorKind::Exhausted, message)
}
