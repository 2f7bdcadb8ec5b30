//! The messages of gRPC: requests, which the relay reads, and answers, which clients read.

use std::{fmt::Debug, sync::Arc};

use bytes::{Buf as _, Bytes};
use prost::Message;
use tonic::{Code, Status};

use super::split_first;
use crate::{
    error::Result,
    relay::server::lists::page_size,
    types::{
        FlagEvent, FlagName, Limits, Notification, QueueAddress, SubscribeEvent, SubscribeOptions,
        UnleashOptions, WorkDetected, check_text,
    },
    wire::{
        EntryFields, NotifyRequest, SubscribeResponse, SubscribeResponseEvent, answer_from_wire,
        checked_span, encode_entry, flag_event, flag_from_wire, flag_to_wire, from_status, proto,
        report_from_wire, report_to_wire, results_to_wire, subscribe_event,
        subscribe_event_to_wire, subscribe_from_wire, subscribe_to_wire,
    },
};

/// A notify request as the code generator creates it.
#[derive(Clone, PartialEq, Message)]
struct Generated {
    #[prost(message, repeated, tag = "1")]
    events: Vec<proto::WorkDetected>,
    #[prost(string, tag = "2")]
    publisher: String,
}

/// Compares the hand-written notify request with the generated one.
pub(super) fn notify(data: &[u8]) {
    let decoded = NotifyRequest::decode(data);
    let (begin, end) = data.split_at(data.len() / 2);
    let in_parts = NotifyRequest::decode(begin.chain(end));
    let shown = |request: &NotifyRequest| format!("{:?}", request.clone().into_parts());
    assert_eq!(
        decoded.as_ref().ok().map(shown),
        in_parts.as_ref().ok().map(shown)
    );
    let generated = Generated::decode(data);
    if let Ok(generated) = &generated {
        assert!(decoded.is_ok(), "{decoded:?}");
        // Encoded again, so that each field is there at most once.
        let request = NotifyRequest::decode(&generated.encode_to_vec()[..]).expect("ours");
        let parts = request.into_parts();
        let expected = notifications(generated);
        assert_eq!(parts.is_ok(), expected.is_ok(), "{generated:?}");
        if let (Ok((publisher, own, refusals)), Ok(expected)) = (parts, expected) {
            let valid: Vec<_> = expected.iter().flatten().cloned().collect();
            assert_eq!((&*publisher, own), (&*generated.publisher, valid));
            let invalid = expected.iter().enumerate().filter(|(_, one)| one.is_err());
            assert!(refusals.into_keys().eq(invalid.map(|(index, _)| index)));
        }
    }
    let Ok(Ok((publisher, own, _))) = decoded.map(NotifyRequest::into_parts) else {
        return;
    };
    if own.is_empty() {
        return;
    }
    if let Ok(generated) = &generated {
        let expected = notifications(generated).expect("it was accepted");
        let expected: Vec<_> = expected.into_iter().flatten().collect();
        assert_eq!((&*publisher, &own), (&*generated.publisher, &expected));
    }
    let request = NotifyRequest::new(Arc::clone(&publisher), own.clone());
    let encoded = request.encode_to_vec();
    assert_eq!(encoded.len(), request.encoded_len());
    let again = NotifyRequest::decode(&encoded[..]).expect("ours");
    let (again_publisher, again, refusals) = again.into_parts().expect("ours");
    assert_eq!((again_publisher, again), (publisher, own));
    assert!(refusals.is_empty());
}

/// Converts and checks a generated request, by the rules of the protocol.
fn notifications(request: &Generated) -> Result<Vec<Result<Notification>>> {
    check_text("publisher", &request.publisher, Limits::MAX_TEXT)?;
    if !(1..=Limits::EVENTS).contains(&request.events.len()) {
        return Err(crate::Error::invalid("events", "must be 1 to 1024"));
    }
    let convert = |event: &proto::WorkDetected| {
        let time = event.published_at;
        let is_in_range = |time: prost_types::Timestamp| {
            (0..1_000_000_000).contains(&time.nanos)
                && (-62_135_596_800..=253_402_300_799).contains(&time.seconds)
        };
        if !time.is_none_or(is_in_range) {
            return Err(crate::Error::invalid("published_at", "is no time"));
        }
        let notification = Notification {
            payload_size: event.payload_size,
            messages: event.messages,
            notifications: event.notifications,
            delay: checked_span("delay", event.delay)?.unwrap_or_default(),
            published_at: time.map(|time| time.try_into().expect("in range")),
            traceparent: (&*event.traceparent).into(),
            ..Notification::new(QueueAddress::new(
                &event.storage_account,
                &event.queue_name,
            )?)
        };
        notification.check().map(|()| notification)
    };
    Ok(request.events.iter().map(convert).collect())
}

/// Decodes a message, and returns it if it is the same after another encoding and decoding.
fn decoded<T: Message + Default + PartialEq + Debug>(data: &[u8]) -> Option<T> {
    let message = T::decode(data).ok()?;
    let encoded = message.encode_to_vec();
    assert_eq!(encoded.len(), message.encoded_len());
    assert_eq!(T::decode(&encoded[..]).as_ref(), Ok(&message));
    Some(message)
}

