//! Durable flags over the network: unleash, leash, get, list, watch.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use async_trait::async_trait;
use futures_core::Stream;
use tokio::sync::watch;

use super::{
    admin::FlagWatcherInfo,
    connection::{Client, FlagsClient},
    credential::RelayChannel,
    pages::{Listed, all_pages},
    reconnecting_stream::{Opening, ReconnectingStream, StreamProtocol},
};
use crate::{
    base::clock::Tick,
    client::session::Reconnect,
    error::Result,
    types::{
        FlagEvent, FlagName, FlagState, FlagWatch, LeashOptions, Limits, LinkState, ListenerId,
        UnleashOptions,
    },
    wire::{flag_event, flag_from_wire, proto, span_to_wire},
};

/// The calls on durable flags.
#[derive(Debug, Clone)]
pub struct Flags(pub(super) Client);

/// The result of an unleash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unleashed {
    /// The flag as it is stored now.
    pub flag: FlagState,
    /// Number of watchers notified at once. Later watchers read the flag.
    pub watchers: u32,
}

impl Flags {
    /// Sets a flag durably and notifies all of its watchers. A flag that is already set keeps its
    /// generation, and the values that the options leave out.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a text or ttl out of range;
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the relay cannot be reached or
    /// cannot write. The flag may still have been set; check with [`Flags::get`].
    pub async fn unleash(&self, flag: &FlagName, options: &UnleashOptions) -> Result<Unleashed> {
        options.check()?;
        let request = proto::UnleashRequest {
            flag: flag.to_string(),
            ttl: options.ttl.map(span_to_wire),
            set_by: options.set_by.clone(),
            reason: options.reason.clone(),
        };
        let call = async |channel, request| FlagsClient::new(channel).unleash(request).await;
        let response = self.0.call(request, call).await?;
        Ok(Unleashed {
            flag: flag_from_wire(response.flag)?,
            watchers: response.watchers,
        })
    }

    /// Clears a flag durably and notifies all of its watchers.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) as for [`Flags::unleash`].
    pub async fn leash(&self, flag: &FlagName) -> Result<FlagState> {
        self.leash_with(flag, &LeashOptions::default()).await
    }

    /// Clears a flag durably and notifies all of its watchers. The relay logs the given caller and
    /// reason.
    ///
    /// # Errors
    /// As [`Flags::leash`], and [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a text that
    /// is too long.
    pub async fn leash_with(&self, flag: &FlagName, options: &LeashOptions) -> Result<FlagState> {
        options.check()?;
        let request = proto::LeashRequest {
            flag: flag.to_string(),
            cleared_by: options.cleared_by.clone(),
            reason: options.reason.clone(),
        };
        let call = async |channel, request| FlagsClient::new(channel).leash(request).await;
        flag_from_wire(self.0.call(request, call).await?.flag)
    }

    /// Reads a flag. An unknown flag is not set.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if it cannot be read now.
    pub async fn get(&self, flag: &FlagName) -> Result<FlagState> {
        let request = proto::GetFlagRequest {
            flag: flag.to_string(),
        };
        let call = async |channel, request| FlagsClient::new(channel).get_flag(request).await;
        flag_from_wire(self.0.read(request, call).await?.flag)
    }

    /// Lists the set flags whose names begin with `prefix`, by name; reads all pages.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if they cannot be read now.
    pub async fn list(&self, prefix: &str) -> Result<Vec<FlagState>> {
        let fetch = async |page_token| {
            let request = proto::ListFlagsRequest {
                prefix: prefix.to_owned(),
                page_size: 0,
                page_token,
            };
            let call = async |channel, request| FlagsClient::new(channel).list_flags(request).await;
            let page = self.0.read(request, call).await?;
            Ok((page.flags, Vec::new(), page.next_page_token))
        };
        let listed = all_pages(fetch).await?.entries.into_iter();
        listed.map(|flag| flag_from_wire(Some(flag))).collect()
    }

    /// Lists the listeners that watch a flag, by listener id; reads all pages.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the relay cannot be reached;
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) from a relay older than this call.
    pub async fn watchers(&self, flag: &FlagName) -> Result<Listed<FlagWatcherInfo>> {
        let fetch = async |page_token| {
            let request = proto::ListFlagWatchersRequest {
                flag: flag.to_string(),
                page_size: 1000,
                page_token,
            };
            let call = async |channel, request| {
                FlagsClient::new(channel).list_flag_watchers(request).await
            };
            let page = self.0.read(request, call).await?;
            Ok((page.watchers, page.unanswered_relays, page.next_page_token))
        };
        all_pages(fetch).await
    }
}

/// A [`Stream`] of a flag's [`FlagEvent`]s: states, and acknowledgements if requested. It
/// reconnects for ever and ends only after an error, which is the relay's refusal.
///
/// # Cancel safety
/// An event that was not returned stays for the next poll.
#[derive(Debug)]
pub struct FlagWatcher(ReconnectingStream<WatchProtocol>);

/// `Flags.WatchFlag`. Every stream begins with the flag's current state. A state that repeats the one
/// before it is not handed over.
#[derive(Debug)]
struct WatchProtocol {
    reconnect: Reconnect,
    request: proto::WatchFlagRequest,
    /// Has arrived, and is handed over before the next message is read.
    arrived: Option<FlagEvent>,
    /// The newest state that arrived.
    newest: Option<FlagState>,
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
            reconnect: Reconnect::new(client.reconnect_config()),
            request,
            arrived: None,
            newest: None,
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
        &mut self.reconnect
    }

    fn link_state(&self) -> LinkState {
        LinkState {
            connection: self.reconnect.state(),
            announced: self.reconnect.announced,
            cause: self.reconnect.cause.clone(),
            ..LinkState::default()
        }
    }

    fn next_item(&mut self) -> Option<FlagEvent> {
        self.arrived.take()
    }

    fn open(&mut self, channel: RelayChannel) -> Opening<Self::Response> {
        let request = self.request.clone();
        Box::pin(async move { FlagsClient::new(channel).watch_flag(request).await })
    }

    fn received(
        &mut self,
        message: Self::Response,
        now: Tick,
        rng: &mut fastrand::Rng,
    ) -> Result<()> {
        let event = flag_event(message)?;
        self.reconnect.on_message(now);
        match event {
            FlagEvent::Goodbye(goodbye) => self.reconnect.goodbye(now, goodbye, rng),
            FlagEvent::State(state) if self.newest.as_ref() == Some(&state) => {}
            FlagEvent::State(ref state) => {
                self.newest = Some(state.clone());
                self.arrived = Some(event);
            }
            FlagEvent::Acks { .. } => self.arrived = Some(event),
            FlagEvent::Heartbeat | FlagEvent::Unknown => {}
        }
        Ok(())
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
        let client = &self.0.client;
        let within = client.0.config.request_timeout;
        let answer = client.call_on(&connection, within, flags.ack_flag(request));
        answer.await.map(|_| ())
    }
}
