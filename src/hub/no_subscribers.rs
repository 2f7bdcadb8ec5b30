//! Queues that were notified and have no listener: told once for each queue, with the nearest name
//! that is listened to.
//!
//! Matching is exact, so a misspelled queue is notified for ever and wakes nobody. A notification only
//! leaves the name here, in a list of bounded length; the search for a near name, which compares it
//! with every selector, is a task's, in steps. All searches of a second share one bound on their
//! work: where there are very many selectors only a part of them is compared.

use std::{collections::VecDeque, sync::Arc};

use super::{
    core::Hub,
    subscription::{Subscription, SubscriptionId},
    sync::{Mutex, lock},
};
use crate::words::{QueueAddress, Selector};

/// The names that wait to be told.
pub(super) struct QueuesWithoutListeners {
    waiting: Mutex<(VecDeque<QueueAddress>, u64)>,
}

/// A search for the selector that is nearest to a name.
pub(crate) struct NearestName {
    /// In lower case.
    name: String,
    after: Option<SubscriptionId>,
    nearest: Option<Selector>,
    /// Only a name that is nearer than this is of interest.
    nearer_than: usize,
    /// Bytes compared so far, or as good as; and how many may be.
    work: usize,
    most_work: usize,
}

/// Names that wait at most; of the others only the number is told.
const WAITING: usize = 8;
/// Names further apart than this are no misspellings of each other.
pub(super) const NEAR: usize = 3;
/// Places of a name that are compared with one of the other: with [`NEAR`] edits no two correspond
/// that lie further apart.
pub(super) const BAND: usize = 2 * NEAR + 1;
/// Subscriptions that one step looks at, and selectors of each.
const STEP: usize = 64;
const SELECTORS: usize = 64;
/// Work after which a step ends: some 50 microseconds.
const STEP_WORK: usize = 32 * 1024;
/// What looking at a subscription, and at a selector of it, costs besides the bytes compared.
const SUBSCRIPTION: usize = 16;
const SELECTOR: usize = 8;

impl QueuesWithoutListeners {
    pub(super) fn new() -> Self {
        Self {
            waiting: Mutex::new((VecDeque::new(), 0)),
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

impl NearestName {
    /// Work of all searches of a second: some 5 ms of it, and 170,000 subscriptions of one selector.
    pub(crate) const WORK: usize = 4 * 1024 * 1024;

    /// Begins a search of so much work at most.
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

    /// Returns the nearest selector that was found, where one is near.
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

/// Returns how many bytes have to be replaced, put in or taken out to make one name of the other, in
/// whatever case; `None` where it is more than `most`, which [`NEAR`] is at most. Adds the bytes that
/// it compared to `work`.
pub(super) fn distance(name: &[u8], other: &[u8], most: usize, work: &mut usize) -> Option<usize> {
    let differ = |a: &u8, b: &u8| !a.eq_ignore_ascii_case(b);
    // Only what lies between the first difference and the last one is looked at in both ways.
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
    // Place `k` of a row stands for the first `row + k - NEAR` bytes of the other name.
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

impl Hub {
    /// Takes the names that wait, and the number of those that there was no room for.
    pub(crate) fn take_queues_without_listeners(&self) -> (VecDeque<QueueAddress>, u64) {
        std::mem::take(&mut *lock(&self.no_listeners.waiting))
    }

    /// Goes on with a search; returns whether there is more to look at, and work left to do so.
    pub(crate) fn search_nearest(&self, search: &mut NearestName) -> bool {
        use std::ops::Bound::{Excluded, Unbounded};
        if search.is_over() {
            return false;
        }
        let some: Vec<Arc<Subscription>> = {
            let subscriptions = lock(&self.subscriptions);
            let from = search.after.map_or(Unbounded, Excluded);
            let range = subscriptions.range((from, Unbounded)).take(STEP);
            range.map(|(_, one)| Arc::clone(one)).collect()
        };
        let enough = search.work.saturating_add(STEP_WORK);
        for one in &some {
            search.after = Some(one.id);
            search.compare(one);
            if search.is_over() || search.work >= enough {
                break;
            }
        }
        !some.is_empty()
    }
}
