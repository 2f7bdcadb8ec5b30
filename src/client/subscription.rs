//! A subscription over the network: a stream of wake-ups that reconnects for ever.
//!
//! Driven by whoever polls it, without a task of its own: an application that does not read leaves
//! what it is owed conflated at the relay, and everything read before is accounted for before a
//! silence is judged.

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
    stream::{Arrival, Inbound, log_outage},
    timer::Timer,
};
use crate::{
    clock::{Clock, Tick},
    error::{Error, ErrorKind, Result},
    session::{ReconnectStep, SubscriptionSession, SubscriptionStep},
    wire::{from_status, proto, report_to_wire, subscribe_event, subscribe_to_wire},
    words::{
        ConnectionState, Limits, LinkState, Report, Reported, SubscribeOptions, Wakes, Welcome,
        WorkDetected,
    },
};

/// Wake-ups, for ever. A [`Stream`] of [`WorkDetected`]; it ends only after an error, which is the
/// relay's refusal. Dropping it closes the stream.
///
/// # Cancel safety
/// A wake-up that was not returned stays for the next poll.
#[derive(Debug)]
pub struct Subscription {
    client: Client,
    clock: Clock,
    session: SubscriptionSession,
    inbound: Inbound<proto::SubscribeResponse>,
    timer: Timer,
    link: watch::Sender<LinkState>,
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
            session: SubscriptionSession::new(options, client.link_config()),
            inbound: Inbound::none(),
            timer: Timer::new(clock),
            link: watch::Sender::new(LinkState::default()),
            rng: fastrand::Rng::new(),
        })
    }

    /// Returns whether wake-ups can arrive just now. Moves on only while the stream is polled.
    pub fn state(&self) -> ConnectionState {
        self.session.state()
    }

    /// Returns a receiver that hears how it stands with the relay. Moves on only while the stream is
    /// polled.
    pub fn link(&self) -> watch::Receiver<LinkState> {
        self.link.subscribe()
    }

    /// Returns the welcome of the stream that is open, if one is.
    pub fn welcome(&self) -> Option<&Welcome> {
        self.session.welcome()
    }

    /// Waits for the next wake-up; `None` after the relay's refusal was returned.
    ///
    /// # Errors
    /// The relay's refusal, which is final: of a request that breaks a rule, or before the relay was
    /// ever heard also [`ErrorKind::Denied`], [`ErrorKind::NotFound`] and
    /// [`ErrorKind::Unsupported`]. Later these are tried again like a broken connection, because
    /// something in between may have said so.
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
            if let Poll::Ready(arrival) = self.inbound.poll(cx) {
                let refusal = self.arrived(arrival, now);
                self.tell_link();
                match refusal {
                    Some(refusal) => return Poll::Ready(Some(Err(refusal))),
                    None => continue,
                }
            }
            std::task::ready!(self.timer.poll(until, cx));
            if self.session.elapsed(self.clock.now(), &mut self.rng) {
                self.inbound.leave();
                self.log_outage();
            }
            self.tell_link();
        }
    }

    fn open(&mut self, request: &SubscribeOptions) {
        let request = subscribe_to_wire(request);
        self.inbound.open(&self.client, |channel| async move {
            RelayClient::new(channel).subscribe(request).await
        });
    }

    /// Takes in what the stream brought; returns the error where it is final.
    fn arrived(&mut self, arrival: Arrival<proto::SubscribeResponse>, now: Tick) -> Option<Error> {
        match arrival {
            Arrival::Opened(_) => self.session.opened(now),
            Arrival::Message(message) => {
                self.session
                    .received(subscribe_event(message), now, &mut self.rng);
                if self.session.state() != ConnectionState::Connected {
                    // It said goodbye.
                    self.inbound.close();
                }
            }
            Arrival::Broken(status) => {
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

    fn tell_link(&self) {
        let link = self.session.link_state();
        self.link
            .send_if_modified(|told| std::mem::replace(told, link) != link);
    }
}

/// Checks that the request fits without positions: with less than that it would be refused for ever.
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
impl Wakes for Subscription {
    async fn next(&mut self) -> Option<Result<WorkDetected>> {
        Self::next(self).await
    }

    fn report(&mut self, mut report: Report) -> Reported {
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
        let asks = self
            .session
            .retry_after_refusal(self.clock.now(), after, &mut self.rng);
        self.tell_link();
        asks
    }

    fn pause(&mut self, paused: bool) {
        if self.session.pause(paused, self.clock.now()) {
            self.inbound.close();
            self.tell_link();
        }
    }

    fn link(&self) -> watch::Receiver<LinkState> {
        Self::link(self)
    }
}
