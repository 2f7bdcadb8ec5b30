//! Requests beyond their limit are RESOURCE_EXHAUSTED, and the message names the limit.
//!
//! tonic reads the length that stands before a message, and refuses what is beyond its service's
//! greatest with OUT_OF_RANGE, before any room is made for it: a peer must not have memory reserved
//! by a number. So its limits stay, and only its status is put right here. What is below them and
//! beyond the limit of its own type is refused by the codec.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response};
use tonic::{Code, Status, body::Body, service::Routes};
use tower::Service;

use crate::words::Limits;

/// The routes, with the protocol's status for requests that are too large.
#[derive(Debug, Clone)]
pub(super) struct Measured(Routes);

/// An answer that is on its way. No `async` block: one would hold the routes' future twice, for as
/// long as the stream that it answers is open.
#[derive(Debug)]
pub(super) struct Answer {
    routes: <Routes as Service<Request<Body>>>::Future,
    limit: usize,
}

impl Measured {
    pub(super) fn new(routes: Routes) -> Self {
        Self(routes)
    }
}

impl Service<Request<Body>> for Measured {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<Body>>::poll_ready(&mut self.0, cx)
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
        let limit = limit(request.uri().path());
        let routes = self.0.call(request);
        Answer { routes, limit }
    }
}

impl Future for Answer {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let limit = self.limit;
        let answer = std::task::ready!(Pin::new(&mut self.routes).poll(cx));
        Poll::Ready(answer.map(|response| match is_out_of_range(&response) {
            true => too_large(limit).into_http(),
            false => response,
        }))
    }
}

/// Puts the status right with which a stream of notify requests broke.
pub(super) fn on_stream(status: Status) -> Status {
    match status.code() {
        Code::OutOfRange => too_large(Limits::NOTIFY_BYTES),
        _ => status,
    }
}

/// Returns whether the answer is tonic's refusal; no service of ours uses this status.
fn is_out_of_range(response: &Response<Body>) -> bool {
    let status = Status::from_header_map(response.headers());
    status.is_some_and(|status| status.code() == Code::OutOfRange)
}

#[cold]
fn too_large(limit: usize) -> Status {
    Status::resource_exhausted(format!("request: the limit is {limit} bytes, got more"))
}

/// Returns the greatest size of a request to this path, as the codec has it by type.
fn limit(path: &str) -> usize {
    match path {
        "/reveille.v1.Relay/Notify" | "/reveille.v1.Relay/NotifyStream" => Limits::NOTIFY_BYTES,
        "/reveille.v1.Relay/Subscribe" => Limits::SUBSCRIBE_BYTES,
        _ => Limits::REQUEST_BYTES,
    }
}
