//! Opens response streams, reads them, and reopens them for ever.
//!
//! The subscription and the flag watch each add a [`StreamProtocol`].

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{
    StreamExt as _, TryFutureExt as _, TryStreamExt as _,
    future::ready,
    stream::{self, BoxStream},
};
use tokio::sync::watch;
use tonic::{Response, Status, Streaming};

use super::{
    connection::{Client, with_relay_url},
    credential::RelayChannel,
    pool::Lease,
};
use crate::{
    base::clock::{Clock, Tick, Timer},
    client::session::{Reconnect, ReconnectStep},
    error::{Error, Result},
    types::{ConnectionState, LinkState, ListenerId},
    wire::from_status,
};

/// What differs between the relay's methods that answer with a stream.
pub(super) trait StreamProtocol {
    type Response: Send + 'static;
    /// Handed over to the application.
    type Item;

    fn reconnect(&mut self) -> &mut Reconnect;

    fn link_state(&self) -> LinkState;

    fn next_item(&mut self) -> Option<Self::Item>;

    /// Opens a stream with the next request.
    fn open(&mut self, channel: RelayChannel) -> Opening<Self::Response>;

    fn received(
        &mut self,
        message: Self::Response,
        now: Tick,
        rng: &mut fastrand::Rng,
    ) -> Result<()>;
}

/// A response stream that reconnects. It has no task: polling drives it.
pub(super) struct ReconnectingStream<P: StreamProtocol> {
    pub(super) client: Client,
    pub(super) protocol: P,
    /// Its first item is that it is open.
    stream: Option<BoxStream<'static, StreamItem<P::Response>>>,
    /// Kept between streams, so that a reconnection does not change the connection without need.
    connection: Option<Lease>,
    timer: Timer,
    link: watch::Sender<LinkState>,
    /// For the log.
    listener: ListenerId,
    rng: fastrand::Rng,
}

impl<P: StreamProtocol> ReconnectingStream<P> {
    pub(super) fn new(client: &Client, listener: ListenerId, protocol: P) -> Self {
        Self {
            client: client.clone(),
            protocol,
            stream: None,
            connection: None,
            timer: Timer::new(Clock::new()),
            link: watch::Sender::new(LinkState::default()),
            listener,
            rng: fastrand::Rng::new(),
        }
    }

    /// Returns a receiver of the connection's state. Updated only while the stream is polled.
    pub(super) fn link(&self) -> watch::Receiver<LinkState> {
        self.link.subscribe()
    }

    /// Waits for the next item; `None` after the relay's refusal was returned.
    pub(super) async fn next(&mut self) -> Option<Result<P::Item>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<P::Item>>> {
        loop {
            if let Some(item) = self.protocol.next_item() {
                return Poll::Ready(Some(Ok(item)));
            }
            let now = self.timer.now();
            let until = match self.protocol.reconnect().step(now) {
                ReconnectStep::Open => {
                    self.open();
                    continue;
                }
                ReconnectStep::Wait(until) => until,
                ReconnectStep::Closed => return Poll::Ready(None),
            };
            // Without a stream the timer wakes the driver.
            if let Some(stream) = &mut self.stream
                && let Poll::Ready(event) = stream.poll_next_unpin(cx)
            {
                let refusal = self.on_stream_event(event, now);
                self.publish_link();
                match refusal {
                    Some(refusal) => return Poll::Ready(Some(Err(refusal))),
                    None => continue,
                }
            }
            std::task::ready!(self.timer.poll(until, now, cx));
            let now = self.timer.now();
            self.count_relays();
            if self.protocol.reconnect().elapsed(now, &mut self.rng) {
                // The connection may be dead without an error, so the next stream uses another one.
                if let Some(connection) = &self.connection {
                    connection.retire();
                }
                self.leave_relay();
                self.log_outage();
            }
            self.publish_link();
        }
    }

