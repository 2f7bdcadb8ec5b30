//! The `Relay` service: translates requests and calls the relay.
//!
//! A Wake is encoded while the hub fills it: entries are appended as bytes, and all subscribers of a queue at
//! the same position share one encoding.

use std::{
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
    time::Duration,
};

use futures_core::Stream;
use tokio_util::sync::{ReusableBoxFuture, WaitForCancellationFutureOwned};
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::{
    Services,
    unconfirmed::{Unconfirmed, refusal},
};
use crate::{
    base::task::{Work, poll_budget, spend, spend_and_yield},
    error::Result,
    relay::{
        auth::{Action, Resource, Share, Target},
        hub::{StreamMessage, Target as WakeTarget, WakeEntry, WakeSink},
        runtime::{MessageStream, Relay},
        server::{
            access::requester::{Needs, Requester, StreamGuard},
            http2::{
                activity::{Activity, check_accepts_streams},
                server_limits::retry_later,
            },
        },
    },
    types::{Limits, Notification, Report, SubscribeEvent},
    wire::{
        EntryFields, NotifyRequest, Refusals, SubscribeResponseEvent, encode_entry,
        link::{peer_reply::Answer, peer_request::Call},
        peer_status, proto, report_from_wire, report_to_wire, results_to_wire,
        subscribe_event_to_wire, subscribe_from_wire, to_status,
    },
};

/// Publishers leave a relay that is cut off at most this often.
const LEAVES_AFTER: Duration = Duration::from_secs(10);
/// A report waits no longer than this for the relay of its stream.
const FORWARDED_WITHIN: Duration = Duration::from_secs(2);

/// A subscriber's stream on the wire.
pub(crate) struct SubscribeResponses {
    /// `None` once the stream was ended by its guard.
    messages: Option<MessageStream<EncodedWake>>,
    guard: Option<Box<StreamGuard>>,
    connection: Option<Arc<Activity>>,
    /// They count for the principal.
    _selectors: Option<Share>,
}

/// The entries of one Wake (R1: a Wake is bounded, at most 256 entries and 32 KiB).
#[derive(Debug, Default)]
pub(crate) struct EncodedWake {
    bytes: Vec<u8>,
    entries: usize,
    /// Number of entries expected in total.
    expected: usize,
}

/// The responses to a pipelined publisher, in the order of its requests.
pub(crate) struct NotifyResponses {
    relay: Relay,
    guard: Option<Box<StreamGuard>>,
    /// Requests since the guard was polled.
    unchecked: u32,
    requests: Streaming<NotifyRequest>,
    /// A response that is delayed so that the wake-ups are sent first.
    delayed: Option<proto::NotifyResponse>,
    /// `None` where no answer waits for a confirmation.
    unconfirmed: Option<Unconfirmed>,
    turn: ReusableBoxFuture<'static, ()>,
    /// The publisher had no request in flight at the last poll.
    idle: bool,
    /// No further request is read: the stream ends when all answers are sent, with this failure.
    stopping: bool,
    failure: Option<Status>,
    /// The relay drains, or the connection is at its maximum age.
    ending: Pin<Box<WaitForCancellationFutureOwned>>,
    connection: Option<Arc<Activity>>,
}

/// A guard is polled after this many requests without a pause: it is a timer, which costs a
/// hundredth of a request.
const CHECKED_EVERY: u32 = 64;

#[async_trait]
impl proto::relay_server::Relay for Services {
    type NotifyStreamStream = NotifyResponses;
    type SubscribeStream = SubscribeResponses;

    async fn notify(
        &self,
        request: Request<NotifyRequest>,
    ) -> Result<Response<proto::NotifyResponse>, Status> {
        let requester = self.access.requester(request.extensions())?;
        let answer = notify(&self.relay, &requester, request.into_inner());
        let (response, position) = answer.map_err(to_status)?;
        if position.is_some() {
            self.relay.confirm().await.map_err(to_status)?;
        }
        Ok(Response::new(response))
    }

