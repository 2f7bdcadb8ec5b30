//! Figures of queues and listeners for operators.
//!
//! Pages are ordered by the content of their tokens, so a queue that stays is listed exactly once,
//! however others come and go.

pub(super) mod decisions;
pub(super) mod load;
pub(super) mod lost;
mod no_subscribers;
pub(super) mod queue_listeners;
pub(super) mod ranking;

use std::{
    ops::Bound::{Excluded, Included, Unbounded},
    sync::Arc,
    time::Duration,
};

use super::{
    core::Hub,
    counters::saturate,
    queue::QueueEntry,
    subscription::{Subscription, SubscriptionId},
    sync::lock,
};
use crate::{
    base::clock::Tick,
    types::{GroupName, ListenerId, QueueAddress, Selector},
};

/// Names that one step compares with a filter: about a millisecond.
const NAMES_PER_STEP: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueueStats {
    pub(crate) address: QueueAddress,
    pub(crate) sequence: u64,
    pub(crate) notifications: u64,
    pub(crate) payload_size: u64,
    pub(crate) messages: u64,
    pub(crate) listeners: usize,
    pub(crate) timers: usize,
    pub(crate) idle_for: Option<Duration>,
    /// The newest depth that a listener read, and its age.
    pub(crate) depth: Option<(u64, Duration)>,
    /// Messages that are not known to be handled.
    pub(crate) backlog: u64,
    /// No listener has reported on it.
    pub(crate) in_doubt: bool,
    /// Streams whose newest report on it is BUSY.
    pub(crate) busy: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListenerStats {
    pub(crate) listener_id: ListenerId,
    pub(crate) subscription: SubscriptionId,
    /// Of one that was lost only some.
    pub(crate) selectors: Vec<Selector>,
    pub(crate) capacity: u32,
    pub(crate) visibility_timeout: Duration,
    pub(crate) connected_for: Duration,
    /// The number of all its selectors.
    pub(crate) queues: usize,
    pub(crate) busy: usize,
    pub(crate) behind: usize,
    pub(crate) active_dequeue_tasks: u32,
    pub(crate) total_dequeue_tasks: u32,
    pub(crate) group: Option<GroupName>,
    pub(crate) polling: bool,
    /// It was woken and has not reported for this long.
    pub(crate) silent_for: Option<Duration>,
    /// How long it has been handling the oldest of its messages.
    pub(crate) busy_for: Option<Duration>,
    /// It was lost this long ago.
    pub(crate) lost_for: Option<Duration>,
    /// It starts workers in place of reading its queues.
    pub(crate) agent: bool,
}

impl Hub {
    /// Returns the first `count` queues whose addresses are not before `from`, by address.
    #[cfg(test)]
    pub(crate) fn queues(&self, from: &str, count: usize, now: Tick) -> Vec<QueueStats> {
        let entries = self.entries.range(Included(from), count);
        entries.iter().map(|entry| entry.stats(now)).collect()
    }

    /// Returns the first queues whose addresses contain `filter`, among some from `from` on, and the
    /// last address that was compared; `None`: all were.
    pub(crate) fn find_queues(
        &self,
        from: &str,
        filter: &str,
        count: usize,
        now: Tick,
    ) -> (Vec<QueueStats>, Option<QueueAddress>) {
        let mut found = Vec::new();
        let entries = self.entries.range(Included(from), NAMES_PER_STEP);
        for (visited, entry) in (1..).zip(&entries) {
            if entry.address().as_str().contains(filter) {
                found.push(entry.stats(now));
            }
            if visited == NAMES_PER_STEP || found.len() == count {
                return (found, Some(entry.address().clone()));
            }
        }
        (found, None)
    }

    /// Returns those of the queues that are known.
    pub(crate) fn named_queues(&self, names: &[QueueAddress], now: Tick) -> Vec<QueueStats> {
        let entries = names.iter().filter_map(|name| self.entries.get(name));
        entries.map(|entry| entry.stats(now)).collect()
    }

    /// Returns the first `count` subscriptions after the given one, by id.
    pub(crate) fn listeners(
        &self,
        after: Option<SubscriptionId>,
        count: usize,
        now: Tick,
    ) -> Vec<ListenerStats> {
        let chosen = self.subscriptions_after(after, count);
        let stats = chosen.iter().map(|subscription| subscription.stats(now));
        stats.collect()
    }

    pub(super) fn subscriptions_after(
        &self,
        after: Option<SubscriptionId>,
        count: usize,
    ) -> Vec<Arc<Subscription>> {
        let subscriptions = lock(&self.subscriptions);
        let from = after.map_or(Unbounded, Excluded);
        let chosen = subscriptions.range((from, Unbounded)).take(count);
        chosen.map(|(_, one)| Arc::clone(one)).collect()
    }
}

impl QueueEntry {
    pub(super) fn stats(self: &Arc<Self>, now: Tick) -> QueueStats {
        let state = self.lock_with_nodes(now);
        let (messages, reported_at) = state.depth;
        let depth = Some((messages, now.since(reported_at)));
        QueueStats {
            address: self.address().clone(),
            sequence: state.counters.sequence,
            notifications: saturate(state.counters.notifications),
            payload_size: saturate(state.counters.payload),
            messages: saturate(state.counters.messages),
            listeners: state.listeners(),
            timers: state.timers.len(),
            idle_for: (state.counters.sequence > state.start).then(|| now.since(state.active_at)),
            depth: depth.filter(|_| reported_at != Tick::NEVER),
            backlog: state.backlog(),
            in_doubt: !state.heard,
            busy: state.busy,
        }
    }
}

impl Subscription {
    pub(super) fn stats(&self, now: Tick) -> ListenerStats {
        let inbox = self.lock();
        let (busy, behind) = inbox.busy_and_behind(self, now);
        ListenerStats {
            listener_id: self.listener_id.clone(),
            subscription: self.id,
            selectors: self.selectors.to_vec(),
            capacity: self.mailbox.capacity,
            visibility_timeout: self.visibility_timeout,
            connected_for: now.since(self.since),
            queues: self.selectors.len(),
            busy,
            behind,
            active_dequeue_tasks: inbox.active_dequeue_tasks,
            total_dequeue_tasks: inbox.total_dequeue_tasks,
            group: self.group.clone(),
            polling: self.mailbox.polls(now),
            silent_for: inbox.silent_for(self, now),
            busy_for: inbox.busy_for(now),
            lost_for: None,
            agent: self.mailbox.is_agent,
        }
    }
}
