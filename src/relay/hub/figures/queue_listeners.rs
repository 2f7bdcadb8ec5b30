//! What operators are told about the listeners of one queue, and about those of the whole relay that
//! are silent, busy or polling.
//!
//! Of a queue with very many listeners only the first ones are looked at. A survey of all listeners
//! goes in steps, and names a bounded number of them.

use std::{cmp::Reverse, time::Duration};

use super::super::{
    core::Hub,
    figures::QueueStats,
    listeners::Listeners,
    queue::QueueEntry,
    subscription::{Subscription, SubscriptionId},
};
use crate::{
    base::clock::Tick,
    types::{ListenerId, QueueAddress, Selector},
};

/// One listener of a queue.
#[derive(Debug, Clone)]
pub(crate) struct QueueListener {
    pub(crate) listener_id: ListenerId,
    /// It is busy with the queue.
    pub(crate) busy: bool,
    /// The same, and it runs as many dequeue tasks as it may.
    pub(crate) is_full: bool,
    pub(crate) polling: bool,
    /// It was woken and has not reported for this long.
    pub(crate) silent_for: Option<Duration>,
    /// How long it has been handling the oldest of its messages of the queue.
    pub(crate) busy_for: Option<Duration>,
}

/// The listeners of the relay that may need attention.
#[derive(Debug, Default)]
pub(crate) struct ListenerSurvey {
    pub(crate) listeners: usize,
    pub(crate) polling: usize,
    /// The longest silent and the longest busy ones.
    pub(crate) silent: Vec<SurveyedListener>,
    pub(crate) busy: Vec<SurveyedListener>,
}

#[derive(Debug)]
pub(crate) struct SurveyedListener {
    pub(crate) listener_id: ListenerId,
    /// Its first selector.
    pub(crate) queue: Option<Selector>,
    /// How long it has been silent, or busy.
    pub(crate) span: Duration,
}

/// Looked-at listeners of one queue: some tenths of a millisecond.
const LISTENERS: usize = 1000;
/// Named listeners of each kind in a survey.
const NAMED: usize = 8;
/// Subscriptions in one step of a survey.
const STEP: usize = 64;
/// A listener that handles one message for this long is named in a survey.
const LONG: Duration = Duration::from_secs(60);

impl Hub {
    /// Returns the figures of a queue, and its first listeners; no figures if the queue is not known,
    /// whose listeners are those of patterns.
    pub(crate) fn queue_listeners(
        &self,
        queue: &QueueAddress,
        now: Tick,
    ) -> (Option<QueueStats>, Vec<QueueListener>) {
        let entry = self.entries.get(queue);
        let subscriptions = match &entry {
            Some(entry) => {
                let state = entry.lock_with_nodes(now);
                // Those that name the queue, those of patterns, then members.
                let mut found = state.outside.first(LISTENERS);
                for group in state.coordinator.iter().flat_map(|one| one.groups()) {
                    found.extend(group.members.all.first(LISTENERS - found.len()));
                }
                found
            }
            None => Listeners::of(self.shared.patterns.matching(queue)).first(LISTENERS),
        };
        let listeners = subscriptions.iter();
        let listeners = listeners.map(|one| one.on_queue(entry.as_deref(), now));
        (
            entry.as_ref().map(|entry| entry.stats(now)),
            listeners.collect(),
        )
    }

    /// Surveys some listeners after the given one. Returns where to continue, or `None` at the end.
    pub(crate) fn survey(
        &self,
        after: Option<SubscriptionId>,
        survey: &mut ListenerSurvey,
        now: Tick,
    ) -> Option<SubscriptionId> {
        let some = self.subscriptions_after(after, STEP);
        for one in &some {
            let (silent_for, busy_for) = {
                let cursors = one.lock();
                (cursors.silent_for(one, now), cursors.busy_for(now))
            };
            survey.listeners += 1;
            survey.polling += usize::from(one.mailbox.polls(now));
            let named = |span| SurveyedListener {
                listener_id: one.listener_id.clone(),
                queue: one.selectors.first().cloned(),
                span,
            };
            survey.silent.extend(silent_for.map(named));
            let busy_for = busy_for.filter(|span| *span >= LONG);
            survey.busy.extend(busy_for.map(named));
        }
        for named in [&mut survey.silent, &mut survey.busy] {
            named.sort_by_key(|one| Reverse(one.span));
            named.truncate(NAMED);
        }
        some.last().filter(|_| some.len() == STEP).map(|one| one.id)
    }
}

impl Subscription {
    fn on_queue(&self, entry: Option<&QueueEntry>, now: Tick) -> QueueListener {
        let inbox = self.lock();
        let cursor = entry.and_then(|entry| inbox.get(entry));
        let woken = cursor.is_some_and(|one| one.taken.drained_sequence < one.taken.woken_sequence);
        let busy_since = cursor.and_then(|cursor| cursor.taken.busy_since);
        let tasks = 1..=inbox.active_dequeue_tasks;
        QueueListener {
            listener_id: self.listener_id.clone(),
            busy: busy_since.is_some(),
            is_full: busy_since.is_some() && tasks.contains(&inbox.total_dequeue_tasks),
            polling: self.mailbox.polls(now),
            silent_for: inbox.silent_for(self, now).filter(|_| woken),
            busy_for: busy_since.map(|since| now.since(since)),
        }
    }
}
