//! A response stream with its connection: closed, opening or open.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use futures_core::Stream;
use tonic::{Response, Status, Streaming, metadata::MetadataMap};

use super::{channel::RelayChannel, connection::Client, pool::Lease};

type Opening<T> = Pin<Box<dyn Future<Output = Result<Response<Streaming<T>>, Status>> + Send>>;

/// The response stream of a driver.
pub(super) struct ResponseStream<T> {
    stream: Phase<T>,
    /// Kept between streams, so that a reconnection does not change the connection without need.
    connection: Option<Lease>,
}

enum Phase<T> {
    None,
    Opening(Opening<T>),
    Open(Box<Streaming<T>>),
}

/// An event of a polled stream.
pub(super) enum StreamEvent<T> {
    /// The stream is open; with the response's headers.
    Opened(Box<MetadataMap>),
    Message(T),
    /// The stream ended or could not be opened.
    Broken(Option<Status>),
}

impl<T> ResponseStream<T> {
    /// Creates a value without a stream.
    pub(super) fn none() -> Self {
        Self {
            stream: Phase::None,
            connection: None,
        }
    }

    /// Opens a stream by `call`, on the previous stream's connection unless that is retired.
    pub(super) fn open<F>(&mut self, client: &Client, call: impl FnOnce(RelayChannel) -> F)
    where
        F: Future<Output = Result<Response<Streaming<T>>, Status>> + Send + 'static,
    {
        self.close();
        self.connection
            .take_if(|connection| connection.is_retired());
        let connection = &mut self.connection;
        let connection = connection.get_or_insert_with(|| client.relay_list().stream_connection());
        self.stream = Phase::Opening(Box::pin(call(connection.channel())));
    }

    pub(super) fn close(&mut self) {
        self.stream = Phase::None;
    }

    /// Drops a stream without a message in time. Its connection may be dead without an error, so
    /// the next stream uses another one.
    pub(super) fn abandon(&mut self, client: &Client) {
        if let Some(connection) = &self.connection {
            connection.retire();
        }
        self.leave_relay(client);
    }

    /// Drops a stream whose relay is not to be used for the next one.
    pub(super) fn leave_relay(&mut self, client: &Client) {
        self.close();
        if let Some(connection) = self.connection.take() {
            client.relay_list().leave(&connection);
        }
    }

    /// Returns the URL of the stream's relay.
    pub(super) fn relay_url<'c>(&self, client: &'c Client) -> &'c str {
        let relays = client.relay_list();
        match &self.connection {
            Some(connection) => relays.url_of(connection),
            None => relays.url(),
        }
    }

    /// Returns a connection for calls to the stream's relay.
    pub(super) fn call_connection(&self, client: &Client) -> Lease {
        let relays = client.relay_list();
        match &self.connection {
            Some(connection) => relays.call_connection_to(connection.relay()),
            None => relays.call_connection(),
        }
    }

    /// Also pending without a stream: the driver's timer wakes it then.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<StreamEvent<T>> {
        match &mut self.stream {
            Phase::None => Poll::Pending,
            Phase::Opening(opening) => match std::task::ready!(opening.as_mut().poll(cx)) {
                Ok(response) => {
                    let (headers, stream, _) = response.into_parts();
                    self.stream = Phase::Open(Box::new(stream));
                    Poll::Ready(StreamEvent::Opened(Box::new(headers)))
                }
                Err(status) => Poll::Ready(self.broken(Some(status))),
            },
            Phase::Open(stream) => match std::task::ready!(Pin::new(stream).poll_next(cx)) {
                Some(Ok(message)) => Poll::Ready(StreamEvent::Message(message)),
                Some(Err(status)) => Poll::Ready(self.broken(Some(status))),
                None => Poll::Ready(self.broken(None)),
            },
        }
    }

    fn broken(&mut self, status: Option<Status>) -> StreamEvent<T> {
        if let Some(status) = &status {
            tracing::debug!(%status, "stream broken");
        }
        self.close();
        StreamEvent::Broken(status)
    }
}

impl<T> fmt::Debug for ResponseStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.stream {
            Phase::None => "None",
            Phase::Opening(_) => "Opening",
            Phase::Open(_) => "Open",
        })
    }
}
