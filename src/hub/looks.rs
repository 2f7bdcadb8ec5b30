//! Looks under a pattern's own name: the first one of a new group, and the sentinel's where no queue
//! is known that the pattern matches.
//!
//! One listener of those that share selector and group is asked, in turn. Nobody can report a look
//! at nothing, so silence proves nothing here: another one is asked at once only where the stream of
//! the one that was asked ends first, else after an interval. The table's lock is a leaf.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use super::{
    core::Hub,
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
pub(super) struct Looks {
    table: Mutex<BTreeMap<Key, Look>>,
}

type Key = (Selector, Option<GroupName>);

/// What is known of one of them.
struct Look {
    listeners: usize,
    /// A look is owed at once, and why.
    owed: Option<WakeReason>,
    due: Tick,
    /// Who was asked last, and why, as long as that matters where its stream ends.
    asked: Option<Asked>,
    last: Option<SubscriptionId>,
    rng: fastrand::Rng,
}

struct Asked {
    stream: SubscriptionId,
    listener: ListenerId,
    reason: WakeReason,
}

impl Looks {
    /// Returns when a look is due.
    pub(super) fn next(&self) -> Option<Tick> {
        let table = lock(&self.table);
        let next = table.values().map(|look| look.due).min();
        next.filter(|due| *due != Tick::NEVER)
    }
}

impl Look {
    /// What was asked in vain is owed by another one.
    fn ask_another(&mut self, now: Tick, in_vain: impl Fn(&Asked) -> bool) {
        if let Some(asked) = self.asked.take_if(|asked| in_vain(asked)) {
            self.owed = self.owed.max(Some(asked.reason));
            self.due = now;
        }
    }
}

impl Hub {
    /// A pattern's listener came: one of a new group looks.
    pub(super) fn join_looks(&self, subscription: &Subscription, now: Tick) {
        let sentinel = !self.config.pace.sentinel.is_zero();
        if subscription.group.is_none() && !sentinel {
            return;
        }
        // A new group is in doubt; so is one that comes back: while nobody was here, queues may have
        // come and been forgotten.
        let first = subscription.group.as_ref().map(|_| WakeReason::CatchUp);
        let mut table = lock(&self.looks.table);
        for key in keys(subscription) {
            let look = table.entry(key).or_insert_with(|| Look {
                listeners: 0,
                owed: None,
                due: Tick::NEVER,
                asked: None,
                last: None,
                rng: fastrand::Rng::with_seed(self.config.seed),
            });
            if look.listeners == 0 {
                look.owed = look.owed.max(first);
                look.due = self.next_look(look, now);
            }
            look.listeners += 1;
            // It has given up the stream where it was asked.
            look.ask_another(now, |asked| asked.listener == subscription.listener_id);
            if look.owed.is_some() {
                look.due = now;
            }
        }
        drop(table);
        self.timers.waker.wake();
    }

    /// A pattern's listener left; what it was asked and did not report is asked of another one.
    pub(super) fn leave_looks(&self, subscription: &Subscription, now: Tick) {
        let mut table = lock(&self.looks.table);
        let mut left = false;
        for key in keys(subscription) {
            let Some(look) = table.get_mut(&key) else {
                continue;
            };
            left = true;
            look.listeners = look.listeners.saturating_sub(1);
            look.ask_another(now, |asked| asked.stream == subscription.id);
            if look.listeners == 0 {
                look.due = now + self.config.pace.keep;
            }
        }
        drop(table);
        if left {
            self.timers.waker.wake();
        }
    }

    /// A listener reported a queue: the sentinel's interval begins again. That it looked at all the
    /// others that a CATCH_UP was for, no report says.
    pub(super) fn looked(&self, subscription: &Subscription, queue: &QueueAddress, now: Tick) {
        let mut table = lock(&self.looks.table);
        for key in keys(subscription).filter(|(selector, _)| selector.matches(queue)) {
            if let Some(look) = table.get_mut(&key) {
                look.asked
                    .take_if(|asked| asked.reason != WakeReason::CatchUp);
                if look.owed.is_none() {
                    look.due = self.next_look(look, now);
                }
            }
        }
    }

