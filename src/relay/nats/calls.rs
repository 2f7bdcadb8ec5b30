//! C13: the requests of this relay to others, and of others to this one.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use prost::Message as _;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::{connection::NatsPublisher, subjects::ReplyTo};
use crate::{
    base::task::Scope,
    relay::runtime::{PeerCall, PeerService},
    wire::link::{PeerReply, peer_reply::Answer, peer_request::Call},
};

/// The requests that wait for a reply, and those that are being answered.
pub(super) struct PeerCalls {
    publisher: NatsPublisher,
    calls: mpsc::Receiver<PeerCall>,
    /// By number. A caller that waits no longer has closed its sender.
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
    number: u64,
    service: Arc<dyn PeerService>,
    answering: Arc<Semaphore>,
    scope: Scope,
}

/// Requests of other relays that are answered at one time.
const ANSWERING: usize = 64;
/// Closed senders are removed when there are this many.
const SWEPT_AT: usize = 64;

impl PeerCalls {
    pub(super) fn new(
        publisher: NatsPublisher,
        calls: mpsc::Receiver<PeerCall>,
        service: Arc<dyn PeerService>,
    ) -> Self {
        Self {
            publisher,
            calls,
            waiting: HashMap::new(),
            number: 0,
            service,
            answering: Arc::new(Semaphore::new(ANSWERING)),
            scope: Scope::new(),
        }
    }

    /// Waits for the next request of this relay.
    ///
    /// # Cancel safety
    /// A dropped wait takes no request.
    pub(super) async fn next(&mut self) -> PeerCall {
        match self.calls.recv().await {
            Some(call) => call,
            // The relay has ended.
            None => std::future::pending().await,
        }
    }

    /// Sends a request. If the broker is away, its caller learns at once that no reply comes.
    pub(super) fn send(&mut self, call: PeerCall) {
        if self.waiting.len() >= SWEPT_AT {
            self.waiting.retain(|_, reply| !reply.is_closed());
        }
        self.number += 1;
        if self.publisher.ask(call.life, self.number, call.request) {
            self.waiting.insert(self.number, call.reply);
        }
    }

    /// Completes a request; `None` if its life is gone, or knows no such request.
    pub(super) fn complete(&mut self, number: u64, answer: Option<Answer>) {
        if let (Some(waiting), Some(answer)) = (self.waiting.remove(&number), answer) {
            // The caller may have gone.
            let _ = waiting.send(answer);
        }
    }

    /// Answers a request of another relay in a task. One of a later version, and one too many, is
    /// answered without a result, so that its sender does not wait.
    pub(super) fn answer(&self, reply_to: ReplyTo, call: Option<Call>) {
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
