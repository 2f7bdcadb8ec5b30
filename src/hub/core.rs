//! The hub itself: counts what publishers say, and knows who subscribes.
//!
//! All of a request is checked before any of it is counted. Every entry point ends with the marks
//! set and the wakers woken; what is left to do later waits in the fan-out and in the timers.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64 as Count},
    time::Duration,
};

use super::{
    company::Pace,
    fanout::{Fanout, Walk},
    links::mark,
    looks::Looks,
    map::Map,
    place::{Epoch, Tally},
    record::{Newest, Record, Refusal, State, Wake},
    subscription::{Subscription, SubscriptionId},
    sync::{AtomicU64, AtomicWaker, Mutex, Ordering, RwLock, lock},
    timers::{Timer, Timers},
};
use crate::{
    clock::Tick,
    error::{Error, ErrorKind, Result},
    fault::{Fault, planted},
    words::{Accepted, Limits, Notification, QueueAddress, check_text},
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
    /// Queues remembered at once. At about 450 bytes each, a million of them is 450 MB.
    pub(crate) max_queues: usize,
    /// Subscribers up to which a notification wakes them itself, instead of the fan-out.
    pub(crate) inline: usize,
    /// CATCH_UPs after a change of epoch are spread over this span.
    pub(crate) catch_up_spread: Duration,
    /// How long groups and the sentinel wait.
    pub(crate) pace: Pace,
    pub(crate) fault: Fault,
}

/// Who is owed a wake-up.
pub(crate) struct Hub {
    pub(super) config: HubConfig,
    pace: Arc<Pace>,
    pub(super) records: Map,
    record_number: AtomicU64,
    /// One more than the greatest sequence ever forgotten (R3).
    floor: AtomicU64,
    pub(super) patterns: RwLock<Vec<Arc<Subscription>>>,
    pub(super) subscriptions: Mutex<std::collections::BTreeMap<SubscriptionId, Arc<Subscription>>>,
    pub(super) fanout: Fanout,
    pub(super) timers: Timers,
    pub(super) looks: Looks,
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

/// Not of [`super::sync`]: nothing rests on them, and no interleaving is worth trying for them.
#[derive(Default)]
struct Counters {
    notified: Count,
    timed: Count,
    fanned_out: Count,
    forgotten: Count,
}

impl Default for HubConfig {
    fn default() -> Self {
        Self {
            epoch: Epoch(0),
            seed: 0,
            forget_after: Duration::from_secs(3600),
            max_queues: 1_000_000,
            inline: super::record::CHUNK,
            catch_up_spread: Duration::from_secs(2),
            pace: Pace::default(),
            fault: Fault::NONE,
        }
    }
}

impl Hub {
    pub(crate) fn new(config: HubConfig) -> Self {
        let pace = Pace {
            seed: config.seed,
            fault: config.fault,
            ..config.pace
        };
        Self {
            pace: Arc::new(pace),
            records: Map::new(config.seed),
            record_number: AtomicU64::new(0),
            floor: AtomicU64::new(0),
            patterns: RwLock::new(Vec::new()),
            subscriptions: Mutex::default(),
            fanout: Fanout::new(),
            timers: Timers::new(),
            looks: Looks::default(),
            counters: Counters::default(),
            config,
        }
    }

    /// Counts a request's notifications and wakes who listens; answers in their order.
    ///
    /// # Errors
    /// `Invalid` where a delay or a text breaks its rule, `Exhausted` where a new queue would be one
    /// too many; nothing was counted then.
    pub(crate) fn notify(
        &self,
        publisher: &Arc<str>,
        notifications: &[Notification],
        now: Tick,
    ) -> Result<Vec<Accepted>> {
        check_text("publisher", publisher, Limits::TEXT)?;
        notifications.iter().try_for_each(Notification::check)?;
        let records = self.records_of(notifications, now)?;
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
            self.count_in(record, now, true, |state| {
                let fired = state.count_due(now);
                self.counters.timed.fetch_add(fired, Ordering::Relaxed);
                fired > 0
            });
        }
        self.fire_looks(now);
        self.next_timer()
    }

