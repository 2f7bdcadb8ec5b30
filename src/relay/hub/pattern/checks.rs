//! Checks under a pattern's own name: the first check of a new group, and the sentinel's check of
//! queues that only the pattern covers.
//!
//! One listener of each pattern and group is asked in each interval, in turn, as for a queue. A
//! pattern is asked if it matches no known queue, if the entry of a matching queue was forgotten or
//! never made, or if a listener is told of some queues under its name. No report covers a check that
//! found nothing, so silence proves nothing. Streams that come and go faster than the interval must not
//! put the check off for ever: the first stream of a pattern is asked at a random time of the interval if
//! it resumes, and told to catch up otherwise.
//!
//! Locks: under that of a check the order of timers, the node's list, and inboxes.

use std::{ops::Bound, sync::Arc};

use super::super::{
    core::Hub,
    listeners::Listeners,
    pattern::PatternNode,
    queue_check::QueueCheck,
    subscription::{Subscription, SubscriptionId, WakeBatch},
    sync::{Ordering, lock},
};
use crate::{
    base::clock::Tick,
    types::{QueueAddress, Selector, WakeReason},
};

/// When a pattern is checked, and which listener is asked.
pub(crate) struct PatternCheck {
    /// `None` until a listener has joined, and where the sentinel is off.
    sentinel: Option<QueueCheck>,
    /// Its time in the order of timers.
    armed: Tick,
    /// The member that must check for its group: the first one that joins is asked.
    asked: Option<SubscriptionId>,
}

/// Listeners that one call visits for due checks, give or take those of one pattern.
const VISITS_PER_CALL: usize = 4096;
/// Queues that one check visits.
const QUEUES_PER_CHECK: usize = 16;

impl PatternCheck {
    pub(crate) fn new() -> Self {
        Self {
            sentinel: None,
            armed: Tick::NEVER,
            asked: None,
        }
    }

    /// Returns the member that must check, if its stream has not ended.
    fn asked(&self, node: &PatternNode) -> Option<Arc<Subscription>> {
        node.lock().get(self.asked?).cloned()
    }

    /// The next member of the group must check, also one that polls if all do.
    fn ask(&mut self, node: &PatternNode, now: Tick, batch: &mut WakeBatch) {
        let members = node.lock();
        let next = members.next_after(self.asked, &|one| one.mailbox.can_check(now));
        let next = next.or_else(|| members.next_after(self.asked, &|_| true));
        let next = next.cloned();
        drop(members);
        if let Some(next) = next {
            self.asked = Some(next.id);
            next.request_pattern_check(&node.selector, WakeReason::CatchUp, batch);
        }
    }
}

impl PatternNode {
    /// One member of the pattern's group must check it under its own name. Without members the node has
    /// ended, and the first member of the next one checks. Where one was asked that reads its stream and
    /// has not taken it, that is enough.
    pub(in super::super) fn request_check(&self, now: Tick, batch: &mut WakeBatch) {
        let mut check = lock(&self.check);
        let takes = |one: Arc<Subscription>| {
            let is_owed = one.lock().pattern_checks.contains_key(&self.selector);
            !one.mailbox.is_sending() && is_owed
        };
        if !check.asked(self).is_some_and(takes) {
            check.ask(self, now, batch);
        }
    }
}

impl Hub {
    /// Changes a pattern's check. A node without listeners is checked no more.
    fn change_check(&self, node: &Arc<PatternNode>, change: impl FnOnce(&mut PatternCheck)) {
        let mut guard = lock(&node.check);
        let check = &mut *guard;
        change(check);
        let sentinel = check.sentinel.as_ref().filter(|_| node.len() > 0);
        let due = sentinel.map_or(Tick::NEVER, |sentinel| sentinel.due);
        let order = &self.pattern_checks;
        let is_first = order.rearm(node.number, node, &mut check.armed, due);
        drop(guard);
        if is_first {
            self.timers().waker.wake();
        }
    }

