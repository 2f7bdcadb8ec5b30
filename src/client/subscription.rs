//! A subscription over the network: a stream of wake-ups that reconnects for ever.
//!
//! It has no task: polling drives it. While an application does not read, its wake-ups conflate at
//! the relay. Arrived messages are processed before a silence counts.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use futures_core::Stream;
use tokio::sync::watch;

use super::{
    connection::{Client, RelayClient},
    credential::RelayChannel,
    reconnecting_stream::{Opening, ReconnectingStream, StreamProtocol},
};
use crate::{
    base::clock::Tick,
    client::session::{Reconnect, SubscriptionSession},
    error::{Error, ErrorKind, Result},
    types::{
        Limits, LinkState, Report, ReportFuture, ResumeNumber, SubscribeOptions, WakeStream,
        Welcome, WorkDetected,
    },
    wire::{proto, report_to_wire, subscribe_event, subscribe_to_wire},
};

/// A [`Stream`] of wake-ups ([`WorkDetected`]). It ends only after an error, which is the relay's
/// refusal. Dropping it closes the stream.
///
/// # Cancel safety
/// A wake-up that was not returned stays for the next poll.
#[derive(Debug)]
pub struct Subscription(ReconnectingStream<SubscriptionSession>);

impl Subscription {
    pub(super) fn new(client: &Client, options: SubscribeOptions) -> Result<Self> {
        options.check()?;
        let bytes = options.encoded_at_most();
        if bytes > Limits::SUBSCRIBE_BYTES {
            // The relay would refuse it every time.
            let limit = Limits::SUBSCRIBE_BYTES;
            let message = format!("selectors: the limit is {limit} bytes per request, got {bytes}");
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        let listener = options.listener_id.clone();
        let protocol = SubscriptionSession::new(options, client.reconnect_config());
        Ok(Self(ReconnectingStream::new(client, listener, protocol)))
    }

    /// Returns a receiver of the connection's state: whether wake-ups can arrive now. Updated only while the
    /// stream is polled.
    pub fn link(&self) -> watch::Receiver<LinkState> {
        self.0.link()
    }

    /// Returns the Welcome of the open stream, if any.
    pub fn welcome(&self) -> Option<&Welcome> {
        self.0.protocol.welcome()
    }

    /// Returns the newest resume number whose earlier wake-ups were all returned; empty without one.
    /// A process that states it as [`SubscribeOptions::resume`], with the same listener and selectors,
    /// gets a CATCH_UP only for the queues that changed since.
    pub fn resume(&self) -> &ResumeNumber {
        self.0.protocol.resume()
    }

    /// Waits for the next wake-up; `None` after the relay's refusal was returned.
    ///
    /// # Errors
    /// The relay's final refusal: of a request that breaks a rule; before the relay's first message
    /// also [`ErrorKind::Denied`], [`ErrorKind::NotFound`] and [`ErrorKind::Unsupported`]. Later
    /// the subscription retries after these as after a broken connection, because a proxy may have
    /// sent them.
    ///
    /// [`ErrorKind::Denied`]: crate::ErrorKind::Denied
    /// [`ErrorKind::NotFound`]: crate::ErrorKind::NotFound
    /// [`ErrorKind::Unsupported`]: crate::ErrorKind::Unsupported
    ///
    /// # Cancel safety
    /// Safe: a wake-up that was not returned is returned by the next call.
    pub async fn next(&mut self) -> Option<Result<WorkDetected>> {
        self.0.next().await
    }
}

/// `Relay.Subscribe`.
impl StreamProtocol for SubscriptionSession {
    type Response = proto::SubscribeResponse;
    type Item = WorkDetected;

    fn reconnect(&mut self) -> &mut Reconnect {
        &mut self.reconnect
    }

    fn link_state(&self) -> LinkState {
        self.link_state()
    }

    fn next_item(&mut self) -> Option<WorkDetected> {
        self.next_work()
    }

    fn open(&mut self, channel: RelayChannel) -> Opening<Self::Response> {
        let request = subscribe_to_wire(&self.request());
        Box::pin(async move { RelayClient::new(channel).subscribe(request).await })
    }

    fn received(
        &mut self,
        message: Self::Response,
        now: Tick,
        rng: &mut fastrand::Rng,
    ) -> Result<()> {
        self.received(subscribe_event(message)?, now, rng);
        Ok(())
    }
}

impl Stream for Subscription {
    type Item = Result<WorkDetected>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next(cx)
    }
}

#[async_trait]
impl WakeStream for Subscription {
    async fn next(&mut self) -> Option<Result<WorkDetected>> {
        self.0.next().await
    }

    fn report(&mut self, mut report: Report) -> ReportFuture {
        let request = match self.0.protocol.report(&mut report) {
            Ok(id) => report_to_wire(&id, &report),
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        let (client, connection) = (self.0.client.clone(), self.0.call_connection());
        Box::pin(async move {
            let mut relay = RelayClient::new(connection.channel());
            let within = client.0.config.request_timeout;
            let answer = client.call_on(&connection, within, relay.report(request));
            answer.await.map(|_| ())
        })
    }

    fn ask_again(&mut self, after: Duration) -> bool {
        self.0.retry_after_refusal(after)
    }

    fn link(&self) -> watch::Receiver<LinkState> {
        Self::link(self)
    }
}
