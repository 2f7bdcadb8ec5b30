//! Errors of requests to a cloud's queue or blob service, without secrets.
//!
//! The errors of clients contain URLs with signatures, whole answers, and for a refused request the
//! signature that was sent. So only parts that are known to be harmless are kept: the status, the
//! code, and the innermost cause of a connection error.

use std::{error::Error as StdError, fmt::Display, time::Duration};

use crate::{
    base::causes::causes,
    error::{Error, ErrorKind},
};

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("the service answered {status} {code}")]
    Answered {
        status: u16,
        code: String,
        retry_after: Option<Duration>,
    },
    #[error("no answer came in time")]
    TimedOut,
    #[error("{cause}")]
    Unreachable { cause: String },
    #[error("the answer cannot be read")]
    Unreadable,
    #[error("the service redirects without a target: the region is wrong")]
    Elsewhere,
    #[error("{cause}")]
    Other { cause: String },
}

impl RequestError {
    /// Returns the error of an answer with this status and the service's error code.
    pub(crate) fn answered(status: u16, code: &str) -> Self {
        Self::Answered {
            status,
            code: sanitized(code),
            retry_after: None,
        }
    }

    /// Converts a connection error to its innermost cause: it contains no URL, unlike the outer
    /// ones. The cause is `default` if there is no other.
    pub(crate) fn of_connection(error: &(dyn StdError + 'static), default: &str) -> Self {
        let mut cause = default.to_owned();
        for error in causes(error).skip(1) {
            match error.downcast_ref::<reqwest::Error>() {
                Some(error) if error.is_timeout() => return Self::TimedOut,
                Some(_) => {}
                None => cause = without_query(&error.to_string()),
            }
        }
        Self::Unreachable { cause }
    }

    /// Returns the service's error code; empty if it did not answer.
    pub(crate) fn code(&self) -> &str {
        match self {
            Self::Answered { code, .. } => code,
            _ => "",
        }
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Answered { status, code, .. } => kind_of(*status, code),
            Self::TimedOut => ErrorKind::Timeout,
            Self::Unreachable { .. } => ErrorKind::Unavailable,
            Self::Elsewhere => ErrorKind::Invalid,
            Self::Unreadable | Self::Other { .. } => ErrorKind::Internal,
        }
    }

    /// Converts it to the public error of `subject`, a noun and a name such as "queue `jobs`".
    pub(crate) fn about(self, subject: impl Display) -> Error {
        let error = Error::new(self.kind(), format!("{subject} {}", self.failure_text()));
        let error = match self {
            Self::Answered {
                retry_after: Some(after),
                ..
            } => error.with_retry_after(after),
            _ => error,
        };
        error.with_source(self)
    }

    /// Returns the part of an error message that follows the subject.
    fn failure_text(&self) -> &'static str {
        match (self.kind(), self) {
            (_, Self::Elsewhere) => "is in another region: set AWS_REGION",
            (_, Self::Answered { status: 501, .. }) => {
                "needs a request or a condition that the service does not implement"
            }
            (ErrorKind::Unsupported, _) => {
                "is leased, archived, immutable, of another type, or has snapshots"
            }
            (ErrorKind::Denied, _) => {
                "refuses the credential: it is wrong, has expired or does not allow this, or this \
                 machine's clock is off"
            }
            (ErrorKind::Timeout, _) => "did not answer in time",
            (ErrorKind::Exhausted, _) => "is asked more often than it allows",
            (_, Self::Unreachable { .. }) => "cannot be reached",
            (ErrorKind::Unavailable, _) => "cannot answer just now",
            (ErrorKind::NotFound, _) => "does not exist",
            (ErrorKind::Invalid, _) => "refuses the request",
            (ErrorKind::Conflict, _) => "is in another state than this needs, or exists already",
            _ => "failed",
        }
    }
}