    /// After a final refusal, schedules another attempt in about `after`. Returns whether there was
    /// such a refusal.
    pub(super) fn retry_after_refusal(&mut self, after: Duration) -> bool {
        let (now, reconnect) = (self.timer.now(), self.protocol.reconnect());
        let retries = reconnect.retry_after_refusal(now, after, &mut self.rng);
        self.publish_link();
        retries
    }

    fn publish_link(&self) {
        let link = self.protocol.link_state();
        self.link.send_if_modified(|published| {
            let changed = *published != link;
            *published = link;
            changed
        });
    }

    /// Processes an event of the stream; returns the error if it is final.
    fn on_stream_event(
        &mut self,
        event: Option<StreamItem<P::Response>>,
        now: Tick,
    ) -> Option<Error> {
        let error = match event.transpose() {
            Ok(Some(None)) => {
                self.count_relays();
                self.protocol.reconnect().opened(now);
                return None;
            }
            Ok(Some(Some(message))) => {
                match self.protocol.received(message, now, &mut self.rng) {
                    // The relay sent a Goodbye.
                    Ok(()) if self.protocol.reconnect().state() != ConnectionState::Connected => {
                        self.end_stream();
                        return None;
                    }
                    Ok(()) => return None,
                    Err(error) => Some(error),
                }
            }
            Ok(None) => None,
            Err(status) => {
                tracing::debug!(%status, "stream broken");
                let relays = &self.client.0.relays;
                let url = match &self.connection {
                    Some(connection) => relays.url_of(connection),
                    None => relays.url(),
                };
                Some(with_relay_url(from_status(status), url))
            }
        };
        self.count_relays();
        let reconnect = self.protocol.reconnect();
        let refusal = reconnect.broken(now, error.as_ref(), &mut self.rng);
        self.end_stream();
        if refusal.is_none() {
            self.log_outage();
        }
        refusal
    }

    /// The attempt may have resolved a name.
    fn count_relays(&mut self) {
        let others = self.client.0.relays.others();
        self.protocol.reconnect().set_others(others);
    }

    /// Closes the stream, and moves on to another relay if there is one and this one sent it away.
    fn end_stream(&mut self) {
        if self.protocol.reconnect().leaves_relay {
            self.leave_relay();
        } else {
            self.stream = None;
        }
    }

    /// Opens a stream on the previous one's connection, unless that is retired.
    fn open(&mut self) {
        self.connection.take_if(|one| one.is_retired());
        let connection = &mut self.connection;
        let connection = connection.get_or_insert_with(|| self.client.0.relays.stream_connection());
        let opening = self.protocol.open(connection.channel()).map_ok(|response| {
            let opened = stream::once(ready(Ok(None)));
            opened.chain(response.into_inner().map_ok(Some))
        });
        self.stream = Some(opening.try_flatten_stream().boxed());
    }

    /// Drops a stream whose relay is not to be used for the next one.
    fn leave_relay(&mut self) {
        self.stream = None;
        if let Some(connection) = self.connection.take() {
            self.client.0.relays.leave(&connection);
        }
    }

    /// Returns a connection for calls about the stream: only its relay knows it.
    pub(super) fn call_connection(&self) -> Lease {
        let relays = &self.client.0.relays;
        match &self.connection {
            Some(connection) => relays.call_connection_to(connection.relay()),
            None => relays.call_connection(),
        }
    }

    /// Logs that streams have failed for a while.
    fn log_outage(&mut self) {
        let reconnect = self.protocol.reconnect();
        if let Some(failures) = reconnect.outage() {
            tracing::warn!(
                relay = self.client.url(),
                stream = self.listener.as_str(),
                failures,
                reason = reconnect.cause.as_deref(),
                "no stream stays open; retrying"
            );
        }
    }
}

/// `None`: the stream is open.
type StreamItem<T> = std::result::Result<Option<T>, Status>;

pub(super) type Opening<T> =
    Pin<Box<dyn Future<Output = std::result::Result<Response<Streaming<T>>, Status>> + Send>>;

impl<P: StreamProtocol + fmt::Debug> fmt::Debug for ReconnectingStream<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ReconnectingStream");
        shown
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
    }
}
