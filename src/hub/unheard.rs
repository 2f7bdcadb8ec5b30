//! Queues that were notified and have no listener: told once for each queue, with the nearest name
//! that is listened to.
//!
//! Matching is exact, so a misspelled queue is notified for ever and wakes nobody. A notification only
//! leaves the name here, in a list of bounded length; the search for a near name, which compares it
//! with every selector, is a task's, in steps.

use std::{collections::VecDeque, sync::Arc};

use super::{
    core::Hub,
    subscription::{Subscription, SubscriptionId},
    sync::{Mutex, lock},
};
use crate::words::{QueueAddress, Selector};

/// The names that wait to be told.
pub(super) struct Unheard {
    waiting: Mutex<(VecDeque<QueueAddress>, u64)>,
}

/// A search for the selector that is nearest to a name.
pub(crate) struct NearestName {
    name: String,
    after: Option<SubscriptionId>,
    nearest: Option<(usize, Selector)>,
}

/// Names that wait at most; of the others only the number is told.
const WAITING: usize = 8;
/// Names further apart than this are no misspellings of each other.
const NEAR: usize = 3;
/// Subscriptions, and selectors of each, that one step looks at.
const STEP: usize = 64;
const SELECTORS: usize = 64;

impl Unheard {
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
    pub(crate) fn new(queue: &QueueAddress) -> Self {
        Self {
            name: queue.to_string().to_lowercase(),
            after: None,
            nearest: None,
        }
    }

    /// Returns the nearest selector, where one is near.
    pub(crate) fn found(self) -> Option<Selector> {
        self.nearest.map(|(_, selector)| selector)
    }

    fn compare(&mut self, subscription: &Subscription) {
        for selector in subscription.selectors.iter().take(SELECTORS) {
            let text = selector.as_str();
            // Names whose lengths differ by more are further apart.
            if text.len().abs_diff(self.name.len()) > NEAR {
                continue;
            }
            let far = strsim::levenshtein(&self.name, &text.to_lowercase());
            let best = self.nearest.as_ref().map_or(NEAR + 1, |(far, _)| *far);
            if far < best {
                self.nearest = Some((far, selector.clone()));
            }
        }
    }
}

impl Hub {
    /// Takes the names that wait, and the number of those that there was no room for.
    pub(crate) fn take_unheard(&self) -> (VecDeque<QueueAddress>, u64) {
        std::mem::take(&mut *lock(&self.unheard.waiting))
    }

    /// Goes on with a search; returns whether there is more to look at.
    pub(crate) fn search_nearest(&self, search: &mut NearestName) -> bool {
        use std::ops::Bound::{Excluded, Unbounded};
        let some: Vec<Arc<Subscription>> = {
            let subscriptions = lock(&self.subscriptions);
            let from = search.after.map_or(Unbounded, Excluded);
            let range = subscriptions.range((from, Unbounded)).take(STEP);
            range.map(|(_, one)| Arc::clone(one)).collect()
        };
        search.after = some.last().map(|one| one.id);
        some.iter().for_each(|one| search.compare(one));
        !some.is_empty()
    }
}
