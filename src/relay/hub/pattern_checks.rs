//! Checks under a pattern's own name: the first check of a new group, and the sentinel's check
//! where a matching queue has no entry.
//!
//! The listeners with the same selector and group are asked in turn. No report covers a check that
//! found nothing, so silence proves nothing. Another listener is asked at once only where the asked
//! one's stream ends first, otherwise after an interval. The table's lock is a leaf. A probe visits
//! a bounded number of the listeners, independent of the numbers of listeners and patterns.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use super::{
    core::Hub,
    mailbox::WakeBatch,
    subscription::{Subscription, SubscriptionId},
    sync::{Mutex, lock},
};
use crate::{
    base::{backoff::about, clock::Tick},
    types::{GroupName, ListenerId, QueueAddress, Selector, WakeReason},
};

/// The patterns that have listeners, by selector and group.
#[derive(Default)]
pub(super) struct PatternChecks {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    probes: BTreeMap<Key, Probe>,
    due: BTreeSet<(Tick, Key)>,
    /// Seeds the probes, so that they do not all fall due together.
    made: u64,
    /// Listeners visited so far.
    examined: usize,
}

type Key = (Selector, Option<GroupName>);

/// One pattern of one group.
struct Probe {
    listeners: BTreeMap<SubscriptionId, Arc<Subscription>>,
    /// The same by listener and age: a listener's newest stream is its last one here.
    by_listener: BTreeSet<(ListenerId, Tick, SubscriptionId)>,
    /// Listeners that have reported.
    reporting: BTreeSet<SubscriptionId>,
    /// A check is due at once, for this reason.
    pending: Option<WakeReason>,
    due: Tick,
    /// The due time when its last listener left: streams that come and go faster than the interval
    /// must not put it off for ever.
    left_due: Option<Tick>,
    /// The entry of a matching queue was forgotten or never made, or a listener has no cursor for
    /// it. Only a check under the pattern's own name covers such a queue.
    forgotten: bool,
    /// The listener that was asked last, and why, while the end of its stream matters.
    asked: Option<Asked>,
    last: Option<SubscriptionId>,
    rng: fastrand::Rng,
}

struct Asked {
    stream: SubscriptionId,
    listener: ListenerId,
    reason: WakeReason,
}

/// Probes that one call fires, and queues that it visits for each.
const PROBES_PER_CALL: usize = 256;
const ENTRIES_PER_PROBE: usize = 16;
/// Listeners that one probe visits, among those that report and among all.
const VISITS_PER_PROBE: usize = 64;
/// Listeners that one call visits, give or take those of one probe: some hundred microseconds.
const VISITS_PER_CALL: usize = 1024;

impl PatternChecks {
    /// Returns how many listeners were visited so far.
    #[cfg(test)]
    pub(super) fn examined(&self) -> usize {
        lock(&self.table).examined
    }

    /// Returns when a check is due.
    pub(super) fn next(&self) -> Option<Tick> {
        let table = lock(&self.table);
        let (due, _) = table.due.first()?;
        (*due != Tick::NEVER).then_some(*due)
    }

    /// The entry of a queue that these patterns match was forgotten.
    pub(super) fn forget(&self, subscription: &Subscription, queue: &QueueAddress) {
        let mut table = lock(&self.table);
        for key in keys(subscription).filter(|(selector, _)| selector.matches(queue)) {
            if let Some(probe) = table.probes.get_mut(&key) {
                probe.forgotten = true;
            }
        }
    }

    /// The subscription lacks cursors: some queues are checked under its patterns' own names only.
    pub(super) fn note_missing_cursors(&self, subscription: &Subscription) {
        let mut table = lock(&self.table);
        for key in keys(subscription) {
            if let Some(probe) = table.probes.get_mut(&key) {
                probe.forgotten = true;
            }
        }
    }
}

impl Table {
    /// Changes a probe, and keeps the order of due times.
    fn change<T>(&mut self, key: &Key, change: impl FnOnce(&mut Probe) -> T) -> Option<T> {
        let probe = self.probes.get_mut(key)?;
        let before = probe.due;
        let result = change(probe);
        let after = probe.due;
        if before != after {
            self.due.remove(&(before, key.clone()));
            self.due.insert((after, key.clone()));
        }
        Some(result)
    }

    fn make(&mut self, key: &Key, seed: u64) {
        if !self.probes.contains_key(key) {
            self.made += 1;
            let seed = seed ^ self.made.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let probe = Probe {
                listeners: BTreeMap::new(),
                by_listener: BTreeSet::new(),
                reporting: BTreeSet::new(),
                pending: None,
                due: Tick::NEVER,
                left_due: None,
                forgotten: false,
                asked: None,
                last: None,
                rng: fastrand::Rng::with_seed(seed),
            };
            self.due.insert((probe.due, key.clone()));
            self.probes.insert(key.clone(), probe);
        }
    }

