//! Why a queue is, or is not, served: gathers what the relays of the cluster know about it (C13).
//!
//! The sentences are made by `findings`. The question makes each relay note its decisions about the
//! queue.

use super::{
    findings::{self, RelayFacts},
    stats::StatsSource,
};
use crate::{
    base::clock::Tick,
    relay::{
        hub::{Decision, DecisionKind, QueueListener},
        runtime::SilentRelays,
        server::lists::{
            ask,
            pages::{Entry as _, count, queue as queue_entry},
        },
    },
    types::QueueAddress,
    wire::{
        link::{QueueFacts, peer_reply::Answer, peer_request::Call},
        proto, reason_to_wire, span_from_wire, span_to_wire,
    },
};

/// Names of listeners in the facts of one relay: 25 KiB of the longest.
const NAMES: usize = 200;
/// Findings in the facts of one relay: 16 KiB of the longest.
const FINDINGS: usize = 24;
/// Decisions of all relays in an answer.
const DECISIONS: usize = 32;
/// Lost listeners that are looked at: all that a relay remembers.
const LOST: usize = 256;

impl StatsSource {
    /// Returns what is wrong with the relay and its listeners, worst first. `unreadable_store` is why the
    /// store of the flags cannot be read.
    pub(super) async fn findings(&self, unreadable_store: Option<String>) -> Vec<proto::Finding> {
        let facts = RelayFacts {
            store: unreadable_store,
            ..self.relay_facts()
        };
        let survey = self.relay.survey().await;
        let lost = self
            .relay
            .hub()
            .lost_listeners(None, LOST, self.relay.now());
        findings::of_relay(&facts, &survey, &lost)
    }

    /// Explains a queue; in a cluster with what the other relays know.
    pub(super) async fn explain(&self, queue: &QueueAddress) -> proto::ExplainResponse {
        let mut facts = self.own_facts(queue);
        let call = Call::Explain(proto::ExplainRequest {
            storage_account: queue.storage_account().to_owned(),
            queue_name: queue.queue_name().to_owned(),
        });
        let mut silent = SilentRelays::default();
        let others = ask(&self.relay, call, &mut silent, |answer| match answer {
            Answer::Explain(facts) => Some(facts),
            _ => None,
        });
        for (_, other) in others.await {
            facts.add(other);
        }
        let unanswered_relays: Vec<_> = silent.ids.into_iter().collect();
        // The newest of all relays, oldest first.
        let mut decisions = std::mem::take(&mut facts.decisions);
        decisions.sort_by_key(|one| std::cmp::Reverse(span_from_wire(one.ago)));
        proto::ExplainResponse {
            findings: findings::of_queue(queue, &facts, &unanswered_relays),
            queue: facts.queue,
            decisions: decisions.split_off(decisions.len().saturating_sub(DECISIONS)),
            noted_for: facts.noted_for,
            unanswered_relays,
        }
    }

    /// Returns what this relay knows about a queue. It notes its decisions about the queue from now on.
    pub(super) fn own_facts(&self, queue: &QueueAddress) -> QueueFacts {
        let relay = &self.relay;
        let (hub, now) = (relay.hub(), relay.now());
        let noted = hub.noted_decisions(queue, now);
        let (stats, listeners) = hub.queue_listeners(queue, now);
        let mut lost = hub.lost_listeners(None, LOST, now);
        lost.retain(|one| one.selectors.iter().any(|selector| selector.matches(queue)));
        let mut found = findings::of_listeners(queue, relay.relay_id(), &listeners, &lost);
        found.extend(findings::of_state(&self.relay_facts()));
        found.truncate(FINDINGS);
        let number =
            |is: fn(&QueueListener) -> bool| count(listeners.iter().filter(|one| is(one)).count());
        let all = stats
            .as_ref()
            .map_or(listeners.len(), |stats| stats.listeners);
        let ids = listeners.iter().take(NAMES);
        let decisions = noted.decisions.iter();
        QueueFacts {
            queue: stats.as_ref().map(queue_entry),
            listeners: count(all),
            busy: number(|one| one.busy),
            at_capacity: number(|one| one.is_full),
            polling: number(|one| one.polling),
            silent: number(|one| one.silent_for.is_some()),
            listener_ids: ids.map(|one| one.listener_id.to_string()).collect(),
            findings: found,
            decisions: decisions
                .map(|decision| decision_to_wire(decision, relay.relay_id(), now))
                .collect(),
            noted_for: Some(span_to_wire(noted.noted_for())),
        }
    }

    fn relay_facts(&self) -> RelayFacts {
        let relay = &self.relay;
        let mut limits = relay.hub().limits(relay.now()).to_vec();
        let mut short_of_memory = None;
        if let Some(connections) = self.connections.get() {
            limits.extend(connections.limits());
            let memory = &connections.memory;
            short_of_memory = memory.limit().filter(|_| memory.is_short());
        }
        let now = relay.now();
        let drain = relay.drain_state();
        RelayFacts {
            relay_id: relay.relay_id().to_owned(),
            limits,
            short_of_memory,
            draining: drain.map(|drain| (drain.began + drain.span).since(now)),
            is_cut_off: relay.cluster_state().is_some_and(|state| state.degraded),
            ..RelayFacts::default()
        }
    }
}

impl QueueFacts {
    /// Adds what another relay knows.
    pub(super) fn add(&mut self, other: Self) {
        match (&mut self.queue, other.queue) {
            (Some(known), Some(other)) => known.add(other),
            (_, None) => {}
            (known, other) => *known = other,
        }
        self.listeners = self.listeners.saturating_add(other.listeners);
        self.busy = self.busy.saturating_add(other.busy);
        self.at_capacity = self.at_capacity.saturating_add(other.at_capacity);
        self.polling = self.polling.saturating_add(other.polling);
        self.silent = self.silent.saturating_add(other.silent);
        self.listener_ids.extend(other.listener_ids);
        self.findings.extend(other.findings);
        self.decisions.extend(other.decisions);
    }
}

fn decision_to_wire(decision: &Decision, relay_id: &str, now: Tick) -> proto::Decision {
    let kind = match decision.kind {
        DecisionKind::Notified => proto::DecisionKind::Notified,
        DecisionKind::Woken => proto::DecisionKind::Woken,
        DecisionKind::StoodAside => proto::DecisionKind::StoodAside,
        DecisionKind::Reassigned => proto::DecisionKind::Reassigned,
        DecisionKind::Checked => proto::DecisionKind::Checked,
        DecisionKind::Busy => proto::DecisionKind::Busy,
        DecisionKind::Empty => proto::DecisionKind::Empty,
        DecisionKind::Joined => proto::DecisionKind::Joined,
        DecisionKind::Left => proto::DecisionKind::Left,
    };
    let text = |name: Option<String>| name.unwrap_or_default();
    proto::Decision {
        ago: Some(span_to_wire(now.since(decision.at))),
        kind: kind.into(),
        sequence: decision.sequence,
        listener_id: text(decision.listener.as_ref().map(ToString::to_string)),
        group: text(decision.group.as_ref().map(ToString::to_string)),
        reason: reason_to_wire(decision.reason).into(),
        relay_id: relay_id.to_owned(),
    }
}
