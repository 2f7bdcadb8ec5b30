//! Checks under a pattern's own name: the first check of a new group, and the sentinel's check of
//! queues that only the pattern covers.
//!
//! One listener of each pattern and group is asked in each interval, in turn, as for a queue. A
//! pattern is asked if it matches no known queue, if the entry of a matching queue was forgotten or
//! never made, or if a listener is told of some queues under its name. No report covers a check that
//! found nothing, so silence proves nothing. Under the table's lock only the lists of nodes are locked.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use super::super::{
    core::Hub,
    mailbox::{SubscriptionId, WakeBatch},
    pattern::PatternNode,
    queue_check::is_turn_of_reporting,
    subscription::Subscription,
    sync::{Mutex, lock},
};
use crate::{
    base::{backoff::about, clock::Tick, fault::planted},
    types::{GroupName, QueueAddress, Selector, WakeReason},
};

/// The patterns that have listeners, by selector and group.
#[derive(Default)]
pub(crate) struct PatternChecks {
    table: Mutex<Table>,
}

pub(crate) type Key = (Selector, Option<GroupName>);

#[derive(Default)]
struct Table {
    checks: BTreeMap<Key, PatternCheck>,
    due: BTreeSet<(Tick, Key)>,
    /// Seeds the checks, so that they do not all fall due together.
    made: u64,
}

/// One pattern of one group.
struct PatternCheck {
    /// Its pattern with the listeners, while it has any.
    node: Option<Arc<PatternNode>>,
    /// One listener must check at once.
    requested: bool,
    /// When the next listener is asked; without listeners, when this is forgotten.
    due: Tick,
    /// The due time when its last listener left: streams that come and go faster than the interval
    /// must not put it off for ever.
    left_due: Option<Tick>,
    /// Some queue was checked under its own name only when its last listener left.
    needed: bool,
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

impl PatternChecks {
    /// Returns when a check is due.
    pub(crate) fn next(&self) -> Option<Tick> {
        let table = lock(&self.table);
        let (due, _) = table.due.first()?;
        (*due != Tick::NEVER).then_some(*due)
    }
}

impl Table {
    /// Changes a check, and keeps the order of due times.
    fn change(&mut self, key: &Key, change: impl FnOnce(&mut PatternCheck)) {
        let Some(check) = self.checks.get_mut(key) else {
            return;
        };
        let before = check.due;
        change(check);
        if check.due != before {
            self.due.remove(&(before, key.clone()));
            self.due.insert((check.due, key.clone()));
        }
    }

    fn make(&mut self, key: &Key, seed: u64) {
        if self.checks.contains_key(key) {
            return;
        }
        self.made += 1;
        let seed = seed ^ self.made.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let check = PatternCheck {
            node: None,
            requested: false,
            due: Tick::NEVER,
            left_due: None,
            needed: false,
            asked: None,
            last: None,
            unanswered: 0,
            rng: fastrand::Rng::with_seed(seed),
        };
        self.due.insert((check.due, key.clone()));
        self.checks.insert(key.clone(), check);
    }
}

impl PatternCheck {
    fn is_needed(&self) -> bool {
        self.node.as_ref().is_some_and(|node| node.is_needed())
    }

    /// A check is due at once; without listeners, for the next one that joins.
    fn request(&mut self, now: Tick) {
        self.requested = true;
        if self.node.is_some() {
            self.due = now;
        }
    }

    /// Chooses the next listener that can be asked, as the check of a queue does: among the next
    /// few. A requested check goes also to one that polls.
    fn choose(&mut self, now: Tick) -> Option<Arc<Subscription>> {
        let in_turn = self.node.as_ref()?.in_turn(self.last, VISITS_PER_CALL);
        let can_check = |one: &&Arc<Subscription>| one.mailbox.can_check(now);
        let reports = |one: &&Arc<Subscription>| can_check(one) && one.mailbox.reports();
        let reporting = in_turn.iter().filter(reports).count();
        let all = in_turn.iter().filter(can_check).count();
        let chosen = match is_turn_of_reporting(self.unanswered, reporting, all) {
            true => in_turn.iter().find(reports),
            false => in_turn.iter().find(can_check),
        };
        let any = in_turn.first().filter(|_| self.requested);
        let chosen = chosen.or(any).cloned();
        self.unanswered += 1;
        if !planted!(CheckTurnStuck) {
            let visited = in_turn.last();
            self.last = chosen.as_ref().or(visited).map(|one| one.id).or(self.last);
        }
        chosen
    }
}

impl Hub {
    /// A pattern's listener joined: one of a new group checks.
    pub(in super::super) fn join_pattern_checks(
        &self,
        subscription: &Arc<Subscription>,
        joined: &[Arc<PatternNode>],
        now: Tick,
    ) {
        let sentinel = !self.shared.config.sentinel_interval.is_zero();
        if subscription.group.is_none() && !sentinel {
            return;
        }
        let mut table = lock(&self.pattern_checks.table);
        for node in joined {
            let key = (node.selector.clone(), node.group.clone());
            table.make(&key, self.shared.config.seed);
            table.change(&key, |check| {
                let before = check.node.replace(Arc::clone(node));
                if before.is_none_or(|before| !Arc::ptr_eq(&before, node)) {
                    if check.needed {
                        node.set_needed();
                    }
                    // The position of a new group is uncertain. So is that of a group that comes
                    // back: queues may have come and been forgotten while it had no member.
                    check.requested |= subscription.group.is_some();
                    let next = self.next_pattern_check(check, now);
                    check.due = check.left_due.take().unwrap_or(next).clamp(now, next);
                }
                // Its listener has given up the stream that was asked.
                let own = &subscription.listener_id;
                let is_abandoned = |(id, _): &mut (SubscriptionId, bool)| {
                    *id != subscription.id
                        && node.get(*id).is_some_and(|one| one.listener_id == *own)
                };
                if let Some((_, requested)) = check.asked.take_if(is_abandoned) {
                    check.requested |= requested;
                }
                if check.requested {
                    check.due = now;
                }
            });
        }
        drop(table);
        self.timers.waker.wake();
    }

