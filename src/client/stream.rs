//! A response stream through its life: none, opening, open; and the connection that it is on.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use futures_core::Stream;
use tonic::{Response, Status, Streaming, metadata::MetadataMap, transport::Channel};

use super::{connection::Client, pool::Lease};
use crate::session::Outage;

type Opening<T> = Pin<Box<dyn Future<Output = Result<Response<Streaming<T>>, Status>> + Send>>;

/// The stream that a driver holds.
pub(super) struct Inbound<T> {
    stream: Phase<T>,
    /// Kept between streams: a reconnection does not move elsewhere without need.
    connection: Option<Lease>,
}

enum Phase<T> {
    None,
    Opening(Opening<T>),
    Open(Box<Streaming<T>>),
}

/// What came of polling it.
pub(super) enum Arrival<T> {
    /// It is open now; with its response's headers.
    Opened(Box<MetadataMap>),
    Message(T),
    /// It ended or could not be opened.
    Broken(Option<Status>),
}

impl<T> Inbound<T> {
    /// Makes one without a stream.
    pub(super) fn none() -> Self {
        Self {
            stream: Phase::None,
            connection: None,
        }
    }

    /// Opens a stream by `call`, on the connection of the one before unless that was left.
    pub(super) fn open<F>(&mut self, client: &Client, call: impl FnOnce(Channel) -> F)
    where
        F: Future<Output = Result<Response<Streaming<T>>, Status>> + Send + 'static,
    {
        self.close();
        self.connection.take_if(|connection| connection.is_left());
        let connection = &mut self.connection;
        let connection = connection.get_or_insert_with(|| client.stream_connection());
        self.stream = Phase::Opening(Box::pin(call(connection.channel())));
    }

    /// Drops the stream.
    pub(super) fn close(&mut self) {
        self.stream = Phase::None;
    }

    /// Drops a stream on which nothing came in time. Its connection may be dead without a sign, so
    /// the next stream has another one.
    pub(super) fn leave(&mut self) {
        self.close();
        if let Some(connection) = self.connection.take() {
            connection.leave();
        }
    }

    /// Pending where there is no stream, too: the driver's timer decides then.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Arrival<T>> {
        match &mut self.stream {
            Phase::None => Poll::Pending,
            Phase::Opening(opening) => match std::task::ready!(opening.as_mut().poll(cx)) {
                Ok(response) => {
                    let (headers, stream, _) = response.into_parts();
                    self.stream = Phase::Open(Box::new(stream));
                    Poll::Ready(Arrival::Opened(Box::new(headers)))
                }
                Err(status) => Poll::Ready(self.broken(Some(status))),
            },
            Phase::Open(stream) => match std::task::ready!(Pin::new(stream).poll_next(cx)) {
                Some(Ok(message)) => Poll::Ready(Arrival::Message(message)),
                Some(Err(status)) => Poll::Ready(self.broken(Some(status))),
                None => Poll::Ready(self.broken(None)),
            },
        }
    }

    fn broken(&mut self, status: Option<Status>) -> Arrival<T> {
        if let Some(status) = &status {
            tracing::debug!(%status, "stream broken");
        }
        self.close();
        Arrival::Broken(status)
    }
}

/// Logs that no stream could be opened for a while.
#[cold]
pub(super) fn log_outage(outage: &Outage, stream: &str, client: &Client) {
    tracing::warn!(
        relay = client.url(),
        stream,
        attempts = outage.attempts,
        seconds = outage.duration.as_secs(),
        reason = outage.reason,
        "no stream can be opened; trying again"
    );
}

impl<T> fmt::Debug for Inbound<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.stream {
            Phase::None => "None",
            Phase::Opening(_) => "Opening",
            Phase::Open(_) => "Open",
        })
    }
}
