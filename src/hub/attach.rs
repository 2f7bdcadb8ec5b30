//! Subscriptions come and go: how their cursors are attached to records.
//!
//! Register first, then take the snapshot (R4): a cursor is linked and reads its queue's counters
//! under one lock, and a pattern is in the list before the map is scanned. Whoever makes a record
//! puts it in the map before it reads that list. So neither can miss the other.

use std::{collections::HashSet, sync::Arc, time::Duration};

use super::{
    core::{Hub, too_many_queues},
    cursors::Cursors,
    record::Record,
    subscription::{Attached, Ended, Start, Subscription, SubscriptionId},
    sync::lock,
    timers::Timer,
};
use crate::{
    backoff::jitter,
    clock::Tick,
    error::Result,
    fault::planted,
    words::{Selector, SubscribeOptions, Token},
};

/// What a busy listener's queue waits beyond its visibility time-out, until its messages are
/// certainly visible again (R8).
const VISIBLE_AGAIN: Duration = Duration::from_secs(2);

impl Hub {
    /// Opens a subscription under a random id; `rng` spreads its CATCH_UPs.
    ///
    /// # Errors
    /// What the options' own check refuses, and `Exhausted` where the queues that it names would be
    /// too many; nothing was registered then.
    pub(crate) fn subscribe(
        &self,
        id: SubscriptionId,
        options: &SubscribeOptions,
        now: Tick,
        rng: &mut fastrand::Rng,
    ) -> Result<Arc<Subscription>> {
        options.check()?;
        self.check_room(options)?;
        let subscription = Arc::new(Subscription::new(
            id,
            options,
            self.config.epoch,
            now,
            self.config.fault,
        ));
        let mut cursors = subscription.lock();
        // Registered before the map is scanned (R4). Whoever makes a matching record meanwhile
        // waits for the cursors' lock, and then finds this subscription's own cursor.
        let pattern = subscription.has_pattern();
        if pattern && !planted!(self.config.fault, PatternRegistersLate) {
            self.add_pattern(&subscription);
        }
        let foreign = self.attach_all(&subscription, &mut cursors, options, now);
        // A new group's look is one member's, and asked for below.
        let told = options.group.is_none();
        if pattern && told && !planted!(self.config.fault, PatternWithoutSelectorEntry) {
            cursors.doubt_patterns(&subscription.selectors);
        }
        if foreign {
            cursors.catch_up_at = now + jitter(self.config.catch_up_spread, rng);
        }
        let records = self.to_tend(&subscription, &cursors);
        drop(cursors);
        lock(&self.subscriptions).insert(id, Arc::clone(&subscription));
        subscription.mark_all();
        for record in records {
            self.tend(record, now, |_| {});
        }
        if pattern {
            self.join_looks(&subscription, now);
            self.fire_looks(now);
        }
        Ok(subscription)
    }

    /// Ends a subscription. Where its listener is taken to be busy, the queue is woken again when
    /// what it held is visible (R8).
    pub(crate) fn unsubscribe(&self, subscription: &Arc<Subscription>, now: Tick) {
        lock(&self.subscriptions).remove(&subscription.id);
        if subscription.has_pattern() {
            let mut patterns = self
                .patterns
                .write()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            patterns.retain(|other| !Arc::ptr_eq(other, subscription));
            drop(patterns);
            self.leave_looks(subscription, now);
        }
        for Ended { record, busy } in subscription.close(now) {
            // To another member at once; and to all when what it held is visible again (R16).
            self.tend(Arc::clone(&record), now, |_| {});
            if busy && !planted!(self.config.fault, NoTimerForBusy) {
                let delay = subscription.visibility_timeout + VISIBLE_AGAIN;
                self.wake_after(record, delay, Timer::plain(), now);
            }
        }
    }

    /// Returns the queues of a new subscription that have groups or a sentinel.
    fn to_tend(&self, subscription: &Subscription, cursors: &Cursors) -> Vec<Arc<Record>> {
        if subscription.group.is_none() && self.config.pace.sentinel.is_zero() {
            return Vec::new();
        }
        let records = cursors.list.iter().map(|cursor| &cursor.record);
        records.cloned().collect()
    }

