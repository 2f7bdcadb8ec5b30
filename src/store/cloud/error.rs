//! Errors of requests, without secrets.
//!
//! The client's own errors contain URLs, which may have a signature, and whole answers. Only the
//! status, the service's code and the cause of a broken connection are passed on.

use std::{error::Error as StdError, fmt::Display};

use object_store::{
    Error as ClientError,
    client::{HttpError, HttpErrorKind},
};

use crate::{
    backend::azure::failure_text,
    error::{Error, ErrorKind},
};

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CloudError {
    #[error("the service answered {status} {code}")]
    Answered { status: u16, code: String },
    #[error("no answer came in time")]
    TimedOut,
    #[error("the service cannot be reached: {cause}")]
    Unreachable { cause: String },
    #[error("the answer cannot be read")]
    Unreadable,
    #[error("the service redirects without a target: the region is wrong")]
    Elsewhere,
    #[error("{cause}")]
    Other { cause: String },
}

/// Codes that refer to the container and not to the blob.
const OF_THE_CONTAINER: [&str; 2] = ["ContainerNotFound", "NoSuchBucket"];

impl CloudError {
    pub(super) fn answered(status: u16, body: &str) -> Self {
        Self::Answered {
            status,
            code: code(body),
        }
    }

    pub(super) fn names_the_container(&self) -> bool {
        matches!(self, Self::Answered { code, .. } if OF_THE_CONTAINER.contains(&&**code))
    }

    pub(super) fn kind(&self) -> ErrorKind {
        match self {
            Self::Answered { status, code } => kind_of(*status, code),
            Self::TimedOut => ErrorKind::Timeout,
            Self::Unreachable { .. } => ErrorKind::Unavailable,
            Self::Unreadable => ErrorKind::Internal,
            Self::Elsewhere => ErrorKind::Invalid,
            Self::Other { .. } => ErrorKind::Internal,
        }
    }

    /// Whether a retry may succeed.
    pub(super) fn is_transient(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Exhausted
        )
    }

    /// Whether the blob does not exist, while its container does.
    pub(super) fn is_absent(&self) -> bool {
        self.kind() == ErrorKind::NotFound && !self.names_the_container()
    }

    /// Makes the public error about `subject`, which is a noun and a name.
    pub(super) fn about(self, subject: impl Display) -> Error {
        let kind = self.kind();
        let what = match (kind, &self) {
            (_, Self::Elsewhere) => "is in another region: set AWS_REGION",
            (_, Self::Answered { status: 501, .. }) => {
                "cannot be written with this condition: the service does not implement it"
            }
            (ErrorKind::Unsupported, _) => {
                "is leased, archived, immutable, of another type, or has snapshots"
            }
            (ErrorKind::Conflict, _) => "has changed since it was read, or exists already",
            _ => failure_text(kind, matches!(self, Self::Unreachable { .. })),
        };
        Error::new(kind, format!("{subject} {what}")).with_source(self)
    }
}

