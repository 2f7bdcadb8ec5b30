//! The hub itself: counts what publishers say, and knows who subscribes.
//!
//! All of a request is checked before any of it is counted. Every entry point ends with the marks
//! set and the wakers woken; what is left to do later waits in the fan-out and in the timers.

use std::{
    borrow::Borrow,
    collections::VecDeque,
    fmt,
    ops::Bound,
    sync::{Arc, atomic::AtomicU64 as Count},
    time::Duration,
};

use super::{
    capacity::{Eviction, HOLDERS},
    coordinator::CoordinatorConfig,
    counters::{Counters, Epoch},
    fanout::{DueWalk, Fanout, Walk},
    mailbox::WakeBatch,
    map::QueueMap,
    no_subscribers::QueuesWithoutListeners,
    pattern_index::PatternIndex,
    pattern_probes::PatternProbes,
    queue_entry::{LastEvent, MarkOutcome, NotLive, QueueEntry, QueueState},
    subscribe::Detaching,
    subscription::{Subscription, SubscriptionId},
    sync::{AtomicU64, AtomicWaker, Mutex, Ordering, RwLock, lock},
    timers::{Timer, TimerOrder},
};
use crate::{
    clock::Tick,
    error::Result,
    fault::Fault,
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
    /// Queues that all subscriptions have a cursor for, and those of one stream. A pattern that matches
    /// more is told of the rest under its own name. At 420 bytes each at worst, two million of them
    /// are 780 MB.
    pub(crate) max_cursors: usize,
    pub(crate) max_cursors_per_stream: usize,
    /// Delayed wake-ups that publishers may set, and apart from those as many that listeners report; at
    /// 150 bytes each, a million of them is 150 MB.
    pub(crate) max_timers: usize,
    /// Subscribers up to which a notification wakes them itself, instead of the fan-out.
    pub(crate) inline: usize,
    /// Cursors that a stream compares in one step.
    pub(crate) compare_step: usize,
    /// Streams with more cursors than this state their resume number also while they are busy.
    pub(crate) resume_from: usize,
    /// CATCH_UPs after a change of epoch are spread over this span.
    pub(crate) catch_up_spread: Duration,
    /// How long groups and the sentinel wait.
    pub(crate) coordinator: CoordinatorConfig,
    pub(crate) fault: Fault,
}

/// Who is owed a wake-up.
pub(crate) struct Hub {
    pub(super) config: HubConfig,
    pub(super) coordinator_config: Arc<CoordinatorConfig>,
    pub(super) entries: QueueMap,
    pub(super) entry_number: AtomicU64,
    /// One more than the greatest sequence ever forgotten (R3).
    pub(super) floor: AtomicU64,
    /// Decoded by notifiers, raised by streams (see `resume`).
    pub(super) revision: AtomicU64,
    /// The greatest revision at which a forgotten entry had changed.
    pub(super) forgotten_at: AtomicU64,
    pub(super) eviction: Mutex<Eviction>,
    /// Cursors of all subscriptions, with the places that are kept for some.
    pub(super) cursors: AtomicU64,
    /// TimerOrder of all queues: those with a delayed notification in them, and the others, which listeners
    /// reported or left behind.
    pub(super) timers_set: AtomicU64,
    pub(super) timers_reported: AtomicU64,
    pub(super) no_listeners: QueuesWithoutListeners,
    pub(super) patterns: RwLock<PatternIndex>,
    pub(super) subscriptions: Mutex<std::collections::BTreeMap<SubscriptionId, Arc<Subscription>>>,
    pub(super) fanout: Arc<Fanout>,
    /// What closed subscriptions leave to be detached.
    pub(super) detaching: Mutex<VecDeque<Detaching>>,
    pub(super) timers: TimerOrder,
    pub(super) probes: PatternProbes,
    pub(super) metrics: HubMetrics,
}

/// What a hub has done so far.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HubStats {
    /// Notifications counted: events, whatever they stand for.
    pub(crate) notified: u64,
    /// Timed wake-ups that fired.
    pub(crate) timed: u64,
    /// PendingWalks left to the fan-out.
    pub(crate) fanned_out: u64,
    /// Queues forgotten.
    pub(crate) forgotten: u64,
    /// Queues remembered now.
    pub(crate) queues: u64,
    /// Subscriptions now.
    pub(crate) subscriptions: u64,
    /// Cursors of all subscriptions now, and timers of all queues.
    pub(crate) cursors: u64,
    pub(crate) timers: u64,
}

