//! Why a queue is, or is not, served: gathers what the relays of the cluster know about it (C13).
//!
//! The sentences are made by `findings`. The question makes each relay note its decisions about the
//! queue.

use super::{
    findings::{self, RelayFacts},
    stats::StatsSource,
};
use crate::{
    relay::{
        hub::{Decision, DecisionKind, LimitUse, NearestName, QueueListener},
        link::MISSING_AFTER,
        runtime::{Relay, SilentRelays},
        server::{
            access::requester::Requester,
            lists::{ask, count, queue as queue_entry},
        },
    },
    types::{QueueAddress, Selector},
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
            refused: self.access.recently_refused(),
            missing: missing_relays(&self.relay),
            ..self.relay_facts()
        };
        let survey = self.relay.survey().await;
        let lost = self.relay.lost_listeners(None, LOST);
        findings::of_relay(&facts, &survey, &lost)
    }

    /// Explains a queue; in a cluster with what the other relays know. `hide` removes what the caller may
    /// not see.
    pub(super) async fn explain(
        &self,
        queue: &QueueAddress,
        hide: impl Fn(&mut QueueFacts),
    ) -> proto::ExplainResponse {
        let own = self.own_facts(queue).await;
        let noted_for = own.noted_for;
        let mut relays = vec![(self.relay.relay_id().to_owned(), own)];
        let call = Call::Explain(proto::ExplainRequest {
            storage_account: queue.storage_account().to_owned(),
            queue_name: queue.queue_name().to_owned(),
        });
        let mut silent = SilentRelays::default();
        relays.extend(
            ask(&self.relay, call, &mut silent, |answer| match answer {
                Answer::Explain(facts) => Some(facts),
                _ => None,
            })
            .await,
        );
        for (_, facts) in &mut relays {
            hide(facts);
        }
        let unanswered: Vec<_> = silent.ids.into_iter().collect();
        let findings = findings::of_queue(queue, &relays, &unanswered);
        let listed = findings::merged(&relays);
        proto::ExplainResponse {
            findings,
            queue: listed,
            decisions: newest_decisions(relays),
            noted_for,
            unanswered_relays: unanswered,
        }
    }

    /// Returns what this relay knows about a queue. It notes its decisions about the queue from now on.
    pub(super) async fn own_facts(&self, queue: &QueueAddress) -> QueueFacts {
        let relay = &self.relay;
        let noted = relay.noted_decisions(queue);
        let now = relay.clock().now();
        let (stats, listeners) = relay.queue_listeners(queue);
        let near_name = match listeners.is_empty() {
            true => nearest_name(relay, queue).await,
            false => None,
        };
        let mut lost = relay.lost_listeners(None, LOST);
        lost.retain(|one| one.selectors.iter().any(|selector| selector.matches(queue)));
        let relay_facts = self.relay_facts();
        let mut found = findings::of_listeners(queue, relay.relay_id(), &listeners, &lost);
        found.extend(findings::of_state(&relay_facts));
        let target = queue.to_string();
        // A caller with a refused credential may be the missing listener.
        let concerns = |action, refused: &str| match action {
            Some(Requester::EXPLAIN) => false,
            Some(_) => refused == target,
            None => listeners.is_empty(),
        };
        let refused = self.access.recently_refused();
        let mut refused = refused
            .iter()
            .filter(|one| concerns(one.action, &one.target));
        found.extend(
            refused
                .next()
                .map(|one| findings::refused(&relay_facts, one)),
        );
        found.truncate(FINDINGS);
        let number =
            |is: fn(&QueueListener) -> bool| count(listeners.iter().filter(|one| is(one)).count());
        let at_capacity = listeners.iter().filter(|one| one.full_for.is_some());
        let by_pattern = match stats {
            Some(_) => 0,
            None => count(listeners.len()),
        };
        QueueFacts {
            pattern_listeners: by_pattern,
            queue: stats.as_ref().map(queue_entry),
            reporting: number(|one| one.reports),
            busy: number(|one| one.busy),
            at_capacity: number(|one| one.full_for.is_some()),
            full_for: listeners
                .iter()
                .filter_map(|one| one.full_for)
                .min()
                .map(span_to_wire),
            polling: number(|one| one.polling),
            silent: number(|one| one.silent_for.is_some()),
            dequeue_tasks: at_capacity
                .fold(0, |sum, one| sum.saturating_add(one.total_dequeue_tasks)),
            listener_ids: listeners
                .iter()
                .take(NAMES)
                .map(|one| one.listener_id.to_string())
                .collect(),
            near_name: near_name.map(|near| near.to_string()).unwrap_or_default(),
            findings: found,
            decisions: noted
                .decisions
                .iter()
                .map(|decision| decision_to_wire(decision, relay.relay_id(), now))
                .collect(),
            noted_for: Some(span_to_wire(noted.noted_for)),
        }
    }

    fn relay_facts(&self) -> RelayFacts {
        let relay = &self.relay;
        let mut limits = relay.limits().to_vec();
        let mut short_of_memory = None;
        if let Some(connections) = self.connections.get() {
            let (streams, most_streams) = connections.streams();
            let of = |what, used: usize, limit: usize| LimitUse {
                what,
                used: used as u64,
                limit: limit as u64,
                is_full: used >= limit,
            };
            limits.push(of("streams", streams, most_streams));
            limits.push(of("connections", connections.open(), connections.max()));
            let memory = &connections.memory;
            short_of_memory = memory.limit().filter(|_| memory.is_short());
        }
        let now = relay.clock().now();
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

fn missing_relays(relay: &Relay) -> Vec<(String, std::time::Duration)> {
    let peers = relay.cluster_stats().map(|(_, peers)| peers);
    let peers = peers.unwrap_or_default();
    let present = |id: &str| {
        let mut others = peers.iter();
        others.any(|peer| *peer.status.relay_id == *id && !peer.missing && !peer.left)
    };
    let missing = peers.iter().filter(|peer| {
        let is_silent = peer.missing || peer.silent_for >= MISSING_AFTER;
        is_silent && !peer.left && !peer.status.relay_id.is_empty()
    });
    // A restarted relay has a new life.
    let missing = missing.filter(|peer| !peer.missing || !present(&peer.status.relay_id));
    missing
        .map(|peer| (peer.status.relay_id.to_string(), peer.silent_for))
        .collect()
}

/// Searches the selector of a listener with the most similar name.
async fn nearest_name(relay: &Relay, queue: &QueueAddress) -> Option<Selector> {
    let mut search = NearestName::new(queue);
    while relay.search_nearest(&mut search) {
        tokio::task::yield_now().await;
    }
    search.found()
}

/// Returns the newest decisions of all relays, oldest first.
fn newest_decisions(relays: Vec<(String, QueueFacts)>) -> Vec<proto::Decision> {
    let all = relays.into_iter().flat_map(|(_, facts)| facts.decisions);
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|one| std::cmp::Reverse(span_from_wire(one.ago)));
    all.split_off(all.len().saturating_sub(DECISIONS))
}

fn decision_to_wire(
    decision: &Decision,
    relay_id: &str,
    now: crate::base::clock::Tick,
) -> proto::Decision {
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