    async fn notify_stream(
        &self,
        request: Request<Streaming<NotifyRequest>>,
    ) -> Result<Response<NotifyResponses>, Status> {
        let requester = self.access.requester(request.extensions())?;
        let connection = request.extensions().get::<Arc<Activity>>().cloned();
        let end = connection
            .as_ref()
            .map_or(&self.draining, |connection| &connection.ending_soon);
        Ok(Response::new(NotifyResponses {
            relay: self.relay.clone(),
            guard: requester.guard(|| Needs::Some(Action::Notify)),
            unchecked: 0,
            requests: request.into_inner(),
            delayed: None,
            unconfirmed: Unconfirmed::of(&self.relay),
            stopping: false,
            failure: None,
            turn: ReusableBoxFuture::new(tokio::task::yield_now()),
            idle: true,
            ending: Box::pin(end.clone().cancelled_owned()),
            connection,
        }))
    }

    async fn subscribe(
        &self,
        request: Request<proto::SubscribeRequest>,
    ) -> Result<Response<SubscribeResponses>, Status> {
        let requester = self.access.requester(request.extensions())?;
        check_accepts_streams(&self.relay, request.extensions())?;
        let connection = request.extensions().get::<Arc<Activity>>().cloned();
        let request = request.into_inner();
        // Decoding, checking and registering thousands of names takes one turn of the task each.
        spend_and_yield(Work::Names(request.selectors.len())).await;
        let options = subscribe_from_wire(request)?;
        let names = Work::Names(options.selectors.len());
        spend_and_yield(names).await;
        // The stream's first work belongs to the next turn.
        spend(names);
        for selector in &options.selectors {
            let target = Target::Selector(selector);
            requester.check(Action::Subscribe, target)?;
        }
        let selectors = requester.take(Resource::Selectors, options.selectors.len())?;
        let pool = requester.cursor_pool();
        let max_age = self.relay.config().stream_max_age;
        let messages = self
            .relay
            .open_stream(pool, &options, max_age, EncodedWake::default())
            .map_err(retry_later)?;
        let guard = requester.guard(|| Needs::Queues(Action::Subscribe, options.selectors));
        Ok(Response::new(SubscribeResponses {
            messages: Some(messages),
            guard,
            connection,
            _selectors: selectors,
        }))
    }

    async fn report(
        &self,
        request: Request<proto::ReportRequest>,
    ) -> Result<Response<proto::ReportResponse>, Status> {
        let requester = self.access.requester(request.extensions())?;
        let (subscription_id, report) = report_from_wire(request.into_inner())?;
        let target = Target::Queue(&report.queue);
        requester.check(Action::Report, target)?;
        if let Some(relay_id) = self.relay.other_owner(&subscription_id) {
            return self.forward(relay_id, &subscription_id, &report).await;
        }
        let taken = self.relay.report(&subscription_id, &report).await;
        taken.map_err(retry_later)?;
        Ok(Response::new(proto::ReportResponse {}))
    }
}

impl Services {
    /// C13: passes a report on to the relay that has the stream.
    async fn forward(
        &self,
        relay_id: &str,
        subscription_id: &str,
        report: &Report,
    ) -> Result<Response<proto::ReportResponse>, Status> {
        let call = Call::Report(report_to_wire(subscription_id, report));
        let answer = match self.relay.newest_life(relay_id) {
            Some(life) => self.relay.ask(life, call, FORWARDED_WITHIN).await,
            None => None,
        };
        match answer {
            Some(Answer::Done(_)) => Ok(Response::new(proto::ReportResponse {})),
            Some(Answer::Failure(failure)) => Err(peer_status(failure)),
            _ => {
                let message = "subscription_id: it belongs to another relay, which does not answer";
                Err(Status::unavailable(message))
            }
        }
    }
}

impl Stream for SubscribeResponses {
    type Item = Result<proto::SubscribeResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(guard) = &mut self.guard
            && guard.poll_revoked(cx).is_ready()
        {
            (self.guard, self.messages) = (None, None);
            let goodbye = SubscribeEvent::Goodbye(StreamGuard::goodbye());
            return Poll::Ready(Some(Ok(subscribe_event_to_wire(goodbye))));
        }
        let Some(messages) = &mut self.messages else {
            return Poll::Ready(None);
        };
        let message = std::task::ready!(Pin::new(messages).poll_next(cx));
        let to_wire = |message| match message {
            StreamMessage::Event(event) => subscribe_event_to_wire(event),
            StreamMessage::Wake(EncodedWake { bytes, .. }) => proto::SubscribeResponse {
                event: Some(SubscribeResponseEvent::Wake(bytes)),
            },
        };
        Poll::Ready(message.map(|message| Ok(to_wire(message))))
    }
}

