//! Checks under a pattern's own name: the first check of a new group, and the sentinel's check of
//! queues that only the pattern covers.
//!
//! One listener of each pattern and group is asked in each interval, in turn, as for a queue. A
//! pattern is asked if it matches no known queue, if the entry of a matching queue was forgotten or
//! never made, or if a listener is told of some queues under its name. No report covers a check that
//! found nothing, so silence proves nothing. The node of a pattern without listeners is kept for a while:
//! streams that come and go faster than the interval must not put its check off for ever.
//!
//! Locks: under that of a check only the order of timers and the node's list.

use std::{ops::Bound, sync::Arc};

use super::super::{
    core::Hub,
    mailbox::{SubscriptionId, WakeBatch},
    pattern::PatternNode,
    queue_check::is_turn_of_reporting,
    subscription::Subscription,
    sync::lock,
};
use crate::{
    base::{backoff::about, clock::Tick, fault::planted},
    types::{QueueAddress, Selector, WakeReason},
};

/// When a pattern is checked, and which listener is asked.
pub(crate) struct PatternCheck {
    /// One listener must check at once.
    requested: bool,
    pub(crate) has_listeners: bool,
    /// When the next listener is asked; without listeners, when the node is forgotten.
    due: Tick,
    /// The due time when its last listener left.
    left_due: Option<Tick>,
    /// The listener that was asked last, and whether that was requested.
    asked: Option<(SubscriptionId, bool)>,
    last: Option<SubscriptionId>,
    /// Checks in a row without a report.
    unanswered: usize,
    rng: fastrand::Rng,
}

/// Checks that one call fires, give or take those of one pattern, and listeners that it visits.
const CHECKS_PER_CALL: usize = 256;
const VISITS_PER_CALL: usize = 4096;
/// Queues that one check visits.
const QUEUES_PER_CHECK: usize = 16;

impl PatternCheck {
    /// A pattern has a seed of its own, so that the checks of several do not fall due together.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            requested: false,
            has_listeners: false,
            due: Tick::NEVER,
            left_due: None,
            asked: None,
            last: None,
            unanswered: 0,
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    /// Chooses the next listener that can be asked, as the check of a queue does: among the next
    /// few. A requested check goes also to one that polls.
    fn choose(&mut self, node: &PatternNode, now: Tick) -> Option<Arc<Subscription>> {
        let list = node.lock();
        let in_turn: Vec<_> = list.in_turn(self.last).take(VISITS_PER_CALL).collect();
        let can_check = |one: &&&Arc<Subscription>| one.mailbox.can_check(now);
        let reports = |one: &&&Arc<Subscription>| can_check(one) && one.mailbox.reports();
        let reporting = in_turn.iter().filter(reports).count();
        let all = in_turn.iter().filter(can_check).count();
        let chosen = match is_turn_of_reporting(self.unanswered, reporting, all) {
            true => in_turn.iter().find(reports),
            false => in_turn.iter().find(can_check),
        };
        let any = in_turn.first().filter(|_| self.requested);
        let chosen = chosen.or(any).copied().cloned();
        self.unanswered += 1;
        if !planted!(CheckTurnStuck) {
            let visited = in_turn.last().copied();
            self.last = chosen.as_ref().or(visited).map(|one| one.id).or(self.last);
        }
        chosen
    }
}

impl Hub {
    /// Changes a pattern's check. `change` returns when it is due then.
    fn change_check(
        &self,
        node: &Arc<PatternNode>,
        change: impl FnOnce(&mut PatternCheck) -> Tick,
    ) {
        let mut check = lock(&node.check);
        let due = change(&mut check);
        let order = &self.pattern_checks;
        let is_first = order.rearm(node.number, node, &mut check.due, due);
        drop(check);
        if is_first {
            self.timers.waker.wake();
        }
    }

