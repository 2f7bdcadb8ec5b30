//! Attaches a subscription's cursors to its queues' entries, and detaches them.
//!
//! R4: register first, then take the snapshot: a cursor is registered and reads its queue's
//! counters under one lock, and a pattern is in the index before the map is walked. A new entry is
//! in the map before that index is read. So neither can miss the other.
//!
//! A subscription may match a million queues, so both go in steps: no call attaches or detaches
//! more than [`STEP`] cursors. A stream attaches its cursors between its messages; the fan-out's
//! task detaches those of a closed stream.

use std::{borrow::Borrow, ops::Bound, sync::Arc, time::Duration};

use super::{
    attaching::Attaching,
    core::{Detaching, Hub},
    cursor_pool::CursorPool,
    decisions::{Decision, DecisionKind},
    interest::Interest,
    load::LoadChange,
    mailbox::SubscriptionId,
    resume::Resumption,
    subscription::{CursorStart, Subscription},
    sync::{lock, write},
    timers::Timer,
};
use crate::{
    base::{backoff::jitter, clock::Tick, fault::planted},
    error::Result,
    types::{QueueAddress, Selector, SubscribeOptions},
};

/// The most cursors that one step attaches or detaches, and queues that it visits: some hundred
/// microseconds.
const STEP: usize = 256;
/// Steps that a call runs at once. They suffice for most subscriptions.
const FIRST: usize = 2;
/// The delay of a busy listener's queue beyond its visibility time-out, after which its messages
/// are certainly visible again (R8: a busy listener's end sets a timer).
const VISIBLE_AGAIN: Duration = Duration::from_secs(2);

impl Hub {
    /// As [`Hub::subscribe_in`], without a pool.
    #[cfg(test)]
    pub(crate) fn subscribe(
        &self,
        id: SubscriptionId,
        options: &SubscribeOptions,
        now: Tick,
        rng: &mut fastrand::Rng,
    ) -> Result<Arc<Subscription>> {
        self.subscribe_in(None, id, options, now, rng)
    }

    /// Opens a subscription under a random id; `rng` spreads its CATCH_UPs. It attaches the first
    /// queues; [`Hub::attach_some`] attaches the others. Its cursors count in the pool as well.
    ///
    /// # Errors
    /// `Invalid` from the check of the options, and `Exhausted` where it names too many queues;
    /// nothing was registered then.
    pub(crate) fn subscribe_in(
        &self,
        pool: Option<Arc<CursorPool>>,
        id: SubscriptionId,
        options: &SubscribeOptions,
        now: Tick,
        rng: &mut fastrand::Rng,
    ) -> Result<Arc<Subscription>> {
        options.check()?;
        let life = (self.config.epoch, self.config.seed);
        let interest = Interest::new(id, options, life, now).in_pool(pool);
        let subscription = Arc::new(Subscription::new(interest));
        let reserved = self.admit(&subscription, now)?;
        let resumption = self.resumption(options, subscription.digest);
        let resumed = resumption.since();
        if resumption == Resumption::OtherEpoch {
            let spread = jitter(self.config.catch_up_spread, rng);
            subscription.lock().catch_up_at = now + spread;
        }
        // R4: registered before the map is walked.
        let pattern = subscription.has_pattern();
        if pattern && !planted!(PatternRegistersLate) {
            write(&self.patterns).insert(&subscription);
        }
        // One member checks for a new group: `join_pattern_checks` requests that. For a subscriber that
        // resumes, `attach_some` decides this at the end.
        let told = options.group.is_none() && resumed.is_none();
        if pattern && told {
            subscription
                .lock()
                .request_pattern_checks(&subscription.selectors);
        }
        *lock(&subscription.attaching) = Some(Box::new(Attaching {
            selectors: 0,
            reserved,
            patterns: Vec::new(),
            walked: None,
            resumed,
        }));
        lock(&self.subscriptions).insert(id, Arc::clone(&subscription));
        self.note_found(&options.listener_id, now);
        for _ in 0..FIRST {
            if self.attach_some(&subscription, now) {
                break;
            }
        }
        if pattern && planted!(PatternRegistersLate) {
            write(&self.patterns).insert(&subscription);
        }
        if pattern {
            self.join_pattern_checks(&subscription, now);
            self.fire_pattern_checks(now);
        }
        Ok(subscription)
    }

    /// Attaches the next queues of a subscription; returns whether all are attached. It may wake
    /// other members, but not this stream: the stream calls it before it fills a Wake.
    pub(crate) fn attach_some(&self, subscription: &Arc<Subscription>, now: Tick) -> bool {
        let mut guard = lock(&subscription.attaching);
        let Some(attaching) = guard.as_mut() else {
            return true;
        };
        let mut left = STEP;
        while left > 0 && self.attach_next(subscription, attaching, &mut left, now) {}
        let done = left > 0;
        if done {
            // Decided when all queues of the map are attached: each queue that is forgotten from
            // now on has a cursor of this subscription.
            if attaching
                .resumed
                .is_some_and(|since| self.patterns_are_resynced() || self.forgot_since(since))
            {
                subscription
                    .lock()
                    .request_pattern_checks(&subscription.selectors);
            }
            *guard = None;
        }
        done
    }