impl Drop for SubscribeResponses {
    fn drop(&mut self) {
        if let Some(messages) = &self.messages
            && self
                .connection
                .as_ref()
                .is_some_and(|connection| connection.is_lost.load(Relaxed))
        {
            messages.note_lost();
        }
    }
}

impl NotifyResponses {
    /// Counts a request's notifications. Returns the position behind them, if any was counted.
    fn response(&self, request: NotifyRequest) -> (proto::NotifyResponse, Option<u64>) {
        let guard = self.guard.as_deref();
        let requester = guard.map_or_else(Requester::anyone, StreamGuard::requester);
        match notify(&self.relay, &requester, request) {
            Ok(answer) => answer,
            Err(error) => (refusal(&error), None),
        }
    }

    fn poll_unconfirmed(&mut self, cx: &mut Context<'_>) -> Poll<Option<proto::NotifyResponse>> {
        let Some(unconfirmed) = &mut self.unconfirmed else {
            return Poll::Ready(None);
        };
        let response = std::task::ready!(unconfirmed.poll_next(cx));
        if response
            .as_ref()
            .is_some_and(|response| response.error.is_some())
        {
            leave_if_cut_off(&self.relay, self.connection.as_ref());
        }
        Poll::Ready(response)
    }

    /// The woken subscribers run first, because their latency matters more than the publisher's.
    /// Later requests of a burst are not delayed.
    fn answer(
        &mut self,
        response: proto::NotifyResponse,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<proto::NotifyResponse, Status>>> {
        if !std::mem::take(&mut self.idle) {
            return Poll::Ready(Some(Ok(response)));
        }
        self.delayed = Some(response);
        self.turn.set(tokio::task::yield_now());
        std::task::ready!(self.turn.poll(cx));
        Poll::Ready(self.delayed.take().map(Ok))
    }

    /// There is no request, or no further one is read. A publisher's stream has no Goodbye: it ends
    /// when all requests are answered, with UNAVAILABLE where the relay drains, else with OK.
    fn wait(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<proto::NotifyResponse, Status>>> {
        if let Poll::Ready(Some(response)) = self.poll_unconfirmed(cx) {
            return Poll::Ready(Some(Ok(response)));
        }
        self.idle = true;
        if self.poll_revoked(cx).is_ready() {
            return Poll::Ready(None);
        }
        if !self.stopping && self.ending.as_mut().poll(cx).is_ready() {
            self.stopping = true;
            if self.relay.is_draining() {
                self.failure = Some(Status::unavailable("the relay is shutting down"));
            }
        }
        match self.unconfirmed.as_ref().is_none_or(Unconfirmed::is_empty) && self.stopping {
            true => Poll::Ready(self.failure.take().map(Err)),
            false => Poll::Pending,
        }
    }

    /// Ready once the stream must end. A publisher's stream has no Goodbye: the publisher sends
    /// unanswered requests again.
    fn poll_revoked(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.unchecked = 0;
        match &mut self.guard {
            Some(guard) => guard.poll_revoked(cx),
            None => Poll::Pending,
        }
    }
}

impl Stream for NotifyResponses {
    type Item = Result<proto::NotifyResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.delayed.is_some() {
            std::task::ready!(self.turn.poll(cx));
            return Poll::Ready(self.delayed.take().map(Ok));
        }
        if let Poll::Ready(Some(response)) = self.poll_unconfirmed(cx) {
            return Poll::Ready(Some(Ok(response)));
        }
        while !self.stopping && self.unconfirmed.as_ref().is_none_or(|all| !all.is_full()) {
            std::task::ready!(poll_budget(cx));
            self.unchecked += 1;
            if self.unchecked >= CHECKED_EVERY && self.poll_revoked(cx).is_ready() {
                return Poll::Ready(None);
            }
            match Pin::new(&mut self.requests).poll_next(cx) {
                Poll::Ready(Some(Ok(request))) => {
                    let (response, position) = self.response(request);
                    if let Some(unconfirmed) = &mut self.unconfirmed {
                        // One that has counted nothing keeps its place only.
                        unconfirmed.push(response, position);
                        continue;
                    }
                    return self.answer(response, cx);
                }
                Poll::Ready(ended) => {
                    self.stopping = true;
                    self.failure = ended.and_then(Result::err);
                }
                Poll::Pending => break,
            }
        }
        self.wait(cx)
    }
}

impl EncodedWake {
    /// Keeps the bytes appended after `before` if they fit, or removes them.
    fn commit(&mut self, before: usize) -> bool {
        let fits = self.entries < Limits::WAKE_ENTRIES && self.bytes.len() <= Limits::WAKE_BYTES;
        match fits {
            true => self.entries += 1,
            false => self.bytes.truncate(before),
        }
        fits
    }
}

impl WakeSink for EncodedWake {
    fn expect(&mut self, entries: usize) {
        self.expected = entries.min(Limits::WAKE_ENTRIES);
    }

