//! A peer with correct HTTP/2 and abusive requests.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use hyper::{
    body::{Body, Frame, Incoming},
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::task::JoinSet;

use super::target::Target;
use crate::support::within;

/// A connection for arbitrary requests.
#[derive(Debug, Clone)]
pub(crate) struct Peer(SendRequest<Unfinished>);

/// A request's body: these bytes, and then its end or a silence.
#[derive(Debug)]
pub(crate) struct Unfinished {
    left: Bytes,
    ends: bool,
}

/// Bytes sent at a time.
const PIECE: usize = 16 * 1024;

impl Peer {
    /// Connects; `window` is the number of bytes of an answer that the relay may send before it is
    /// read.
    pub(crate) async fn connect(target: &Target, window: u32) -> Self {
        let stream = target.connect().await;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(window)
            .max_send_buf_size(4 * 1024 * 1024)
            .handshake(TokioIo::new(stream))
            .await
            .expect("HTTP/2");
        // Ends with the runtime, or when the relay closes the connection.
        tokio::spawn(connection);
        Self(sender)
    }

    /// Sends a gRPC request; returns its status line and headers.
    pub(crate) async fn call(
        &self,
        path: &str,
        body: Unfinished,
    ) -> Result<Response<Incoming>, hyper::Error> {
        let request = Request::post(format!("http://relay{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(body)
            .expect("a request");
        self.send(request).await
    }

    pub(crate) async fn send(
        &self,
        request: Request<Unfinished>,
    ) -> Result<Response<Incoming>, hyper::Error> {
        let mut sender = self.0.clone();
        sender.ready().await?;
        sender.send_request(request).await
    }

    /// Sends a request many times concurrently; returns the answers.
    pub(super) async fn call_often(
        &self,
        count: usize,
        path: &'static str,
        body: impl Fn() -> Unfinished,
    ) -> Vec<Result<Response<Incoming>, hyper::Error>> {
        let mut calls = JoinSet::new();
        for _ in 0..count {
            let (peer, body) = (self.clone(), body());
            calls.spawn(async move { peer.call(path, body).await });
        }
        within("all answers", calls.join_all()).await
    }
}

impl Unfinished {
    /// A message of `declared` bytes without its last byte.
    pub(super) fn message(declared: usize) -> Self {
        let mut bytes = Self::prefix(declared);
        bytes.resize(5 + declared - 1, 0);
        Self::begun(bytes)
    }

    /// A complete message, and the request's end.
    pub(crate) fn whole(message: &[u8]) -> Self {
        let mut bytes = Self::prefix(message.len());
        bytes.extend(message);
        Self {
            left: bytes.into(),
            ends: true,
        }
    }

    /// The beginning of a body: the end of the request does not follow.
    pub(super) fn begun(bytes: Vec<u8>) -> Self {
        Self {
            left: bytes.into(),
            ends: false,
        }
    }

    /// Bytes of a whole body, and the request's end.
    pub(super) fn ending(bytes: Vec<u8>) -> Self {
        Self {
            left: bytes.into(),
            ends: true,
        }
    }

    /// The bytes before a message: the flag of compression, which is not set, and its length.
    pub(super) fn prefix(length: usize) -> Vec<u8> {
        let length = u32::try_from(length).expect("a short message");
        [&[0], &length.to_be_bytes()[..]].concat()
    }

    /// No bytes, without the request's end.
    pub(crate) fn silence() -> Self {
        Self::begun(Vec::new())
    }
}

impl Body for Unfinished {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.left.len().min(PIECE);
        match (piece, self.ends) {
            (0, true) => Poll::Ready(None),
            // Never woken.
            (0, false) => Poll::Pending,
            _ => Poll::Ready(Some(Ok(Frame::data(self.left.split_to(piece))))),
        }
    }
}

/// Returns an answer's gRPC status from its headers, where that of a refusal is.
pub(crate) fn status(answer: &Response<Incoming>) -> Option<&str> {
    answer.headers().get("grpc-status")?.to_str().ok()
}

/// Reads an answer to its end; returns the bytes of its messages, and its status code and message.
pub(super) async fn read(answer: Response<Incoming>) -> (usize, String, String) {
    let (head, mut body) = answer.into_parts();
    let (mut bytes, mut last) = (0, head.headers);
    loop {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        match within("the end of an answer", frame).await {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => bytes += data.len(),
                Err(other) => last.extend(other.into_trailers().expect("trailers")),
            },
            Some(Err(error)) => panic!("a broken stream: {error}"),
            None => break,
        }
    }
    let text = |name| -> String {
        let value = last.get(name).map(|value| value.to_str().expect("text"));
        value.unwrap_or_default().replace("%20", " ")
    };
    (bytes, text("grpc-status"), text("grpc-message"))
}

/// Reads the next frame of an answer; returns the bytes of messages in it.
pub(super) async fn next(body: &mut Incoming) -> usize {
    let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await;
    let frame = frame.expect("not ended").expect("not a broken stream");
    frame.data_ref().map_or(0, Bytes::len)
}

/// Reads an answer to its end; returns the status's code and message.
pub(crate) async fn ended(answer: Response<Incoming>) -> (String, String) {
    let (_, code, message) = read(answer).await;
    (code, message)
}
