//! Converts and checks the messages between relays (`link.proto`).
//!
//! A message of another relay is checked like a client's. The error names field and rule; the
//! caller drops the message and counts it as lost. The contents of a request are checked by the code that
//! answers it, like a client's.

#[cfg(test)]
mod tests;

use bytes::Bytes;
use prost::Message;
use tonic::{Code, Status};

use self::link::{
    Failure, PeerReply, PeerRequest, Timer, TimersRequest, peer_reply::Answer, peer_request::Call,
};
use super::time::{checked_span, checked_time, span_to_wire, time_to_wire};
use crate::{
    error::{Error, Result},
    types::{
        GroupName, LastEvent, Limits, QueueAddress, check_kept_text,
        cluster::{ClusterLimits, Frame, FrameEntry, HandedTimer, LifeId},
    },
};

/// The code that `build.rs` generates from `link.proto`.
#[allow(
    missing_docs,
    unnameable_types,
    unreachable_pub,
    unused_qualifications,
    clippy::allow_attributes_without_reason,
    clippy::large_enum_variant,
    reason = "generated code"
)]
pub(crate) mod link {
    include!(concat!(env!("OUT_DIR"), "/link/reveille.link.v1.rs"));
}

/// A message to all relays.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClusterMessage {
    pub(crate) life: LifeId,
    pub(crate) content: ClusterContent,
}

/// The kinds of messages to all relays.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ClusterContent {
    Frame(Frame),
    Heartbeat(link::Heartbeat),
    /// A kind that a later version added.
    Unknown,
}

/// Reads and checks a message of another relay.
///
/// # Errors
/// `Invalid`, with field and rule.
pub(crate) fn cluster_message_from_wire(bytes: &[u8]) -> Result<ClusterMessage> {
    let message: link::Broadcast = decoded("message", bytes)?;
    let life: [u8; 16] = message
        .life
        .as_ref()
        .try_into()
        .map_err(|_| Error::invalid("life", "must have 16 bytes"))?;
    let content = match message.content {
        None => ClusterContent::Unknown,
        Some(link::broadcast::Content::Frame(frame)) => ClusterContent::Frame(read_frame(frame)?),
        Some(link::broadcast::Content::Heartbeat(heartbeat)) => {
            check_heartbeat(&heartbeat)?;
            ClusterContent::Heartbeat(heartbeat)
        }
    };
    Ok(ClusterMessage {
        life: LifeId(u128::from_le_bytes(life)),
        content,
    })
}

/// Decodes a message of another relay.
fn decoded<M: Message + Default>(field: &str, bytes: &[u8]) -> Result<M> {
    at_most(field, bytes.len(), ClusterLimits::MESSAGE_BYTES)?;
    M::decode(bytes).map_err(|error| Error::invalid(field, "is malformed").with_source(error))
}

/// Encodes a message. The caller keeps the limits.
pub(crate) fn cluster_message_to_wire(message: &ClusterMessage) -> Bytes {
    let content = match &message.content {
        ClusterContent::Frame(frame) => Some(link::broadcast::Content::Frame(link::Frame {
            number: frame.number,
            entries: frame.entries.iter().map(write_entry).collect(),
            flags_written: frame.flags_written,
        })),
        ClusterContent::Heartbeat(heartbeat) => {
            Some(link::broadcast::Content::Heartbeat(heartbeat.clone()))
        }
        ClusterContent::Unknown => None,
    };
    let life = Bytes::copy_from_slice(&message.life.0.to_le_bytes());
    link::Broadcast { life, content }.encode_to_vec().into()
}

/// Returns the bytes that an entry adds to a frame.
pub(crate) fn frame_entry_len(entry: &FrameEntry) -> usize {
    let len = write_entry(entry).encoded_len();
    // With the key and the length of an item in a list.
    1 + prost::length_delimiter_len(len) + len
}

fn read_frame(frame: link::Frame) -> Result<Frame> {
    at_least_one("frame.number", frame.number)?;
    at_most("frame.entries", frame.entries.len(), ClusterLimits::ENTRIES)?;
    Ok(Frame {
        number: frame.number,
        entries: frame
            .entries
            .into_iter()
            .map(read_entry)
            .collect::<Result<_>>()?,
        flags_written: frame.flags_written,
    })
}