    /// A pattern's listener joined: one of a new group checks.
    pub(in super::super) fn join_pattern_checks(
        &self,
        subscription: &Subscription,
        joined: &[Arc<PatternNode>],
        now: Tick,
    ) {
        for node in joined {
            self.change_check(node, |check| {
                let mut due = check.due;
                if !std::mem::replace(&mut check.has_listeners, true) {
                    // The position of a new group is uncertain. So is that of a group that comes
                    // back: queues may have come and been forgotten while it had no member.
                    check.requested |= node.group.is_some();
                    let next = self.next_pattern_check(check, now);
                    due = check.left_due.take().unwrap_or(next).clamp(now, next);
                }
                // Its listener has given up the stream that was asked.
                let (own, all) = (&subscription.listener_id, node.lock());
                let is_abandoned = |(id, _): &mut (SubscriptionId, bool)| {
                    *id != subscription.id
                        && all.get(*id).is_some_and(|one| one.listener_id == *own)
                };
                if let Some((_, requested)) = check.asked.take_if(is_abandoned) {
                    check.requested |= requested;
                }
                if check.requested { now } else { due }
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
        for node in self.shared.patterns.leave(subscription) {
            self.change_check(&node, |check| {
                let asked = check.asked.take_if(|(id, _)| *id == subscription.id);
                check.requested |= is_owed || asked.is_some_and(|(_, requested)| requested);
                let due = match is_owed || asked.is_some() {
                    true => now,
                    false => check.due,
                };
                if node.len() > 0 {
                    return due;
                }
                if !std::mem::take(&mut check.has_listeners) {
                    return check.due;
                }
                check.left_due = Some(due);
                now + self.shared.config.group_keep
            });
        }
    }

    /// A listener reported a queue: the sentinel's interval restarts, unless only the pattern's own
    /// name covers some queue. One report does not prove that the listener polled all queues of a
    /// requested check.
    pub(in super::super) fn pattern_reported(
        &self,
        subscription: &Subscription,
        queue: &QueueAddress,
        now: Tick,
    ) {
        let nodes = self.shared.patterns.of(subscription);
        for node in nodes.iter().filter(|node| node.selector.matches(queue)) {
            self.change_check(node, |check| {
                check.unanswered = 0;
                check.asked.take_if(|(_, requested)| !*requested);
                match !check.has_listeners || check.requested || node.is_needed() {
                    true => check.due,
                    false => self.next_pattern_check(check, now),
                }
            });
        }
    }

    /// One listener of the pattern must check it under its own name; without listeners, the next one
    /// that joins.
    pub(in super::super) fn request_pattern_check(&self, node: &Arc<PatternNode>, now: Tick) {
        self.change_check(node, |check| {
            check.requested = true;
            if check.has_listeners { now } else { check.due }
        });
    }

    /// Asks listeners for the due checks, a slice of them at most; the rest stays due.
    pub(in super::super) fn fire_pattern_checks(&self, now: Tick) {
        let mut batch = WakeBatch::default();
        let mut visited = 0;
        for _ in 0..CHECKS_PER_CALL {
            let Some(node) = self.pattern_checks.due(now) else {
                break;
            };
            self.check_pattern(&node, now, &mut batch);
            visited += node.len().max(1);
            if visited >= VISITS_PER_CALL {
                break;
            }
        }
        batch.wake();
    }

    /// Asks a listener, or forgets a pattern without one.
    fn check_pattern(&self, node: &Arc<PatternNode>, now: Tick, batch: &mut WakeBatch) {
        let is_needed = node.is_needed() || !self.has_queue(&node.selector);
        let (mut chosen, mut is_left) = (None, false);
        self.change_check(node, |check| {
            if check.due > now {
                return check.due;
            }
            is_left = !check.has_listeners;
            if is_left {
                return Tick::NEVER;
            }
            let requested = check.requested;
            if requested || is_needed {
                let one = check.choose(node, now);
                check.requested &= one.is_none();
                check.asked = one.as_ref().map(|one| (one.id, requested)).or(check.asked);
                chosen = one.map(|one| (one, requested));
            }
            self.next_pattern_check(check, now)
        });
        if is_left {
            self.shared.patterns.forget(node);
        }
        if let Some((chosen, requested)) = chosen {
            let reason = match requested {
                true => WakeReason::CatchUp,
                false => WakeReason::Sentinel,
            };
            chosen.request_pattern_check(&node.selector, reason, batch);
        }
    }

    /// Returns whether a matching queue has an entry. Of many queues with the same beginning only
    /// some are visited; a needless check does no harm.
    fn has_queue(&self, pattern: &Selector) -> bool {
        let from = Bound::Included(pattern.beginning());
        let entries = self.entries.range(from, QUEUES_PER_CHECK);
        entries.iter().any(|entry| pattern.matches(entry.address()))
    }

    fn next_pattern_check(&self, check: &mut PatternCheck, now: Tick) -> Tick {
        match self.shared.config.sentinel_interval {
            interval if interval.is_zero() => Tick::NEVER,
            interval => now + about(interval, &mut check.rng),
        }
    }
}
