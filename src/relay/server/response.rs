//! The body of an answer, with what it holds while it is sent.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tonic::{Status, body::Body};

use super::{activity::Activity, requester::StreamGuard};
use crate::relay::auth::Share;

/// The body of an answer. Counts the bytes that HTTP/2 has not sent.
#[derive(Debug)]
pub(super) struct ResponseBody {
    body: Body,
    activity: Arc<Activity>,
    stream: Option<StreamShares>,
}

/// A stream counts for the relay, and for its principal or for its connection, until its answer has
/// ended.
#[derive(Debug)]
pub(super) struct StreamShares {
    _of_relay: OwnedSemaphorePermit,
    _of_connection: Option<OwnedSemaphorePermit>,
    _of_principal: Option<Share>,
    guard: Option<Box<StreamGuard>>,
}

impl StreamShares {
    pub(super) fn new(of_relay: OwnedSemaphorePermit, of_principal: Option<Share>) -> Self {
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

impl ResponseBody {
    pub(super) fn new(body: Body, activity: Arc<Activity>, stream: Option<StreamShares>) -> Self {
        Self {
            body,
            activity,
            stream,
        }
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
            let mut trailers = http::HeaderMap::new();
            status.add_header(&mut trailers)?;
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.activity.note_answered(data.len());
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
