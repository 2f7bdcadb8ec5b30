//! Large answers: a bounded number at one time, passed to HTTP/2 in chunks.
//!
//! Each connection may have few of them, so that a peer that does not read takes none from
//! others. HTTP/2 buffers all bytes that it gets until the peer reads them, even with a small
//! window. So a list's answer is passed in small chunks, and the rest is freed with its stream.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Extensions, Response, Status, body::Body};

use crate::{
    error::{Error, ErrorKind},
    wire::to_status,
};

/// Limits the large answers of a service that are not sent completely.
#[derive(Debug, Clone)]
pub(crate) struct LargeAnswers(Arc<Semaphore>);

/// Limits the large answers of one connection. It is an extension of the request.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionAnswers(Arc<Semaphore>);

/// The permit for one large answer. It is an extension of the response.
#[derive(Debug, Clone)]
pub(crate) struct AnswerPermit(
    #[expect(dead_code, reason = "held for its drop")] Arc<[OwnedSemaphorePermit; 2]>,
);

/// An answer's body in chunks.
#[derive(Debug)]
pub(crate) struct ChunkedBody {
    body: Body,
    /// The rest of the current frame of the body.
    rest: Bytes,
    _permit: AnswerPermit,
}

/// Large answers of all connections for a service: lists of queues do not wait for those of flags,
/// which wait for the store. Only operators request lists, mostly one at a time. Pages of 1 MiB add
/// up to 8 MiB encoded, and about three times as much before encoding.
const MAX_ANSWERS: usize = 8;
/// Large answers of one connection. An operator's command requests one page after another.
const MAX_PER_CONNECTION: usize = 2;
/// Maximum wait for a permit. Other answers take milliseconds, unless their peers do not read them.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of a chunk: HTTP/2's buffer for one stream.
const CHUNK: usize = 16 * 1024;

impl LargeAnswers {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(MAX_ANSWERS)))
    }

    /// Waits a limited time for a permit to answer the request with these extensions.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if unread answers hold all permits.
    pub(crate) async fn permit(&self, request: &Extensions) -> Result<AnswerPermit, Status> {
        let connection = request.get::<ConnectionAnswers>();
        // Only requests of the console and of tests have no connection.
        let connection = connection.cloned().unwrap_or_default();
        let both = async {
            let own = connection.0.acquire_owned().await.expect("never closed");
            let shared = Arc::clone(&self.0).acquire_owned().await;
            [own, shared.expect("never closed")]
        };
        match tokio::time::timeout(PERMIT_TIMEOUT, both).await {
            Ok(permits) => Ok(AnswerPermit(Arc::new(permits))),
            Err(_) => {
                let message = format!(
                    "lists: the limit is {MAX_PER_CONNECTION} answers at one time for a \
                     connection and {MAX_ANSWERS} in all for each service"
                );
                let error = Error::new(ErrorKind::Exhausted, message);
                Err(to_status(error.with_retry_after(PERMIT_TIMEOUT)))
            }
        }
    }
}

impl Default for ConnectionAnswers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_PER_CONNECTION)))
    }
}

impl AnswerPermit {
    /// Creates a response that holds this permit until all of it was passed on. A short response is
    /// passed on at once and holds none.
    pub(crate) fn attach<T: Message>(self, message: T) -> Response<T> {
        let is_short = message.encoded_len() < CHUNK;
        let mut response = Response::new(message);
        if !is_short {
            response.extensions_mut().insert(self);
        }
        response
    }
}

impl ChunkedBody {
    pub(crate) fn new(body: Body, permit: AnswerPermit) -> Self {
        Self {
            body,
            rest: Bytes::new(),
            _permit: permit,
        }
    }

    /// Returns a copy of the next chunk. A slice would keep the whole frame allocated.
    fn next_chunk(&mut self) -> Frame<Bytes> {
        let chunk = self.rest.split_to(self.rest.len().min(CHUNK));
        Frame::data(Bytes::copy_from_slice(&chunk))
    }
}

impl hyper::body::Body for ChunkedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(self.next_chunk())));
        }
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(frame.map(|frame| {
            let data = match frame?.into_data() {
                Ok(data) => data,
                Err(other) => return Ok(other),
            };
            self.rest = data;
            Ok(self.next_chunk())
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn from(connection: &ConnectionAnswers) -> Extensions {
        let mut extensions = Extensions::new();
        extensions.insert(connection.clone());
        extensions
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_reads_no_answers_takes_no_permit_from_others() {
        let answers = LargeAnswers::new();
        let greedy = ConnectionAnswers::default();
        let mut unread = Vec::new();
        for _ in 0..MAX_PER_CONNECTION {
            unread.push(answers.permit(&from(&greedy)).await.expect("room"));
        }
        let refused = answers.permit(&from(&greedy)).await.expect_err("no room");
        assert_eq!(refused.code(), Code::ResourceExhausted);
        for _ in MAX_PER_CONNECTION..MAX_ANSWERS {
            let other = ConnectionAnswers::default();
            unread.push(answers.permit(&from(&other)).await.expect("room"));
        }
        let other = from(&ConnectionAnswers::default());
        assert!(answers.permit(&other).await.is_err(), "none in all");
        unread.pop();
        assert!(answers.permit(&other).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_answer_holds_no_permit() {
        let answers = LargeAnswers::new();
        let request = from(&ConnectionAnswers::default());
        for (bytes, held) in [(CHUNK / 2, false), (CHUNK, true)] {
            let permit = answers.permit(&request).await.expect("room");
            let response = permit.attach("a".repeat(bytes));
            let attached = response.extensions().get::<AnswerPermit>();
            assert_eq!(attached.is_some(), held, "{bytes} bytes");
        }
    }
}
