//! A flag watch over the network: a stream of states, starting with the current one.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use async_trait::async_trait;
use futures_core::Stream;
use tokio::sync::watch;
use tonic::metadata::MetadataMap;

use super::{
    connection::{Client, FlagsClient},
    reconnecting_stream::{ReconnectingStream, StreamProtocol},
    stream::ResponseStream,
};
use crate::{
    base::clock::Tick,
    client::session::{Reconnect, WatchSession},
    error::Result,
    types::{
        ConnectionState, FlagEvent, FlagName, FlagState, FlagWatch, Limits, LinkState, ListenerId,
    },
    wire::{DUPLICATE_LISTENER, flag_event, proto, span_to_wire},
};

/// A [`Stream`] of a flag's [`FlagEvent`]s: states, and acknowledgements if requested. It
/// reconnects for ever and ends only after an error, which is the relay's refusal.
///
/// # Cancel safety
/// An event that was not returned stays for the next poll.
#[derive(Debug)]
pub struct FlagWatcher(ReconnectingStream<WatchProtocol>);

/// `Flags.WatchFlag`.
#[derive(Debug)]
struct WatchProtocol {
    session: WatchSession,
    request: proto::WatchFlagRequest,
    /// Whether a stream was ever opened.
    opened: bool,
}

impl FlagWatcher {
    pub(super) fn new(client: &Client, flag: &FlagName, listener_id: &ListenerId) -> Self {
        let request = proto::WatchFlagRequest {
            flag: flag.to_string(),
            listener_id: listener_id.to_string(),
            // The session's default: a flag's stream has no Welcome that states another one.
            heartbeat: Some(span_to_wire(Limits::HEARTBEAT)),
            acks: false,
        };
        let protocol = WatchProtocol {
            session: WatchSession::new(client.reconnect_config()),
            request,
            opened: false,
        };
        let listener = listener_id.clone();
        Self(ReconnectingStream::new(client, listener, protocol))
    }

    /// Requests acknowledgements as well. The watch then does not count as a watcher.
    #[must_use]
    pub fn with_acks(mut self) -> Self {
        self.0.protocol.request.acks = true;
        self
    }

    /// Returns whether states can arrive now. Updated only while the watch is polled.
    pub fn state(&self) -> ConnectionState {
        self.0.protocol.session.reconnect.state()
    }

    /// Returns a receiver of the connection's state. Updated only while the watch is polled.
    pub fn link(&self) -> watch::Receiver<LinkState> {
        self.0.link()
    }

    /// Waits for the next state or acknowledgement; `None` after the relay's refusal was returned.
    ///
    /// # Errors
    /// The relay's final refusal, as in [`Subscription::next`].
    ///
    /// [`Subscription::next`]: crate::Subscription::next
    ///
    /// # Cancel safety
    /// Safe: an event that was not returned is returned by the next call.
    pub async fn next_event(&mut self) -> Option<Result<FlagEvent>> {
        self.0.next().await
    }
}

impl StreamProtocol for WatchProtocol {
    type Response = proto::WatchFlagResponse;
    type Item = FlagEvent;

    fn reconnect(&mut self) -> &mut Reconnect {
        &mut self.session.reconnect
    }

    fn link_state(&self) -> LinkState {
        let reconnect = &self.session.reconnect;
        LinkState {
            connection: reconnect.state(),
            announced: reconnect.is_announced(),
            cause: reconnect.cause().cloned(),
            ..LinkState::default()
        }
    }

    fn next_item(&mut self) -> Option<FlagEvent> {
        self.session.next_event()
    }

    fn open(&mut self, client: &Client, responses: &mut ResponseStream<Self::Response>) {
        let request = self.request.clone();
        responses.open(client, |channel| async move {
            FlagsClient::new(channel).watch_flag(request).await
        });
    }

    fn received(
        &mut self,
        message: Self::Response,
        now: Tick,
        rng: &mut fastrand::Rng,
    ) -> Result<()> {
        self.session.received(flag_event(message)?, now, rng);
        Ok(())
    }

    fn opened(&mut self, headers: &MetadataMap) {
        // On later streams the duplicate may be this watcher's previous stream, whose break the
        // relay has not noticed.
        if !std::mem::replace(&mut self.opened, true) && headers.contains_key(DUPLICATE_LISTENER) {
            self.log_duplicate();
        }
    }
}

impl WatchProtocol {
    #[cold]
    fn log_duplicate(&self) {
        tracing::warn!(
            flag = self.request.flag,
            listener = self.request.listener_id,
            "another stream watches this flag under the same listener id: both count as one \
             acknowledgement"
        );
    }
}

impl Stream for FlagWatcher {
    type Item = Result<FlagEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next(cx)
    }
}

#[async_trait]
impl FlagWatch for FlagWatcher {
    async fn next(&mut self) -> Option<Result<FlagState>> {
        loop {
            match self.next_event().await? {
                Ok(FlagEvent::State(state)) => return Some(Ok(state)),
                Ok(_) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }

    async fn ack(&mut self, generation: u64) -> Result<()> {
        let watch = &self.0.protocol.request;
        let request = proto::AckFlagRequest {
            flag: watch.flag.clone(),
            generation,
            listener_id: watch.listener_id.clone(),
        };
        let connection = self.0.call_connection();
        let mut flags = FlagsClient::new(connection.channel());
        let answer = self.0.client.call_on(&connection, flags.ack_flag(request));
        answer.await.map(|_| ())
    }
}
