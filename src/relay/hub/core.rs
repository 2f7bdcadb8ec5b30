//! The hub itself: counts notifications, and knows the subscriptions.
//!
//! Every entry point ends with the marks set and the wakers woken. Deferred work waits in the fan-out
//! and in the timers.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock, atomic::AtomicU64 as Count},
};

use super::{
    config::{HubConfig, Shared},
    entries::QueueMap,
    fanout::Fanout,
    forgetting::Eviction,
    increments::IncrementList,
    load::Load,
    lost::LostListeners,
    pattern::PatternNode,
    queue::QueueEntry,
    subscription::{Subscription, SubscriptionId, WakeBatch},
    sync::{AtomicU64, Mutex, Ordering, lock},
    timers::TimerOrder,
};
use crate::{
    base::{clock::Tick, text::opaque_debug},
    error::Result,
    types::{Accepted, Notification, QueueAddress},
};

/// Queues, subscriptions and timers of one relay.
pub(crate) struct Hub {
    pub(super) shared: Arc<Shared>,
    pub(super) entries: QueueMap,
    pub(super) entry_number: AtomicU64,
    /// One more than the greatest sequence ever forgotten (R3: sequences never start again in one
    /// epoch).
    pub(super) floor: AtomicU64,
    /// The greatest revision at which a forgotten entry had changed.
    pub(super) forgotten_at: AtomicU64,
    /// Walks that check all patterns under their own names (see `resync`).
    pub(super) pattern_resyncs: AtomicU64,
    /// The queues with causes for the other relays of a cluster.
    pub(crate) increments: IncrementList,
    /// From this time on listeners must poll, in nanoseconds (C9).
    pub(super) degraded_from: AtomicU64,
    pub(super) eviction: Mutex<Eviction>,
    /// Timers of all queues. The first counts those with a delayed notification. The second counts
    /// the others, which listeners reported or left behind.
    pub(super) timers_set: AtomicU64,
    pub(super) timers_reported: AtomicU64,
    /// The queues that last began to be notified without a listener, each once.
    pub(super) unserved: Mutex<VecDeque<QueueAddress>>,
    /// The queues that operators asked about, the newest question's last.
    pub(super) noted: Mutex<VecDeque<Arc<QueueEntry>>>,
    pub(super) lost: Mutex<LostListeners>,
    pub(super) subscriptions: Mutex<std::collections::BTreeMap<SubscriptionId, Arc<Subscription>>>,
    pub(crate) fanout: Fanout,
    /// Closed subscriptions whose cursors the fan-out's task detaches.
    pub(super) detaching: Mutex<VecDeque<Detaching>>,
    /// The number of all closed subscriptions whose cursors are not detached.
    pub(super) closing: AtomicU64,
    /// The patterns by the times of their checks.
    pub(super) pattern_checks: TimerOrder<PatternNode>,
    pub(super) metrics: HubMetrics,
    pub(super) load: Load,
    pub(super) cause_watch: OnceLock<CauseWatch>,
}

/// Is told of a queue after each cause that was counted, under no lock.
pub(crate) type CauseWatch = Box<dyn Fn(&QueueAddress) + Send + Sync>;

/// Totals since the start, and present sizes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HubStats {
    /// Counted events; a conflated notification is one event.
    pub(crate) notified: u64,
    /// Their messages.
    pub(crate) messages: u64,
    /// Timed wake-ups that fired.
    pub(crate) timed: u64,
    /// Walks left to the fan-out.
    pub(crate) fanned_out: u64,
    /// Queues forgotten.
    pub(crate) forgotten: u64,
    /// Causes of other relays that were told under a pattern's name, because their queues found no room.
    pub(crate) unnamed: u64,
    /// Queues in memory.
    pub(crate) queues: u64,
    /// Open subscriptions.
    pub(crate) subscriptions: u64,
    /// Queues that subscriptions name, or have something to do with, and timers of all queues.
    pub(crate) cursors: u64,
    pub(crate) timers: u64,
    /// Streams that are awake, those that poll, and the dequeue tasks of all.
    pub(crate) awake: u64,
    pub(crate) polling: u64,
    pub(crate) tasks: u64,
    /// Wake-ups sent without a notification, by reason.
    pub(crate) catch_ups: u64,
    pub(crate) sentinels: u64,
    pub(crate) reassigned: u64,
    /// Messages for which no member of a group was ready.
    pub(crate) unassigned: u64,
}

/// Plain atomics, not those of [`super::sync`]: no decision depends on them, so the concurrency
/// test need not interleave them.
#[derive(Default)]
pub(super) struct HubMetrics {
    notified: Count,
    messages: Count,
    timed: Count,
    pub(super) forgotten: Count,
    pub(super) unnamed: Count,
}

