//! Queues that were notified and have no listener: logged once for each queue.
//!
//! Matching is exact, so a misspelled queue is notified for ever and wakes no listener. A
//! notification only adds the name to a list of bounded length.

use std::{collections::VecDeque, time::Duration};

use super::super::{
    core::Hub,
    queue::{EntryBits, QueueState},
    sync::{Mutex, lock},
};
use crate::{base::clock::Tick, types::QueueAddress};

/// The names that wait to be logged, and the number of further ones.
pub(crate) struct QueuesWithoutListeners {
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

/// The most waiting names; of further ones only the number is logged.
const WAITING: usize = 8;
/// Listed queues without listeners.
const UNSERVED: usize = 32;
/// A queue that was last notified before this is not listed.
const RECENT: Duration = Duration::from_secs(3600);

impl QueuesWithoutListeners {
    /// Takes the waiting names, and the number of further ones.
    pub(crate) fn take(&self) -> (VecDeque<QueueAddress>, u64) {
        std::mem::take(&mut *lock(&self.waiting))
    }

    pub(crate) fn new() -> Self {
        Self {
            waiting: Mutex::new((VecDeque::new(), 0)),
            unserved: Mutex::default(),
        }
    }

    /// Adds a name.
    pub(crate) fn add(&self, queue: &QueueAddress) {
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
    pub(in super::super) fn note_unserved(&self, state: &mut QueueState, queue: &QueueAddress) {
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
