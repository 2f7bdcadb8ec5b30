//! The `Courier` service: takes over messages from other machines.

use std::{pin::Pin, sync::Arc};

use futures_core::Stream;
use futures_util::{StreamExt as _, stream};
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
            http2::activity::Activity,
        },
    },
    wire::proto::{self, HandOverRequest, HandOverResponse},
};

/// The service of a hosted queue file.
#[derive(Debug)]
pub(crate) struct CourierService {
    pub(super) host: Arc<Host>,
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
}

#[tonic::async_trait]
impl proto::courier_server::Courier for CourierService {
    type HandOverStream = Pin<Box<dyn Stream<Item = Result<HandOverResponse, Status>> + Send>>;

    async fn hand_over(
        &self,
        request: Request<Streaming<HandOverRequest>>,
    ) -> Result<Response<Self::HandOverStream>, Status> {
        let requester = self.access.requester(request.extensions())?;
        let end = request.extensions().get::<Arc<Activity>>().cloned();
        let answers = Answers {
            requests: request.into_inner(),
            account: self.host.manager().config().account.clone(),
            receiving: self.host.receiving(),
            draining: self.draining.clone(),
            ending: end.map_or_else(|| self.draining.clone(), |end| end.ending_soon.clone()),
            guard: requester.guard(|| Needs::Some(Action::HandOver)),
        };
        let stream = stream::try_unfold(answers, |mut answers| async move {
            let next = answers.next().await?;
            Ok(next.map(|answer| (answer, answers)))
        });
        Ok(Response::new(stream.boxed()))
    }
}

impl Answers {
    /// Returns the answer to the next request; `None` at their end, and at the maximum age of the
    /// connection.
    async fn next(&mut self) -> Result<Option<HandOverResponse>, Status> {
        let request = tokio::select! {
            biased;
            // Between two requests nothing is half done. The sender connects again.
            () = self.ending.cancelled() => {
                return match self.draining.is_cancelled() {
                    true => Err(Status::unavailable("the host is shutting down")),
                    false => Ok(None),
                };
            }
            () = StreamGuard::revoked(&mut self.guard) => {
                return Err(Status::unauthenticated("the credential is no longer valid"));
            }
            request = self.requests.message() => request?,
        };
        let Some(request) = request else {
            return Ok(None);
        };
        // By the rules of now: a stream goes on when they change.
        let guard = self.guard.as_ref();
        let rights = guard.map_or_else(SenderRights::default, |guard| {
            guard.requester().sender(&self.account)
        });
        Ok(Some(self.receiving.handle(request, rights).await?))
    }
}