    /// Notes a listener's first report.
    fn reported(&mut self, subscription: &Subscription) {
        let id = subscription.id;
        for key in keys(subscription) {
            let probe = self.probes.get_mut(&key);
            let probe = probe.filter(|probe| probe.listeners.contains_key(&id));
            if probe.is_none_or(|probe| !probe.reporting.insert(id)) {
                // It joined all of its probes at once, and was noted in all of them.
                break;
            }
        }
    }

    fn remove(&mut self, key: &Key) {
        if let Some(probe) = self.probes.remove(key) {
            self.due.remove(&(probe.due, key.clone()));
        }
    }
}

impl Probe {
    /// A check without an answer goes to another listener.
    fn ask_another(&mut self, now: Tick, in_vain: impl Fn(&Asked) -> bool) {
        if let Some(asked) = self.asked.take_if(|asked| in_vain(asked)) {
            self.pending = self.pending.max(Some(asked.reason));
            self.due = now;
        }
    }

    fn insert(&mut self, subscription: &Arc<Subscription>) {
        let (id, since) = (subscription.id, subscription.since);
        let listener = subscription.listener_id.clone();
        self.by_listener.insert((listener, since, id));
        if subscription.mailbox.reports() {
            self.reporting.insert(id);
        }
        self.listeners.insert(id, Arc::clone(subscription));
    }

    fn remove(&mut self, subscription: &Subscription) {
        let (id, since) = (subscription.id, subscription.since);
        let listener = subscription.listener_id.clone();
        self.by_listener.remove(&(listener, since, id));
        self.reporting.remove(&id);
        self.listeners.remove(&id);
    }

    /// Of several streams of one listener only the newest counts: the listener has given up the
    /// others, which may never end.
    fn is_newest(&self, one: &Subscription) -> bool {
        let own = (one.listener_id.clone(), one.since, one.id);
        let newer = (Bound::Excluded(own), Bound::Unbounded);
        let next = self.by_listener.range(newer).next();
        next.is_none_or(|(listener, ..)| *listener != one.listener_id)
    }

    /// Chooses the next listener that does not poll and whose stream has no unsent frame; reporting
    /// listeners come first. With `any`, one is chosen in any case. It visits a bounded number;
    /// where none of them can be asked, the next call continues after them.
    fn choose(&mut self, any: bool, now: Tick) -> Choice {
        let mut examined = 0;
        let mut last = None;
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let mut may_be_asked = |id: &SubscriptionId| {
            examined += 1;
            last = Some(*id);
            let one = self.listeners.get(id)?;
            let asked = self.is_newest(one) && (any || !one.mailbox.polls(now));
            asked.then_some(one)
        };
        // A first check is conflated with the stream's other messages, so it need not wait.
        let is_free = |one: &&Arc<Subscription>| one.mailbox.assign_unless_sending();
        let later = self.reporting.range((after, Bound::Unbounded));
        let mut reporting = later.chain(&self.reporting).take(self.reporting.len());
        let mut chosen = reporting
            .by_ref()
            .take(VISITS_PER_PROBE)
            .filter_map(&mut may_be_asked)
            .find(is_free);
        let mut first = None;
        if chosen.is_none() {
            let later = self.listeners.range((after, Bound::Unbounded));
            let turn = later.chain(&self.listeners).take(self.listeners.len());
            let turn = turn.take(VISITS_PER_PROBE).map(|(id, _)| id);
            chosen = turn
                .filter_map(&mut may_be_asked)
                .inspect(|one| _ = first.get_or_insert(*one))
                .find(is_free);
        }
        let chosen = chosen.or_else(|| first.filter(|_| any)).map(Arc::clone);
        self.last = chosen.as_ref().map(|one| one.id).or(last).or(self.last);
        Choice { chosen, examined }
    }
}

/// The chosen listener, and the number of visited ones.
#[derive(Default)]
struct Choice {
    chosen: Option<Arc<Subscription>>,
    examined: usize,
}

impl Hub {
    /// A pattern's listener joined: one of a new group checks.
    pub(super) fn join_probes(&self, subscription: &Arc<Subscription>, now: Tick) {
        let sentinel = !self.config.coordinator.sentinel_interval.is_zero();
        if subscription.group.is_none() && !sentinel {
            return;
        }
        // The position of a new group is uncertain. So is that of a group that comes back: queues
        // may have come and been forgotten while it had no member.
        let first = subscription.group.as_ref().map(|_| WakeReason::CatchUp);
        let mut table = lock(&self.probes.table);
        for key in keys(subscription) {
            table.make(&key, self.config.seed);
            table.change(&key, |probe| {
                if probe.listeners.is_empty() {
                    probe.pending = probe.pending.max(first);
                    let next = self.next_probe(probe, now);
                    let due = probe.left_due.take().unwrap_or(next);
                    probe.due = due.clamp(now, next);
                }
                probe.insert(subscription);
                // The listener has given up the stream that was asked.
                probe.ask_another(now, |asked| asked.listener == subscription.listener_id);
                if probe.pending.is_some() {
                    probe.due = now;
                }
            });
        }
        drop(table);
        // Read now that the probes exist: `attach_once` found none of them before.
        if subscription.lock().lacks_cursors {
            self.probes.note_missing_cursors(subscription);
        }
        self.timers.waker.wake();
    }

