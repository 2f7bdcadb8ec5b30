//! Converts the messages of `relay.proto`.

use prost::Message as _;

use super::{
    proto,
    status::{error_from_wire, error_to_wire},
    time::{checked_span, span_from_wire, span_to_wire, time_from_wire},
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
pub(crate) fn subscribe_event_to_wire(event: SubscribeEvent) -> proto::SubscribeResponse {
    use super::wake::Event;
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
    proto::SubscribeResponse { event }
}

/// Converts a message of a subscription's stream.
///
/// # Errors
/// `Internal` for a malformed Wake.
pub(crate) fn subscribe_event(response: proto::SubscribeResponse) -> Result<SubscribeEvent> {
    use super::wake::Event;
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

#[cfg(test)]
mod tests {
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
}
