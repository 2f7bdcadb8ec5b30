//! The listeners of each pattern, and which of them was asked for a check under the pattern's own
//! name: the table of `pattern_checks`. Pure data; its lock is a leaf.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use super::{
    mailbox::SubscriptionId,
    subscription::Subscription,
    sync::{Mutex, lock},
};
use crate::{
    base::clock::Tick,
    types::{GroupName, ListenerId, QueueAddress, Selector, WakeReason},
};

/// The patterns that have listeners, by selector and group.
#[derive(Default)]
pub(super) struct PatternChecks {
    pub(super) table: Mutex<Table>,
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) probes: BTreeMap<Key, Probe>,
    pub(super) due: BTreeSet<(Tick, Key)>,
    /// Seeds the probes, so that they do not all fall due together.
    pub(super) made: u64,
    /// Listeners visited so far.
    pub(super) examined: usize,
}

pub(super) type Key = (Selector, Option<GroupName>);

/// One pattern of one group.
pub(super) struct Probe {
    pub(super) listeners: BTreeMap<SubscriptionId, Arc<Subscription>>,
    /// The same by listener and age: a listener's newest stream is its last one here.
    pub(super) by_listener: BTreeSet<(ListenerId, Tick, SubscriptionId)>,
    /// Listeners that have reported.
    pub(super) reporting: BTreeSet<SubscriptionId>,
    /// A check is due at once, for this reason.
    pub(super) pending: Option<WakeReason>,
    pub(super) due: Tick,
    /// The due time when its last listener left: streams that come and go faster than the interval
    /// must not put it off for ever.
    pub(super) left_due: Option<Tick>,
    /// The entry of a matching queue was forgotten or never made, or a listener has no cursor for
    /// it. Only a check under the pattern's own name covers such a queue.
    pub(super) forgotten: bool,
    /// The listener that was asked last, and why, while the end of its stream matters.
    pub(super) asked: Option<Asked>,
    pub(super) last: Option<SubscriptionId>,
    pub(super) rng: fastrand::Rng,
}

pub(super) struct Asked {
    pub(super) stream: SubscriptionId,
    pub(super) listener: ListenerId,
    pub(super) reason: WakeReason,
}

/// Listeners that one probe visits, among those that report and among all.
const VISITS_PER_PROBE: usize = 64;

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
    pub(super) fn change<T>(
        &mut self,
        key: &Key,
        change: impl FnOnce(&mut Probe) -> T,
    ) -> Option<T> {
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

    pub(super) fn make(&mut self, key: &Key, seed: u64) {
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
    pub(super) fn reported(&mut self, subscription: &Subscription) {
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

    pub(super) fn remove(&mut self, key: &Key) {
        if let Some(probe) = self.probes.remove(key) {
            self.due.remove(&(probe.due, key.clone()));
        }
    }
}

impl Probe {
    /// A check is due at once. A probe without listeners keeps it for the next one.
    pub(super) fn request(&mut self, now: Tick) {
        self.pending = self.pending.max(Some(WakeReason::CatchUp));
        if !self.listeners.is_empty() {
            self.due = now;
        }
    }

    /// A check without an answer goes to another listener.
    pub(super) fn ask_another(&mut self, now: Tick, in_vain: impl Fn(&Asked) -> bool) {
        if let Some(asked) = self.asked.take_if(|asked| in_vain(asked)) {
            self.pending = self.pending.max(Some(asked.reason));
            self.due = now;
        }
    }

    pub(super) fn insert(&mut self, subscription: &Arc<Subscription>) {
        let (id, since) = (subscription.id, subscription.since);
        let listener = subscription.listener_id.clone();
        self.by_listener.insert((listener, since, id));
        if subscription.mailbox.reports() {
            self.reporting.insert(id);
        }
        self.listeners.insert(id, Arc::clone(subscription));
    }

    pub(super) fn remove(&mut self, subscription: &Subscription) {
        let (id, since) = (subscription.id, subscription.since);
        let listener = subscription.listener_id.clone();
        self.by_listener.remove(&(listener, since, id));
        self.reporting.remove(&id);
        self.listeners.remove(&id);
    }

    /// Of several streams of one listener only the newest counts: the listener has given up the
    /// others, which may never end.
    pub(super) fn is_newest(&self, one: &Subscription) -> bool {
        let own = (one.listener_id.clone(), one.since, one.id);
        let newer = (Bound::Excluded(own), Bound::Unbounded);
        let next = self.by_listener.range(newer).next();
        next.is_none_or(|(listener, ..)| *listener != one.listener_id)
    }

    /// Chooses the next listener that does not poll and whose stream has no unsent frame; reporting
    /// listeners come first. With `any`, one is chosen in any case. It visits a bounded number;
    /// where none of them can be asked, the next call continues after them.
    pub(super) fn choose(&mut self, any: bool, now: Tick) -> Choice {
        let mut examined = 0;
        let mut last = None;
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let mut may_be_asked = |id: &SubscriptionId| {
            examined += 1;
            last = Some(*id);
            let one = self.listeners.get(id)?;
            let asked = self.is_newest(one) && (any || one.mailbox.can_check(now));
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
pub(super) struct Choice {
    pub(super) chosen: Option<Arc<Subscription>>,
    pub(super) examined: usize,
}

pub(super) fn keys(subscription: &Subscription) -> impl Iterator<Item = Key> {
    let group = &subscription.group;
    let patterns = subscription.patterns();
    patterns.map(move |selector| (selector.clone(), group.clone()))
}
