//! Queues that were notified and have no listener, for what is wrong now.
//!
//! Matching is exact, so a misspelled queue is notified for ever and wakes no listener. A
//! notification only adds the name to a list of bounded length.

use std::{collections::VecDeque, time::Duration};

use super::super::{
    core::Hub,
    queue::QueueState,
    sync::{Mutex, lock},
};
use crate::{base::clock::Tick, types::QueueAddress};

/// The queues that last began to be notified without a listener, each once.
#[derive(Default)]
pub(crate) struct UnservedQueues(Mutex<VecDeque<QueueAddress>>);

/// A queue with notifications and without a listener.
#[derive(Debug)]
pub(crate) struct UnservedQueue {
    pub(crate) queue: QueueAddress,
    /// Since its entry was made.
    pub(crate) notifications: u64,
    /// Time since the newest one.
    pub(crate) notified_before: Duration,
}

/// Listed queues without listeners.
const UNSERVED: usize = 32;
/// A queue that was last notified before this is not listed.
const RECENT: Duration = Duration::from_secs(3600);

impl Hub {
    /// A queue without listeners is notified: it is in the list once until a listener joins.
    pub(in super::super) fn note_unserved(&self, state: &mut QueueState, queue: &QueueAddress) {
        if !std::mem::replace(&mut state.is_unserved, true) {
            let mut unserved = lock(&self.unserved.0);
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
        let listed = lock(&self.unserved.0).clone();
        let mut found = Vec::new();
        for queue in listed {
            let entry = self.entries.get(&queue);
            let stats = entry.map(|entry| entry.stats(now));
            let Some(stats) = stats.filter(|stats| stats.listeners == 0) else {
                lock(&self.unserved.0).retain(|known| *known != queue);
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
