//! Opens and ends subscriptions.
//!
//! R4: register first, then take the snapshot: a subscription is in its queues' lists and in its
//! patterns' nodes before it reads their counters, and a new entry is in the map before it looks for
//! its nodes. So neither can miss the other.
//!
//! The queues that a subscription names are registered in the one call. The known queues of its
//! patterns are *introduced* in steps, between the stream's messages: those that changed since the
//! subscriber was told get a CATCH_UP, up to a limit. In a group the first member of a pattern does
//! this; the next ones take up what waits for a member. The fan-out's task detaches what a closed stream
//! leaves.

use std::{ops::Bound, sync::Arc, time::Duration};

use super::super::{
    core::{Detaching, Hub},
    cursor::CursorPool,
    decisions::DecisionKind,
    group::Group,
    pattern::PatternNode,
    queue::{QueueEntry, QueueState},
    subscription::{Owed, Subscription, SubscriptionId, WakeBatch},
    sync::{Ordering, lock},
    timers::Timer,
};
use crate::{
    base::{clock::Tick, fault::planted},
    error::{Error, ErrorKind, Result},
    types::{QueueAddress, Selector, SubscribeOptions, WakeReason},
};

/// The queues of a subscription's patterns that were not introduced yet.
pub(crate) struct Introduction {
    /// The nodes whose queues are still to be visited, each with the last one that was.
    nodes: Vec<(Arc<PatternNode>, Option<QueueAddress>)>,
    /// The nodes whose waiting queues are still to be visited, from this number on.
    waiting: Vec<(Arc<PatternNode>, u64)>,
    /// The subscriber has all changes up to this revision.
    resumed: Option<u64>,
    /// The queues with a CATCH_UP so far, or those that a member has visited.
    named: usize,
}

