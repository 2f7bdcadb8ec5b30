//! Queues that were notified and have no listener, for what is wrong now.
//!
//! Matching is exact, so a misspelled queue is notified for ever and wakes no listener. A
//! notification only adds the name to a list of bounded length.

use std::time::Duration;

use super::super::{core::Hub, figures::QueueStats, queue::QueueState, sync::lock};
use crate::{base::clock::Tick, types::QueueAddress};

/// Listed queues without listeners.
const UNSERVED: usize = 32;
/// A queue that was last notified before this is not listed.
const RECENT: Duration = Duration::from_secs(3600);

impl Hub {
    /// A queue without listeners is notified: it is in the list once until a listener joins.
    pub(in super::super) fn note_unserved(&self, state: &mut QueueState, queue: &QueueAddress) {
        if !std::mem::replace(&mut state.is_unserved, true) {
            let mut unserved = lock(&self.unserved);
            // It is listed still if it had a listener meanwhile.
            unserved.retain(|known| known != queue);
            if unserved.len() == UNSERVED {
                unserved.pop_front();
            }
            unserved.push_back(queue.clone());
        }
    }

    /// Returns the queues that were last notified without a listener and have none now, newest first.
    pub(crate) fn unserved_queues(&self, now: Tick) -> Vec<QueueStats> {
        let listed = lock(&self.unserved).clone();
        let entries = listed.iter().rev();
        let entries = entries.filter_map(|queue| self.entries.get(queue));
        // It had no listener since that notification.
        let unserved = entries.filter(|entry| entry.lock().is_unserved);
        let unserved = unserved.map(|entry| entry.stats(now));
        let unserved = unserved.filter(|stats| stats.listeners == 0);
        let is_recent = |stats: &QueueStats| stats.idle_for.is_some_and(|age| age < RECENT);
        unserved.filter(is_recent).collect()
    }
}
