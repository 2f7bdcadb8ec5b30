//! A flag watch over the network: a stream of states, starting with the current one.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use async_trait::async_trait;
use futures_core::Stream;

use super::{
    connection::{Client, FlagsClient},
    stream::{ResponseStream, StreamEvent, log_outage},
    timer::Timer,
};
use crate::{
    base::clock::{Clock, Tick},
    client::session::{ReconnectStep, WatchSession},
    error::{Error, Result},
    types::{ConnectionState, FlagEvent, FlagName, FlagState, FlagWatch, Limits, ListenerId},
    wire::{DUPLICATE_LISTENER, flag_event, from_status, proto, span_to_wire},
};

/// A [`Stream`] of a flag's [`FlagEvent`]s: states, and acknowledgements if requested. It
/// reconnects for ever and ends only after an error, which is the relay's refusal.
///
/// # Cancel safety
/// An event that was not returned stays for the next poll.
#[derive(Debug)]
pub struct FlagWatcher {
    client: Client,
    clock: Clock,
    request: proto::WatchFlagRequest,
    session: WatchSession,
    responses: ResponseStream<proto::WatchFlagResponse>,
    timer: Timer,
    rng: fastrand::Rng,
    /// Whether a stream was ever opened.
    opened: bool,
}

impl FlagWatcher {
    pub(super) fn new(client: &Client, flag: &FlagName, listener_id: &ListenerId) -> Self {
        let clock = client.clock();
        let request = proto::WatchFlagRequest {
            flag: flag.to_string(),
            listener_id: listener_id.to_string(),
            heartbeat: Some(span_to_wire(Limits::HEARTBEAT)),
            acks: false,
        };
        let mut session = WatchSession::new(client.reconnect_config());
        session.set_heartbeat(Limits::HEARTBEAT);
        Self {
            client: client.clone(),
            clock,
            request,
            session,
            responses: ResponseStream::none(),
            timer: Timer::new(clock),
            rng: fastrand::Rng::new(),
            opened: false,
        }
    }

    /// Requests acknowledgements as well. The watch then does not count as a watcher.
    #[must_use]
    pub fn with_acks(mut self) -> Self {
        self.request.acks = true;
        self
    }

    /// Returns whether states can arrive now. Updated only while the watch is polled.
    pub fn state(&self) -> ConnectionState {
        self.session.state()
    }

    /// Waits for the next state or acknowledgement; `None` after the relay's refusal was returned.
    ///
    /// # Errors
    /// The relay's final refusal: of a request that breaks a rule; before the relay's first message
    /// also [`ErrorKind::Denied`], [`ErrorKind::NotFound`] and [`ErrorKind::Unsupported`]. Later
    /// the watch retries after these as after a broken connection, because a proxy may have sent
    /// them.
    ///
    /// [`ErrorKind::Denied`]: crate::ErrorKind::Denied
    /// [`ErrorKind::NotFound`]: crate::ErrorKind::NotFound
    /// [`ErrorKind::Unsupported`]: crate::ErrorKind::Unsupported
    ///
    /// # Cancel safety
    /// Safe: an event that was not returned is returned by the next call.
    pub async fn next_event(&mut self) -> Option<Result<FlagEvent>> {
        std::future::poll_fn(|cx| self.poll_event(cx)).await
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<FlagEvent>>> {
        loop {
            if let Some(event) = self.session.next_event() {
                return Poll::Ready(Some(Ok(event)));
            }
            let now = self.clock.now();
            let until = match self.session.step(now) {
                ReconnectStep::Open => {
                    let request = self.request.clone();
                    self.responses.open(&self.client, |channel| async move {
                        FlagsClient::new(channel).watch_flag(request).await
                    });
                    continue;
                }
                ReconnectStep::Wait(until) | ReconnectStep::Read(until) => until,
                ReconnectStep::Closed => return Poll::Ready(None),
            };
            if let Poll::Ready(event) = self.responses.poll(cx) {
                match self.on_stream_event(event, now) {
                    Some(refusal) => return Poll::Ready(Some(Err(refusal))),
                    None => continue,
                }
            }
            std::task::ready!(self.timer.poll(until, cx));
            if self.session.elapsed(self.clock.now(), &mut self.rng) {
                self.responses.abandon();
                self.log_outage();
            }
        }
    }

    fn on_stream_event(
        &mut self,
        event: StreamEvent<proto::WatchFlagResponse>,
        now: Tick,
    ) -> Option<Error> {
        let error = match event {
            StreamEvent::Opened(headers) => {
                self.session.opened(now);
                // On later streams the duplicate may be this watcher's previous stream, whose break
                // the relay has not noticed.
                if !std::mem::replace(&mut self.opened, true)
                    && headers.contains_key(DUPLICATE_LISTENER)
                {
                    self.log_duplicate();
                }
                return None;
            }
            StreamEvent::Message(message) => match flag_event(message) {
                Ok(event) => {
                    self.session.received(event, now, &mut self.rng);
                    if self.session.state() != ConnectionState::Connected {
                        self.responses.close();
                    }
                    return None;
                }
                Err(error) => Some(error),
            },
            StreamEvent::Broken(status) => status.map(from_status),
        };
        self.responses.close();
        let refusal = self.session.broken(now, error.as_ref(), &mut self.rng);
        self.log_outage();
        refusal
    }

    #[cold]
    fn log_duplicate(&self) {
        tracing::warn!(
            flag = self.request.flag,
            listener = self.request.listener_id,
            "another stream watches this flag under the same listener id: both count as one \
             acknowledgement"
        );
    }

    fn log_outage(&mut self) {
        if let Some(outage) = self.session.outage(self.clock.now()) {
            log_outage(&outage, &self.request.listener_id, &self.client);
        }
    }
}

impl Stream for FlagWatcher {
    type Item = Result<FlagEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_event(cx)
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
        let request = proto::AckFlagRequest {
            flag: self.request.flag.clone(),
            generation,
            listener_id: self.request.listener_id.clone(),
        };
        let call = |channel| async move { FlagsClient::new(channel).ack_flag(request).await };
        self.client.call(call).await.map(|_| ())
    }
}
