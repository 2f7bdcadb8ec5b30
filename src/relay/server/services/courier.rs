//! The `Courier` service: takes over messages from other machines.

use std::{collections::VecDeque, pin::Pin};

use futures_core::Stream;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    courier::{Host, ReceivingStream, SenderRights},
    relay::{
        auth::Action,
        server::{
            access::{
                Access,
                requester::{Needs, StreamGuard},
            },
            http2::service::Connection,
        },
    },
    wire::proto::{self, HandOverRequest, HandOverResponse},
};

/// The service of a hosted queue file.
#[derive(Debug)]
pub(crate) struct CourierService {
    pub(super) host: std::sync::Arc<Host>,
    pub(super) draining: CancellationToken,
    pub(super) access: Access,
}

/// The answers of one stream.
struct Answers {
    requests: Streaming<HandOverRequest>,
    receiving: ReceivingStream,
    /// The account of the host's queues.
    account: String,
    /// Cancelled when the host shuts down.
    draining: CancellationToken,
    /// Cancelled then, and at the maximum age of the connection.
    ending: CancellationToken,
    guard: Option<Box<StreamGuard>>,
    ready: VecDeque<HandOverResponse>,
    ended: bool,
}

/// Requests that share a write.
const MAX_REQUESTS: usize = 16;

#[tonic::async_trait]
impl proto::courier_server::Courier for CourierService {
    type HandOverStream = Pin<Box<dyn Stream<Item = Result<HandOverResponse, Status>> + Send>>;

    async fn hand_over(
        &self,
        request: Request<Streaming<HandOverRequest>>,
    ) -> Result<Response<Self::HandOverStream>, Status> {
        let requester = self.access.requester(request.extensions())?;
        let end = request.extensions().get::<Connection>().cloned();
        let answers = Answers {
            requests: request.into_inner(),
            account: self.host.manager().config().account.clone(),
            receiving: self.host.receiving(),
            draining: self.draining.clone(),
            ending: end.map_or_else(|| self.draining.clone(), |end| end.ending().clone()),
            guard: requester.guard(|| Needs::Some(Action::HandOver)),
            ready: VecDeque::new(),
            ended: false,
        };
        let stream = stream::unfold(answers, |mut answers| async move {
            let next = answers.next().await?;
            Some((next, answers))
        });
        Ok(Response::new(stream.boxed()))
    }
}

impl Answers {
    /// Returns the next answer; `None` at the end of the requests.
    async fn next(&mut self) -> Option<Result<HandOverResponse, Status>> {
        loop {
            if let Some(answer) = self.ready.pop_front() {
                return Some(Ok(answer));
            }
            if self.ended {
                return None;
            }
            self.receiving.answered();
            match self.handle().await {
                Ok(true) => {}
                Ok(false) => return None,
                Err(status) => {
                    self.ended = true;
                    return Some(Err(status));
                }
            }
        }
    }

    /// Handles the next request, together with further requests that have arrived. Returns `false` at
    /// their end, and at the maximum age of the connection.
    async fn handle(&mut self) -> Result<bool, Status> {
        let first = tokio::select! {
            biased;
            // Between two requests nothing is half done. The sender connects again.
            () = self.ending.cancelled() => {
                return match self.draining.is_cancelled() {
                    true => Err(Status::unavailable("the host is shutting down")),
                    false => Ok(false),
                };
            }
            () = StreamGuard::revoked(&mut self.guard) => {
                return Err(Status::unauthenticated("the credential is no longer valid"));
            }
            first = self.requests.message() => first?,
        };
        let Some(first) = first else {
            return Ok(false);
        };
        let mut requests = vec![first];
        while requests.len() < MAX_REQUESTS {
            match self.requests.message().now_or_never() {
                Some(Ok(Some(request))) => requests.push(request),
                // What has arrived before is handled. After an error its answers cannot arrive, and the
                // sender connects again.
                Some(_) => {
                    self.ended = true;
                    break;
                }
                None => break,
            }
        }
        // By the rules of now: a stream goes on when they change.
        let guard = self.guard.as_ref();
        let rights = guard.map_or_else(SenderRights::default, |guard| {
            guard.requester().sender(&self.account)
        });
        let answers = self.receiving.handle(requests, rights).await?;
        self.ready.extend(answers);
        Ok(true)
    }
}
