//! Converts the messages of `relay.proto`.
//!
//! The message of a subscription's stream replaces the generated one: bytes stand for a Wake, which have the
//! same form. The relay encodes an entry once, and all subscribers at the same position get the same bytes.

use prost::{
    Message, Oneof,
    encoding::{self, WireType, encode_key},
};

use super::{
    notify::{encode_number, encode_text},
    proto,
    status::{error_from_wire, error_to_wire},
    time::{checked_span, span_from_wire, span_to_wire, time_from_wire, time_to_wire},
};
use crate::{
    error::{Error, ErrorKind, Result},
    types::{
        Accepted, Goodbye, GoodbyeReason, GroupName, LastEvent, Limits, ListenerId, QueueAddress,
        Report, ReportState, ResumeNumber, Selector, SubscribeEvent, SubscribeOptions, WakeReason,
        Welcome, WorkDetected,
    },
};

/// The longest messages of the refused events of a request together: a caller can cause thousands with
/// a few bytes each.
const MESSAGE_BYTES: usize = 16 * 1024;

/// A message of a subscription's stream.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SubscribeResponse {
    #[prost(oneof = "Event", tags = "1, 2, 3, 4")]
    pub(crate) event: Option<Event>,
}

/// The kinds of messages.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Event {
    #[prost(message, tag = "1")]
    Welcome(proto::Welcome),
    /// The entries of a `Wake`, encoded.
    #[prost(bytes = "vec", tag = "2")]
    Wake(Vec<u8>),
    #[prost(message, tag = "3")]
    Heartbeat(proto::Heartbeat),
    #[prost(message, tag = "4")]
    Goodbye(proto::Goodbye),
}

/// Field number of the entries in a Wake.
const WORK: u32 = 1;

/// The values of an entry, by reference.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryFields<'a> {
    pub(crate) account: &'a str,
    pub(crate) queue: &'a str,
    pub(crate) payload_size: u64,
    pub(crate) sequence: u64,
    pub(crate) notifications: u64,
    pub(crate) reason: WakeReason,
    pub(crate) last_event: &'a LastEvent,
    pub(crate) messages: u64,
}

/// A relay's answer to a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct NotifyAnswer {
    /// What became of each event, in their order.
    pub(crate) results: Vec<Result<Accepted>>,
    /// Concerns each event without an error of its own.
    pub(crate) error: Option<Error>,
    /// C8: the relay has counted the events that `error` concerns, and could not confirm them.
    pub(crate) counted: Option<proto::Counted>,
}

/// Converts an answer to a publisher.
pub(crate) fn answer_from_wire(response: proto::NotifyResponse) -> NotifyAnswer {
    let result = |result: proto::EventResult| match result.error {
        Some(error) => Err(error_from_wire(&error)),
        None => Ok(Accepted {
            sequence: result.sequence,
            listeners: result.listeners,
        }),
    };
    let is_epoch = |one: &proto::Counted| (1..=Limits::TOKEN).contains(&one.epoch.len());
    NotifyAnswer {
        results: response.results.into_iter().map(result).collect(),
        error: response.error.as_ref().map(error_from_wire),
        counted: response.counted.filter(is_epoch),
    }
}

/// Converts the results of a request's events.
pub(crate) fn results_to_wire(
    results: impl Iterator<Item = Result<Accepted>>,
) -> Vec<proto::EventResult> {
    let mut room = MESSAGE_BYTES;
    let result = |result: Result<Accepted>| match result {
        Ok(accepted) => proto::EventResult {
            sequence: accepted.sequence,
            listeners: accepted.listeners,
            error: None,
        },
        Err(error) => {
            let mut error = error_to_wire(&error);
            match room.checked_sub(error.message.len()) {
                Some(left) => room = left,
                None => error.message = String::new(),
            }
            proto::EventResult {
                error: Some(Box::new(error)),
                ..proto::EventResult::default()
            }
        }
    };
    results.map(result).collect()
}

