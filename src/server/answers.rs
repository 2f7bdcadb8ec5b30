//! Large answers: a bounded number at one time, handed to HTTP/2 piece by piece.
//!
//! Few of them for each connection, so that one that reads none takes no place from the others.
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
use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Extensions, Response, Status, body::Body};

/// Limits the large answers that are made and not taken.
#[derive(Debug, Clone)]
pub(super) struct Answers(Arc<Semaphore>);

/// Limits those of one connection. Travels with the request, as an extension of it.
#[derive(Debug, Clone)]
pub(super) struct ConnectionAnswers(Arc<Semaphore>);

/// The right to make one. Travels with the answer, as an extension of its response.
#[derive(Debug, Clone)]
pub(super) struct AnswerPermit(
    #[expect(dead_code, reason = "held for its drop")] Arc<[OwnedSemaphorePermit; 2]>,
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
/// An operator's command asks for one page after the other.
const OF_A_CONNECTION: usize = 2;
/// A list that waits for others takes milliseconds unless those are not read.
const PATIENCE: Duration = Duration::from_secs(1);
/// As much as HTTP/2 keeps for one stream.
const PIECE: usize = 16 * 1024;

impl Answers {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONE_TIME)))
    }

    /// Waits a little for the right to make a large answer to the request with these
    /// extensions.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED where others that are not read have all of them.
    pub(super) async fn permit(&self, request: &Extensions) -> Result<AnswerPermit, Status> {
        let connection = request.get::<ConnectionAnswers>();
        // Only a request of a test comes without a connection.
        let connection = connection.cloned().unwrap_or_default();
        let both = async {
            let own = connection.0.acquire_owned().await.expect("never closed");
            let shared = Arc::clone(&self.0).acquire_owned().await;
            [own, shared.expect("never closed")]
        };
        match tokio::time::timeout(PATIENCE, both).await {
            Ok(permits) => Ok(AnswerPermit(Arc::new(permits))),
            Err(_) => Err(Status::resource_exhausted(format!(
                "lists: the limit is {OF_A_CONNECTION} answers at one time a connection and \
                 {AT_ONE_TIME} in all; try again"
            ))),
        }
    }
}

impl Default for ConnectionAnswers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(OF_A_CONNECTION)))
    }
}

impl AnswerPermit {
    /// Makes a response that holds this permit until all of it was handed on. A short one is handed
    /// on at once, and holds none.
    pub(super) fn attach<T: Message>(self, message: T) -> Response<T> {
        let is_short = message.encoded_len() < PIECE;
        let mut response = Response::new(message);
        if !is_short {
            response.extensions_mut().insert(self);
        }
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
    async fn a_connection_that_reads_no_answers_takes_no_place_from_the_others() {
        let answers = Answers::new();
        let greedy = ConnectionAnswers::default();
        let mut unread = Vec::new();
        for _ in 0..OF_A_CONNECTION {
            unread.push(answers.permit(&from(&greedy)).await.expect("room"));
        }
        let refused = answers.permit(&from(&greedy)).await.expect_err("no room");
        assert_eq!(refused.code(), Code::ResourceExhausted);
        for _ in OF_A_CONNECTION..AT_ONE_TIME {
            let other = ConnectionAnswers::default();
            unread.push(answers.permit(&from(&other)).await.expect("room"));
        }
        let other = from(&ConnectionAnswers::default());
        assert!(answers.permit(&other).await.is_err(), "none in all");
        unread.pop();
        assert!(answers.permit(&other).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_answer_holds_no_place_until_it_is_read() {
        let answers = Answers::new();
        let request = from(&ConnectionAnswers::default());
        for (bytes, held) in [(PIECE / 2, false), (PIECE, true)] {
            let permit = answers.permit(&request).await.expect("room");
            let response = permit.attach("a".repeat(bytes));
            let attached = response.extensions().get::<AnswerPermit>();
            assert_eq!(attached.is_some(), held, "{bytes} bytes");
        }
    }
}
