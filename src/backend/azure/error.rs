//! Errors of requests, without secrets.
//!
//! The client's own errors contain URLs with signatures, answers with messages, and for a refused
//! request the signature that was sent. So only parts that are known to be harmless are kept: the
//! status, the code, the request's id, and the innermost cause of a connection error.

use std::{error::Error as StdError, fmt, fmt::Display, time::Duration};

use azure_core::{error::ErrorKind as ClientErrorKind, http::RawResponse};

use crate::error::{Error, ErrorKind};

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AzureError {
    #[error("the service answered {status} {code}{}", Id(request_id.as_deref()))]
    Answered {
        status: u16,
        code: String,
        request_id: Option<String>,
        retry_after: Option<Duration>,
    },
    #[error("no answer came in time")]
    TimedOut,
    #[error("{cause}")]
    Unreachable { cause: String },
    #[error("the answer cannot be read")]
    Unreadable,
    #[error("the answer has no {field}")]
    Incomplete { field: &'static str },
    #[error("the request could not be made")]
    NotMade,
}

/// Displays a request's id in a message, for questions to the service's support.
struct Id<'a>(Option<&'a str>);

impl AzureError {
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
            Self::Unreadable | Self::Incomplete { .. } | Self::NotMade => ErrorKind::Internal,
        }
    }

    /// Converts it to the public error of `subject`, such as "queue `jobs`".
    pub(crate) fn of(self, subject: impl Display) -> Error {
        let kind = self.kind();
        let what = failure_text(kind, matches!(self, Self::Unreachable { .. }));
        let error = Error::new(kind, format!("{subject} {what}"));
        let error = match self {
            Self::Answered {
                retry_after: Some(after),
                ..
            } => error.with_retry_after(after),
            _ => error,
        };
        error.with_source(self)
    }
}

/// Returns the part of an error message that follows the subject.
pub(crate) fn failure_text(kind: ErrorKind, unreachable: bool) -> &'static str {
    match kind {
        ErrorKind::Denied => {
            "refuses the credential: it is wrong, has expired or does not allow this, or this \
             machine's clock is off"
        }
        ErrorKind::Timeout => "did not answer in time",
        ErrorKind::Exhausted => "is asked more often than it allows",
        ErrorKind::Unavailable if unreachable => "cannot be reached",
        ErrorKind::Unavailable => "cannot answer just now",
        ErrorKind::NotFound => "does not exist",
        ErrorKind::Invalid => "refuses the request",
        ErrorKind::Conflict => "is in another state than this needs",
        _ => "failed",
    }
}

fn kind_of(status: u16, code: &str) -> ErrorKind {
    match (status, code) {
        (_, "OperationTimedOut") | (408 | 504, _) => ErrorKind::Timeout,
        // Temporary: the service takes half a minute to delete a queue.
        (_, "QueueBeingDeleted") => ErrorKind::Unavailable,
        (401 | 403, _) => ErrorKind::Denied,
        (404, _) => ErrorKind::NotFound,
        (409 | 412, _) => ErrorKind::Conflict,
        // The account's or the partition's request limit is exceeded: the request was refused and
        // certainly had no effect.
        (429, _) | (503, "ServerBusy") => ErrorKind::Exhausted,
        (400..500, _) => ErrorKind::Invalid,
        (500.., _) => ErrorKind::Unavailable,
        _ => ErrorKind::Internal,
    }
}

impl From<azure_core::Error> for AzureError {
    fn from(error: azure_core::Error) -> Self {
        match error.kind() {
            ClientErrorKind::HttpResponse {
                status,
                error_code,
                raw_response,
            } => {
                let response = raw_response.as_deref();
                let seconds = response.and_then(|r| header(r, "retry-after")?.parse().ok());
                Self::Answered {
                    status: u16::from(*status),
                    code: error_code.as_deref().map(sanitized).unwrap_or_default(),
                    request_id: response
                        .and_then(|r| header(r, "x-ms-request-id"))
                        .map(sanitized),
                    retry_after: seconds.map(Duration::from_secs),
                }
            }
            ClientErrorKind::Connection | ClientErrorKind::Io => of_connection(&error),
            ClientErrorKind::DataConversion => Self::Unreadable,
            _ => Self::NotMade,
        }
    }
}

/// Returns the innermost cause of a connection error: it contains no URL, unlike the outer ones.
fn of_connection(error: &azure_core::Error) -> AzureError {
    let mut cause = "the connection broke".to_owned();
    let mut next: Option<&(dyn StdError + 'static)> = error.source();
    while let Some(error) = next {
        match error.downcast_ref::<reqwest::Error>() {
            Some(error) if error.is_timeout() => return AzureError::TimedOut,
            Some(_) => {}
            None => cause = error.to_string(),
        }
        next = error.source();
    }
    AzureError::Unreachable { cause }
}

fn header<'a>(response: &'a RawResponse, name: &'static str) -> Option<&'a str> {
    response.headers().get_optional_str(&name.into())
}

/// Keeps only the characters of codes and ids.
fn sanitized(text: &str) -> String {
    const LONGEST: usize = 64;
    let fits = |c: &char| c.is_ascii_alphanumeric() || *c == '-';
    text.chars().filter(fits).take(LONGEST).collect()
}

impl Display for Id<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => write!(f, " (request {id})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_code_give_the_error_kind() {
        for (status, code, kind) in [
            (400, "InvalidQueryParameterValue", ErrorKind::Invalid),
            (401, "NoAuthenticationInformation", ErrorKind::Denied),
            (403, "AuthenticationFailed", ErrorKind::Denied),
            (404, "QueueNotFound", ErrorKind::NotFound),
            (409, "QueueBeingDeleted", ErrorKind::Unavailable),
            (409, "QueueAlreadyExists", ErrorKind::Conflict),
            (429, "TooManyRequests", ErrorKind::Exhausted),
            (500, "InternalError", ErrorKind::Unavailable),
            (500, "OperationTimedOut", ErrorKind::Timeout),
            (503, "ServerBusy", ErrorKind::Exhausted),
            (503, "", ErrorKind::Unavailable),
            (504, "", ErrorKind::Timeout),
            (302, "", ErrorKind::Internal),
        ] {
            assert_eq!(kind_of(status, code), kind, "{status} {code}");
        }
    }

    #[test]
    fn retry_after_and_request_id_are_kept() {
        let error = AzureError::Answered {
            status: 503,
            code: "ServerBusy".into(),
            request_id: Some("1-2".into()),
            retry_after: Some(Duration::from_secs(7)),
        };
        let words = "the service answered 503 ServerBusy (request 1-2)";
        assert_eq!(error.to_string(), words);
        let error = error.of("queue `a/q`");
        let words = "queue `a/q` is asked more often than it allows";
        assert_eq!(error.message(), words);
        assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
        assert!(error.is_retryable());
    }

    #[test]
    fn the_clients_error_text_is_not_passed_on() {
        let secret = "http://host/?sig=c2lnbmF0dXJl";
        for kind in [
            ClientErrorKind::DataConversion,
            ClientErrorKind::Other,
            ClientErrorKind::Credential,
            ClientErrorKind::HttpResponse {
                status: 403.into(),
                error_code: Some("AuthenticationFailed".into()),
                raw_response: None,
            },
        ] {
            let error = azure_core::Error::with_message(kind, secret);
            let error = AzureError::from(error).of("queue `a/q`");
            assert!(!format!("{error} {error:?}").contains("sig="), "{error:?}");
        }
    }
}