fn read_entry(entry: link::FrameEntry) -> Result<FrameEntry> {
    if entry.causes > ClusterLimits::CAUSES {
        return Err(Error::invalid("causes", "must be at most 2^32"));
    }
    check_kept_text("publisher", &entry.publisher, Limits::MAX_TEXT)?;
    check_kept_text("traceparent", &entry.traceparent, Limits::TRACEPARENT)?;
    let groups = entry.served_groups;
    at_most("served_groups", groups.len(), ClusterLimits::GROUPS)?;
    let groups = groups.iter().map(|group| GroupName::new(group));
    Ok(FrameEntry {
        queue: QueueAddress::new(&entry.storage_account, &entry.queue_name)?,
        causes: entry.causes,
        notifications: entry.notifications,
        payload_size: entry.payload_size,
        messages: entry.messages,
        last_event: LastEvent {
            publisher: entry.publisher.into(),
            published_at: checked_time("published_at", entry.published_at)?,
            traceparent: entry.traceparent.into(),
        },
        served_groups: groups.collect::<Result<_>>()?,
        checked: entry.checked,
    })
}

fn check_heartbeat(heartbeat: &link::Heartbeat) -> Result<()> {
    at_least_one("heartbeat.heartbeat", heartbeat.heartbeat)?;
    if heartbeat.complete_above > heartbeat.frame {
        return Err(Error::invalid("complete_above", "must be at most `frame`"));
    }
    let (hashes, ages) = (&heartbeat.queue_hashes, &heartbeat.queue_ages);
    at_most("queue_hashes", hashes.len(), ClusterLimits::RECENT_QUEUES)?;
    if ages.len() != hashes.len() || ages.iter().any(|age| *age >= heartbeat.frame) {
        let rule = "must be as many as `queue_hashes`, each less than `frame`";
        return Err(Error::invalid("queue_ages", rule));
    }
    check_kept_text("relay_id", &heartbeat.relay_id, Limits::MAX_TEXT)?;
    check_kept_text("version", &heartbeat.version, Limits::MAX_TEXT)
}

fn write_entry(entry: &FrameEntry) -> link::FrameEntry {
    link::FrameEntry {
        storage_account: entry.queue.storage_account().to_owned(),
        queue_name: entry.queue.queue_name().to_owned(),
        causes: entry.causes,
        notifications: entry.notifications,
        payload_size: entry.payload_size,
        messages: entry.messages,
        publisher: String::from(&*entry.last_event.publisher),
        published_at: time_to_wire(entry.last_event.published_at),
        traceparent: String::from(&*entry.last_event.traceparent),
        served_groups: entry
            .served_groups
            .iter()
            .map(ToString::to_string)
            .collect(),
        checked: entry.checked,
    }
}

fn at_least_one(field: &str, number: u64) -> Result<()> {
    if number == 0 {
        return Err(Error::invalid(field, "must be at least 1"));
    }
    Ok(())
}

/// Checks a length in items or bytes.
fn at_most(field: &str, count: usize, limit: usize) -> Result<()> {
    if count > limit {
        let rule = format_args!("must have a length of at most {limit}, not {count}");
        return Err(Error::invalid(field, rule));
    }
    Ok(())
}

/// Reads a request; `None` for a kind that a later version added.
///
/// # Errors
/// `Invalid`, with field and rule.
pub(crate) fn peer_request_from_wire(bytes: &[u8]) -> Result<Option<Call>> {
    Ok(decoded::<PeerRequest>("request", bytes)?.call)
}

/// Reads a reply; `None` for a kind that this version does not know.
///
/// # Errors
/// `Invalid`, with field and rule.
pub(crate) fn peer_reply_from_wire(bytes: &[u8]) -> Result<Option<Answer>> {
    Ok(decoded::<PeerReply>("reply", bytes)?.answer)
}

/// Reads the timers of a relay that leaves.
///
/// # Errors
/// `Invalid`, with field and rule.
pub(crate) fn timers_from_wire(request: TimersRequest) -> Result<Vec<HandedTimer>> {
    let read = |timer: Timer| {
        let due_in = checked_span("due_in", timer.due_in)?.unwrap_or_default();
        if due_in > Limits::DELAY {
            return Err(Error::invalid("due_in", "must be at most 14 days"));
        }
        let increment = timer.increment.unwrap_or_default();
        Ok(HandedTimer {
            due_in,
            increment: read_entry(increment)?,
        })
    };
    request.timers.into_iter().map(read).collect()
}

/// Converts a timer of a relay that leaves.
pub(crate) fn timer_to_wire(timer: &HandedTimer) -> Timer {
    Timer {
        due_in: Some(span_to_wire(timer.due_in)),
        increment: Some(write_entry(&timer.increment)),
    }
}

/// Converts the status of a refused or failed request.
pub(crate) fn peer_failure(status: &Status) -> Failure {
    Failure {
        code: status.code().into(),
        message: status.message().to_owned(),
        details: Bytes::copy_from_slice(status.details()),
    }
}

/// Converts the failure of a request at another relay.
pub(crate) fn peer_status(failure: Failure) -> Status {
    Status::with_details(
        Code::from_i32(failure.code),
        failure.message,
        failure.details,
    )
}