    /// Returns when the next timer fires.
    pub(crate) fn next_timer(&self) -> Option<Tick> {
        match (self.timers.next(), self.looks.next()) {
            (Some(timer), Some(look)) => Some(timer.min(look)),
            (timer, look) => timer.or(look),
        }
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
            let dead = record.forget(Tick::from_nanos(idle_since), &self.timers, |floor| {
                if !planted!(self.config.fault, FloorForgotten) {
                    self.floor.fetch_max(floor, Ordering::AcqRel);
                }
            });
            if dead {
                self.records.remove(&record);
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

    /// Returns each notification's record.
    fn records_of(&self, notifications: &[Notification], now: Tick) -> Result<Vec<Arc<Record>>> {
        let mut records: Vec<Arc<Record>> = Vec::with_capacity(notifications.len());
        for notification in notifications {
            let record = match records.last() {
                Some(last) if *last.address() == notification.queue => Arc::clone(last),
                _ => self.record(&notification.queue, now, self.config.max_queues)?,
            };
            records.push(record);
        }
        Ok(records)
    }

    /// Returns the queue's record, making it where there is none.
    pub(super) fn record(
        &self,
        address: &QueueAddress,
        now: Tick,
        limit: usize,
    ) -> Result<Arc<Record>> {
        if let Some(found) = self.records.get(address) {
            return Ok(found);
        }
        if self.records.len() >= limit {
            return Err(too_many_queues(limit, address));
        }
        Ok(self.make_record(address, now))
    }

    pub(super) fn make_record(&self, address: &QueueAddress, now: Tick) -> Arc<Record> {
        self.records.get_or_insert(address, || {
            let number = self.record_number.fetch_add(1, Ordering::Relaxed);
            let start = self.floor.load(Ordering::Acquire);
            Arc::new(Record::new(address.clone(), number, start, now, &self.pace))
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
        self.count_in(record, now, false, |state| {
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
            any
        });
    }

    /// Wakes the queue after `delay`, or at once.
    pub(super) fn wake_after(&self, record: Arc<Record>, delay: Duration, timer: Timer, now: Tick) {
        let mut timer = Some(timer);
        self.count_in(record, now, false, |state| {
            let timer = timer.take().expect("counted once");
            if delay.is_zero() {
                state.count_timed(timer, now);
                return true;
            }
            state.timers.add(now, delay, timer, self.config.fault);
            false
        });
    }

    /// Counts under the lock of a live record of this queue, and wakes its subscribers where
    /// `count` says so. The only way to move a counter or to set a timer.
    pub(super) fn count_in(
        &self,
        mut record: Arc<Record>,
        now: Tick,
        tend: bool,
        mut count: impl FnMut(&mut State) -> bool,
    ) {
        let mut targets = Vec::new();
        let (wake, first) = loop {
            let mut state = record.lock();
            match state.check_live() {
                Ok(()) => {
                    let counted = count(&mut state);
                    let more = (tend || state.grouped) && state.tend(now, &mut targets);
                    let wake = match counted || more {
                        true => state.wake(self.config.inline, more),
                        false => Wake::Told,
                    };
                    break (wake, state.rearm(&record, &self.timers));
                }
                Err(Refusal::Unattached) => {
                    drop(state);
                    self.attach_patterns(&record, now);
                }
                Err(Refusal::Dead) => {
                    drop(state);
                    self.records.remove(&record);
                    record = self.make_record(record.address(), now);
                }
            }
        };
        if first {
            self.timers.waker.wake();
        }
        mark(&targets);
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
}

impl Timer {
    /// A wake-up without a notification.
    pub(super) fn plain() -> Self {
        Self::new(Tally::default(), None)
    }

    /// A delayed notification.
    fn of(publisher: &Arc<str>, notification: &Notification) -> Self {
        let mut sums = Tally::default();
        sums.add(notification);
        Self::new(sums, Some(Newest::of(publisher, notification)))
    }
}

#[cold]
pub(super) fn too_many_queues(limit: usize, address: &QueueAddress) -> Error {
    let message = format!("the limit of {limit} queues is reached, `{address}` is one more");
    Error::new(ErrorKind::Exhausted, message)
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