    /// Asks wherever a look is due.
    pub(super) fn fire_looks(&self, now: Tick) {
        if self.looks.next().is_none_or(|due| due > now) {
            return;
        }
        let due: Vec<Key> = {
            let table = lock(&self.looks.table);
            let due = table.iter().filter(|(_, look)| look.due <= now);
            due.map(|(key, _)| key.clone()).collect()
        };
        for key in due {
            self.look(&key, now);
        }
    }

    fn look(&self, key: &Key, now: Tick) {
        let listeners = self.sharing(key);
        let (owed, last) = {
            let mut table = lock(&self.looks.table);
            let Some(look) = table.get_mut(key) else {
                return;
            };
            if look.listeners == 0 {
                table.remove(key);
                return;
            }
            look.due = now + self.config.pace.claim;
            (look.owed, look.last)
        };
        let known = listeners
            .values()
            .next()
            .is_some_and(|one| one.knows(&key.0));
        let chosen = match known && owed.is_none() {
            true => None,
            false => choose(&listeners, last, owed.is_some(), now),
        };
        let reason = owed.unwrap_or(WakeReason::Sentinel);
        if let Some(chosen) = chosen {
            chosen.ask(&key.0, reason);
        }
        if let Some(look) = lock(&self.looks.table).get_mut(key) {
            if let Some(chosen) = chosen {
                look.asked = Some(Asked {
                    stream: chosen.id,
                    listener: chosen.listener_id.clone(),
                    reason,
                });
                look.last = Some(chosen.id);
            }
            if chosen.is_some() || known {
                look.owed = None;
                look.due = self.next_look(look, now);
            }
        }
        if let Some(chosen) = chosen {
            self.check_asked(key, chosen.id, now);
        }
    }

    /// Its stream may have ended before it stood there as the one that was asked; whoever ends it
    /// takes it out of the subscriptions first, and then comes to the table.
    fn check_asked(&self, key: &Key, asked: SubscriptionId, now: Tick) {
        let here = lock(&self.subscriptions).contains_key(&asked);
        if !here && let Some(look) = lock(&self.looks.table).get_mut(key) {
            look.ask_another(now, |of| of.stream == asked);
            self.timers.waker.wake();
        }
    }

    /// Returns those that listen by this selector in this group. Of several streams of one listener
    /// only the newest counts: whoever opened it has given up the others, which may never end.
    fn sharing(&self, (selector, group): &Key) -> BTreeMap<SubscriptionId, Arc<Subscription>> {
        let patterns = self
            .patterns
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let shares =
            |one: &&Arc<Subscription>| one.group == *group && one.selectors.contains(selector);
        // In the order in which they came.
        let newest: BTreeMap<_, _> = patterns
            .iter()
            .filter(shares)
            .map(|one| (one.listener_id.as_str(), one))
            .collect();
        let sharing = newest.into_values();
        sharing.map(|one| (one.id, Arc::clone(one))).collect()
    }

    fn next_look(&self, look: &mut Look, now: Tick) -> Tick {
        match self.config.pace.sentinel {
            interval if interval.is_zero() => Tick::NEVER,
            interval => now + about(interval, &mut look.rng),
        }
    }
}

/// Chooses the next one in turn that looks only where it is asked, and whose stream has sent all it
/// had; who reports comes first.
fn choose(
    listeners: &BTreeMap<SubscriptionId, Arc<Subscription>>,
    last: Option<SubscriptionId>,
    anybody: bool,
    now: Tick,
) -> Option<&Arc<Subscription>> {
    let after = last.map_or(Bound::Unbounded, Bound::Excluded);
    let turn = || {
        let later = listeners.range((after, Bound::Unbounded));
        let all = later.chain(listeners.iter()).map(|(_, one)| one);
        all.filter(|one| anybody || !one.polls(now))
    };
    let mut reporting = turn().filter(|one| one.reports());
    let free = |one: &&Arc<Subscription>| one.reserve_once();
    // A first look is conflated with whatever its stream sends: it need not stand aside.
    let first = reporting.find(free).or_else(|| turn().find(free));
    first.or_else(|| turn().next().filter(|_| anybody))
}

fn keys(subscription: &Subscription) -> impl Iterator<Item = Key> {
    let patterns = subscription.selectors.iter().filter(|s| s.is_pattern());
    patterns.map(|selector| (selector.clone(), subscription.group.clone()))
}