    /// A pattern's listener left; the check that it was asked for goes to another one, and so does what
    /// it was owed outside of its group.
    pub(in super::super) fn leave_pattern_checks(
        &self,
        subscription: &Subscription,
        is_owed: bool,
        now: Tick,
    ) {
        let mut table = lock(&self.pattern_checks.table);
        for key in keys(subscription) {
            table.change(&key, |check| {
                let asked = check.asked.take_if(|(id, _)| *id == subscription.id);
                if let Some((_, requested)) = asked {
                    check.requested |= requested;
                    check.due = now;
                }
                if is_owed {
                    check.request(now);
                }
                if let Some(node) = check.node.take_if(|node| node.len() == 0) {
                    check.needed = node.is_needed();
                    check.left_due = Some(check.due);
                    check.due = now + self.shared.config.group_keep;
                }
            });
        }
        drop(table);
        self.timers.waker.wake();
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
        let mut table = lock(&self.pattern_checks.table);
        for key in keys(subscription).filter(|(selector, _)| selector.matches(queue)) {
            table.change(&key, |check| {
                check.unanswered = 0;
                check.asked.take_if(|(_, requested)| !*requested);
                if !check.requested && !check.is_needed() {
                    check.due = self.next_pattern_check(check, now);
                }
            });
        }
    }

    /// One listener of the pattern must check it under its own name.
    pub(in super::super) fn request_pattern_check(&self, key: &Key, now: Tick) {
        lock(&self.pattern_checks.table).change(key, |check| check.request(now));
        self.timers.waker.wake();
    }

    /// The same for the groups' patterns after the given one, `limit` patterns at most; returns the
    /// last one visited, or `None` at the end.
    pub(in super::super) fn request_pattern_checks(
        &self,
        after: Option<&Key>,
        limit: usize,
        now: Tick,
    ) -> Option<Key> {
        let mut table = lock(&self.pattern_checks.table);
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = table.checks.range((from, Bound::Unbounded));
        let keys: Vec<Key> = range.take(limit).map(|(key, _)| key.clone()).collect();
        for key in keys.iter().filter(|(_, group)| group.is_some()) {
            table.change(key, |check| check.request(now));
        }
        drop(table);
        self.timers.waker.wake();
        keys.into_iter().next_back()
    }

    /// Asks listeners for the due checks, a slice of them at most; the rest stays due.
    pub(in super::super) fn fire_pattern_checks(&self, now: Tick) {
        let mut batch = WakeBatch::default();
        let mut visited = 0;
        for _ in 0..CHECKS_PER_CALL {
            let table = lock(&self.pattern_checks.table);
            let first = table.due.first().filter(|(due, _)| *due <= now);
            let Some((_, key)) = first.cloned().filter(|_| visited < VISITS_PER_CALL) else {
                break;
            };
            drop(table);
            visited += self.check_pattern(&key, now, &mut batch);
        }
        batch.wake();
    }

    /// Asks a listener, or forgets a pattern without one; returns how many may have been visited.
    fn check_pattern(&self, key: &Key, now: Tick, batch: &mut WakeBatch) -> usize {
        let has_queue = self.has_queue(&key.0);
        let mut table = lock(&self.pattern_checks.table);
        if table.checks.get(key).is_none_or(|check| check.due > now) {
            return 0;
        }
        let (mut chosen, mut listeners, mut is_left) = (None, 0, false);
        table.change(key, |check| {
            listeners = check.node.as_ref().map_or(0, |node| node.len());
            is_left = check.node.is_none();
            check.due = self.next_pattern_check(check, now);
            if check.requested || check.is_needed() || !has_queue {
                let requested = check.requested;
                let one = check.choose(now);
                check.requested &= one.is_none();
                check.asked = one.as_ref().map(|one| (one.id, requested)).or(check.asked);
                chosen = one.map(|one| (one, requested));
            }
        });
        if is_left && let Some(check) = table.checks.remove(key) {
            table.due.remove(&(check.due, key.clone()));
        }
        drop(table);
        if let Some((chosen, requested)) = chosen {
            let reason = match requested {
                true => WakeReason::CatchUp,
                false => WakeReason::Sentinel,
            };
            chosen.request_pattern_check(&key.0, reason, batch);
        }
        listeners.clamp(1, VISITS_PER_CALL)
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

fn keys(subscription: &Subscription) -> impl Iterator<Item = Key> {
    let group = &subscription.group;
    let patterns = subscription.patterns();
    patterns.map(move |selector| (selector.clone(), group.clone()))
}
