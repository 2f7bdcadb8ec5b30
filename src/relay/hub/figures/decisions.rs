//! The newest decisions about the queues that an operator watches.
//!
//! The first question about a known queue begins the noting, which ends ten minutes after the newest one.
//! The decisions are in the queue's entry. The 64 queues of the newest questions are noted.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::super::{core::Hub, queue::QueueState, subscription::Subscription, sync::lock};
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

/// The decisions about one queue.
#[derive(Debug, Clone)]
pub(crate) struct NotedDecisions {
    since: Tick,
    asked_at: Tick,
    /// Oldest first.
    pub(crate) decisions: VecDeque<Decision>,
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
    /// Notes the decisions about a queue for ten minutes, if it is known; returns those so far.
    pub(crate) fn noted_decisions(&self, queue: &QueueAddress, now: Tick) -> NotedDecisions {
        let new = NotedDecisions {
            since: now,
            asked_at: now,
            decisions: VecDeque::new(),
        };
        let Some(entry) = self.entries.get(queue) else {
            return new;
        };
        let mut asked = lock(&self.noted);
        asked.retain(|known| !Arc::ptr_eq(known, &entry));
        asked.push_back(Arc::clone(&entry));
        let is_full = asked.len() > QUEUES;
        let oldest = if is_full { asked.pop_front() } else { None };
        drop(asked);
        if let Some(oldest) = oldest {
            oldest.lock().noted = None;
        }
        let mut state = entry.lock();
        _ = state.noted.take_if(|noted| !noted.is_current(now));
        let noted = state.noted.get_or_insert_with(|| Box::new(new));
        noted.asked_at = now;
        NotedDecisions::clone(noted)
    }
}

impl NotedDecisions {
    /// Returns for how long the queue has been noted.
    pub(crate) fn noted_for(&self) -> Duration {
        self.asked_at.since(self.since)
    }

    fn is_current(&self, now: Tick) -> bool {
        now.since(self.asked_at) < NOTED_FOR
    }
}

impl QueueState {
    /// Notes a decision, if an operator watches the queue. The reason of a wake-up says which kind it is.
    pub(in super::super) fn note(
        &mut self,
        kind: DecisionKind,
        listener: Option<&Subscription>,
        reason: WakeReason,
        sequence: u64,
        now: Tick,
    ) {
        let noted = self.noted.as_mut();
        let Some(noted) = noted.filter(|noted| noted.is_current(now)) else {
            self.noted = None;
            return;
        };
        let decision = Decision {
            at: now,
            kind: match reason {
                WakeReason::Sentinel => DecisionKind::Checked,
                WakeReason::Reassigned => DecisionKind::Reassigned,
                _ => kind,
            },
            sequence,
            listener: listener.map(|one| one.listener_id.clone()),
            group: listener.and_then(|one| one.group.clone()),
            reason,
        };
        let decisions = &mut noted.decisions;
        // A busy listener reports after each get.
        decisions.pop_back_if(|newest| {
            Decision {
                at: now,
                ..newest.clone()
            } == decision
        });
        if decisions.len() == KEPT {
            decisions.pop_front();
        }
        decisions.push_back(decision);
    }

    /// Notes a count of this relay's own, and the group members that were not woken for it. `before`
    /// is the number of own causes before the count.
    #[cold]
    pub(in super::super) fn note_count(&mut self, before: u64, now: Tick) {
        let sequence = self.counters.sequence;
        if self.own_causes() > before {
            let reason = match self.notified == sequence {
                true => WakeReason::Unspecified,
                false => WakeReason::Timed,
            };
            self.note(DecisionKind::Notified, None, reason, sequence, now);
        }
        let groups = self.coordinator.iter().flat_map(|one| one.groups());
        let aside = groups.flat_map(|group| group.not_woken(sequence, ASIDE));
        for member in aside.collect::<Vec<_>>() {
            let (kind, reason) = (DecisionKind::StoodAside, WakeReason::Unspecified);
            self.note(kind, Some(&*member), reason, sequence, now);
        }
    }
}
