//! Queues that were notified and have no listener: logged once for each queue.
//!
//! Matching is exact, so a misspelled queue is notified for ever and wakes no listener. A
//! notification only adds the name to a list of bounded length. The answer to why a queue is not served
//! names the nearest selector of a listener.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::{
    core::Hub,
    mailbox::SubscriptionId,
    queue_entry::{EntryBits, QueueState},
    subscription::Subscription,
    sync::{Mutex, lock},
};
use crate::{
    base::clock::Tick,
    types::{QueueAddress, Selector},
};

/// The names that wait to be logged, and the number of further ones.
pub(super) struct QueuesWithoutListeners {
    waiting: Mutex<(VecDeque<QueueAddress>, u64)>,
    /// The queues that last began to be notified without a listener, each once.
    unserved: Mutex<VecDeque<QueueAddress>>,
}

/// A queue with notifications and without a listener.
#[derive(Debug)]
pub(crate) struct UnservedQueue {
    pub(crate) queue: QueueAddress,
    /// Since its entry was made.
    pub(crate) notifications: u64,
    /// Time since the newest one.
    pub(crate) notified_before: Duration,
}

/// A search for the selector nearest to a name.
pub(crate) struct NearestName {
    /// In lower case.
    name: String,
    after: Option<SubscriptionId>,
    /// The nearest so far, and its distance.
    nearest: Option<(usize, Selector)>,
    work: usize,
}

/// The most waiting names; of further ones only the number is logged.
const WAITING: usize = 8;
/// Listed queues without listeners.
const UNSERVED: usize = 32;
/// A queue that was last notified before this is not listed.
const RECENT: Duration = Duration::from_secs(3600);
/// A distance above this is no misspelling.
const NEAR: usize = 3;
/// Subscriptions in one step, and selectors of each.
const STEP: usize = 64;
/// Work of a step and of a search: a comparison costs 1 for each KiB of the names' product, some
/// microseconds.
const STEP_WORK: usize = 64;
const WORK: usize = 10_000;

impl QueuesWithoutListeners {
    /// Takes the waiting names, and the number of further ones.
    pub(super) fn take(&self) -> (VecDeque<QueueAddress>, u64) {
        std::mem::take(&mut *lock(&self.waiting))
    }

    pub(super) fn new() -> Self {
        Self {
            waiting: Mutex::new((VecDeque::new(), 0)),
            unserved: Mutex::default(),
        }
    }

    /// Adds a name.
    pub(super) fn add(&self, queue: &QueueAddress) {
        let mut waiting = lock(&self.waiting);
        if waiting.0.len() < WAITING {
            waiting.0.push_back(queue.clone());
        } else {
            waiting.1 += 1;
        }
    }
}

impl Hub {
    /// A queue without listeners is notified: once for the log, and once for the list until a
    /// listener joins.
    pub(super) fn note_unserved(&self, state: &mut QueueState, queue: &QueueAddress) {
        if state.first_without_listeners() {
            self.no_listeners.add(queue);
        }
        if !state.bits.insert(EntryBits::UNSERVED) {
            let mut unserved = lock(&self.no_listeners.unserved);
            // It is listed still if nobody asked while it had a listener.
            unserved.retain(|known| known != queue);
            if unserved.len() == UNSERVED {
                unserved.pop_front();
            }
            unserved.push_back(queue.clone());
        }
    }

    /// Returns the queues that were last notified without a listener and have none now, newest first.
    pub(crate) fn unserved_queues(&self, now: Tick) -> Vec<UnservedQueue> {
        let listed = lock(&self.no_listeners.unserved).clone();
        let mut found = Vec::new();
        for queue in listed {
            let entry = self.entries.get(&queue);
            let stats = entry.map(|entry| entry.stats(now));
            let Some(stats) = stats.filter(|stats| stats.listeners == 0) else {
                lock(&self.no_listeners.unserved).retain(|known| *known != queue);
                continue;
            };
            if let Some(notified_before) = stats.idle_for.filter(|age| *age < RECENT) {
                found.push(UnservedQueue {
                    queue,
                    notifications: stats.notifications,
                    notified_before,
                });
            }
        }
        found.reverse();
        found
    }
}

impl NearestName {
    pub(crate) fn new(queue: &QueueAddress) -> Self {
        Self {
            name: queue.to_string().to_lowercase(),
            after: None,
            nearest: None,
            work: 0,
        }
    }

    /// Continues the search; returns whether there is more to compare.
    pub(super) fn step(
        &mut self,
        subscriptions: &Mutex<BTreeMap<SubscriptionId, Arc<Subscription>>>,
    ) -> bool {
        use std::ops::Bound::{Excluded, Unbounded};
        let some: Vec<Arc<Subscription>> = {
            let subscriptions = lock(subscriptions);
            let from = self.after.map_or(Unbounded, Excluded);
            let range = subscriptions.range((from, Unbounded)).take(STEP);
            range.map(|(_, one)| Arc::clone(one)).collect()
        };
        let enough = self.work + STEP_WORK;
        for one in &some {
            self.after = Some(one.id);
            self.compare(one, enough);
            if self.work >= enough {
                break;
            }
        }
        !some.is_empty() && self.work < WORK
    }

    /// Returns the nearest selector within the distance.
    pub(crate) fn found(self) -> Option<Selector> {
        self.nearest.map(|(_, selector)| selector)
    }

    /// Of very many long selectors of one subscription, only the first ones are compared.
    fn compare(&mut self, subscription: &Subscription, enough: usize) {
        for selector in subscription.selectors.iter().take(STEP) {
            let text = selector.as_str();
            let least = self.nearest.as_ref().map_or(NEAR + 1, |(far, _)| *far);
            // Names whose lengths differ by more are further apart.
            if text.len().abs_diff(self.name.len()) >= least {
                continue;
            }
            self.work += 1 + text.len() * text.len() / 1024;
            let far = strsim::osa_distance(&self.name, &text.to_lowercase());
            if far < least {
                self.nearest = Some((far, selector.clone()));
            }
            if self.work >= enough {
                break;
            }
        }
    }
}
