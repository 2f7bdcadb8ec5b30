//! The hub itself: counts what publishers say, and knows who subscribes.
//!
//! All of a request is checked before any of it is counted. Every entry point ends with the marks
//! set and the wakers woken; what is left to do later waits in the fan-out and in the timers.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    fanout::{Fanout, Walk},
    map::Map,
    place::{Epoch, Tally},
    record::{Newest, Record, Refusal, Wake},
    subscription::{Attached, Cursors, Start, Subscription, SubscriptionId},
    sync::{AtomicU64, AtomicWaker, Mutex, Ordering, RwLock, lock},
    timers::{Timer, Timers},
};
use crate::{
    backoff::jitter,
    clock::Tick,
    error::{Error, ErrorKind, Result},
    fault::{Fault, planted},
    words::{Accepted, Notification, QueueAddress, Report, SubscribeOptions, Token},
};

/// How a hub behaves.
#[derive(Debug, Clone)]
pub(crate) struct HubConfig {
    /// The relay's life.
    pub(crate) epoch: Epoch,
    /// Seeds the map's hasher.
    pub(crate) seed: u64,
    /// A queue without subscribers, timers and notifications for this long is forgotten (R3).
    pub(crate) forget_after: Duration,
    /// Queues remembered at once. At about 400 bytes each, a million of them is 400 MB.
    pub(crate) max_queues: usize,
    /// Subscribers up to which a notification wakes them itself, instead of the fan-out.
    pub(crate) inline: usize,
    /// CATCH_UPs after a change of epoch are spread over this span.
    pub(crate) catch_up_spread: Duration,
    pub(crate) fault: Fault,
}

/// Who is owed a wake-up.
pub(crate) struct Hub {
    config: HubConfig,
    pub(super) records: Map,
    record_number: AtomicU64,
    /// One more than the greatest sequence ever forgotten (R3).
    floor: AtomicU64,
    patterns: RwLock<Vec<Arc<Subscription>>>,
    pub(super) subscriptions: Mutex<std::collections::BTreeMap<SubscriptionId, Arc<Subscription>>>,
    fanout: Fanout,
    timers: Timers,
    counters: Counters,
}

/// What a hub has done so far.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HubStats {
    /// Notifications counted: events, whatever they stand for.
    pub(crate) notified: u64,
    /// Timed wake-ups that fired.
    pub(crate) timed: u64,
    /// Walks left to the fan-out.
    pub(crate) fanned_out: u64,
    /// Queues forgotten.
    pub(crate) forgotten: u64,
    /// Queues remembered now.
    pub(crate) queues: u64,
    /// Subscriptions now.
    pub(crate) subscriptions: u64,
}

#[derive(Default)]
struct Counters {
    notified: std::sync::atomic::AtomicU64,
    timed: std::sync::atomic::AtomicU64,
    fanned_out: std::sync::atomic::AtomicU64,
    forgotten: std::sync::atomic::AtomicU64,
}

/// What a busy listener's queue waits beyond its visibility time-out, until its messages are
/// certainly visible again (R8).
const VISIBLE_AGAIN: Duration = Duration::from_secs(2);

impl Default for HubConfig {
    fn default() -> Self {
        Self {
            epoch: Epoch(0),
            seed: 0,
            forget_after: Duration::from_secs(3600),
            max_queues: 1_000_000,
            inline: super::record::CHUNK,
            catch_up_spread: Duration::from_secs(2),
            fault: Fault::default(),
        }
    }
}

impl Hub {
    pub(crate) fn new(config: HubConfig) -> Self {
        Self {
            records: Map::new(config.seed),
            record_number: AtomicU64::new(0),
            floor: AtomicU64::new(0),
            patterns: RwLock::new(Vec::new()),
            subscriptions: Mutex::default(),
            fanout: Fanout::new(),
            timers: Timers::new(),
            counters: Counters::default(),
            config,
        }
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.config.epoch
    }

    /// Counts a request's notifications and wakes who listens; answers in their order.
    ///
    /// # Errors
    /// `Exhausted` where a new queue would be one too many; nothing was counted then.
    pub(crate) fn notify(
        &self,
        publisher: &Arc<str>,
        notifications: &[Notification],
        now: Tick,
    ) -> Result<Vec<Accepted>> {
        let mut records: Vec<Arc<Record>> = Vec::with_capacity(notifications.len());
        for notification in notifications {
            notification.check()?;
            let record = match records.last() {
                Some(last) if *last.address() == notification.queue => Arc::clone(last),
                _ => self.record(&notification.queue, now, self.config.max_queues)?,
            };
            records.push(record);
        }
        let mut accepted = Vec::with_capacity(notifications.len());
        let mut rest = notifications;
        let mut records = &records[..];
        while let Some(record) = records.first() {
            let run = records
                .iter()
                .take_while(|other| Arc::ptr_eq(other, record))
                .count();
            self.count_run(
                Arc::clone(record),
                publisher,
                &rest[..run],
                now,
                &mut accepted,
            );
            (records, rest) = (&records[run..], &rest[run..]);
        }
        self.counters
            .notified
            .fetch_add(notifications.len() as u64, Ordering::Relaxed);
        Ok(accepted)
    }