/// Converts and checks a subscribe request.
pub(crate) fn subscribe_from_wire(request: proto::SubscribeRequest) -> Result<SubscribeOptions> {
    let listener_id = ListenerId::new(&request.listener_id)?;
    let group = match request.group.as_str() {
        "" => None,
        name => Some(GroupName::new(name)?),
    };
    let selector =
        |selector: proto::Selector| Selector::new(&selector.storage_account, &selector.queue_name);
    let options = SubscribeOptions {
        listener_id,
        selectors: request
            .selectors
            .into_iter()
            .map(selector)
            .collect::<Result<_>>()?,
        group,
        capacity: request.capacity.max(1),
        visibility_timeout: checked_span("visibility_timeout", request.visibility_timeout)?
            .unwrap_or_default(),
        heartbeat: checked_span("heartbeat", request.heartbeat)?.unwrap_or_default(),
        // Any bytes are valid; the hub ignores an unknown resume number.
        resume: ResumeNumber(request.resume),
        agent: request.agent,
    };
    options.check()?;
    Ok(options)
}

pub(crate) fn subscribe_to_wire(options: &SubscribeOptions) -> proto::SubscribeRequest {
    proto::SubscribeRequest {
        listener_id: options.listener_id.to_string(),
        selectors: options.selectors.iter().map(selector_to_wire).collect(),
        group: options
            .group
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        capacity: options.capacity,
        visibility_timeout: Some(span_to_wire(options.visibility_timeout)),
        heartbeat: Some(span_to_wire(options.heartbeat)),
        resume: options.resume.0.clone(),
        agent: options.agent,
    }
}

pub(crate) fn selector_to_wire(selector: &Selector) -> proto::Selector {
    proto::Selector {
        storage_account: selector.storage_account().to_owned(),
        queue_name: selector.queue_name().to_owned(),
    }
}

/// Converts an event of a subscription's stream.
pub(crate) fn subscribe_event_to_wire(event: SubscribeEvent) -> SubscribeResponse {
    let event = match event {
        SubscribeEvent::Welcome(welcome) => Some(Event::Welcome(proto::Welcome {
            relay_id: welcome.relay_id.to_string(),
            epoch: welcome.epoch.to_string(),
            subscription_id: welcome.subscription_id.to_string(),
            heartbeat: Some(span_to_wire(welcome.heartbeat)),
            degraded: welcome.degraded,
            version: welcome.version.to_string(),
        })),
        // The relay sends Wakes in encoded form.
        SubscribeEvent::Wake(_) => None,
        SubscribeEvent::Heartbeat { degraded, resume } => {
            Some(Event::Heartbeat(proto::Heartbeat {
                degraded,
                resume: resume.0,
            }))
        }
        SubscribeEvent::Goodbye(goodbye) => Some(Event::Goodbye(goodbye_to_wire(goodbye))),
        SubscribeEvent::Unknown => None,
    };
    SubscribeResponse { event }
}

/// Converts a message of a subscription's stream.
///
/// # Errors
/// `Internal` for a malformed Wake.
pub(crate) fn subscribe_event(response: SubscribeResponse) -> Result<SubscribeEvent> {
    Ok(match response.event {
        None => SubscribeEvent::Unknown,
        Some(Event::Welcome(welcome)) => SubscribeEvent::Welcome(Welcome {
            relay_id: welcome.relay_id.into(),
            epoch: welcome.epoch.into(),
            subscription_id: welcome.subscription_id.into(),
            heartbeat: span_from_wire(welcome.heartbeat),
            degraded: welcome.degraded,
            version: welcome.version.into(),
        }),
        Some(Event::Wake(wake)) => {
            let wake = proto::Wake::decode(&wake[..]).map_err(|error| {
                let message = "the relay's answer is malformed";
                Error::new(ErrorKind::Internal, message).with_source(error)
            })?;
            SubscribeEvent::Wake(wake.work.into_iter().filter_map(work_from_wire).collect())
        }
        Some(Event::Heartbeat(heartbeat)) => SubscribeEvent::Heartbeat {
            degraded: heartbeat.degraded,
            resume: ResumeNumber(heartbeat.resume),
        },
        Some(Event::Goodbye(goodbye)) => SubscribeEvent::Goodbye(goodbye_from_wire(&goodbye)),
    })
}

pub(crate) fn goodbye_to_wire(goodbye: Goodbye) -> proto::Goodbye {
    proto::Goodbye {
        reason: goodbye_reason_to_wire(goodbye.reason).into(),
        reconnect_after: Some(span_to_wire(goodbye.reconnect_after)),
    }
}

pub(super) fn goodbye_from_wire(goodbye: &proto::Goodbye) -> Goodbye {
    Goodbye {
        reason: goodbye_reason_from_wire(goodbye.reason()),
        reconnect_after: span_from_wire(goodbye.reconnect_after),
    }
}