    /// A pattern's listener joined: one of a new group checks.
    pub(in super::super) fn join_pattern_checks(
        &self,
        subscription: &Subscription,
        joined: &[Arc<PatternNode>],
        is_resumed: bool,
        now: Tick,
    ) {
        let mut batch = WakeBatch::default();
        for node in joined {
            self.change_check(node, |check| {
                if check.sentinel.is_none() {
                    check.sentinel = QueueCheck::new(&self.shared.config, node.number, now);
                    if let Some(sentinel) = check.sentinel.as_mut().filter(|_| is_resumed) {
                        sentinel.restart_at_random(now);
                    }
                    // Queues of the pattern may be among those that were forgotten before.
                    if self.floor.load(Ordering::Acquire) > 0 {
                        node.set_needed();
                    }
                }
                // The position of a new group is uncertain. So is that of a group that comes back:
                // queues may have come and been forgotten while it had no member.
                let is_first = node.group.is_some() && check.asked.is_none();
                // Its listener has given up the stream that was asked.
                let is_abandoned = check.asked(node).is_some_and(|one| {
                    one.id != subscription.id && one.listener_id == subscription.listener_id
                });
                if is_first || is_abandoned {
                    check.ask(node, now, &mut batch);
                }
            });
        }
    }

    /// A pattern's listener left; the check that it was asked for goes to another one, and so does what
    /// it was owed outside of its group.
    pub(in super::super) fn leave_patterns(
        &self,
        subscription: &Subscription,
        is_owed: bool,
        now: Tick,
    ) {
        let mut batch = WakeBatch::default();
        for node in self.shared.patterns.leave(subscription) {
            self.change_check(&node, |check| {
                if let Some(sentinel) = &mut check.sentinel {
                    sentinel.leave(subscription.id, now);
                }
                if is_owed || check.asked == Some(subscription.id) {
                    check.ask(&node, now, &mut batch);
                }
            });
        }
    }

    /// A listener reported a queue: the sentinel's interval restarts, unless only the pattern's own
    /// name covers some queue.
    pub(in super::super) fn pattern_reported(
        &self,
        subscription: &Subscription,
        queue: &QueueAddress,
        now: Tick,
    ) {
        let nodes = self.shared.patterns.of(subscription);
        for node in nodes.iter().filter(|node| node.selector.matches(queue)) {
            self.change_check(node, |check| match &mut check.sentinel {
                Some(sentinel) if node.is_needed() => sentinel.answered(subscription.id),
                Some(sentinel) => _ = sentinel.reported(now),
                None => {}
            });
        }
    }

    /// Asks listeners for the due checks, a slice of them at most; the rest stays due.
    pub(in super::super) fn fire_pattern_checks(&self, now: Tick) {
        let mut batch = WakeBatch::default();
        let mut visited = 0;
        while visited < VISITS_PER_CALL
            && let Some(node) = self.pattern_checks.due(now)
        {
            visited += node.len() + QUEUES_PER_CHECK;
            let is_needed = node.is_needed() || !self.has_queue(&node.selector);
            self.change_check(&node, |check| {
                let sentinel = check.sentinel.as_mut();
                let Some(sentinel) = sentinel.filter(|sentinel| sentinel.due <= now) else {
                    return;
                };
                sentinel.restart(now);
                let listeners = Listeners::of(vec![Arc::clone(&node)]);
                if is_needed && let Some(one) = sentinel.choose(&listeners, now) {
                    one.request_pattern_check(&node.selector, WakeReason::Sentinel, &mut batch);
                }
            });
        }
    }

    /// Returns whether a matching queue has an entry. Of many queues with the same beginning only
    /// some are visited; a needless check does no harm.
    fn has_queue(&self, pattern: &Selector) -> bool {
        let from = Bound::Included(pattern.beginning());
        let entries = self.entries.range(from, QUEUES_PER_CHECK);
        entries.iter().any(|entry| pattern.matches(entry.address()))
    }
}
