//! Checks under a pattern's own name: the first one of a new group, and the sentinel's where a queue
//! that the pattern matches has no entry.
//!
//! One listener of those that share selector and group is asked, in turn. No report tells of a check
//! that found nothing, so silence proves nothing here: another one is asked at once only where the
//! stream of the one that was asked ends first, else after an interval. The table's lock is a leaf;
//! a probe costs its own listeners, however many patterns there are.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
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
    backoff::about,
    clock::Tick,
    words::{GroupName, ListenerId, QueueAddress, Selector, WakeReason},
};

/// The patterns that are listened to, by selector and group.
#[derive(Default)]
pub(super) struct PatternProbes {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    probes: BTreeMap<Key, Probe>,
    due: BTreeSet<(Tick, Key)>,
    /// Seeds the probes, so that not all of them fall due together.
    made: u64,
}

type Key = (Selector, Option<GroupName>);

/// What is known of one of them.
struct Probe {
    listeners: BTreeMap<SubscriptionId, Arc<Subscription>>,
    /// A check is pending at once, and why.
    pending: Option<WakeReason>,
    due: Tick,
    /// When it was due as its last listener left: streams that come and go faster than the interval
    /// must not put it off for ever.
    left_due: Option<Tick>,
    /// The entry of a queue that it matches was forgotten or never made, or has no cursor of a
    /// listener: only a check under the pattern's own name covers it.
    forgotten: bool,
    /// The listener that was asked last, and why, as long as that matters where its stream ends.
    asked: Option<Asked>,
    last: Option<SubscriptionId>,
    rng: fastrand::Rng,
}

struct Asked {
    stream: SubscriptionId,
    listener: ListenerId,
    reason: WakeReason,
}

/// Probes that one call fires, and queues that it looks at for each.
const SLICE: usize = 256;
const KNOWN: usize = 16;

impl PatternProbes {
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
    pub(super) fn lack_cursors(&self, subscription: &Subscription) {
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

    fn remove(&mut self, key: &Key) {
        if let Some(probe) = self.probes.remove(key) {
            self.due.remove(&(probe.due, key.clone()));
        }
    }
}

impl Probe {
    /// A check that was asked in vain is another one's.
    fn ask_another(&mut self, now: Tick, in_vain: impl Fn(&Asked) -> bool) {
        if let Some(asked) = self.asked.take_if(|asked| in_vain(asked)) {
            self.pending = self.pending.max(Some(asked.reason));
            self.due = now;
        }
    }

