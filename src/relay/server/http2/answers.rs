//! The bodies of answers, with what they hold while they are sent. Large answers are a bounded number at
//! one time, passed to HTTP/2 in chunks.
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
use http::{HeaderMap, HeaderValue};
use hyper::body::{Frame, SizeHint};
use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Extensions, Response, Status, body::Body};

use super::{activity::MAX_ANSWERS, service::Connection};
use crate::{
    error::{Error, ErrorKind},
    relay::auth::Share,
    wire::to_status,
};

/// Limits the large answers of a service that are not sent completely.
#[derive(Debug, Clone)]
pub(crate) struct LargeAnswers(Arc<Semaphore>);

/// The permit for one large answer. It is an extension of the response.
#[derive(Debug, Clone)]
pub(crate) struct AnswerPermit(
    #[expect(dead_code, reason = "held for its drop")]
    Arc<(Option<OwnedSemaphorePermit>, OwnedSemaphorePermit)>,
);

/// Large answers of all connections for a service: lists of queues do not wait for those of flags,
/// which wait for the store. Only operators request lists, mostly one at a time. Pages of 1 MiB add
/// up to 8 MiB encoded, and about three times as much before encoding.
const MAX_IN_ALL: usize = 8;
/// Maximum wait for a permit. Other answers take milliseconds, unless their peers do not read them.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of a chunk: HTTP/2's buffer for one stream.
const CHUNK: usize = 16 * 1024;

impl LargeAnswers {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(MAX_IN_ALL)))
    }

    /// Waits a limited time for a permit to answer the request with these extensions.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if unread answers hold all permits.
    pub(crate) async fn permit(&self, request: &Extensions) -> Result<AnswerPermit, Status> {
        let both = async {
            // Only requests of the console have no connection.
            let own = match request.get::<Connection>() {
                Some(connection) => {
                    let own = Arc::clone(&connection.0.answers).acquire_owned().await;
                    Some(own.expect("never closed"))
                }
                None => None,
            };
            let shared = Arc::clone(&self.0).acquire_owned().await;
            (own, shared.expect("never closed"))
        };
        match tokio::time::timeout(PERMIT_TIMEOUT, both).await {
            Ok(permits) => Ok(AnswerPermit(Arc::new(permits))),
            Err(_) => {
                let message = format!(
                    "lists: the limit is {MAX_ANSWERS} answers at one time for a \
                     connection and {MAX_IN_ALL} in all for each service"
                );
                let error = Error::new(ErrorKind::Exhausted, message);
                Err(to_status(error.with_retry_after(PERMIT_TIMEOUT)))
            }
        }
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

const STATUS: &str = "grpc-status";
const MESSAGE: &str = "grpc-message";

/// The body of an answer. A large one is passed on in chunks.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    body: Body,
    /// Of a large answer.
    permit: Option<AnswerPermit>,
    /// The rest of its current frame.
    rest: Bytes,
    _stream: Option<StreamShares>,
}

/// A stream counts for the relay, and for its principal or for its connection, until its answer has
/// ended.
#[derive(Debug)]
pub(crate) struct StreamShares {
    _of_relay: OwnedSemaphorePermit,
    _of_connection: Option<OwnedSemaphorePermit>,
    _of_principal: Option<Share>,
}

impl StreamShares {
    pub(crate) fn new(of_relay: OwnedSemaphorePermit, of_principal: Option<Share>) -> Self {
        Self {
            _of_relay: of_relay,
            _of_connection: None,
            _of_principal: of_principal,
        }
    }

    /// Returns the shares of a stream that needs no caller.
    pub(super) fn of_anyone([of_relay, of_connection]: [OwnedSemaphorePermit; 2]) -> Self {
        Self {
            _of_relay: of_relay,
            _of_connection: Some(of_connection),
            _of_principal: None,
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
    pub(crate) fn of(
        response: http::Response<Body>,
        stream: Option<StreamShares>,
    ) -> http::Response<Self> {
        let (mut head, body) = response.into_parts();
        state_size(&mut head.headers);
        let body = Self {
            body,
            permit: head.extensions.remove(),
            rest: Bytes::new(),
            _stream: stream,
        };
        http::Response::from_parts(head, body)
    }

    /// Returns a copy of the next chunk. A slice would keep the whole frame allocated.
    fn next_chunk(&mut self) -> Frame<Bytes> {
        let chunk = self.rest.split_to(self.rest.len().min(CHUNK));
        Frame::data(Bytes::copy_from_slice(&chunk))
    }
}

impl hyper::body::Body for ResponseBody {
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
            let mut frame = frame?;
            if let Some(trailers) = frame.trailers_mut() {
                state_size(trailers);
            }
            if self.permit.is_none() {
                return Ok(frame);
            }
            Ok(match frame.into_data() {
                Ok(data) => {
                    self.rest = data;
                    self.next_chunk()
                }
                Err(other) => other,
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.permit {
            Some(_) => SizeHint::default(),
            None => self.body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;
    use tonic::Code;

    use super::{super::activity::Activity, *};

    /// Returns a request of a new connection.
    fn request() -> Extensions {
        let incidents = Arc::new(super::super::incidents::Incidents::new());
        let activity = Activity::for_test(incidents, CancellationToken::new());
        let mut extensions = Extensions::new();
        extensions.insert(Connection(activity));
        extensions
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_reads_no_answers_takes_no_permit_from_others() {
        let answers = LargeAnswers::new();
        let greedy = request();
        let mut unread = Vec::new();
        for _ in 0..MAX_ANSWERS {
            unread.push(answers.permit(&greedy).await.expect("room"));
        }
        let refused = answers.permit(&greedy).await.expect_err("no room");
        assert_eq!(refused.code(), Code::ResourceExhausted);
        for _ in MAX_ANSWERS..MAX_IN_ALL {
            unread.push(answers.permit(&request()).await.expect("room"));
        }
        let other = request();
        assert!(answers.permit(&other).await.is_err(), "none in all");
        unread.pop();
        assert!(answers.permit(&other).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_answer_holds_no_permit() {
        let answers = LargeAnswers::new();
        let request = request();
        for (bytes, held) in [(CHUNK / 2, false), (CHUNK, true)] {
            let permit = answers.permit(&request).await.expect("room");
            let response = permit.attach("a".repeat(bytes));
            let attached = response.extensions().get::<AnswerPermit>();
            assert_eq!(attached.is_some(), held, "{bytes} bytes");
        }
    }
}