    /// Attaches the subscribers by pattern to a new record. Whoever registers its pattern after
    /// this has read the list finds the record in the map.
    pub(super) fn attach_patterns(&self, record: &Arc<Record>, now: Tick) {
        let patterns = self
            .patterns
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let wanting: Vec<_> = patterns
            .iter()
            .filter(|other| other.wants(record.address()))
            .cloned()
            .collect();
        drop(patterns);
        for subscription in wanting {
            let mut cursors = subscription.lock();
            // A dead record is found out by whoever counts.
            subscription.attach(&mut cursors, record, Start::Birth, now);
        }
        record.attached();
    }

    /// Checks that there is room for the queues which are named exactly and not known yet.
    fn check_room(&self, options: &SubscribeOptions) -> Result<()> {
        let exact = options.selectors.iter().filter_map(Selector::as_address);
        let unknown: HashSet<_> = exact
            .filter(|address| self.records.get(address).is_none())
            .collect();
        let limit = self.config.max_queues;
        match unknown.iter().next() {
            Some(first) if self.records.len() + unknown.len() > limit => {
                Err(too_many_queues(limit, first))
            }
            _ => Ok(()),
        }
    }

    fn add_pattern(&self, subscription: &Arc<Subscription>) {
        let mut patterns = self
            .patterns
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        patterns.push(Arc::clone(subscription));
    }

    /// Attaches every queue that the options name, that a position names and a selector matches,
    /// and that the map knows and a pattern matches. Returns whether a token was of another life.
    fn attach_all(
        &self,
        subscription: &Arc<Subscription>,
        cursors: &mut Cursors,
        options: &SubscribeOptions,
        now: Tick,
    ) -> bool {
        let mut foreign = false;
        let mut attach = |record, token: Option<&Token>| {
            let (_, attached) =
                self.attach(subscription, cursors, record, Start::Token(token), now);
            foreign |= attached == Attached::Foreign;
        };
        let limit = match planted!(self.config.fault, PositionsMakeNothing) {
            true => 0,
            false => self.config.max_queues,
        };
        for position in &options.positions {
            let Some(address) = position.queue.as_address() else {
                continue;
            };
            if !subscription.wants(&address) {
                continue;
            }
            // One too many makes no record: the pattern's own CATCH_UP covers it.
            let Ok(record) = self.record(&address, now, limit) else {
                continue;
            };
            attach(record, Some(&position.token));
        }
        let exact = subscription.selectors.iter();
        for address in exact.filter_map(Selector::as_address) {
            attach(self.make_record(&address, now), None);
        }
        if subscription.has_pattern() {
            for record in self.records.collect(|address| subscription.wants(address)) {
                attach(record, None);
            }
        }
        foreign
    }

    /// Attaches a cursor to a record of this queue that is not dead, and returns that record.
    pub(super) fn attach(
        &self,
        subscription: &Arc<Subscription>,
        cursors: &mut Cursors,
        mut record: Arc<Record>,
        start: Start<'_>,
        now: Tick,
    ) -> (Arc<Record>, Attached) {
        loop {
            match subscription.attach(cursors, &record, start, now) {
                Attached::Dead => {
                    self.records.remove(&record);
                    record = self.make_record(record.address(), now);
                }
                attached => return (record, attached),
            }
        }
    }

    /// Registers a pattern that a planted fault left unregistered.
    #[cfg(test)]
    pub(super) fn register_late(&self, subscription: &Arc<Subscription>) {
        if planted!(self.config.fault, SnapshotBeforeRegister) {
            subscription.link_late();
        }
        if planted!(self.config.fault, PatternRegistersLate) && subscription.has_pattern() {
            let known = self
                .patterns
                .read()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            if !known.iter().any(|other| Arc::ptr_eq(other, subscription)) {
                drop(known);
                self.add_pattern(subscription);
            }
        }
    }
}
