//! What went wrong with a request, as far as it may be told.
//!
//! The client's own errors hold URLs with signatures, answers with messages in them, and, where a
//! request is refused, the signature that was sent. So nothing of them is passed on but what is
//! known to be harmless: status, code, the request's id, the innermost cause of a cut connection.

use std::{error::Error as StdError, fmt, fmt::Display, time::Duration};

use azure_core::{error::ErrorKind as ClientErrorKind, http::RawResponse};

use crate::error::{Error, ErrorKind};

/// Why a request came to nothing.
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

/// A request's id within a message, for those who ask the service's support.
struct Id<'a>(Option<&'a str>);

impl AzureError {
    /// Returns the service's code, where it answered.
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

    /// Turns it into the public error of `subject`, which is a noun and a name.
    pub(crate) fn of(self, subject: impl Display) -> Error {
        let kind = self.kind();
        let what = words(kind, matches!(self, Self::Unreachable { .. }));
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

/// Says what a service did with a request, after its subject.
pub(crate) fn words(kind: ErrorKind, unreachable: bool) -> &'static str {
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
        // It passes: the service takes half a minute to delete a queue.
        (_, "QueueBeingDeleted") => ErrorKind::Unavailable,
        (401 | 403, _) => ErrorKind::Denied,
        (404, _) => ErrorKind::NotFound,
        (409 | 412, _) => ErrorKind::Conflict,
        // More was asked than the account or the partition takes: the request was turned away, and
        // certainly did not happen.
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
                    code: error_code.as_deref().map(word).unwrap_or_default(),
                    request_id: response
                        .and_then(|r| header(r, "x-ms-request-id"))
                        .map(word),
                    retry_after: seconds.map(Duration::from_secs),
                }
            }
            ClientErrorKind::Connection | ClientErrorKind::Io => of_connection(&error),
            ClientErrorKind::DataConversion => Self::Unreadable,
            _ => Self::NotMade,
        }
    }
}

/// Says why a connection came to nothing: the innermost cause, which names no URL as the outer ones
/// do.
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

/// Keeps what codes and ids consist of.
fn word(text: &str) -> String {
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
    fn an_answer_says_what_to_do() {
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
    fn what_the_service_asks_for_is_kept_and_its_id_shown() {
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
    fn nothing_of_a_clients_error_is_passed_on() {
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
