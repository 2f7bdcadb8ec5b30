//! C13: the requests of other relays to this one. C14: the acknowledgements that other relays have, by
//! requests to their lives.

use std::{sync::Arc, time::Duration};

use async_nats::Subject;
use async_trait::async_trait;
use bytes::Bytes;
use prost::Message as _;
use tokio::{
    sync::Semaphore,
    time::{MissedTickBehavior, interval},
};

use super::connection::NatsPublisher;
use crate::{
    base::task::Scope,
    coordination::flag::{AskAcks, Flags},
    relay::runtime::{PeerService, Relay, SilentRelays},
    types::cluster::LifeId,
    wire::link::{
        AcknowledgementsRequest, AcknowledgementsResponse, PeerReply, peer_reply::Answer,
        peer_request::Call,
    },
};

/// The requests that are being answered, each in a task.
pub(super) struct PeerCalls {
    publisher: NatsPublisher,
    service: Arc<dyn PeerService>,
    answering: Arc<Semaphore>,
    scope: Scope,
}

/// Requests that are answered at one time.
const ANSWERING: usize = 64;

impl PeerCalls {
    pub(super) fn new(publisher: NatsPublisher, service: Arc<dyn PeerService>) -> Self {
        Self {
            publisher,
            service,
            answering: Arc::new(Semaphore::new(ANSWERING)),
            scope: Scope::new(),
        }
    }

    /// Answers a request of another relay. One of a later version, and one too many, is answered
    /// without a result, so that its sender does not wait.
    pub(super) fn answer(&self, reply_to: Subject, call: Option<Call>) {
        let permit = Arc::clone(&self.answering).try_acquire_owned().ok();
        let Some((call, permit)) = call.zip(permit) else {
            self.publisher.send(reply_to, encoded(None));
            return;
        };
        let (service, publisher) = (Arc::clone(&self.service), self.publisher.clone());
        self.scope.spawn(async move {
            publisher.send(reply_to, encoded(Some(service.answer(call).await)));
            drop(permit);
        });
    }
}

fn encoded(answer: Option<Answer>) -> Bytes {
    PeerReply { answer }.encode_to_vec().into()
}

/// A relay asks twice a second.
const EVERY: Duration = Duration::from_millis(500);
/// Of a request for acknowledgements.
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
