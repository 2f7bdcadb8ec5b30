//! A connection whose requests carry the client's credential.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use tonic::{
    Status,
    body::Body,
    codegen::{
        Service,
        http::{Request, Response, header::AUTHORIZATION},
    },
    transport::Channel,
};

use super::Credential;
use crate::wire::to_status;

/// A channel that adds the credential to each request. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct RelayChannel {
    channel: Channel,
    credential: Credential,
}

/// The error of a channel; a `Status` if the request was not sent.
type Failure = Box<dyn std::error::Error + Send + Sync>;

impl RelayChannel {
    pub(crate) fn new(channel: Channel, credential: Credential) -> Self {
        Self {
            channel,
            credential,
        }
    }
}

impl Service<Request<Body>> for RelayChannel {
    type Response = Response<Body>;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Failure>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.channel.poll_ready(cx).map_err(Failure::from)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if self.credential.is_none() {
            let answer = self.channel.call(request);
            return Box::pin(async move { answer.await.map_err(Failure::from) });
        }
        // The clone takes the place of the channel that `poll_ready` has prepared.
        let ready = self.channel.clone();
        let mut channel = std::mem::replace(&mut self.channel, ready);
        let credential = self.credential.clone();
        Box::pin(async move {
            let header = credential.header().await.map_err(refused)?;
            request.headers_mut().insert(AUTHORIZATION, header);
            channel.call(request).await.map_err(Failure::from)
        })
    }
}

fn refused(error: crate::error::Error) -> Failure {
    let status: Status = to_status(error);
    status.into()
}