/// Not of [`super::sync`]: nothing rests on them, and no interleaving is worth trying for them.
#[derive(Default)]
pub(super) struct HubMetrics {
    notified: Count,
    timed: Count,
    fanned_out: Count,
    pub(super) forgotten: Count,
    /// Pattern subscribers of idle queues that were looked at: what it costs to forget.
    pub(super) holders: Count,
}

/// Records whose timers fire at once: a millisecond's work.
const TIMERS_PER_STEP: usize = 512;
/// Queues that a scan looks at before it lets others run.
const QUEUES_PER_STEP: usize = 512;

impl Default for HubConfig {
    fn default() -> Self {
        Self {
            epoch: Epoch(0),
            seed: 0,
            forget_after: Duration::from_secs(3600),
            max_queues: 1_000_000,
            max_cursors: 2_000_000,
            max_cursors_per_stream: 1_000_000,
            max_timers: 1_000_000,
            inline: super::subscribers::SUBSCRIBERS_PER_STEP,
            compare_step: super::cursors::STEP,
            resume_from: super::resume::RESUME_FROM,
            catch_up_spread: Duration::from_secs(2),
            coordinator: CoordinatorConfig::default(),
            fault: Fault::NONE,
        }
    }
}

impl Hub {
    pub(crate) fn new(config: HubConfig) -> Self {
        let coordinator = CoordinatorConfig {
            seed: config.seed,
            fault: config.fault,
            ..config.coordinator
        };
        Self {
            coordinator_config: Arc::new(coordinator),
            entries: QueueMap::new(config.seed),
            entry_number: AtomicU64::new(0),
            floor: AtomicU64::new(0),
            revision: AtomicU64::new(1),
            forgotten_at: AtomicU64::new(0),
            eviction: Mutex::default(),
            cursors: AtomicU64::new(0),
            timers_set: AtomicU64::new(0),
            timers_reported: AtomicU64::new(0),
            no_listeners: QueuesWithoutListeners::new(),
            patterns: RwLock::new(PatternIndex::default()),
            subscriptions: Mutex::default(),
            fanout: Arc::new(Fanout::new()),
            detaching: Mutex::default(),
            timers: TimerOrder::new(),
            probes: PatternProbes::default(),
            metrics: HubMetrics::default(),
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
        self.check_timers(notifications)?;
        let entries = self.entries_of(notifications, now)?;
        let mut accepted = Vec::with_capacity(notifications.len());
        // All of the request is counted before anybody is woken: a stream of several of its queues
        // is woken once.
        let mut batch = WakeBatch::default();
        let mut rest = notifications;
        let mut entries = &entries[..];
        while let Some(entry) = entries.first() {
            let run = entries
                .iter()
                .take_while(|other| Arc::ptr_eq(other, entry))
                .count();
            self.count_run(
                Arc::clone(entry),
                publisher,
                &rest[..run],
                now,
                &mut accepted,
                &mut batch,
            );
            (entries, rest) = (&entries[run..], &rest[run..]);
        }
        self.finish(&mut batch);
        self.metrics
            .notified
            .fetch_add(notifications.len() as u64, Ordering::Relaxed);
        Ok(accepted)
    }

    /// Returns the next walk that is left to the fan-out.
    pub(crate) fn next_walk(&self) -> Option<Walk> {
        self.fanout.pop()
    }

    /// Returns whether no walk is left to the fan-out just now.
    pub(crate) fn fanout_is_empty(&self) -> bool {
        self.fanout.is_empty()
    }

    /// Returns the waker's place for whoever runs the fan-out.
    pub(crate) fn fanout_waker(&self) -> &AtomicWaker {
        &self.fanout.waker
    }

    /// Fires the timers that are due, a slice of them at most; returns when the next one is, which is
    /// not after `now` where some are left.
    pub(crate) fn fire(&self, now: Tick) -> Option<Tick> {
        let mut batch = WakeBatch::default();
        for _ in 0..TIMERS_PER_STEP {
            let Some(entry) = self.timers.due(now) else {
                break;
            };
            self.count_in(entry, now, true, &mut batch, |state| {
                let before = state.timers.counts();
                let fired = state.count_due(now);
                self.count_timers(before, state.timers.counts());
                self.metrics.timed.fetch_add(fired, Ordering::Relaxed);
                fired > 0
            });
        }
        self.finish(&mut batch);
        self.fire_probes(now);
        self.next_timer()
    }

    /// Returns when the next timer fires.
    pub(crate) fn next_timer(&self) -> Option<Tick> {
        match (self.timers.next(), self.probes.next()) {
            (Some(timer), Some(look)) => Some(timer.min(look)),
            (timer, look) => timer.or(look),
        }
    }

    /// Wakes every stream: to end it, say.
    pub(crate) fn wake_all(&self) {
        let all: Vec<_> = lock(&self.subscriptions).values().cloned().collect();
        all.iter()
            .for_each(|subscription| subscription.mailbox.wake());
    }

    /// Returns the waker's place for whoever runs the timers: woken when the next one changed.
    pub(crate) fn timers_waker(&self) -> &AtomicWaker {
        &self.timers.waker
    }

    /// Forgets the queues that were not needed for long enough (R3).
    #[cfg(test)]
    pub(crate) fn forget(&self, now: Tick) {
        let mut after = None;
        while let Some(last) = self.forget_some(after.as_ref(), now) {
            after = Some(last);
        }
    }

    /// The same for the next few queues after the given one; returns the last of them, or `None` at
    /// the end.
    pub(crate) fn forget_some(
        &self,
        after: Option<&QueueAddress>,
        now: Tick,
    ) -> Option<QueueAddress> {
        let idle_since = now
            .as_nanos()
            .checked_sub(nanos(self.config.forget_after))?;
        let entries = self.entries.range(
            after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.borrow())),
            QUEUES_PER_STEP,
        );
        let idle_since = Tick::from_nanos(idle_since);
        let (mut holders, mut last) = (HOLDERS, None);
        for entry in &entries {
            let idle = entry.idle_since();
            let idle = idle.filter(|(since, _)| *since <= idle_since);
            let held = idle.map_or(0, |(_, held)| held);
            if held > holders && last.is_some() {
                // The next step begins here, and takes this one in any case.
                break;
            }
            holders = holders.saturating_sub(held);
            self.forget_one(entry, (idle_since, now), Duration::ZERO);
            last = Some(entry);
        }
        last.map(|entry| entry.address().clone())
    }

    pub(crate) fn stats(&self) -> HubStats {
        HubStats {
            notified: self.metrics.notified.load(Ordering::Relaxed),
            timed: self.metrics.timed.load(Ordering::Relaxed),
            fanned_out: self.metrics.fanned_out.load(Ordering::Relaxed),
            forgotten: self.metrics.forgotten.load(Ordering::Relaxed),
            queues: self.entries.len() as u64,
            subscriptions: lock(&self.subscriptions).len() as u64,
            cursors: self.cursors.load(Ordering::Relaxed),
            timers: self.timers_set.load(Ordering::Relaxed)
                + self.timers_reported.load(Ordering::Relaxed),
        }
    }

    /// Counts the notifications of one run, all of the record's queue, and wakes once.
    fn count_run(
        &self,
        entry: Arc<QueueEntry>,
        publisher: &Arc<str>,
        run: &[Notification],
        now: Tick,
        accepted: &mut Vec<Accepted>,
        batch: &mut WakeBatch,
    ) {
        let at = (now, entry.timer_offset());
        self.count_in(entry, now, false, batch, |state| {
            let listeners = u32::try_from(state.listeners()).unwrap_or(u32::MAX);
            if listeners == 0 && state.first_without_listeners() {
                self.no_listeners.add(&run[0].queue);
            }
            let mut any = false;
            for notification in run {
                if notification.delay.is_zero() {
                    state.count(publisher, notification, now);
                    any = true;
                } else {
                    let (timer, before) = (
                        Timer::for_notification(publisher, notification),
                        state.timers.counts(),
                    );
                    state
                        .timers
                        .add(at, notification.delay, timer, self.config.fault);
                    self.count_timers(before, state.timers.counts());
                }
                accepted.push(Accepted {
                    sequence: state.counters.sequence,
                    listeners,
                });
            }
            any
        });
    }

    /// Wakes the queue after `delay`, or at once. Where there are as many such timers as there may be,
    /// a queue holds few of them: none is refused here, as nobody would repeat it.
    pub(super) fn wake_after(
        &self,
        entry: Arc<QueueEntry>,
        delay: Duration,
        timer: Timer,
        now: Tick,
    ) {
        let mut timer = Some(timer);
        let mut batch = WakeBatch::default();
        let at = (now, entry.timer_offset());
        let full = self.reported_timers_are_full();
        self.count_in(entry, now, false, &mut batch, |state| {
            let timer = timer.take().expect("counted once");
            if delay.is_zero() {
                state.count_timed(timer, now);
                return true;
            }
            let before = state.timers.counts();
            match full {
                true => state
                    .timers
                    .add_limited(at, delay, timer, self.config.fault),
                false => state.timers.add(at, delay, timer, self.config.fault),
            }
            self.count_timers(before, state.timers.counts());
            false
        });
        self.finish(&mut batch);
    }

    /// Counts under the lock of a live record of this queue, and marks its subscribers where `count`
    /// says so. The only way to move a counter or to set a timer.
    pub(super) fn count_in(
        &self,
        mut entry: Arc<QueueEntry>,
        now: Tick,
        reconcile: bool,
        batch: &mut WakeBatch,
        mut count: impl FnMut(&mut QueueState) -> bool,
    ) {
        let (wake, first) = loop {
            let mut state = entry.lock();
            match state.check_live() {
                Ok(()) => {
                    let sequence = state.counters.sequence;
                    let counted = count(&mut state);
                    batch.accepted_at = if counted { now } else { Tick::default() };
                    if state.counters.sequence != sequence {
                        // Decoded under the entry's lock: see `resume`.
                        state.changed_at = self.revision.load(Ordering::Relaxed);
                    }
                    let more = (reconcile || state.grouped) && state.reconcile(now, batch);
                    let wake = match counted || more {
                        // Asked after the count: see `Overflow::matches`.
                        true if self.fanout.overflow.matches(entry.address()) => {
                            state.mark_subscribers(None, more, batch)
                        }
                        true => state.mark_subscribers(Some(self.config.inline), more, batch),
                        false => MarkOutcome::Done,
                    };
                    break (wake, state.rearm(&entry, &self.timers));
                }
                Err(NotLive::Unattached) => {
                    drop(state);
                    self.attach_patterns(&entry, now);
                }
                Err(NotLive::Dead) => {
                    drop(state);
                    self.entries.remove(&entry);
                    entry = self.make_entry(entry.address(), now);
                }
            }
        };
        if first {
            self.timers.waker.wake();
        }
        if wake == MarkOutcome::NeedsWalk {
            let accepted_at = batch.accepted_at;
            batch
                .walks
                .push(&self.fanout, DueWalk { entry, accepted_at });
        }
    }

    /// Leaves the batch's walks to the fan-out, and wakes its streams. No lock may be held.
    pub(super) fn finish(&self, batch: &mut WakeBatch) {
        let walks = batch.walks.submit() as u64;
        if walks > 0 {
            self.metrics.fanned_out.fetch_add(walks, Ordering::Relaxed);
        }
        batch.wake();
    }
}

impl Hub {
    /// Keeps the numbers of timers of all queues, where one's were counted before a change and after it.
    fn count_timers(&self, before: (usize, usize), after: (usize, usize)) {
        let count = |of: &AtomicU64, before: usize, after: usize| {
            if after > before {
                of.fetch_add((after - before) as u64, Ordering::Relaxed);
            } else if before > after {
                of.fetch_sub((before - after) as u64, Ordering::Relaxed);
            }
        };
        count(&self.timers_set, before.0, after.0);
        count(&self.timers_reported, before.1, after.1);
    }
}

impl Timer {
    /// A wake-up without a notification.
    pub(super) fn without_notification() -> Self {
        Self::new(Counters::default(), None)
    }

    /// A delayed notification.
    fn for_notification(publisher: &Arc<str>, notification: &Notification) -> Self {
        let mut counters = Counters::default();
        counters.add(notification);
        Self::new(counters, Some(LastEvent::new(publisher, notification)))
    }
}

pub(super) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