/// Converts between two enums with the same names.
macro_rules! same_names {
    ($to_wire:ident, $from_wire:ident: $ours:ty, $wire:ty { $($name:ident),+ }) => {
        pub(crate) fn $to_wire(ours: $ours) -> $wire {
            match ours {
                $(<$ours>::$name => <$wire>::$name),+
            }
        }

        pub(crate) fn $from_wire(wire: $wire) -> $ours {
            match wire {
                $(<$wire>::$name => <$ours>::$name),+
            }
        }
    };
}

same_names!(goodbye_reason_to_wire, goodbye_reason_from_wire:
    GoodbyeReason, proto::goodbye::Reason { Unspecified, Draining, Rotation, Revoked });
same_names!(reason_to_wire, reason_from_wire:
    WakeReason, proto::WakeReason { Unspecified, Notified, CatchUp, Sentinel, Timed, Reassigned });
same_names!(state_to_wire, state_from_wire:
    ReportState, proto::ReportState { Unspecified, Busy, Drained });

/// Converts a wake-up. Names that break the rule come from a newer relay; such a wake-up is
/// ignored, as it matches no queue of this client.
pub(super) fn work_from_wire(work: proto::WorkDetected) -> Option<WorkDetected> {
    let reason = reason_from_wire(work.reason());
    Some(WorkDetected {
        queue: Selector::new(&work.storage_account, &work.queue_name).ok()?,
        reason,
        sequence: work.sequence,
        notifications: work.notifications,
        payload_size: work.payload_size,
        messages: work.messages,
        last_event: LastEvent {
            publisher: work.publisher.into(),
            published_at: time_from_wire(work.published_at),
            traceparent: work.traceparent.into(),
        },
    })
}

/// Converts and checks a report; returns the subscription's id and the report.
pub(crate) fn report_from_wire(request: proto::ReportRequest) -> Result<(String, Report)> {
    let queue = QueueAddress::new(&request.storage_account, &request.queue_name)?;
    let report = Report {
        queue,
        state: state_from_wire(request.state()),
        sequence: request.sequence,
        number: request.number,
        visible_in: checked_span("visible_in", request.visible_in)?,
        current_queue_depth: request.current_queue_depth,
        depth_age: checked_span("depth_age", request.depth_age)?,
        active_dequeue_tasks: request.active_dequeue_tasks,
        total_dequeue_tasks: request.total_dequeue_tasks,
        mean_wake_latency: checked_span("mean_wake_latency", request.mean_wake_latency)?
            .unwrap_or_default(),
        busy_for: checked_span("busy_for", request.busy_for)?,
        capacity: request.capacity,
    };
    report.check()?;
    if request.subscription_id.is_empty() {
        return Err(Error::invalid(
            "subscription_id",
            "must be the id of the stream's Welcome",
        ));
    }
    Ok((request.subscription_id, report))
}

pub(crate) fn report_to_wire(subscription_id: &str, report: &Report) -> proto::ReportRequest {
    proto::ReportRequest {
        subscription_id: subscription_id.to_owned(),
        storage_account: report.queue.storage_account().to_owned(),
        queue_name: report.queue.queue_name().to_owned(),
        state: state_to_wire(report.state).into(),
        sequence: report.sequence,
        number: report.number,
        visible_in: report.visible_in.map(span_to_wire),
        current_queue_depth: report.current_queue_depth,
        active_dequeue_tasks: report.active_dequeue_tasks,
        total_dequeue_tasks: report.total_dequeue_tasks,
        mean_wake_latency: Some(span_to_wire(report.mean_wake_latency)),
        depth_age: report.depth_age.map(span_to_wire),
        busy_for: report.busy_for.map(span_to_wire),
        capacity: report.capacity,
    }
}