/// Queue entries whose timers fire in one call: about a millisecond of work.
const TIMERS_PER_STEP: usize = 256;

/// A closed subscription with cursors to be detached, and when it was closed.
pub(super) type Detaching = (Arc<Subscription>, Tick);

impl Hub {
    pub(crate) fn new(config: HubConfig) -> Self {
        Self {
            entries: QueueMap::new(config.seed),
            entry_number: AtomicU64::new(0),
            floor: AtomicU64::new(0),
            forgotten_at: AtomicU64::new(0),
            pattern_resyncs: AtomicU64::new(0),
            increments: IncrementList::default(),
            degraded_from: AtomicU64::new(Tick::NEVER.as_nanos()),
            eviction: Mutex::default(),
            timers_set: AtomicU64::new(0),
            timers_reported: AtomicU64::new(0),
            unserved: Mutex::default(),
            noted: Mutex::default(),
            lost: Mutex::default(),
            subscriptions: Mutex::default(),
            fanout: Fanout::default(),
            detaching: Mutex::default(),
            closing: AtomicU64::new(0),
            pattern_checks: TimerOrder::new(),
            metrics: HubMetrics::default(),
            load: Load::default(),
            cause_watch: OnceLock::new(),
            shared: Arc::new(Shared::new(config)),
        }
    }

    /// Counts each of a request's notifications by itself, and wakes the subscribers; returns the results
    /// in their order. `Invalid` where a delay or a text breaks its rule, `Exhausted` where there is no
    /// room for a timer or a new queue: such a notification leaves nothing behind.
    pub(crate) fn notify(
        &self,
        publisher: &Arc<str>,
        notifications: &[Notification],
        now: Tick,
    ) -> Vec<Result<Accepted>> {
        let mut timers = 0;
        let check = |one: &Notification| -> Result<Accepted> {
            one.check()?;
            if !one.delay.is_zero() {
                self.check_timers("delay", timers + 1)?;
                timers += 1;
            }
            Ok(Accepted::default())
        };
        let mut results: Vec<_> = notifications.iter().map(check).collect();
        // All of the request is counted before any stream is woken, so a stream of several of its
        // queues is woken once, but for those that are left to the fan-out.
        let mut batch = WakeBatch::default();
        let (mut begin, mut without_room) = (0, None);
        for run in notifications.chunk_by(|one, next| one.queue == next.queue) {
            let places = begin..begin + run.len();
            begin = places.end;
            if results[places.clone()].iter().all(Result::is_err) {
                continue;
            }
            let queue = &run[0].queue;
            let mut entry = self.entries.get(queue);
            if entry.is_none() {
                let make = || {
                    let valid = notifications.iter().zip(&results);
                    let valid = valid.filter(|(_, result)| result.is_ok());
                    let queues: Vec<_> = valid.map(|(one, _)| &one.queue).collect();
                    self.make_missing(&queues, self.most_queues(), false, now)
                };
                if !without_room.get_or_insert_with(make).contains(queue) {
                    entry = Some(self.make_entry(queue, now));
                }
            }
            let results = &mut results[places];
            match entry {
                Some(entry) => self.count_run(entry, publisher, run, results, now, &mut batch),
                None => results
                    .iter_mut()
                    .filter(|result| result.is_ok())
                    .for_each(|result| *result = Err(self.no_room(queue, now))),
            }
        }
        drop(batch);
        let counted = notifications.iter().zip(&results);
        let counted = counted.filter(|(_, result)| result.is_ok());
        let messages = counted.map(|(one, _)| one.messages.max(1));
        let (number, messages) = messages.fold((0, 0), |(number, sum): (u64, u64), messages| {
            (number + 1, sum.saturating_add(messages))
        });
        self.metrics.notified.fetch_add(number, Ordering::Relaxed);
        self.metrics.messages.fetch_add(messages, Ordering::Relaxed);
        results
    }

    /// As [`Hub::notify`], with the first refusal as the error.
    #[cfg(test)]
    pub(crate) fn notify_all(
        &self,
        publisher: &Arc<str>,
        notifications: &[Notification],
        now: Tick,
    ) -> Result<Vec<Accepted>> {
        let results = self.notify(publisher, notifications, now);
        results.into_iter().collect()
    }

    /// Returns what the queues of notifications that were counted before have now.
    pub(crate) fn accepted_before(&self, notifications: &[Notification]) -> Vec<Result<Accepted>> {
        let accepted = |notification: &Notification| {
            let entry = self.entries.get(&notification.queue)?;
            let state = entry.lock();
            Some(Accepted {
                sequence: state.counters.sequence,
                listeners: u32::try_from(state.listeners()).unwrap_or(u32::MAX),
            })
        };
        let all = notifications.iter().map(accepted);
        all.map(|one| Ok(one.unwrap_or_default())).collect()
    }

