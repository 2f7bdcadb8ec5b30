//! Large answers: a bounded number at one time, handed to HTTP/2 piece by piece.
//!
//! HTTP/2 keeps what it was given until the peer takes it, however small the peer's window is. So
//! a list's answer is given in small pieces, and what was not given yet ends with its stream.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Response, Status, body::Body};

/// Limits the large answers that are made and not taken.
#[derive(Debug, Clone)]
pub(super) struct Answers(Arc<Semaphore>);

/// The right to make one. Travels with the answer, as an extension of its response.
#[derive(Debug, Clone)]
pub(super) struct AnswerPermit(
    #[expect(dead_code, reason = "held for its drop")] Arc<OwnedSemaphorePermit>,
);

/// An answer's body in pieces.
#[derive(Debug)]
pub(super) struct Pieces {
    body: Body,
    /// The rest of a frame of the body.
    rest: Bytes,
    _permit: AnswerPermit,
}

/// Operators ask, and mostly one at a time: with pages of 1 MiB these are 16 MiB on the wire, and
/// about three times as much before they are encoded.
const AT_ONE_TIME: usize = 16;
/// A list that waits for others takes milliseconds unless those are not read.
const PATIENCE: Duration = Duration::from_secs(1);
/// As much as HTTP/2 keeps for one stream.
const PIECE: usize = 16 * 1024;

impl Answers {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONE_TIME)))
    }

    /// Waits a little for the right to make a large answer.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED where others that are not read have all of them.
    pub(super) async fn permit(&self) -> Result<AnswerPermit, Status> {
        let acquired = Arc::clone(&self.0).acquire_owned();
        match tokio::time::timeout(PATIENCE, acquired).await {
            Ok(permit) => Ok(AnswerPermit(Arc::new(permit.expect("never closed")))),
            Err(_) => Err(Status::resource_exhausted(format!(
                "lists: the limit is {AT_ONE_TIME} answers at one time; try again"
            ))),
        }
    }
}

impl AnswerPermit {
    /// Makes a response that holds this permit until all of it was handed on.
    pub(super) fn attach<T>(self, message: T) -> Response<T> {
        let mut response = Response::new(message);
        response.extensions_mut().insert(self);
        response
    }
}

impl Pieces {
    pub(super) fn new(body: Body, permit: AnswerPermit) -> Self {
        Self {
            body,
            rest: Bytes::new(),
            _permit: permit,
        }
    }

    /// Returns the next piece of what is at hand, copied: a part of the whole would keep all of it.
    fn piece(&mut self) -> Frame<Bytes> {
        let piece = self.rest.split_to(self.rest.len().min(PIECE));
        Frame::data(Bytes::copy_from_slice(&piece))
    }
}

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(self.piece())));
        }
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(frame.map(|frame| {
            let data = match frame?.into_data() {
                Ok(data) => data,
                Err(other) => return Ok(other),
            };
            self.rest = data;
            Ok(self.piece())
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