/// Appends an entry of a Wake, including its key and length.
pub(crate) fn encode_entry(entry: &EntryFields<'_>, out: &mut Vec<u8>) {
    encode_key(WORK, WireType::LengthDelimited, out);
    // Two bytes for the length: the limits of its texts keep an entry below 16 KiB.
    let length_at = out.len();
    out.extend_from_slice(&[0, 0]);
    let begin = out.len();
    encode_text(1, entry.account, out);
    encode_text(2, entry.queue, out);
    encode_number(3, entry.payload_size, out);
    encode_number(4, entry.sequence, out);
    encode_number(5, entry.notifications, out);
    let reason = reason_to_wire(entry.reason) as i32;
    encode_number(6, u64::try_from(reason).unwrap_or_default(), out);
    encode_text(7, &entry.last_event.publisher, out);
    if let Some(time) = time_to_wire(entry.last_event.published_at) {
        encoding::message::encode(8, &time, out);
    }
    encode_text(10, &entry.last_event.traceparent, out);
    encode_number(12, entry.messages, out);
    let length = u16::try_from(out.len() - begin).expect("shorter than 16 KiB");
    let [low, high] = (length << 1).to_le_bytes();
    (out[length_at], out[length_at + 1]) = (low >> 1 | 0x80, high);
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn an_unknown_reason_of_a_wake_up_is_unspecified() {
        let work = proto::WorkDetected {
            storage_account: "a".to_owned(),
            queue_name: "q".to_owned(),
            reason: 99,
            ..proto::WorkDetected::default()
        };
        assert_eq!(
            work_from_wire(work).map(|work| work.reason),
            Some(WakeReason::Unspecified)
        );
    }

    fn entry<'a>(work: &'a WorkDetected) -> EntryFields<'a> {
        EntryFields {
            account: work.queue.storage_account(),
            queue: work.queue.queue_name(),
            payload_size: work.payload_size,
            sequence: work.sequence,
            notifications: work.notifications,
            reason: work.reason,
            last_event: &work.last_event,
            messages: work.messages,
        }
    }

    fn work(texts: &str, number: u64) -> WorkDetected {
        let time = SystemTime::UNIX_EPOCH + Duration::new(1 << 33, 999_999_999);
        WorkDetected {
            queue: Selector::new(texts, texts).expect("a name"),
            reason: WakeReason::Reassigned,
            sequence: number,
            notifications: number,
            payload_size: number,
            messages: number,
            last_event: LastEvent {
                publisher: texts.into(),
                published_at: Some(time),
                traceparent: texts.into(),
            },
        }
    }

    #[test]
    fn the_generated_code_decodes_an_encoded_entry() {
        let longest = "x".repeat(128);
        for (texts, number) in [("a", 0), ("a", 1), (&longest[..], u64::MAX)] {
            let work = work(texts, number);
            let fields = entry(&work);
            let mut bytes = Vec::new();
            for _ in 0..2 {
                encode_entry(&fields, &mut bytes);
                assert!(bytes.len() <= 2 * work.encoded_at_most());
            }
            let wake = proto::Wake::decode(&bytes[..]).expect("well formed");
            assert_eq!(wake.work.len(), 2);
            for read in wake.work {
                let read = work_from_wire(read).expect("names");
                assert_eq!(read, work);
            }
            let sent = SubscribeResponse {
                event: Some(Event::Wake(bytes.clone())),
            };
            let encoded = sent.encode_to_vec();
            assert_eq!(encoded.len(), sent.encoded_len());
            let read = Generated::decode(&encoded[..]).expect("well formed");
            assert_eq!(
                read.wake,
                Some(proto::Wake::decode(&bytes[..]).expect("well formed"))
            );
        }
    }

    /// The message as the code generator creates it: a oneof of these fields with these numbers.
    /// `src/wire/tests.rs` compares them with the schema.
    #[derive(Clone, PartialEq, Message)]
    struct Generated {
        #[prost(message, optional, tag = "1")]
        welcome: Option<proto::Welcome>,
        #[prost(message, optional, tag = "2")]
        wake: Option<proto::Wake>,
        #[prost(message, optional, tag = "3")]
        heartbeat: Option<proto::Heartbeat>,
        #[prost(message, optional, tag = "4")]
        goodbye: Option<proto::Goodbye>,
    }

    #[test]
    fn each_kind_of_message_is_decoded_as_it_was_encoded() {
        let heartbeat = proto::Heartbeat {
            degraded: true,
            resume: vec![7; 32].into(),
        };
        let events = [
            Event::Welcome(proto::Welcome {
                relay_id: "r".to_owned(),
                ..proto::Welcome::default()
            }),
            Event::Wake(Vec::new()),
            Event::Heartbeat(heartbeat),
            Event::Goodbye(proto::Goodbye::default()),
        ];
        for event in events.map(Some).into_iter().chain([None]) {
            let sent = SubscribeResponse { event };
            let bytes = sent.encode_to_vec();
            assert_eq!(bytes.len(), sent.encoded_len());
            assert!(Generated::decode(&bytes[..]).is_ok());
            assert_eq!(SubscribeResponse::decode(&bytes[..]), Ok(sent));
        }
    }
}