    /// Sets what is told of each cause, unless it is set already. Who then reads a queue's figures sees
    /// a cause there, or is told of it: both hold the lock of its entry.
    #[cfg(feature = "keda")]
    pub(crate) fn watch_causes(&self, watch: impl FnOnce() -> CauseWatch) {
        self.cause_watch.get_or_init(watch);
    }

    /// Tells the watch of a cause. No lock may be held.
    pub(super) fn tell_cause(&self, queue: &QueueAddress) {
        if let Some(watch) = self.cause_watch.get() {
            watch(queue);
        }
    }

    /// Returns whether the fan-out has walks to do, or cursors to detach, which may count causes.
    pub(crate) fn has_deferred_work(&self) -> bool {
        !self.fanout.is_empty() || self.closing.load(Ordering::Acquire) > 0
    }

    /// Fires a slice of the due timers. Returns the time of the next timer; it is not after `now`
    /// where due timers are left.
    pub(crate) fn fire(&self, now: Tick) -> Option<Tick> {
        let mut batch = WakeBatch::default();
        for _ in 0..TIMERS_PER_STEP {
            let Some(entry) = self.timers().due(now) else {
                break;
            };
            self.update(entry, true, now, &mut batch, |_, state| {
                let fired = self.change_timers(state, |state| state.count_due(now));
                self.metrics.timed.fetch_add(fired, Ordering::Relaxed);
            });
        }
        drop(batch);
        self.fire_pattern_checks(now);
        self.next_timer()
    }

    /// Returns the queues with something to do later, in the order of their times.
    pub(crate) fn timers(&self) -> &TimerOrder<QueueEntry> {
        &self.shared.timers
    }

    /// Returns when the next timer fires.
    pub(crate) fn next_timer(&self) -> Option<Tick> {
        let next = [self.timers().next(), self.pattern_checks.next()];
        next.into_iter().flatten().min()
    }

    /// Wakes every stream, for example to end it.
    pub(crate) fn wake_all(&self) {
        let all: Vec<_> = lock(&self.subscriptions).values().cloned().collect();
        all.iter()
            .for_each(|subscription| subscription.mailbox.waker.wake());
    }

    /// C9: listeners must poll from this time on, because the relay may miss notifications of
    /// others. Streams compute it whenever they send a Welcome or a Heartbeat.
    pub(crate) fn set_degraded_from(&self, at: Tick) {
        self.degraded_from.store(at.as_nanos(), Ordering::Relaxed);
    }

    pub(super) fn degraded_from(&self) -> Tick {
        Tick::from_nanos(self.degraded_from.load(Ordering::Relaxed))
    }

    pub(crate) fn is_degraded(&self, now: Tick) -> bool {
        now >= self.degraded_from()
    }

    pub(crate) fn stats(&self) -> HubStats {
        let [_, tasks, awake, polling] = self.load.levels();
        let [catch_ups, sentinels, reassigned] = self.load.requested();
        HubStats {
            notified: self.metrics.notified.load(Ordering::Relaxed),
            messages: self.metrics.messages.load(Ordering::Relaxed),
            timed: self.metrics.timed.load(Ordering::Relaxed),
            fanned_out: self.fanout.added.load(Ordering::Relaxed),
            forgotten: self.metrics.forgotten.load(Ordering::Relaxed),
            unnamed: self.metrics.unnamed.load(Ordering::Relaxed),
            queues: self.entries.len() as u64,
            subscriptions: lock(&self.subscriptions).len() as u64,
            cursors: self.shared.cursors.taken(),
            timers: self.timers_set.load(Ordering::Relaxed)
                + self.timers_reported.load(Ordering::Relaxed),
            awake,
            polling,
            tasks,
            catch_ups,
            sentinels,
            reassigned,
            unassigned: self.shared.unassigned.load(Ordering::Relaxed),
        }
    }
}

opaque_debug!(Hub: stats());

impl Drop for Hub {
    fn drop(&mut self) {
        // Entries, subscriptions and timers hold each other.
        lock(&self.timers().order).clear();
        let closed = std::mem::take(&mut *lock(&self.detaching));
        let closed = closed.iter().map(|(subscription, _)| subscription);
        let open = std::mem::take(&mut *lock(&self.subscriptions));
        for subscription in open.values().chain(closed) {
            drop(subscription.lock().take_cursors(usize::MAX));
        }
    }
}
