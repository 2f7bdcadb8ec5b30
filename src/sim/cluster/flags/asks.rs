//! Queries for acknowledgements between relays, over the model broker (C13).

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::{FlagEvent, relay::Outbox};
use crate::{
    base::sync::lock,
    coordination::flag::AskAcks,
    sim::cluster::world::World,
    types::cluster::LifeId,
    wire::link::{AcknowledgementsRequest, AcknowledgementsResponse},
};

/// The other relays, for the tasks of one.
pub(super) struct PeerAsks {
    pub(super) relay: usize,
    pub(super) outbox: Arc<Mutex<Outbox>>,
}

type Answers = Vec<(LifeId, AcknowledgementsResponse)>;

/// A query of a relay to one life, or to all that are present.
#[derive(Debug)]
pub(super) struct AskRequest {
    relay: usize,
    life: Option<LifeId>,
    query: AcknowledgementsRequest,
    answers: oneshot::Sender<Answers>,
}

/// The queries that wait for replies.
#[derive(Debug, Default)]
pub(super) struct Asks {
    waiting: BTreeMap<u64, Waiting>,
    made: u64,
}

#[derive(Debug)]
struct Waiting {
    missing: usize,
    answers: Answers,
    sender: oneshot::Sender<Answers>,
}

/// A query on its way.
#[derive(Debug)]
pub(in crate::sim::cluster) struct Query {
    number: u64,
    from: usize,
    life: LifeId,
    query: AcknowledgementsRequest,
}

/// A reply on its way.
#[derive(Debug)]
pub(in crate::sim::cluster) struct Reply {
    number: u64,
    from: usize,
    to: usize,
    life: LifeId,
    known: AcknowledgementsResponse,
}

/// No reply is awaited for longer.
const WITHIN: Duration = Duration::from_secs(1);

#[async_trait]
impl AskAcks for PeerAsks {
    async fn ask_all(&self, query: AcknowledgementsRequest) -> Answers {
        self.request(None, query).await
    }

    async fn ask(
        &self,
        life: LifeId,
        query: AcknowledgementsRequest,
    ) -> Option<AcknowledgementsResponse> {
        let mut answers = self.request(Some(life), query).await;
        answers.pop().map(|(_, known)| known)
    }
}

impl PeerAsks {
    async fn request(&self, life: Option<LifeId>, query: AcknowledgementsRequest) -> Answers {
        let (answers, received) = oneshot::channel();
        lock(&self.outbox).asked.push(AskRequest {
            relay: self.relay,
            life,
            query,
            answers,
        });
        received.await.unwrap_or_default()
    }
}

impl Asks {
    /// The time of a query is over: its answers so far are all.
    pub(super) fn end(&mut self, number: u64) {
        if let Some(waiting) = self.waiting.remove(&number) {
            // The relay may have ended.
            _ = waiting.sender.send(waiting.answers);
        }
    }
}

impl World {
    pub(super) fn send_query(&mut self, ask: AskRequest) {
        let now = self.local(ask.relay);
        let Some(run) = &self.relays[ask.relay].run else {
            return;
        };
        let peers: Vec<_> = run.node.link().peers(now).collect();
        let present = peers.iter().filter(|peer| peer.is_present());
        let lives: Vec<_> = match ask.life {
            Some(life) => vec![life],
            None => present.map(|peer| peer.life).collect(),
        };
        self.totals.count("flag queries", lives.len() as u64);
        self.flags.asks.made += 1;
        let number = self.flags.asks.made;
        let waiting = Waiting {
            missing: lives.len(),
            answers: Vec::new(),
            sender: ask.answers,
        };
        self.flags.asks.waiting.insert(number, waiting);
        for life in &lives {
            let query = Query {
                number,
                from: ask.relay,
                life: *life,
                query: ask.query.clone(),
            };
            self.send_to_life(query);
        }
        match lives.is_empty() {
            true => self.flags.asks.end(number),
            false => self.flag_at(self.now + WITHIN, FlagEvent::AskEnds(number)),
        }
    }

    fn send_to_life(&mut self, query: Query) {
        let is = |relay: &crate::sim::cluster::relay::Relay| {
            relay
                .run
                .as_ref()
                .is_some_and(|run| run.life_id() == query.life)
        };
        let to = self.relays.iter().position(is);
        if let Some(to) = to.filter(|_| self.request_leaves(query.from)) {
            let way = self.flags.micros(200..2_000);
            self.flag_at(self.now + way, FlagEvent::Ask(to, query));
        }
    }

    /// A query reaches a relay.
    pub(super) fn answer_query(&mut self, relay: usize, query: &Query) {
        if !self.arrives(query.from, relay) {
            return;
        }
        let runs = self.relays[relay].run.as_ref();
        let place = self.flags.relays[relay].as_ref();
        let Some(place) = place.filter(|_| runs.is_some_and(|run| run.life_id() == query.life))
        else {
            return;
        };
        let max = query.query.max_keys as usize;
        let known = place.flags.acks_of(&query.query, max);
        let known = known.expect("a valid name");
        if self.request_leaves(relay) {
            let reply = Reply {
                number: query.number,
                from: relay,
                to: query.from,
                life: query.life,
                known,
            };
            let way = self.flags.micros(200..2_000);
            self.flag_at(self.now + way, FlagEvent::Reply(query.from, reply));
        }
    }

    /// A reply reaches the relay that has asked.
    pub(super) fn take_reply(&mut self, reply: Reply) {
        if !self.arrives(reply.from, reply.to) {
            return;
        }
        let asks = &mut self.flags.asks;
        let Some(waiting) = asks.waiting.get_mut(&reply.number) else {
            return;
        };
        waiting.answers.push((reply.life, reply.known));
        waiting.missing -= 1;
        if waiting.missing == 0 {
            asks.end(reply.number);
        }
    }

    /// Returns whether a message leaves a relay for its server.
    fn request_leaves(&mut self, relay: usize) -> bool {
        let unlucky = self.flags.rng.bool();
        let port = &self.broker.ports[relay];
        port.connected && !port.cut_up && !(self.now < port.drops_up_until && unlucky)
    }

    /// Returns whether a message arrives: also if the servers are parted, it does not.
    fn arrives(&mut self, from: usize, to: usize) -> bool {
        let unlucky = self.flags.rng.bool();
        let (broker, now) = (&self.broker, self.now);
        let (sender, port) = (&broker.ports[from], &broker.ports[to]);
        let between = sender.server != port.server
            && (now < broker.parted_until || (now < broker.drops_between_until && unlucky));
        let dropped = now < port.drops_down_until && unlucky;
        port.connected && !port.cut_down && !between && !dropped
    }
}
