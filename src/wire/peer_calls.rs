//! Reads and checks the requests and replies between two relays (`link.proto`).
//!
//! A message that breaks a rule is an error that names field and rule. The contents of a request are
//! checked by the code that answers it, like a client's.

use tonic::{Code, Status};

use super::{
    cluster::{decoded, read_entry, write_entry},
    link::{
        Failure, PeerReply, PeerRequest, Timer, TimersRequest, peer_reply::Answer,
        peer_request::Call,
    },
    time::{checked_span, span_to_wire},
};
use crate::{
    error::{Error, Result},
    types::{Limits, cluster::HandedTimer},
};

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
        details: bytes::Bytes::copy_from_slice(status.details()),
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
