//! The body of an answer, with what it holds while it is sent.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use hyper::body::{Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tonic::{Status, body::Body};

use crate::relay::{auth::Share, server::access::requester::StreamGuard};

const STATUS: &str = "grpc-status";
const MESSAGE: &str = "grpc-message";

/// The body of an answer.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    body: Body,
    stream: Option<StreamShares>,
}

/// A stream counts for the relay, and for its principal or for its connection, until its answer has
/// ended.
#[derive(Debug)]
pub(crate) struct StreamShares {
    _of_relay: OwnedSemaphorePermit,
    _of_connection: Option<OwnedSemaphorePermit>,
    _of_principal: Option<Share>,
    guard: Option<Box<StreamGuard>>,
}

impl StreamShares {
    pub(crate) fn new(of_relay: OwnedSemaphorePermit, of_principal: Option<Share>) -> Self {
        Self {
            _of_relay: of_relay,
            _of_connection: None,
            _of_principal: of_principal,
            guard: None,
        }
    }

    /// Ends the stream when its caller may no longer have it.
    pub(super) fn guarded(mut self, guard: Option<Box<StreamGuard>>) -> Self {
        self.guard = guard;
        self
    }

    /// Returns the shares of a stream that needs no caller.
    pub(super) fn of_anyone([of_relay, of_connection]: [OwnedSemaphorePermit; 2]) -> Self {
        Self {
            _of_relay: of_relay,
            _of_connection: Some(of_connection),
            _of_principal: None,
            guard: None,
        }
    }
}

/// A message beyond its limit is OUT_OF_RANGE for tonic, and RESOURCE_EXHAUSTED for other
/// implementations. Clients take the first for an error that stays. The text names the request.
fn state_size(headers: &mut HeaderMap) {
    if headers.get(STATUS).is_none_or(|code| code != "11") {
        return;
    }
    headers.insert(STATUS, HeaderValue::from_static("8"));
    let text = headers.get(MESSAGE).and_then(|text| text.to_str().ok());
    // Its spaces are percent-encoded.
    let rule = text.and_then(|text| text.strip_prefix("Error,"));
    let named = rule.and_then(|rule| HeaderValue::try_from(format!("request:{rule}")).ok());
    if let Some(named) = named {
        headers.insert(MESSAGE, named);
    }
}

impl ResponseBody {
    pub(crate) fn of(response: Response<Body>, stream: Option<StreamShares>) -> Response<Self> {
        let (mut head, body) = response.into_parts();
        state_size(&mut head.headers);
        Response::from_parts(head, Self { body, stream })
    }
}

impl hyper::body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(stream) = &mut self.stream
            && let Some(guard) = &mut stream.guard
            && guard.poll_revoked(cx).is_ready()
        {
            stream.guard = None;
            self.body = Body::empty();
            let status = Status::unauthenticated("the credential is no longer valid");
            let mut trailers = HeaderMap::new();
            status.add_header(&mut trailers)?;
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        let mut frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            state_size(trailers);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