/// The queues that one step visits: some hundred microseconds.
const STEP: usize = 256;
/// Steps that a call runs at once. They suffice for most subscriptions.
const FIRST: usize = 2;
/// The most queues of its patterns that a new subscription is told by name. Where there are more, it
/// checks all queues of the pattern that it knows.
const NAMED: usize = 1024;
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
    ) -> Result<Arc<Subscription>> {
        self.subscribe_in(None, id, options, now)
    }

    /// Opens a subscription under a random id. [`Hub::introduce_some`]
    /// introduces the queues of its patterns. Its cursors count in the pool as well.
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
    ) -> Result<Arc<Subscription>> {
        options.check()?;
        let config = &self.shared.config;
        let subscription = Arc::new(Subscription::new(id, options, config, pool, now));
        let entries = self.admit(&subscription, now)?;
        let resumed = self.resumed_at(options, subscription.digest);
        self.note_load(&mut subscription.lock(), &subscription);
        lock(&self.subscriptions).insert(id, Arc::clone(&subscription));
        self.note_found(&options.listener_id);
        for entry in entries {
            self.join_named(&subscription, entry, resumed, now);
        }
        if subscription.has_pattern() {
            self.join_patterns(&subscription, resumed, now);
        }
        Ok(subscription)
    }

    fn join_patterns(&self, subscription: &Arc<Subscription>, resumed: Option<u64>, now: Tick) {
        // One member checks for a new group: `join_pattern_checks` asks it. For a subscriber that
        // resumes, the introduction decides this at its end.
        if subscription.group.is_none() && resumed.is_none() {
            subscription.request_pattern_checks(&mut WakeBatch::default());
        }
        // R4: in the nodes before the map is walked.
        let joined = self.shared.patterns.join(subscription);
        self.join_pattern_checks(subscription, &joined, resumed.is_some(), now);
        let nodes = joined.iter().filter(|node| !node.is_introduced());
        // Only groups have some.
        let waiting = joined.iter().filter(|_| !planted!(MemberUnnoticed));
        *lock(&subscription.introduction) = Some(Box::new(Introduction {
            nodes: nodes.map(|node| (Arc::clone(node), None)).collect(),
            waiting: waiting.map(|node| (Arc::clone(node), 0)).collect(),
            resumed,
            named: 0,
        }));
        _ = (0..FIRST).any(|_| self.introduce_some(subscription, now));
    }

    /// Registers a subscription at a queue that it names.
    fn join_named(
        &self,
        subscription: &Arc<Subscription>,
        entry: Arc<QueueEntry>,
        resumed: Option<u64>,
        now: Tick,
    ) {
        let (mut batch, mut wakes) = (WakeBatch::default(), WakeBatch::default());
        self.update(entry, true, now, &mut batch, |entry, state| {
            let head = state.head();
            let is_member = subscription.group.as_ref().is_some_and(|group| {
                let coordinator = state.coordinator(entry, now);
                coordinator.join(group, subscription, &head)
            });
            if !is_member {
                // A member that the queue has no room for is woken as a subscriber without a group; it
                // resumes by no number.
                state.outside.named.insert(subscription);
                state.told = 0;
                // While a walk has events to owe, the queue counts as changed: the CATCH_UP joins them.
                let is_told = resumed.is_some_and(|revision| state.changed_at <= revision);
                if !is_told {
                    subscription.owe(entry, state, Owed::CatchUp, &mut wakes);
                }
            }
            note_change(subscription, DecisionKind::Joined, state, now);
        });
    }

    /// Introduces a member to the next queues that wait for one; returns how many more the step may visit.
    fn introduce_waiting(&self, waiting: &mut Vec<(Arc<PatternNode>, u64)>, now: Tick) -> usize {
        let mut left = STEP;
        while left > 0
            && let Some((node, from)) = waiting.last_mut()
        {
            let some = node.waiting_from(*from, left);
            left -= some.len();
            match some.last() {
                Some(last) => *from = last.number() + 1,
                None => _ = waiting.pop(),
            }
            for entry in some {
                self.reconcile(entry, now, |_, _| {});
            }
        }
        left
    }

    /// Introduces the next queues of a subscription's patterns; returns whether all are introduced.
    pub(crate) fn introduce_some(&self, subscription: &Arc<Subscription>, now: Tick) -> bool {
        let Some(mut introduction) = lock(&subscription.introduction).take() else {
            return true;
        };
        let mut batch = WakeBatch::default();
        let mut left = self.introduce_waiting(&mut introduction.waiting, now);
        while left > 0
            && let Some((node, last)) = introduction.nodes.last_mut()
        {
            let beginning = node.selector.beginning();
            let next = last.as_ref().map(|last| Bound::Excluded(last.as_str()));
            let from = next.unwrap_or(Bound::Included(beginning));
            let mut some = self.entries.range(from, left);
            some.retain(|entry| entry.address().as_str().starts_with(beginning));
            let mut is_end = some.len() < left;
            left = left.saturating_sub(some.len() + 1);
            *last = some.last().map(|entry| entry.address().clone());
            some.retain(|entry| node.selector.matches(entry.address()));
            some.retain(|entry| !subscription.names(entry.address()));
            let (resumed, named) = (introduction.resumed, &mut introduction.named);
            for entry in some {
                if *named >= NAMED {
                    // The others are checked under the pattern's own name. A member checks them already.
                    node.set_needed();
                    if subscription.group.is_none() {
                        let reason = WakeReason::CatchUp;
                        subscription.request_pattern_check(&node.selector, reason, &mut batch);
                    }
                    is_end = true;
                    break;
                }
                // A forgotten entry is told as forgotten, and one that is made again finds its nodes.
                self.reconcile(entry, now, |entry, state| {
                    // A member resumes by no number.
                    let has_changed = resumed.is_none_or(|revision| state.changed_at > revision);
                    *named += usize::from(has_changed);
                    if let Some(group) = state.group_of(subscription) {
                        group.request_first_check();
                    } else if subscription.group.is_none() && has_changed {
                        subscription.owe(entry, state, Owed::CatchUp, &mut batch);
                    }
                    state.told = 0;
                    note_change(subscription, DecisionKind::Joined, state, now);
                });
            }
            if is_end {
                if node.group.is_some() {
                    node.set_introduced();
                }
                introduction.nodes.pop();
            }
        }
        let done = left > 0;
        if done {
            // Decided when all queues of the map are introduced: each queue that is forgotten from now
            // on is told as forgotten.
            let are_resynced = self.pattern_resyncs.load(Ordering::SeqCst) > 0;
            let forgotten_at = self.forgotten_at.load(Ordering::Acquire);
            let is_forgotten = |since: u64| forgotten_at > since && !planted!(ResumePastForgotten);
            let since = introduction.resumed;
            if since.is_some_and(|since| are_resynced || is_forgotten(since)) {
                subscription.request_pattern_checks(&mut batch);
            }
        } else {
            *lock(&subscription.introduction) = Some(introduction);
        }
        done
    }

    /// Makes the entries of the queues that the subscription names, and counts them in the limits.
    ///
    /// # Errors
    /// `Exhausted` where a limit is reached; nothing was made then.
    fn admit(&self, subscription: &Subscription, now: Tick) -> Result<Vec<Arc<QueueEntry>>> {
        let exact = subscription.selectors.iter();
        let exact: Vec<_> = exact.filter_map(Selector::as_address).collect();
        let config = &self.shared.config;
        let (count, of_stream) = (exact.len() as u64, config.max_cursors_per_stream as u64);
        if count > of_stream {
            return Err(too_many_cursors("a stream", of_stream));
        }
        let most = config.max_cursors;
        if !self.shared.take_cursors(subscription, count, most) {
            let pool = subscription.pool.as_ref();
            let full = pool.filter(|pool| pool.taken() + count > pool.limit());
            return Err(match full {
                Some(pool) => too_many_cursors("a principal", pool.limit()),
                None => too_many_cursors("this relay", most as u64),
            });
        }
        let queues: Vec<_> = exact.iter().collect();
        let refused = self.make_missing(&queues, self.most_queues(), true, now);
        if let Some(first) = queues.into_iter().find(|one| refused.contains(one)) {
            self.shared.give_cursors_back(subscription, count);
            return Err(self.no_room(first, now));
        }
        let entries = exact.iter().map(|address| self.make_entry(address, now));
        Ok(entries.collect())
    }

    /// Ends a subscription. R8: where its listener counts as busy, the queue gets a timer for when
    /// the listener's messages are visible again.
    pub(crate) fn unsubscribe(&self, subscription: &Arc<Subscription>, now: Tick) {
        self.closing.fetch_add(1, Ordering::AcqRel);
        lock(&self.subscriptions).remove(&subscription.id);
        *lock(&subscription.introduction) = None;
        let mut inbox = subscription.lock();
        let was_open = !subscription.mailbox.is_closed();
        // What it was owed outside of its group is owed to another one.
        let is_owed = was_open && subscription.group.is_some() && inbox.is_owed();
        // Under the lock: who makes a cursor finds it open, or leaves it to this.
        subscription.mailbox.close();
        self.note_load(&mut inbox, subscription);
        drop(inbox);
        if was_open {
            self.leave_named(subscription, now);
        }
        if was_open && subscription.has_pattern() {
            self.leave_patterns(subscription, is_owed, now);
        }
        let detaching = (Arc::clone(subscription), now);
        if !(0..FIRST).any(|_| self.detach_next(&detaching, now)) {
            lock(&self.detaching).push_back(detaching);
            self.fanout.waker.wake();
        }
    }

    /// Removes the subscription from the lists of the queues that it names.
    fn leave_named(&self, subscription: &Arc<Subscription>, now: Tick) {
        let exact = subscription.selectors.iter();
        for address in exact.filter_map(Selector::as_address) {
            let Some(entry) = self.entries.get(&address) else {
                continue;
            };
            self.reconcile(entry, now, |_, state| {
                let group_left = |group: &mut Group| group.members.leave_named(subscription);
                let was_there = state.outside.named.remove(subscription.id)
                    || state.group_of(subscription).is_some_and(group_left);
                if !was_there {
                    return;
                }
                state.left_at = now;
                state.subscriber_left(subscription.id, now);
                note_change(subscription, DecisionKind::Left, state, now);
            });
        }
        let count = subscription.named as u64;
        self.shared.give_cursors_back(subscription, count);
    }

    /// Detaches some cursors of closed subscriptions; returns whether there are more.
    pub(crate) fn detach_some(&self, now: Tick) -> bool {
        let Some(detaching) = lock(&self.detaching).pop_front() else {
            return false;
        };
        let done = self.detach_next(&detaching, now);
        let mut others = lock(&self.detaching);
        others.extend((!done).then_some(detaching));
        !others.is_empty()
    }

    /// Detaches the next cursors; returns whether all are detached.
    fn detach_next(&self, (subscription, closed_at): &Detaching, now: Tick) -> bool {
        let cursors = subscription.lock().take_cursors(STEP);
        for (entry, cursor) in cursors {
            if !subscription.names(entry.address()) {
                self.shared.give_cursors_back(subscription, 1);
            }
            let busy = cursor.is_busy(*closed_at, subscription);
            // R16: redelivered at once, and by a timer when its messages are visible again. A cursor
            // that holds its entry has a live one.
            self.reconcile(Arc::clone(&entry), now, |_, state| {
                let was_busy = cursor.taken.busy_since.is_some();
                state.busy = state.busy.saturating_sub(was_busy.into());
                state.held -= u32::from(cursor.holds);
                if let Some(group) = state.group_of(subscription) {
                    group.leave(subscription.id, busy, now);
                    state.left_at = now;
                }
                state.subscriber_left(subscription.id, now);
            });
            if busy && !planted!(NoTimerForBusy) {
                let end = *closed_at + subscription.visibility_timeout + VISIBLE_AGAIN;
                let (delay, timer) = (end.since(now), Timer::default());
                self.wake_after(entry, delay, timer, now);
            }
        }
        let done = subscription.lock().cursors.len() == 0;
        if done {
            self.closing.fetch_sub(1, Ordering::AcqRel);
        }
        done
    }
}

/// A listener of the queue has come, or left.
fn note_change(subscription: &Subscription, kind: DecisionKind, state: &mut QueueState, now: Tick) {
    state.is_unserved = false;
    let (reason, sequence) = (WakeReason::Unspecified, state.counters.sequence);
    state.note(kind, Some(subscription), reason, sequence, now);
}

#[cold]
fn too_many_cursors(of: &str, limit: u64) -> Error {
    let message = format!("selectors: the limit of {limit} subscribed queues of {of} is reached");
    Error::new(ErrorKind::Exhausted, message)
}
