//! The newest decisions about the queues that an operator watches.
//!
//! The first question about a queue begins the noting, which ends ten minutes after the newest one. At
//! most 64 queues are noted; a further one replaces the queue whose question is the oldest. An entry
//! keeps one bit, so that any other queue pays only its comparison. Locks: the log is a leaf, taken
//! under an entry's lock.

use std::{
    collections::{HashMap, VecDeque},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use super::super::{
    core::Hub,
    queue::{QueueEntry, QueueState},
    subscription::Subscription,
    sync::{Mutex, lock},
};
use crate::{
    base::clock::Tick,
    types::{GroupName, ListenerId, QueueAddress, WakeReason},
};

/// What the relay decided about a queue, or learned of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) at: Tick,
    pub(crate) kind: DecisionKind,
    pub(crate) sequence: u64,
    /// `None` for a notification.
    pub(crate) listener: Option<ListenerId>,
    pub(crate) group: Option<GroupName>,
    /// Of a wake-up; `Timed` also for a notification whose delay has ended.
    pub(crate) reason: WakeReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecisionKind {
    /// A notification was counted here.
    Notified,
    Woken,
    /// A group member was not woken, because other members have the work.
    StoodAside,
    /// A member was woken for work that another one had not confirmed.
    Reassigned,
    /// The sentinel's check.
    Checked,
    Busy,
    /// The listener found no more messages.
    Empty,
    Joined,
    Left,
}

/// The decisions about one queue, oldest first.
#[derive(Debug)]
pub(crate) struct NotedDecisions {
    pub(crate) noted_for: Duration,
    pub(crate) decisions: Vec<Decision>,
}

/// The noted queues of a hub.
#[derive(Debug, Default)]
pub(crate) struct DecisionLog {
    queues: Mutex<HashMap<QueueAddress, NotedQueue>>,
    /// Number of noted queues: a new entry usually has none to look up.
    count: AtomicUsize,
}

#[derive(Debug)]
struct NotedQueue {
    since: Tick,
    asked_at: Tick,
    decisions: VecDeque<Decision>,
}

/// Decisions of a queue: at most 20 KiB with the longest names.
const KEPT: usize = 32;
/// Noted queues: 1.3 MiB at worst.
const QUEUES: usize = 64;
const NOTED_FOR: Duration = Duration::from_secs(600);
/// Members of a large group that are noted as standing aside of one notification. More of them would
/// displace all other decisions.
const ASIDE: usize = 3;

impl Hub {
    /// Notes the decisions about a queue for ten minutes; returns those so far.
    pub(crate) fn noted_decisions(&self, queue: &QueueAddress, now: Tick) -> NotedDecisions {
        let noted = self.shared.decisions.ask(queue, now);
        if let Some(entry) = self.entries.get(queue) {
            entry.lock().is_noted = true;
        }
        noted
    }

    /// Notes a count of this relay's own, and the group members that were not woken for it. `before`
    /// is the number of own causes before the count.
    #[cold]
    pub(in super::super) fn note_count(
        &self,
        entry: &QueueEntry,
        state: &mut QueueState,
        before: u64,
        now: Tick,
    ) {
        let sequence = state.counters.sequence;
        if state.own_causes() > before {
            let timed = state.notified != sequence;
            entry.note(state, |sequence| Decision {
                at: now,
                kind: DecisionKind::Notified,
                sequence,
                listener: None,
                group: None,
                reason: match timed {
                    true => WakeReason::Timed,
                    false => WakeReason::Unspecified,
                },
            });
        }
        let groups = state.coordinator.iter().flat_map(|one| one.groups());
        let aside: Vec<_> = groups
            .flat_map(|group| group.not_woken(sequence, ASIDE))
            .collect();
        for member in aside {
            entry.note(state, |sequence| {
                Decision::about(&member, DecisionKind::StoodAside, sequence, now)
            });
        }
    }
}

impl QueueEntry {
    /// Notes a decision, if an operator watches the queue. `decision` gets the queue's sequence.
    pub(in super::super) fn note(
        &self,
        state: &mut QueueState,
        decision: impl FnOnce(u64) -> Decision,
    ) {
        if !state.is_noted {
            return;
        }
        let decision = decision(state.counters.sequence);
        state.is_noted = self.shared.decisions.add(self.address(), decision);
    }
}

impl Decision {
    /// Makes a decision about a listener.
    pub(crate) fn about(
        listener: &Subscription,
        kind: DecisionKind,
        sequence: u64,
        now: Tick,
    ) -> Self {
        Self {
            at: now,
            kind,
            sequence,
            listener: Some(listener.listener_id.clone()),
            group: listener.group.clone(),
            reason: WakeReason::Unspecified,
        }
    }

    /// Makes the decision of a wake-up that the listener's stream has taken.
    pub(crate) fn woken(
        listener: &Subscription,
        reason: WakeReason,
        sequence: u64,
        now: Tick,
    ) -> Self {
        let kind = match reason {
            WakeReason::Sentinel => DecisionKind::Checked,
            WakeReason::Reassigned => DecisionKind::Reassigned,
            _ => DecisionKind::Woken,
        };
        Self {
            reason,
            ..Self::about(listener, kind, sequence, now)
        }
    }

    fn repeats(&self, earlier: &Self) -> bool {
        let subject = |one: &Self| (one.kind, one.sequence, one.reason);
        subject(self) == subject(earlier)
            && (&self.listener, &self.group) == (&earlier.listener, &earlier.group)
    }
}

impl DecisionLog {
    /// Returns whether an operator watches the queue.
    pub(in super::super) fn is_noted(&self, queue: &QueueAddress) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && lock(&self.queues).contains_key(queue)
    }

    fn ask(&self, queue: &QueueAddress, now: Tick) -> NotedDecisions {
        let mut queues = lock(&self.queues);
        queues.retain(|_, noted| noted.is_current(now));
        if !queues.contains_key(queue) && queues.len() == QUEUES {
            let oldest = queues.iter().min_by_key(|(_, noted)| noted.asked_at);
            if let Some(oldest) = oldest.map(|(queue, _)| queue.clone()) {
                queues.remove(&oldest);
            }
        }
        let noted = queues.entry(queue.clone()).or_insert_with(|| NotedQueue {
            since: now,
            asked_at: now,
            decisions: VecDeque::new(),
        });
        noted.asked_at = now;
        let decisions = NotedDecisions {
            noted_for: now.since(noted.since),
            decisions: noted.decisions.iter().cloned().collect(),
        };
        self.count.store(queues.len(), Ordering::Relaxed);
        decisions
    }

    /// Adds a decision; `false` if the queue is not noted any longer.
    fn add(&self, queue: &QueueAddress, decision: Decision) -> bool {
        let mut queues = lock(&self.queues);
        let noted = queues.get_mut(queue);
        let Some(noted) = noted.filter(|noted| noted.is_current(decision.at)) else {
            queues.remove(queue);
            self.count.store(queues.len(), Ordering::Relaxed);
            return false;
        };
        // A busy listener reports after each get.
        if noted
            .decisions
            .back()
            .is_some_and(|newest| decision.repeats(newest))
        {
            noted.decisions.pop_back();
        }
        if noted.decisions.len() == KEPT {
            noted.decisions.pop_front();
        }
        noted.decisions.push_back(decision);
        true
    }
}

impl NotedQueue {
    fn is_current(&self, now: Tick) -> bool {
        now.since(self.asked_at) < NOTED_FOR
    }
}