fn kind_of(status: u16, code: &str) -> ErrorKind {
    match (status, code) {
        (_, "OperationTimedOut" | "RequestTimeout") | (408 | 504, _) => ErrorKind::Timeout,
        // Transient: the service takes half a minute to delete a container.
        (_, "ContainerBeingDeleted") => ErrorKind::Unavailable,
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

impl From<ClientError> for CloudError {
    fn from(error: ClientError) -> Self {
        let status = match &error {
            ClientError::NotFound { .. } => Some(404),
            ClientError::AlreadyExists { .. } => Some(409),
            ClientError::Precondition { .. } | ClientError::NotModified { .. } => Some(412),
            ClientError::PermissionDenied { .. } => Some(403),
            ClientError::Unauthenticated { .. } => Some(401),
            _ => None,
        };
        let text = chain(&error);
        if let Some(status) = status.or_else(|| status_in(&text)) {
            return Self::answered(status, &text);
        }
        let mut next: Option<&(dyn StdError + 'static)> = Some(&error);
        while let Some(error) = next {
            if let Some(error) = error.downcast_ref::<HttpError>() {
                return Self::from(error);
            }
            next = error.source();
        }
        // The client's text for a redirect without a target.
        if text.contains("redirect without LOCATION") {
            return Self::Elsewhere;
        }
        Self::Other {
            cause: without_query(&text),
        }
    }
}

/// Returns the innermost cause of a broken connection. The outer errors may contain a URL.
impl From<&HttpError> for CloudError {
    fn from(error: &HttpError) -> Self {
        let mut cause = match error.kind() {
            HttpErrorKind::Timeout => return Self::TimedOut,
            HttpErrorKind::Decode => return Self::Unreadable,
            HttpErrorKind::Connect => "no connection",
            _ => "the connection broke",
        }
        .to_owned();
        let mut next = error.source();
        while let Some(error) = next {
            let outer = error.downcast_ref::<reqwest::Error>();
            if outer.is_some_and(reqwest::Error::is_timeout) {
                return Self::TimedOut;
            }
            if outer.is_none() {
                cause = without_query(&error.to_string());
            }
            next = error.source();
        }
        Self::Unreachable { cause }
    }
}

/// The text of an error with all its sources, only to search it for codes.
fn chain(error: &ClientError) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text.push('\n');
        text.push_str(&error.to_string());
        next = error.source();
    }
    text
}

/// Finds the status in the client's text.
fn status_in(text: &str) -> Option<u16> {
    const WORDS: &str = "status code: ";
    let at = text.find(WORDS)? + WORDS.len();
    text.get(at..at + 3)?.parse().ok()
}

/// Returns the service's code in an answer, which all of them have in `<Code>`.
fn code(body: &str) -> String {
    const LONGEST: usize = 64;
    let inside = body.split_once("<Code>").map_or("", |(_, rest)| rest);
    let fits = |c: &char| c.is_ascii_alphanumeric();
    inside.chars().take_while(fits).take(LONGEST).collect()
}

/// Removes the text after a `?`, which may be a signature.
fn without_query(text: &str) -> String {
    const LONGEST: usize = 200;
    let first = text.split(['?', '\n']).next().unwrap_or_default();
    first.chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answers_status_and_code_give_the_error_kind() {
        for (status, code, kind) in [
            (400, "InvalidQueryParameterValue", ErrorKind::Invalid),
            (403, "AuthenticationFailed", ErrorKind::Denied),
            (404, "BlobNotFound", ErrorKind::NotFound),
            (409, "BlobAlreadyExists", ErrorKind::Conflict),
            (409, "ContainerBeingDeleted", ErrorKind::Unavailable),
            (409, "ConditionalRequestConflict", ErrorKind::Conflict),
            (412, "ConditionNotMet", ErrorKind::Conflict),
            (429, "", ErrorKind::Exhausted),
            (500, "InternalError", ErrorKind::Unavailable),
            (501, "NotImplemented", ErrorKind::Unsupported),
            (503, "SlowDown", ErrorKind::Exhausted),
            (503, "", ErrorKind::Unavailable),
            (504, "", ErrorKind::Timeout),
        ] {
            assert_eq!(kind_of(status, code), kind, "{status} {code}");
        }
    }

    #[test]
    fn the_services_code_distinguishes_container_and_blob() {
        for (code, is_container) in [
            ("ContainerNotFound", true),
            ("NoSuchBucket", true),
            ("BlobNotFound", false),
            ("NoSuchKey", false),
        ] {
            let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
            let error = CloudError::answered(404, &body);
            assert_eq!(error.names_the_container(), is_container, "{code}");
        }
    }

    #[test]
    fn no_secret_of_a_clients_error_is_passed_on() {
        let secret = "GET http://host/c/b?sv=1&sig=c2lnbmF0dXJl failed";
        let answer = "Server returned non-2xx status code: 403 Forbidden: <Code>No</Code>";
        for text in [secret.to_owned(), format!("{secret}: {answer}")] {
            let error = ClientError::Generic {
                store: "x",
                source: text.into(),
            };
            let error = CloudError::from(error).about("blob `b`");
            assert!(!format!("{error} {error:?}").contains("sig="), "{error:?}");
        }
    }
}