    /// Attaches the next queue, or the next few of a pattern; returns `false` at the end.
    fn attach_next(
        &self,
        subscription: &Arc<Subscription>,
        attaching: &mut Attaching,
        left: &mut usize,
        now: Tick,
    ) -> bool {
        if let Some(selector) = subscription.selectors.get(attaching.selectors) {
            attaching.selectors += 1;
            if selector.is_pattern() {
                attaching.patterns.push(selector.clone());
                return true;
            }
            *left -= 1;
            let start = CursorStart::Resumed(attaching.resumed);
            attaching.reserved.use_next(|entry| {
                self.attach_one(subscription, Arc::clone(entry), start, now);
            });
            return true;
        }
        let Some(pattern) = attaching.patterns.last() else {
            return false;
        };
        let start = CursorStart::Resumed(attaching.resumed);
        let walked = &mut attaching.walked;
        if !self.attach_range(subscription, pattern, walked, left, (start, now)) {
            attaching.patterns.pop();
            attaching.walked = None;
        }
        true
    }

    /// Attaches the pattern's next queues in the map; returns whether there may be more.
    fn attach_range(
        &self,
        subscription: &Arc<Subscription>,
        pattern: &Selector,
        walked: &mut Option<QueueAddress>,
        left: &mut usize,
        (start, now): (CursorStart, Tick),
    ) -> bool {
        let (limit, beginning) = (*left, pattern.beginning());
        let from = match walked.as_ref() {
            Some(after) => Bound::Excluded(after.borrow()),
            None => Bound::Included(beginning),
        };
        let entries = self.entries.range(from, limit);
        let more = entries.len() == limit;
        for entry in entries {
            *left -= 1;
            let address = entry.address().clone();
            let text: &str = address.borrow();
            if !text.starts_with(beginning) {
                return false;
            }
            if pattern.matches(&address) {
                self.attach_one(subscription, entry, start, now);
            }
            *walked = Some(address);
        }
        more
    }

    /// Ends a subscription. R8: where its listener counts as busy, the queue gets a timer for when
    /// the listener's messages are visible again.
    pub(crate) fn unsubscribe(&self, subscription: &Arc<Subscription>, now: Tick) {
        lock(&self.detaching).at_work += 1;
        lock(&self.subscriptions).remove(&subscription.id);
        *lock(&subscription.attaching) = None;
        if subscription.has_pattern() {
            write(&self.patterns).remove(subscription);
            self.leave_pattern_checks(subscription, now);
        }
        let mut cursors = subscription.lock();
        let reports = cursors.reports;
        let reserved = std::mem::take(&mut cursors.reserved);
        let (was_awake, polled) = cursors.stream_load();
        let mut detaching = Detaching {
            subscription: Arc::clone(subscription),
            cursors: cursors.close(),
            reports,
            closed_at: now,
        };
        drop(cursors);
        let change = LoadChange {
            awake: -i64::from(was_awake),
            polling: -i64::from(polled),
            ..LoadChange::default()
        };
        self.change_load(change, now);
        self.cursors_left(subscription, reserved.into());
        // A closed subscription is not inserted again.
        self.fanout.overflow.remove(subscription);
        let done = (0..FIRST).any(|_| self.detach_next(&mut detaching, now));
        lock(&self.detaching).put_back((!done).then_some(detaching));
        if !done {
            self.fanout.waker.wake();
        }
    }

    /// Detaches some cursors of closed subscriptions; returns whether there are more.
    pub(crate) fn detach_some(&self, now: Tick) -> bool {
        let Some(mut detaching) = lock(&self.detaching).take() else {
            return false;
        };
        let done = self.detach_next(&mut detaching, now);
        lock(&self.detaching).put_back((!done).then_some(detaching))
    }

    /// Detaches the next cursors; returns whether all are detached.
    fn detach_next(&self, detaching: &mut Detaching, now: Tick) -> bool {
        let subscription = Arc::clone(&detaching.subscription);
        let mut change = LoadChange::default();
        for cursor in detaching.cursors.next(STEP) {
            self.cursors_left(&subscription, 1);
            change = change.plus(LoadChange::of_detached(&cursor));
            let busy = cursor.is_busy(detaching.reports, detaching.closed_at, &subscription);
            let mut state = cursor.entry.lock();
            state.busy = state.busy.saturating_sub(u32::from(cursor.reported_busy));
            let needs_reconcile = match cursor.member_id() {
                Some(member_id) => {
                    state.leave(member_id, busy, now);
                    true
                }
                None => state.remove_subscriber(cursor.key, now),
            };
            cursor.entry.note(&mut state, |sequence| {
                Decision::about(&subscription, DecisionKind::Left, sequence, now)
            });
            drop(state);
            if needs_reconcile || busy {
                // R16: redelivered at once, and by a timer when its messages are visible again.
                self.reconcile(Arc::clone(&cursor.entry), now, |_| {});
            }
            if busy && !planted!(NoTimerForBusy) {
                let end = detaching.closed_at + subscription.visibility_timeout + VISIBLE_AGAIN;
                self.wake_after(
                    cursor.entry,
                    end.since(now),
                    Timer::without_notification(),
                    now,
                );
            }
        }
        self.change_load(change, now);
        detaching.cursors.is_empty()
    }
}
