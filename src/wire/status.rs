//! Converts errors to gRPC statuses and back.

use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::{
    proto,
    time::{span_from_wire, span_to_wire},
};
use crate::{
    base::causes::{causes, with_causes},
    error::{Error, ErrorKind},
    types::Limits,
};

/// Converts an error to a status, with google.rpc.RetryInfo if it has a retry time.
#[allow(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(crate) fn to_status(error: Error) -> Status {
    let message = with_causes(&error);
    match error.retry_after() {
        Some(after) => {
            let details = tonic_types::ErrorDetails::with_retry_info(Some(after));
            Status::with_error_details(code(error.kind()), message, details)
        }
        None => Status::new(code(error.kind()), message),
    }
}

/// Converts an error that is part of an answer.
pub(crate) fn error_to_wire(error: &Error) -> proto::Error {
    proto::Error {
        code: code(error.kind()).into(),
        message: with_causes(error),
        retry_after: error.retry_after().map(span_to_wire),
    }
}

/// Converts an error that is part of an answer.
pub(super) fn error_from_wire(error: &proto::Error) -> Error {
    let code = Code::from_i32(error.code);
    let message = match error.message.as_str() {
        "" => format!("the relay answered {code:?}"),
        message => message.to_owned(),
    };
    let received = Error::new(kind(code), message);
    match error.retry_after.map(|after| span_from_wire(Some(after))) {
        Some(after) => received.with_retry_after(after.min(Limits::MAX_RECONNECT_AFTER)),
        None => received,
    }
}

/// Converts a status. The transport reports broken connections as unknown or internal.
#[allow(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(crate) fn from_status(status: Status) -> Error {
    let after = status
        .get_details_retry_info()
        .and_then(|info| info.retry_delay);
    let mut error = Error::new(kind(status.code()), message(&status));
    if let Some(after) = after {
        error = error.with_retry_after(after.min(Limits::MAX_RECONNECT_AFTER));
    }
    error
}

fn message(status: &Status) -> String {
    let source = std::error::Error::source(status);
    match (status.message(), source) {
        ("", _) => format!("the relay answered {:?}", status.code()),
        // tonic's texts for a failed connection; the cause has the details.
        ("tcp connect error" | "transport error", Some(source)) => {
            causes(source).last().unwrap_or(source).to_string()
        }
        (message, _) => message.to_owned(),
    }
}

fn code(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::Invalid => Code::InvalidArgument,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::Conflict => Code::Aborted,
        ErrorKind::Denied => Code::PermissionDenied,
        ErrorKind::Busy => Code::FailedPrecondition,
        ErrorKind::Exhausted => Code::ResourceExhausted,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::Timeout => Code::DeadlineExceeded,
        ErrorKind::Closed => Code::Cancelled,
        ErrorKind::Unsupported => Code::Unimplemented,
        ErrorKind::Internal => Code::Internal,
    }
}

fn kind(code: Code) -> ErrorKind {
    match code {
        Code::InvalidArgument | Code::OutOfRange => ErrorKind::Invalid,
        Code::NotFound => ErrorKind::NotFound,
        Code::Aborted | Code::AlreadyExists => ErrorKind::Conflict,
        Code::PermissionDenied | Code::Unauthenticated => ErrorKind::Denied,
        Code::FailedPrecondition => ErrorKind::Busy,
        Code::ResourceExhausted => ErrorKind::Exhausted,
        Code::DeadlineExceeded => ErrorKind::Timeout,
        Code::Unimplemented => ErrorKind::Unsupported,
        Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled | Code::Ok => {
            ErrorKind::Unavailable
        }
        Code::DataLoss => ErrorKind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_kind_is_the_same_after_a_conversion_to_its_code_and_back() {
        for kind in [
            ErrorKind::Invalid,
            ErrorKind::NotFound,
            ErrorKind::Conflict,
            ErrorKind::Denied,
            ErrorKind::Busy,
            ErrorKind::Exhausted,
            ErrorKind::Unavailable,
            ErrorKind::Timeout,
            ErrorKind::Unsupported,
        ] {
            assert_eq!(
                from_status(to_status(Error::new(kind, "it failed"))).kind(),
                kind
            );
        }
    }

    #[test]
    fn a_status_carries_the_retry_time() {
        let error =
            Error::new(ErrorKind::Unavailable, "draining").with_retry_after(Duration::from_secs(2));
        assert_eq!(
            from_status(to_status(error)).retry_after(),
            Some(Duration::from_secs(2))
        );
    }

    #[test]
    fn a_retry_time_is_at_most_a_minute() {
        let error =
            Error::new(ErrorKind::Unavailable, "later").with_retry_after(Duration::from_secs(3600));
        assert_eq!(
            from_status(to_status(error)).retry_after(),
            Some(Duration::from_secs(60))
        );
    }
}