fn kind_of(status: u16, code: &str) -> ErrorKind {
    match (status, code) {
        (_, "OperationTimedOut" | "RequestTimeout") | (408 | 504, _) => ErrorKind::Timeout,
        // Temporary: the service takes half a minute to delete a queue or a container.
        (_, "QueueBeingDeleted" | "ContainerBeingDeleted") => ErrorKind::Unavailable,
        // The blob has not changed, and a retry would fail in the same way.
        (
            _,
            "SnapshotsPresent"
            | "LeaseIdMissing"
            | "BlobArchived"
            | "BlobImmutableDueToPolicy"
            | "InvalidBlobType"
            | "DirectoryNotEmpty"
            | "InvalidObjectState",
        ) => ErrorKind::Unsupported,
        (_, "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired") => ErrorKind::Denied,
        // The account's or the partition's request limit is exceeded: the request was refused and
        // certainly had no effect.
        (_, "SlowDown" | "ServerBusy") | (429, _) => ErrorKind::Exhausted,
        (401 | 403, _) => ErrorKind::Denied,
        (404, _) => ErrorKind::NotFound,
        (304 | 409 | 412, _) => ErrorKind::Conflict,
        (400..500, _) => ErrorKind::Invalid,
        (501, _) | (_, "NotImplemented") => ErrorKind::Unsupported,
        (500.., _) => ErrorKind::Unavailable,
        _ => ErrorKind::Internal,
    }
}

/// Keeps only the characters of codes.
pub(crate) fn sanitized(text: &str) -> String {
    const LONGEST: usize = 64;
    let fits = |c: &char| c.is_ascii_alphanumeric() || *c == '-';
    text.chars().filter(fits).take(LONGEST).collect()
}

/// Removes the text after a `?`, which may be a signature.
pub(crate) fn without_query(text: &str) -> String {
    const LONGEST: usize = 200;
    let first = text.split(['?', '\n']).next().unwrap_or_default();
    first.chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_code_give_the_error_kind() {
        for (status, code, kind) in [
            (302, "", ErrorKind::Internal),
            (400, "InvalidQueryParameterValue", ErrorKind::Invalid),
            (401, "NoAuthenticationInformation", ErrorKind::Denied),
            (403, "AuthenticationFailed", ErrorKind::Denied),
            (404, "QueueNotFound", ErrorKind::NotFound),
            (404, "BlobNotFound", ErrorKind::NotFound),
            (409, "QueueBeingDeleted", ErrorKind::Unavailable),
            (409, "QueueAlreadyExists", ErrorKind::Conflict),
            (409, "BlobAlreadyExists", ErrorKind::Conflict),
            (409, "ContainerBeingDeleted", ErrorKind::Unavailable),
            (409, "ConditionalRequestConflict", ErrorKind::Conflict),
            (412, "ConditionNotMet", ErrorKind::Conflict),
            (429, "TooManyRequests", ErrorKind::Exhausted),
            (429, "", ErrorKind::Exhausted),
            (500, "InternalError", ErrorKind::Unavailable),
            (500, "OperationTimedOut", ErrorKind::Timeout),
            (501, "NotImplemented", ErrorKind::Unsupported),
            (503, "ServerBusy", ErrorKind::Exhausted),
            (503, "SlowDown", ErrorKind::Exhausted),
            (503, "", ErrorKind::Unavailable),
            (504, "", ErrorKind::Timeout),
        ] {
            assert_eq!(kind_of(status, code), kind, "{status} {code}");
        }
    }

    #[test]
    fn retry_after_is_kept() {
        let error = RequestError::Answered {
            status: 503,
            code: "ServerBusy".into(),
            retry_after: Some(Duration::from_secs(7)),
        };
        let words = "the service answered 503 ServerBusy";
        assert_eq!(error.to_string(), words);
        let error = error.about("queue `a/q`");
        let words = "queue `a/q` is asked more often than it allows";
        assert_eq!(error.message(), words);
        assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
        assert!(error.is_retryable());
    }
}