    /// A pattern's listener left; its unreported check goes to another listener.
    pub(super) fn leave_probes(&self, subscription: &Subscription, now: Tick) {
        let mut table = lock(&self.probes.table);
        let mut left = false;
        for key in keys(subscription) {
            let known = table.change(&key, |probe| {
                probe.remove(subscription);
                probe.ask_another(now, |asked| asked.stream == subscription.id);
                if probe.listeners.is_empty() {
                    probe.left_due = Some(probe.due);
                    probe.due = now + self.config.coordinator.group_keep;
                }
            });
            left |= known.is_some();
        }
        drop(table);
        if left {
            self.timers.waker.wake();
        }
    }

    /// A listener reported a queue: the sentinel's interval restarts, unless queues without an
    /// entry need a check. One report does not prove that the listener polled all queues of a
    /// CATCH_UP.
    pub(super) fn probe_reported(
        &self,
        subscription: &Subscription,
        queue: &QueueAddress,
        now: Tick,
    ) {
        let mut table = lock(&self.probes.table);
        table.reported(subscription);
        for key in keys(subscription).filter(|(selector, _)| selector.matches(queue)) {
            table.change(&key, |probe| {
                probe
                    .asked
                    .take_if(|asked| asked.reason != WakeReason::CatchUp);
                if probe.pending.is_none() && !probe.forgotten {
                    probe.due = self.next_probe(probe, now);
                }
            });
        }
    }

    /// Asks listeners for the due checks, a slice of them at most; the rest stays due.
    pub(super) fn fire_probes(&self, now: Tick) {
        if self.probes.next().is_none_or(|due| due > now) {
            return;
        }
        let due: Vec<Key> = {
            let table = lock(&self.probes.table);
            let due = table
                .due
                .iter()
                .take(PROBES_PER_CALL)
                .take_while(|(due, _)| *due <= now);
            due.map(|(_, key)| key.clone()).collect()
        };
        let mut batch = WakeBatch::default();
        let mut examined = 0;
        for key in due {
            examined += self.probe(&key, now, &mut batch);
            if examined >= VISITS_PER_CALL {
                break;
            }
        }
        batch.wake();
    }

    /// Asks a listener where the check is due; returns how many were visited.
    fn probe(&self, key: &Key, now: Tick, batch: &mut WakeBatch) -> usize {
        let has_entry = self.has_entry(&key.0);
        let mut table = lock(&self.probes.table);
        let Some(probe) = table.probes.get_mut(key) else {
            return 0;
        };
        if probe.listeners.is_empty() {
            table.remove(key);
            return 0;
        }
        let pending = probe.pending;
        let known = has_entry && !probe.forgotten;
        let Choice { chosen, examined } = match known && pending.is_none() {
            true => Choice::default(),
            false => probe.choose(pending.is_some(), now),
        };
        table.examined += examined;
        let reason = pending.unwrap_or(WakeReason::Sentinel);
        table.change(key, |probe| {
            probe.due = now + self.config.coordinator.claim_timeout;
            if let Some(chosen) = &chosen {
                probe.asked = Some(Asked {
                    stream: chosen.id,
                    listener: chosen.listener_id.clone(),
                    reason,
                });
            }
            if chosen.is_some() || known {
                probe.pending = None;
                probe.due = self.next_probe(probe, now);
            }
        });
        drop(table);
        if let Some(chosen) = chosen {
            chosen
                .lock()
                .request_pattern_check(&chosen.selectors, &key.0, reason);
            batch.mark_selectors(&chosen.mailbox);
        }
        examined
    }

    /// Returns whether a matching queue has an entry. Of many queues with the same beginning only
    /// some are visited; a needless check does no harm.
    fn has_entry(&self, pattern: &Selector) -> bool {
        let from = Bound::Included(pattern.beginning());
        let entries = self.entries.range(from, ENTRIES_PER_PROBE);
        entries.iter().any(|entry| pattern.matches(entry.address()))
    }

    fn next_probe(&self, probe: &mut Probe, now: Tick) -> Tick {
        match self.config.coordinator.sentinel_interval {
            interval if interval.is_zero() => Tick::NEVER,
            interval => now + about(interval, &mut probe.rng),
        }
    }
}

fn keys(subscription: &Subscription) -> impl Iterator<Item = Key> {
    let group = &subscription.group;
    let patterns = subscription.patterns();
    patterns.map(move |selector| (selector.clone(), group.clone()))
}