pub(super) fn requests(data: &[u8]) {
    if let Some(request) = decoded::<proto::SubscribeRequest>(data)
        && let Ok(options) = subscribe_from_wire(request)
    {
        check_subscribe(&options);
    }
    if let Some(request) = decoded::<proto::ReportRequest>(data)
        && let Ok((id, report)) = report_from_wire(request)
    {
        assert!(!id.is_empty() && report.visible_in.is_none_or(|span| span <= Limits::DELAY));
        let again = report_from_wire(report_to_wire(&id, &report)).expect("ours");
        assert_eq!(again, (id, report));
    }
    if let Some(request) = decoded::<proto::UnleashRequest>(data)
        && let Ok(ttl) = checked_span("ttl", request.ttl)
    {
        let (set_by, reason) = (request.set_by, request.reason);
        let options = UnleashOptions {
            ttl,
            set_by,
            reason,
        };
        if options.check().is_ok() {
            assert!(options.ttl.is_none_or(|ttl| ttl <= Limits::TTL));
            assert!(options.set_by.len() + options.reason.len() <= 128 + 1_024);
        }
    }
    if let Some(request) = decoded::<proto::ListQueuesRequest>(data)
        && let Ok(size) = page_size(request.page_size)
    {
        assert!((1..=Limits::PAGE_MAX).contains(&size));
    }
    let _ = decoded::<proto::LeashRequest>(data);
    let _ = decoded::<proto::WatchFlagRequest>(data);
    let _ = decoded::<proto::AckFlagRequest>(data);
    let _ = decoded::<proto::ListFlagWatchersRequest>(data);
}

fn check_subscribe(options: &SubscribeOptions) {
    assert!((1..=Limits::SELECTORS).contains(&options.selectors.len()));
    let patterns = options.selectors.iter().filter(|one| one.is_pattern());
    assert!(patterns.count() <= Limits::PATTERNS && options.capacity > 0);
    assert!(options.visibility_timeout <= Limits::DELAY);
    let heartbeat = options.clamped_heartbeat();
    assert!((Limits::HEARTBEAT_MIN..=Limits::HEARTBEAT_MAX).contains(&heartbeat));
    for selector in &options.selectors {
        for part in [selector.storage_account(), selector.queue_name()] {
            // A name, and the `*` of a pattern.
            assert!(part.len() <= Limits::NAME + 1, "{} bytes", part.len());
        }
    }
    let request = subscribe_to_wire(options);
    let encoded = request.encode_to_vec();
    if options.resume.0.len() <= Limits::TOKEN {
        let most = options.encoded_at_most();
        assert!(encoded.len() <= most, "{} of {most} bytes", encoded.len());
    }
    let again = proto::SubscribeRequest::decode(&encoded[..]).expect("ours");
    assert_eq!(subscribe_from_wire(again).as_ref().ok(), Some(options));
}

pub(super) fn answers(data: &[u8]) {
    if let Some(response) = decoded::<SubscribeResponse>(data) {
        match subscribe_event(response) {
            Ok(SubscribeEvent::Wake(entries)) => entries.iter().for_each(check_entry),
            Ok(event) => {
                let again = subscribe_event(subscribe_event_to_wire(event.clone()));
                assert_eq!(again.ok(), Some(event));
            }
            Err(_) => {}
        }
    }
    if let Some(response) = decoded::<proto::WatchFlagResponse>(data)
        && let Ok(FlagEvent::State(state)) = flag_event(response)
    {
        FlagName::new(state.name.as_str()).expect("a checked name");
        assert_eq!(flag_from_wire(Some(flag_to_wire(&state))).ok(), Some(state));
    }
    if let Some(response) = decoded::<proto::NotifyResponse>(data) {
        let events = response.results.len();
        let answer = answer_from_wire(response);
        let again = results_to_wire(answer.results.into_iter());
        let refused = again.iter().filter_map(|result| result.error.as_ref());
        let texts: usize = refused.map(|error| error.message.len()).sum();
        assert!(again.len() == events && texts <= 16 * 1024);
    }
    status(data);
}

/// Encodes an entry of a Wake as the relay does, and reads it.
fn check_entry(work: &WorkDetected) {
    let texts = [&work.last_event.publisher, &work.last_event.traceparent];
    if texts.iter().any(|text| text.len() > Limits::MAX_TEXT) {
        return;
    }
    let fields = EntryFields {
        account: work.queue.storage_account(),
        queue: work.queue.queue_name(),
        payload_size: work.payload_size,
        sequence: work.sequence,
        notifications: work.notifications,
        reason: work.reason,
        last_event: &work.last_event,
        messages: work.messages,
    };
    let mut bytes = Vec::new();
    encode_entry(&fields, &mut bytes);
    assert!(bytes.len() <= work.encoded_at_most());
    let event = Some(SubscribeResponseEvent::Wake(bytes));
    let encoded = SubscribeResponse { event }.encode_to_vec();
    let response = SubscribeResponse::decode(&encoded[..]).expect("ours");
    assert_eq!(
        subscribe_event(response).ok(),
        Some(SubscribeEvent::Wake(vec![work.clone()]))
    );
}

/// Reads the status of a refused call; the first byte is its code.
fn status(data: &[u8]) {
    let (code, details) = split_first(data);
    let details = Bytes::copy_from_slice(details);
    let status = Status::with_details(Code::from_i32(code.into()), "refused", details);
    let error = from_status(status);
    let wait = error.retry_after();
    assert!(wait.is_none_or(|wait| wait <= Limits::MAX_RECONNECT_AFTER));
}
