//! C13: the requests of other relays to this one.

use std::sync::Arc;

use async_nats::Subject;
use bytes::Bytes;
use prost::Message as _;
use tokio::sync::Semaphore;

use super::connection::NatsPublisher;
use crate::{
    base::task::Scope,
    relay::runtime::PeerService,
    wire::link::{PeerReply, peer_reply::Answer, peer_request::Call},
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
            self.publisher.reply(reply_to, encoded(None));
            return;
        };
        let (service, publisher) = (Arc::clone(&self.service), self.publisher.clone());
        self.scope.spawn(async move {
            publisher.reply(reply_to, encoded(Some(service.answer(call).await)));
            drop(permit);
        });
    }
}

fn encoded(answer: Option<Answer>) -> Bytes {
    PeerReply { answer }.encode_to_vec().into()
}