    /// Chooses the next listener in turn that does not poll, and whose stream has no unsent frame;
    /// those that report come first. `any`: one is chosen in any case. Of several streams of one
    /// listener only the newest counts: it has given up the others, which may never end.
    fn choose(&self, any: bool, now: Tick) -> Option<Arc<Subscription>> {
        let mut newest: HashMap<&str, &Arc<Subscription>> = HashMap::new();
        for one in self.listeners.values() {
            let known = newest.entry(one.listener_id.as_str()).or_insert(one);
            if known.since <= one.since {
                *known = one;
            }
        }
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let later = self.listeners.range((after, Bound::Unbounded));
        let turn: Vec<_> = later
            .chain(self.listeners.iter())
            .map(|(_, one)| one)
            .filter(|one| {
                newest
                    .get(one.listener_id.as_str())
                    .is_some_and(|new| new.id == one.id)
            })
            .filter(|one| any || !one.mailbox.polls(now))
            .collect();
        let free = |one: &&&Arc<Subscription>| one.mailbox.assign_unless_sending();
        let mut reporting = turn.iter().filter(|one| one.mailbox.reports());
        // A first check is conflated with whatever its stream sends: it need not stand aside.
        let first = reporting.find(free).or_else(|| turn.iter().find(free));
        let chosen = first.or_else(|| turn.first().filter(|_| any));
        chosen.map(|one| Arc::clone(one))
    }
}

impl Hub {
    /// A pattern's listener came: one of a new group checks.
    pub(super) fn join_probes(&self, subscription: &Arc<Subscription>, now: Tick) {
        let sentinel = !self.config.pace.sentinel.is_zero();
        if subscription.group.is_none() && !sentinel {
            return;
        }
        // A new group is uncertain; so is one that comes back: while it had no member, queues may
        // have come and been forgotten.
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
                probe
                    .listeners
                    .insert(subscription.id, Arc::clone(subscription));
                // It has given up the stream where it was asked.
                probe.ask_another(now, |asked| asked.listener == subscription.listener_id);
                if probe.pending.is_some() {
                    probe.due = now;
                }
            });
        }
        drop(table);
        // Looked at now that the probes are there: `attach_once` found none of them before.
        if subscription.lock().lacks_cursors {
            self.probes.lack_cursors(subscription);
        }
        self.timers.waker.wake();
    }

    /// A pattern's listener left; a check that it was asked for and did not report is another one's.
    pub(super) fn leave_probes(&self, subscription: &Subscription, now: Tick) {
        let mut table = lock(&self.probes.table);
        let mut left = false;
        for key in keys(subscription) {
            let known = table.change(&key, |probe| {
                probe.listeners.remove(&subscription.id);
                probe.ask_another(now, |asked| asked.stream == subscription.id);
                if probe.listeners.is_empty() {
                    probe.left_due = Some(probe.due);
                    probe.due = now + self.config.pace.keep;
                }
            });
            left |= known.is_some();
        }
        drop(table);
        if left {
            self.timers.waker.wake();
        }
    }

    /// A listener reported a queue: the sentinel's interval begins again, unless queues are missing
    /// that no report is about. That it looked at all the others that a CATCH_UP was for, no report
    /// says.
    pub(super) fn probe_reported(
        &self,
        subscription: &Subscription,
        queue: &QueueAddress,
        now: Tick,
    ) {
        let mut table = lock(&self.probes.table);
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

    /// Asks wherever a check is due, a slice of them at most.
    pub(super) fn fire_probes(&self, now: Tick) {
        if self.probes.next().is_none_or(|due| due > now) {
            return;
        }
        let due: Vec<Key> = {
            let table = lock(&self.probes.table);
            let due = table
                .due
                .iter()
                .take(SLICE)
                .take_while(|(due, _)| *due <= now);
            due.map(|(_, key)| key.clone()).collect()
        };
        let mut batch = WakeBatch::default();
        for key in due {
            self.probe(&key, now, &mut batch);
        }
        batch.wake();
    }

    fn probe(&self, key: &Key, now: Tick, batch: &mut WakeBatch) {
        let has_entry = self.has_entry(&key.0);
        let mut table = lock(&self.probes.table);
        let Some(probe) = table.probes.get(key) else {
            return;
        };
        if probe.listeners.is_empty() {
            table.remove(key);
            return;
        }
        let pending = probe.pending;
        let known = has_entry && !probe.forgotten;
        let chosen = match known && pending.is_none() {
            true => None,
            false => probe.choose(pending.is_some(), now),
        };
        let reason = pending.unwrap_or(WakeReason::Sentinel);
        table.change(key, |probe| {
            probe.due = now + self.config.pace.claim;
            if let Some(chosen) = &chosen {
                probe.asked = Some(Asked {
                    stream: chosen.id,
                    listener: chosen.listener_id.clone(),
                    reason,
                });
                probe.last = Some(chosen.id);
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
                .check_pattern(&chosen.selectors, &key.0, reason);
            batch.mark_selectors(&chosen.mailbox);
        }
    }

    /// Returns whether a queue that the pattern matches has an entry; of many queues that begin alike
    /// only some are looked at, and a check too many does no harm.
    fn has_entry(&self, pattern: &Selector) -> bool {
        let from = Bound::Included(pattern.beginning());
        let records = self.records.range(from, KNOWN);
        records
            .iter()
            .any(|record| pattern.matches(record.address()))
    }

    fn next_probe(&self, probe: &mut Probe, now: Tick) -> Tick {
        match self.config.pace.sentinel {
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