    /// Opens a subscription under a random id; `rng` spreads its CATCH_UPs.
    ///
    /// # Errors
    /// What the options' own check refuses.
    pub(crate) fn subscribe(
        &self,
        id: SubscriptionId,
        options: &SubscribeOptions,
        now: Tick,
        rng: &mut fastrand::Rng,
    ) -> Result<Arc<Subscription>> {
        options.check()?;
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
        if pattern && !planted!(self.config.fault, PatternWithoutSelectorEntry) {
            cursors.doubt_patterns(&subscription.selectors);
        }
        if foreign {
            cursors.catch_up_at = now + jitter(self.config.catch_up_spread, rng);
        }
        drop(cursors);
        lock(&self.subscriptions).insert(id, Arc::clone(&subscription));
        subscription.mark_all();
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
        }
        for record in subscription.close(now) {
            if planted!(self.config.fault, NoTimerForBusy) {
                continue;
            }
            let delay = subscription.visibility_timeout + VISIBLE_AGAIN;
            self.wake_after(record, delay, Timer::plain(), now);
        }
    }

    /// Takes a listener's report.
    ///
    /// # Errors
    /// `NotFound` for an unknown subscription, `Invalid` for a queue that it does not listen on.
    pub(crate) fn report(&self, id: SubscriptionId, report: &Report, now: Tick) -> Result<()> {
        report.check()?;
        let found = lock(&self.subscriptions).get(&id).cloned();
        let subscription = found.ok_or_else(|| {
            let message = "subscription_id: not known here, wait for the next Welcome";
            Error::new(ErrorKind::NotFound, message)
        })?;
        if !subscription.wants(&report.queue) {
            let rule = format_args!(
                "{} is matched by no selector of the subscription",
                report.queue
            );
            return Err(Error::invalid("queue_name", rule));
        }
        let record = self.record(&report.queue, now, self.config.max_queues)?;
        let mut cursors = subscription.lock();
        // A pattern's listener may report a queue that nobody has notified yet.
        let record = self
            .attach(&subscription, &mut cursors, record, Start::Birth, now)
            .0;
        subscription.report(&mut cursors, report);
        drop(cursors);
        match report.visible_in {
            None => {}
            Some(Duration::ZERO) if planted!(self.config.fault, VisibleNowIgnored) => {}
            Some(delay) => self.wake_after(record, delay, Timer::plain(), now),
        }
        Ok(())
    }

    /// Returns the next walk that is left to the fan-out.
    pub(crate) fn next_walk(&self) -> Option<Walk> {
        self.fanout.pop()
    }

    /// Returns the waker's place for whoever runs the fan-out.
    pub(crate) fn fanout_waker(&self) -> &AtomicWaker {
        &self.fanout.waker
    }

    /// Fires the timers that are due; returns when the next one is.
    pub(crate) fn fire(&self, now: Tick) -> Option<Tick> {
        while let Some(record) = self.timers.due(now) {
            self.count_in(record, now, |record, state| {
                let any = state.count_due(now);
                state.rearm(record, &self.timers);
                any
            });
            self.counters.timed.fetch_add(1, Ordering::Relaxed);
        }
        self.timers.next()
    }

    /// Returns when the next timer fires.
    pub(crate) fn next_timer(&self) -> Option<Tick> {
        self.timers.next()
    }

    /// Wakes every stream: to end it, say.
    pub(crate) fn wake_all(&self) {
        let all: Vec<_> = lock(&self.subscriptions).values().cloned().collect();
        all.iter().for_each(|subscription| subscription.wake());
    }

    /// Returns the waker's place for whoever runs the timers: woken when the next one changed.
    pub(crate) fn timers_waker(&self) -> &AtomicWaker {
        &self.timers.waker
    }

    /// Forgets the queues that nobody has needed for long enough (R3).
    pub(crate) fn forget(&self, now: Tick) {
        let Some(idle_since) = now.as_nanos().checked_sub(nanos(self.config.forget_after)) else {
            return;
        };
        for record in self.records.collect(|_| true) {
            let dead = record.forget(Tick::from_nanos(idle_since), |floor| {
                if !planted!(self.config.fault, FloorForgotten) {
                    self.floor.fetch_max(floor, Ordering::AcqRel);
                }
            });
            if dead {
                self.records.remove(&record);
                if planted!(self.config.fault, ForgetWithTimer) {
                    record.lock().drop_timers(&record, &self.timers);
                }
                self.counters.forgotten.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn stats(&self) -> HubStats {
        HubStats {
            notified: self.counters.notified.load(Ordering::Relaxed),
            timed: self.counters.timed.load(Ordering::Relaxed),
            fanned_out: self.counters.fanned_out.load(Ordering::Relaxed),
            forgotten: self.counters.forgotten.load(Ordering::Relaxed),
            queues: self.records.len() as u64,
            subscriptions: lock(&self.subscriptions).len() as u64,
        }
    }

    /// Returns the queue's record, making it where there is none.
    fn record(&self, address: &QueueAddress, now: Tick, limit: usize) -> Result<Arc<Record>> {
        if let Some(found) = self.records.get(address) {
            return Ok(found);
        }
        if self.records.len() >= limit {
            let message =
                format!("the limit of {limit} queues is reached, `{address}` is one more");
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        Ok(self.make_record(address, now))
    }

    fn make_record(&self, address: &QueueAddress, now: Tick) -> Arc<Record> {
        self.records.get_or_insert(address, || {
            let number = self.record_number.fetch_add(1, Ordering::Relaxed);
            let start = self.floor.load(Ordering::Acquire);
            Arc::new(Record::new(
                address.clone(),
                number,
                start,
                now,
                self.config.fault,
            ))
        })
    }

    /// Counts the notifications of one run, all of the record's queue, and wakes once.
    fn count_run(
        &self,
        record: Arc<Record>,
        publisher: &Arc<str>,
        run: &[Notification],
        now: Tick,
        accepted: &mut Vec<Accepted>,
    ) {
        self.count_in(record, now, |record, state| {
            let listeners = u32::try_from(state.listeners()).unwrap_or(u32::MAX);
            let mut any = false;
            for notification in run {
                if notification.delay.is_zero() {
                    state.count(publisher, notification, now);
                    any = true;
                } else {
                    let timer = Timer::of(publisher, notification);
                    state
                        .timers
                        .add(now, notification.delay, timer, self.config.fault);
                }
                accepted.push(Accepted {
                    sequence: state.tally.sequence,
                    listeners,
                });
            }
            state.rearm(record, &self.timers);
            any
        });
    }

    /// Wakes the queue after `delay`, or at once.
    fn wake_after(&self, record: Arc<Record>, delay: Duration, timer: Timer, now: Tick) {
        let mut timer = Some(timer);
        self.count_in(record, now, |record, state| {
            let timer = timer.take().expect("counted once");
            if delay.is_zero() {
                state.count_timed(timer, now);
                return true;
            }
            state.timers.add(now, delay, timer, self.config.fault);
            state.rearm(record, &self.timers);
            false
        });
    }

    /// Counts under the lock of a live record of this queue, and wakes its subscribers where
    /// `count` says so. The only way to move a counter.
    fn count_in(
        &self,
        mut record: Arc<Record>,
        now: Tick,
        mut count: impl FnMut(&Arc<Record>, &mut super::record::State) -> bool,
    ) {
        let wake = loop {
            let mut state = record.lock();
            match state.check_live() {
                Ok(()) if count(&record, &mut state) => break state.wake(self.config.inline),
                Ok(()) => break Wake::Told,
                Err(Refusal::Unattached) => {
                    drop(state);
                    self.attach_patterns(&record);
                }
                Err(Refusal::Dead) => {
                    drop(state);
                    self.records.remove(&record);
                    record = self.make_record(record.address(), now);
                }
            }
        };
        match wake {
            Wake::Told => {}
            Wake::Here => {
                let mut walk = Walk::new(record);
                while walk.step() {}
            }
            Wake::Fanout => {
                self.counters.fanned_out.fetch_add(1, Ordering::Relaxed);
                self.fanout.push(record);
            }
        }
    }

    /// Attaches the subscribers by pattern to a new record. Whoever registers its pattern after
    /// this has read the list finds the record in the map.
    fn attach_patterns(&self, record: &Arc<Record>) {
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
            subscription.attach(&mut cursors, record, Start::Birth);
        }
        record.attached();
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
        for position in &options.positions {
            let Some(address) = position.queue.as_address() else {
                continue;
            };
            if !subscription.wants(&address) {
                continue;
            }
            let known = self.records.get(&address);
            if known.is_none() && planted!(self.config.fault, PositionsMakeNothing) {
                continue;
            }
            attach(
                known.unwrap_or_else(|| self.make_record(&address, now)),
                Some(&position.token),
            );
        }
        for address in subscription
            .selectors
            .iter()
            .filter_map(crate::words::Selector::as_address)
        {
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
    fn attach(
        &self,
        subscription: &Arc<Subscription>,
        cursors: &mut Cursors,
        mut record: Arc<Record>,
        start: Start<'_>,
        now: Tick,
    ) -> (Arc<Record>, Attached) {
        loop {
            match subscription.attach(cursors, &record, start) {
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

impl Timer {
    /// A wake-up without a notification.
    fn plain() -> Self {
        Self {
            at: Tick::default(),
            sums: Tally::default(),
            newest: None,
        }
    }

    /// A delayed notification.
    fn of(publisher: &Arc<str>, notification: &Notification) -> Self {
        let mut sums = Tally::default();
        sums.add(notification);
        Self {
            at: Tick::default(),
            sums,
            newest: Some(Newest::of(publisher, notification)),
        }
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
