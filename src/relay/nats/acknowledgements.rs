//! C14: the acknowledgements that other relays have, by requests to their lives.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    coordination::flag::{AckKey, AckQuery, AskAcks, Flags, KnownAcks, RemoteAcks},
    relay::runtime::{Relay, SilentRelays},
    types::cluster::LifeId,
    wire::link::{AcknowledgementsRequest, peer_reply::Answer, peer_request::Call},
};

/// A relay asks twice a second.
const EVERY: Duration = Duration::from_millis(500);
const WITHIN: Duration = Duration::from_secs(1);
/// Keys of one reply: 56 KiB.
const PAGE: u32 = 7_000;

/// Adds the acknowledgements and the watchers of the other relays to the flags whose
/// acknowledgements are counted here.
pub(super) async fn add_acknowledgements(relay: Relay, flags: Flags) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut acks = RemoteAcks::new(PAGE);
    loop {
        ticks.tick().await;
        acks.add_to(&flags, &relay).await;
    }
}

#[async_trait]
impl AskAcks for Relay {
    async fn ask_all(&self, query: AckQuery) -> Vec<(LifeId, KnownAcks)> {
        let mut silent = SilentRelays::default();
        let answers = Self::ask_all(self, call(&query), WITHIN, &mut silent).await;
        answers
            .into_iter()
            .filter_map(|(peer, answer)| Some((peer.life, known(answer)?)))
            .collect()
    }

    async fn ask(&self, life: LifeId, query: AckQuery) -> Option<KnownAcks> {
        known(Self::ask(self, life, call(&query), WITHIN).await?)
    }
}

fn call(query: &AckQuery) -> Call {
    Call::Acknowledgements(AcknowledgementsRequest {
        flag: query.name.to_string(),
        generation: query.generation,
        after: query.after.map(|key| key.0),
        max_keys: query.max_keys,
    })
}

fn known(answer: Answer) -> Option<KnownAcks> {
    let Answer::Acknowledgements(known) = answer else {
        return None;
    };
    Some(KnownAcks {
        acknowledged: known.acknowledged,
        watchers: known.watchers,
        keys: known.keys.into_iter().map(AckKey).collect(),
    })
}
