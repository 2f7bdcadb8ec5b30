//! Requests to other relays, without a broker: a test replies.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use prost::Message as _;

use super::*;
use crate::{
    relay::link::Output,
    types::cluster::LifeId,
    wire::link::{PeerReply, peer_reply::Answer, peer_request::Call},
};

/// Shorter than any wait that a person would notice, and long enough for a reply of this process.
const WITHIN: Duration = Duration::from_millis(200);

fn clustered(relay_id: &str) -> Relay {
    let config = RelayConfig {
        relay_id: relay_id.to_owned(),
        ..RelayConfig::default()
    };
    Relay::start_with(config, Some(ClusterAck::Local)).expect("started")
}

/// Returns a relay that has heard the two others.
fn with_two_others() -> Relay {
    let relay = clustered("asking");
    let runner = relay.cluster_runner().expect("of a cluster");
    for id in ["well", "silent"] {
        let other = clustered(id).cluster_runner().expect("of a cluster");
        other.run(|node, now, rng| node.on_tick(1, now, rng));
        while let Some(output) = other.run(|node, _, _| node.next_output()) {
            if let Output::Publish(bytes) = output {
                let taken = runner.run(|node, now, _| node.on_message(&bytes, 1, now));
                taken.expect("it keeps the rules");
            }
        }
    }
    relay
}

/// Replies in the name of one relay. The others are silent.
#[derive(Debug)]
struct OneReplies {
    well: LifeId,
    asked: [AtomicU64; 2],
}

#[async_trait]
impl PeerTransport for OneReplies {
    async fn request(&self, life: LifeId, _request: Bytes) -> Option<Bytes> {
        self.asked[usize::from(life == self.well)].fetch_add(1, Ordering::Relaxed);
        if life != self.well {
            return std::future::pending().await;
        }
        let empty = crate::wire::proto::ListQueuesResponse::default();
        let answer = Some(Answer::Queues(empty));
        Some(PeerReply { answer }.encode_to_vec().into())
    }
}

fn list() -> Call {
    Call::Queues(crate::wire::proto::ListQueuesRequest::default())
}

#[tokio::test]
async fn a_silent_relay_is_asked_once_for_one_list() {
    let relay = with_two_others();
    let (_, peers) = relay.cluster_stats().expect("of a cluster");
    let well = peers.iter().find(|peer| &*peer.info.relay_id == "well");
    let well = well.expect("it was heard").life;
    let transport = Arc::new(OneReplies {
        well,
        asked: [AtomicU64::new(0), AtomicU64::new(0)],
    });
    relay.set_peer_transport(Arc::clone(&transport) as _);
    let mut silent = SilentRelays::default();
    for _ in 0..3 {
        let answers = relay.ask_all(list(), WITHIN, &mut silent).await;
        let ids = answers.iter().map(|(peer, _)| &*peer.info.relay_id);
        assert_eq!(ids.collect::<Vec<_>>(), ["well"]);
        assert_eq!(silent.ids.iter().collect::<Vec<_>>(), ["silent"]);
    }
    let [silent, well] = [0, 1].map(|one: usize| transport.asked[one].load(Ordering::Relaxed));
    assert_eq!((silent, well), (1, 3));
}

/// Replies what no relay of this version sends.
#[derive(Debug)]
struct BadReply;

#[async_trait]
impl PeerTransport for BadReply {
    async fn request(&self, _: LifeId, _: Bytes) -> Option<Bytes> {
        Some(Bytes::from_static(b"\xff"))
    }
}

#[tokio::test]
async fn a_reply_that_cannot_be_read_is_counted() {
    let relay = with_two_others();
    relay.set_peer_transport(Arc::new(BadReply));
    let mut silent = SilentRelays::default();
    assert!(relay.ask_all(list(), WITHIN, &mut silent).await.is_empty());
    let (stats, _) = relay.cluster_stats().expect("of a cluster");
    assert_eq!(stats.refused, 2);
}
