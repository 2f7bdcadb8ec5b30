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
    stream::{ResponseStream, StreamEvent, log_outage},
    timer::Timer,
};
use crate::{
    base::clock::{Clock, Tick},
    client::session::{ReconnectStep, SubscriptionSession, SubscriptionStep},
    error::{Error, ErrorKind, Result},
    types::{
        ConnectionState, Limits, LinkState, Report, ReportFuture, SubscribeOptions, WakeStream,
        Welcome, WorkDetected,
    },
    wire::{from_status, proto, report_to_wire, subscribe_event, subscribe_to_wire},
};

/// A [`Stream`] of wake-ups ([`WorkDetected`]). It ends only after an error, which is the relay's
/// refusal. Dropping it closes the stream.
///
/// # Cancel safety
/// A wake-up that was not returned stays for the next poll.
#[derive(Debug)]
pub struct Subscription {
    client: Client,
    clock: Clock,
    session: SubscriptionSession,
    responses: ResponseStream<proto::SubscribeResponse>,
    timer: Timer,
    link_state: watch::Sender<LinkState>,
    rng: fastrand::Rng,
}

impl Subscription {
    pub(super) fn new(client: &Client, options: SubscribeOptions) -> Result<Self> {
        options.check()?;
        check_size(&options)?;
        let clock = client.clock();
        Ok(Self {
            client: client.clone(),
            clock,
            session: SubscriptionSession::new(options, client.reconnect_config()),
            responses: ResponseStream::none(),
            timer: Timer::new(clock),
            link_state: watch::Sender::new(LinkState::default()),
            rng: fastrand::Rng::new(),
        })
    }

    /// Returns whether wake-ups can arrive now. Updated only while the stream is polled.
    pub fn state(&self) -> ConnectionState {
        self.session.state()
    }

    /// Returns a receiver of the connection's state. Updated only while the stream is polled.
    pub fn link(&self) -> watch::Receiver<LinkState> {
        self.link_state.subscribe()
    }

    /// Returns the Welcome of the open stream, if any.
    pub fn welcome(&self) -> Option<&Welcome> {
        self.session.welcome()
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
        std::future::poll_fn(|cx| self.poll_work(cx)).await
    }

    fn poll_work(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<WorkDetected>>> {
        loop {
            if let Some(work) = self.session.next_work() {
                return Poll::Ready(Some(Ok(work)));
            }
            let now = self.clock.now();
            let until = match self.session.step(now) {
                SubscriptionStep::Open(request) => {
                    self.open(&request);
                    continue;
                }
                SubscriptionStep::Reconnect(
                    ReconnectStep::Wait(until) | ReconnectStep::Read(until),
                ) => until,
                SubscriptionStep::Reconnect(ReconnectStep::Open | ReconnectStep::Closed) => {
                    return Poll::Ready(None);
                }
            };
            if let Poll::Ready(event) = self.responses.poll(cx) {
                let refusal = self.on_stream_event(event, now);
                self.publish_link_state();
                match refusal {
                    Some(refusal) => return Poll::Ready(Some(Err(refusal))),
                    None => continue,
                }
            }
            std::task::ready!(self.timer.poll(until, cx));
            if self.session.elapsed(self.clock.now(), &mut self.rng) {
                self.responses.abandon();
                self.log_outage();
            }
            self.publish_link_state();
        }
    }

    fn open(&mut self, request: &SubscribeOptions) {
        let request = subscribe_to_wire(request);
        self.responses.open(&self.client, |channel| async move {
            RelayClient::new(channel).subscribe(request).await
        });
    }

    /// Processes an event of the stream; returns the error if it is final.
    fn on_stream_event(
        &mut self,
        event: StreamEvent<proto::SubscribeResponse>,
        now: Tick,
    ) -> Option<Error> {
        match event {
            StreamEvent::Opened(_) => self.session.opened(now),
            StreamEvent::Message(message) => {
                self.session
                    .received(subscribe_event(message), now, &mut self.rng);
                if self.session.state() != ConnectionState::Connected {
                    // The relay sent a Goodbye.
                    self.responses.close();
                }
            }
            StreamEvent::Broken(status) => {
                let error = status.map(from_status);
                let refusal = self.session.broken(now, error.as_ref(), &mut self.rng);
                self.log_outage();
                return refusal;
            }
        }
        None
    }

    fn log_outage(&mut self) {
        if let Some(outage) = self.session.outage(self.clock.now()) {
            log_outage(&outage, self.session.listener_id().as_str(), &self.client);
        }
    }

    fn publish_link_state(&self) {
        let link = self.session.link_state();
        self.link_state
            .send_if_modified(|published| std::mem::replace(published, link) != link);
    }
}

/// Checks that the request fits without positions. Otherwise the relay would refuse it every time.
fn check_size(options: &SubscribeOptions) -> Result<()> {
    let bytes = options.encoded_without_positions();
    if bytes <= Limits::SUBSCRIBE_BYTES {
        return Ok(());
    }
    let message = format!(
        "selectors: the limit is {} bytes per request, got {bytes}",
        Limits::SUBSCRIBE_BYTES
    );
    Err(Error::new(ErrorKind::Exhausted, message))
}

impl Stream for Subscription {
    type Item = Result<WorkDetected>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_work(cx)
    }
}

#[async_trait]
impl WakeStream for Subscription {
    async fn next(&mut self) -> Option<Result<WorkDetected>> {
        Self::next(self).await
    }

    fn report(&mut self, mut report: Report) -> ReportFuture {
        let request = match self.session.report(&mut report) {
            Ok(id) => report_to_wire(&id, &report),
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        let client = self.client.clone();
        Box::pin(async move {
            let call = |channel| async move { RelayClient::new(channel).report(request).await };
            client.call(call).await.map(|_| ())
        })
    }

    fn ask_again(&mut self, after: Duration) -> bool {
        let retries = self
            .session
            .retry_after_refusal(self.clock.now(), after, &mut self.rng);
        self.publish_link_state();
        retries
    }

    fn pause(&mut self, paused: bool) {
        if self.session.pause(paused, self.clock.now()) {
            self.responses.close();
            self.publish_link_state();
        }
    }

    fn link(&self) -> watch::Receiver<LinkState> {
        Self::link(self)
    }
}
