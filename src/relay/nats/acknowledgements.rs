//! C14: the acknowledgements that other relays have, by requests to their lives.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    coordination::flag::{AskAcks, Flags},
    relay::runtime::{Relay, SilentRelays},
    types::cluster::LifeId,
    wire::link::{
        AcknowledgementsRequest, AcknowledgementsResponse, peer_reply::Answer, peer_request::Call,
    },
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
    loop {
        ticks.tick().await;
        flags.add_remote_acks(&relay, PAGE).await;
    }
}

#[async_trait]
impl AskAcks for Relay {
    async fn ask_all(
        &self,
        query: AcknowledgementsRequest,
    ) -> Vec<(LifeId, AcknowledgementsResponse)> {
        let mut silent = SilentRelays::default();
        let call = Call::Acknowledgements(query);
        let answers = Self::ask_all(self, call, WITHIN, &mut silent).await;
        answers
            .into_iter()
            .filter_map(|(peer, answer)| Some((peer.life, known(answer)?)))
            .collect()
    }

    async fn ask(
        &self,
        life: LifeId,
        query: AcknowledgementsRequest,
    ) -> Option<AcknowledgementsResponse> {
        known(Self::ask(self, life, Call::Acknowledgements(query), WITHIN).await?)
    }
}

fn known(answer: Answer) -> Option<AcknowledgementsResponse> {
    match answer {
        Answer::Acknowledgements(known) => Some(known),
        _ => None,
    }
}
