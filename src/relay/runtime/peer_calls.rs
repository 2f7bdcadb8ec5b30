//! Requests to other relays of the cluster, and waits for their replies (C13).
//!
//! Knows no broker: the task that has the broker's client sets the transport.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::join_all;
use prost::Message as _;

use super::Relay;
use crate::{
    relay::link::PeerStats,
    types::{QueueAddress, cluster::LifeId},
    wire::{
        link::{NamedQueuesRequest, PeerRequest, peer_reply::Answer, peer_request::Call},
        peer_reply_from_wire,
        proto::{RelayInfo, RelayState},
        span_from_wire,
    },
};

/// The way of requests to other lives.
#[async_trait]
pub(crate) trait PeerTransport: fmt::Debug + Send + Sync {
    /// Sends a request, and returns its reply; `None` if none can come. May wait for ever.
    async fn request(&self, life: LifeId, request: Bytes) -> Option<Bytes>;
}

/// Answers the requests of other relays.
#[async_trait]
pub(crate) trait PeerService: Send + Sync {
    /// Returns the answer to a request.
    async fn answer(&self, call: Call) -> Answer;
}

/// The relays that have not replied to one of several requests. They are not asked again, so that
/// their silence costs the caller one wait.
#[derive(Debug, Default)]
pub(crate) struct SilentRelays {
    pub(crate) ids: BTreeSet<String>,
    lives: BTreeSet<LifeId>,
}

impl Relay {
    /// Sends a request to a life, and returns its answer; `None` if none comes in this time.
    ///
    /// # Cancel safety
    /// A dropped call forgets the reply; the request may have been carried out.
    pub(crate) async fn ask(&self, life: LifeId, call: Call, within: Duration) -> Option<Answer> {
        self.ask_encoded(life, encoded(call), within).await
    }

    /// Sends a request to all other relays of the cluster but the silent ones, and adds those that do
    /// not answer to these. A relay alone has no others.
    ///
    /// # Cancel safety
    /// As [`Relay::ask`].
    pub(crate) async fn ask_all(
        &self,
        call: Call,
        within: Duration,
        silent: &mut SilentRelays,
    ) -> Vec<(PeerStats, Answer)> {
        let (mut asked, missing) = self.asked_peers();
        silent.ids.extend(missing);
        asked.retain(|peer| !silent.lives.contains(&peer.life));
        let request = encoded(call);
        let ask_one = |peer: &PeerStats| self.ask_encoded(peer.life, request.clone(), within);
        let answers = join_all(asked.iter().map(ask_one)).await;
        let mut all = Vec::new();
        for (peer, answer) in asked.into_iter().zip(answers) {
            match answer {
                Some(answer) => all.push((peer, answer)),
                None => {
                    silent.ids.insert(peer.info.relay_id);
                    silent.lives.insert(peer.life);
                }
            }
        }
        all
    }

    /// Returns what this relay states about itself.
    pub(crate) fn own_info(&self) -> RelayInfo {
        let hub = self.shared.hub.stats();
        RelayInfo {
            relay_id: self.relay_id().to_owned(),
            epoch: self.epoch().to_owned(),
            version: self.shared.stream_config.version.to_string(),
            state: RelayState::Self_.into(),
            streams: hub.subscriptions,
            queues: hub.queues,
            degraded: self.cluster_state().is_some_and(|state| state.degraded),
            ..RelayInfo::default()
        }
    }

    /// Returns the id of the relay that a subscription id names, where it is another one of this
    /// cluster.
    pub(crate) fn other_owner<'s>(&self, subscription_id: &'s str) -> Option<&'s str> {
        self.shared.cluster.as_ref()?;
        let (relay, _) = subscription_id.rsplit_once('/')?;
        (relay != self.relay_id()).then_some(relay)
    }

    /// Returns the newest life of a relay in this cluster.
    pub(crate) fn newest_life(&self, relay_id: &str) -> Option<LifeId> {
        let (_, peers) = self.cluster_stats()?;
        let lives = peers
            .iter()
            .filter(|peer| peer.info.relay_id == relay_id && peer.is_present());
        lives
            .min_by_key(|peer| span_from_wire(peer.info.silent_for))
            .map(|peer| peer.life)
    }

    /// Sets the way of this relay's requests, once. Before that no request has a reply.
    pub(crate) fn set_peer_transport(&self, transport: Arc<dyn PeerTransport>) {
        if let Some(cluster) = &self.shared.cluster {
            let _ = cluster.transport.set(transport);
        }
    }

    async fn ask_encoded(&self, life: LifeId, request: Bytes, within: Duration) -> Option<Answer> {
        let cluster = self.shared.cluster.as_ref()?;
        let sent = cluster.transport.get()?.request(life, request);
        let reply = tokio::time::timeout(within, sent).await.ok()??;
        peer_reply_from_wire(&reply).unwrap_or_else(|error| {
            cluster.refuse_reply(life, &error, self.now());
            None
        })
    }

    /// Returns whether a listener of another relay subscribes to the queue, or may do so because its
    /// relay is silent.
    pub(super) async fn may_have_listener_elsewhere(
        &self,
        queue: &QueueAddress,
        silent: &mut SilentRelays,
    ) -> bool {
        let call = Call::NamedQueues(NamedQueuesRequest {
            queues: vec![queue.to_string()],
        });
        let others = self.ask_all(call, Duration::from_secs(1), silent).await;
        let subscribes = others.iter().any(|(_, answer)| match answer {
            Answer::Queues(page) => page.queues.iter().any(|listed| listed.listeners > 0),
            _ => false,
        });
        subscribes || !silent.lives.is_empty()
    }

    /// Returns the peers that are asked, and the ids of the relays of which no life is present.
    fn asked_peers(&self) -> (Vec<PeerStats>, Vec<String>) {
        let Some((_, peers)) = self.cluster_stats() else {
            return Default::default();
        };
        let (missing, present): (Vec<_>, Vec<_>) = peers
            .into_iter()
            .filter(|peer| peer.info.state() != RelayState::Left)
            .partition(|peer| !peer.is_present());
        let is_back = |id: &str| {
            let is = |peer: &PeerStats| peer.info.relay_id == id;
            self.relay_id() == id || present.iter().any(is)
        };
        let ids = missing.into_iter().map(|peer| peer.info.relay_id);
        let unanswered = ids.filter(|id| !is_back(id)).collect();
        (present, unanswered)
    }
}

fn encoded(call: Call) -> Bytes {
    PeerRequest { call: Some(call) }.encode_to_vec().into()
}