    fn push(&mut self, entry: &WakeEntry<'_>, shared: Option<&mut Vec<u8>>) -> bool {
        let before = self.bytes.len();
        let Some(encoded) = shared else {
            encode(entry, &mut self.bytes);
            return self.commit(before);
        };
        if encoded.is_empty() {
            encode(entry, encoded);
        }
        if before == 0 {
            // The entries of one Wake have similar lengths: one allocation for all.
            let all = encoded.len().saturating_mul(self.expected);
            self.bytes.reserve(all.min(Limits::WAKE_BYTES));
        }
        self.bytes.extend_from_slice(encoded);
        self.commit(before)
    }
}

fn encode(entry: &WakeEntry<'_>, out: &mut Vec<u8>) {
    let text = match entry.target {
        WakeTarget::Queue(address) => address.as_str(),
        WakeTarget::Pattern(selector) => selector.as_str(),
    };
    let (account, queue) = text.split_once('/').unwrap_or((text, ""));
    let fields = EntryFields {
        account,
        queue,
        payload_size: entry.work.delta.payload,
        sequence: entry.work.sequence,
        notifications: entry.work.delta.notifications,
        reason: entry.work.reason,
        last_event: entry.last_event,
        messages: entry.work.delta.messages,
    };
    encode_entry(&fields, out);
}

/// Counts each of a request's notifications that is allowed, unless this relay has done so before.
/// Returns the position behind them, if any was counted.
fn notify(
    relay: &Relay,
    requester: &Requester,
    request: NotifyRequest,
) -> Result<(proto::NotifyResponse, Option<u64>)> {
    relay.check_accepts_notifications()?;
    let counted = request.counted_by(relay.epoch());
    let (publisher, mut notifications, mut refusals) = request.into_parts()?;
    let events = notifications.len() + refusals.len();
    spend(Work::Events(events));
    check_allowed(requester, &mut notifications, &mut refusals);
    requester.take_notifications(notifications.len())?;
    let counted = counted.filter(|position| *position <= relay.counted_position());
    let results = match counted {
        Some(_) => relay.hub().accepted_before(&notifications),
        None => relay.notify(&publisher, &notifications),
    };
    let accepted = results.iter().any(Result::is_ok);
    let position = counted.unwrap_or_else(|| relay.counted_position());
    let mut results = results.into_iter();
    let all = (0..events).filter_map(|index| match refusals.remove(&index) {
        Some(error) => Some(Err(error)),
        None => results.next(),
    });
    let response = proto::NotifyResponse {
        results: results_to_wire(all),
        ..proto::NotifyResponse::default()
    };
    Ok((response, accepted.then_some(position)))
}

/// Moves the notifications of queues that the caller may not notify to the refused events.
fn check_allowed(
    requester: &Requester,
    notifications: &mut Vec<Notification>,
    refusals: &mut Refusals,
) {
    let mut index = 0;
    notifications.retain(|notification| {
        while refusals.contains_key(&index) {
            index += 1;
        }
        let checked = requester.check(Action::Notify, Target::Queue(&notification.queue));
        let is_allowed = checked.is_ok();
        if let Err(error) = checked {
            refusals.insert(index, error);
        }
        index += 1;
        is_allowed
    });
}

/// A publisher behind a balancer connects again, and may reach a relay that is not cut off. Where all
/// are cut off none is better, so it does so once in [`LEAVES_AFTER`] only.
fn leave_if_cut_off(relay: &Relay, connection: Option<&Arc<Activity>>) {
    let is_cut_off = relay.cluster_state().is_some_and(|state| state.degraded);
    if let Some(connection) = connection.filter(|_| is_cut_off) {
        connection.end_if_older(LEAVES_AFTER);
    }
}
