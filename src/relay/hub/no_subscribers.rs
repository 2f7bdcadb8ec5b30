//! Queues that were notified and have no listener: logged once for each queue, with the nearest
//! selector of a listener.
//!
//! Matching is exact, so a misspelled queue is notified for ever and wakes no listener. A
//! notification only adds the name to a list of bounded length. A task searches for a near name in
//! steps, which compares it with every selector. All searches of a second share one bound on their
//! work: of very many selectors, only a part is compared.

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
    nearest: Option<Selector>,
    /// Only a distance below this matters.
    nearer_than: usize,
    /// The work done so far, in compared bytes, and its limit.
    work: usize,
    most_work: usize,
}

/// The most waiting names; of further ones only the number is logged.
const WAITING: usize = 8;
/// Listed queues without listeners.
const UNSERVED: usize = 32;
/// A queue that was last notified before this is not listed.
const RECENT: Duration = Duration::from_secs(3600);
/// A distance above this is no misspelling.
pub(super) const NEAR: usize = 3;
/// The width of the band of compared columns: with [`NEAR`] edits, no corresponding bytes lie
/// further apart.
pub(super) const BAND: usize = 2 * NEAR + 1;
/// Subscriptions in one step, and selectors of each.
const STEP: usize = 64;
const SELECTORS: usize = 64;
/// Work after which a step ends: some 50 microseconds.
const STEP_WORK: usize = 32 * 1024;
/// The fixed cost of a subscription, and of a selector, in compared bytes.
const SUBSCRIPTION: usize = 16;
const SELECTOR: usize = 8;

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
    /// Continues the search; returns whether there is more to compare, and work left for it.
    pub(super) fn step(
        &mut self,
        subscriptions: &Mutex<BTreeMap<SubscriptionId, Arc<Subscription>>>,
    ) -> bool {
        use std::ops::Bound::{Excluded, Unbounded};
        if self.is_over() {
            return false;
        }
        let some: Vec<Arc<Subscription>> = {
            let subscriptions = lock(subscriptions);
            let from = self.after.map_or(Unbounded, Excluded);
            let range = subscriptions.range((from, Unbounded)).take(STEP);
            range.map(|(_, one)| Arc::clone(one)).collect()
        };
        let enough = self.work.saturating_add(STEP_WORK);
        for one in &some {
            self.after = Some(one.id);
            self.compare(one);
            if self.is_over() || self.work >= enough {
                break;
            }
        }
        !some.is_empty()
    }

    /// The work of all searches of a second: some 5 ms, or 170,000 subscriptions of one selector.
    pub(crate) const WORK: usize = 4 * 1024 * 1024;

    /// Begins a search with this limit of work.
    pub(crate) fn new(queue: &QueueAddress, most_work: usize) -> Self {
        Self {
            name: queue.to_string().to_lowercase(),
            after: None,
            nearest: None,
            nearer_than: NEAR + 1,
            work: 0,
            most_work,
        }
    }

    /// Returns the nearest selector within the distance.
    pub(crate) fn found(self) -> Option<Selector> {
        self.nearest
    }

    pub(crate) fn work(&self) -> usize {
        self.work
    }

    fn is_over(&self) -> bool {
        self.work >= self.most_work || self.nearer_than == 0
    }

    fn compare(&mut self, subscription: &Subscription) {
        self.work += SUBSCRIPTION;
        for selector in subscription.selectors.iter().take(SELECTORS) {
            self.work += SELECTOR;
            let text = selector.as_str();
            // Names whose lengths differ by more are further apart.
            if text.len().abs_diff(self.name.len()) >= self.nearer_than {
                continue;
            }
            let (name, text) = (self.name.as_bytes(), text.as_bytes());
            if let Some(far) = distance(name, text, self.nearer_than - 1, &mut self.work) {
                (self.nearer_than, self.nearest) = (far, Some(selector.clone()));
            }
            if self.is_over() {
                break;
            }
        }
    }
}

/// Returns the edit distance of two names, ignoring case; `None` where it is more than `most`,
/// which is at most [`NEAR`]. Adds the compared bytes to `work`.
pub(super) fn distance(name: &[u8], other: &[u8], most: usize, work: &mut usize) -> Option<usize> {
    let differ = |a: &u8, b: &u8| !a.eq_ignore_ascii_case(b);
    // Only the part between the first and the last difference needs the table.
    let alike = |(a, b): &(&u8, &u8)| !differ(a, b);
    let start = name.iter().zip(other).take_while(alike).count();
    let (name, other) = (&name[start..], &other[start..]);
    let end = name.iter().rev().zip(other.iter().rev());
    let end = end.take_while(alike).count();
    let (name, other) = (&name[..name.len() - end], &other[..other.len() - end]);
    *work += start + end;
    if name.len().abs_diff(other.len()) > most {
        return None;
    }
    // Column `k` of a row stands for the first `row + k - NEAR` bytes of the other name.
    let column = |row: usize, k: usize| (row + k).checked_sub(NEAR).filter(|at| *at <= other.len());
    let far = NEAR + 1;
    let mut last = [far; BAND];
    for (k, cell) in last.iter_mut().enumerate() {
        *cell = column(0, k).unwrap_or(far);
    }
    for (row, byte) in (1..).zip(name) {
        let mut next = [far; BAND];
        for k in 0..BAND {
            next[k] = match column(row, k) {
                None => far,
                Some(0) => row,
                Some(at) => {
                    let replaced = last[k] + usize::from(differ(byte, &other[at - 1]));
                    let taken_out = last.get(k + 1).unwrap_or(&far) + 1;
                    let put_in = k.checked_sub(1).map_or(far, |before| next[before]) + 1;
                    replaced.min(taken_out).min(put_in)
                }
            };
        }
        *work += BAND;
        if next.iter().all(|far| *far > most) {
            return None;
        }
        last = next;
    }
    let far = last[other.len() + NEAR - name.len()];
    (far <= most).then_some(far)
}
