//! Requests beyond their limit are RESOURCE_EXHAUSTED, and the message names the limit.
//!
//! tonic reads the length that stands before a message, and refuses what is beyond its service's
//! greatest with OUT_OF_RANGE, before any room is made for it: a peer must not have memory reserved
//! by a number. So its limits stay, and only its status is put right here. What is below them and
//! beyond the limit of its own type is refused by the codec.

use http::Response;
use tonic::{Code, Status, body::Body};

use crate::words::Limits;

/// Puts the status right of an answer to a request with this limit.
pub(super) fn on_answer(response: Response<Body>, limit: usize) -> Response<Body> {
    match is_out_of_range(&response) {
        true => too_large(limit).into_http(),
        false => response,
    }
}

/// Puts the status right with which a stream of notify requests broke.
pub(super) fn on_stream(status: Status) -> Status {
    match status.code() {
        Code::OutOfRange => too_large(Limits::NOTIFY_BYTES),
        _ => status,
    }
}

/// Returns whether the answer is tonic's refusal; no service of ours uses this status.
fn is_out_of_range(response: &Response<Body>) -> bool {
    let status = Status::from_header_map(response.headers());
    status.is_some_and(|status| status.code() == Code::OutOfRange)
}

#[cold]
fn too_large(limit: usize) -> Status {
    Status::resource_exhausted(format!("request: the limit is {limit} bytes, got more"))
}
