//! Errors of the blob stores' client.

use object_store::{
    Error as ClientError,
    client::{HttpError, HttpErrorKind},
};

use crate::{
    base::{
        causes::causes,
        request_error::{RequestError, without_query},
    },
    error::ErrorKind,
};

/// Codes that refer to the container and not to the blob.
const OF_THE_CONTAINER: [&str; 2] = ["ContainerNotFound", "NoSuchBucket"];

/// Returns the error of an answer with this status and body.
pub(super) fn answered(status: u16, body: &str) -> RequestError {
    RequestError::answered(status, &code(body))
}

pub(super) fn names_the_container(error: &RequestError) -> bool {
    OF_THE_CONTAINER.contains(&error.code())
}

/// Returns whether the blob does not exist, while its container does.
pub(super) fn is_absent(error: &RequestError) -> bool {
    error.kind() == ErrorKind::NotFound && !names_the_container(error)
}

impl From<ClientError> for RequestError {
    fn from(error: ClientError) -> Self {
        let status = match &error {
            ClientError::NotFound { .. } => Some(404),
            ClientError::AlreadyExists { .. } => Some(409),
            ClientError::Precondition { .. } | ClientError::NotModified { .. } => Some(412),
            ClientError::PermissionDenied { .. } => Some(403),
            ClientError::Unauthenticated { .. } => Some(401),
            _ => None,
        };
        // The text with all causes, only to search it for codes.
        let text: Vec<_> = causes(&error).map(ToString::to_string).collect();
        let text = text.join("\n");
        if let Some(status) = status.or_else(|| status_in(&text)) {
            return answered(status, &text);
        }
        if let Some(error) = causes(&error).find_map(|error| error.downcast_ref::<HttpError>()) {
            return Self::from(error);
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

impl From<&HttpError> for RequestError {
    fn from(error: &HttpError) -> Self {
        match error.kind() {
            HttpErrorKind::Timeout => Self::TimedOut,
            HttpErrorKind::Decode => Self::Unreadable,
            HttpErrorKind::Connect => Self::of_connection(error, "no connection"),
            _ => Self::of_connection(error, "the connection broke"),
        }
    }
}

/// Finds the status in the client's text.
fn status_in(text: &str) -> Option<u16> {
    const WORDS: &str = "status code: ";
    let at = text.find(WORDS)? + WORDS.len();
    text.get(at..at + 3)?.parse().ok()
}

/// Returns the service's code in an answer, which all of them have in `<Code>`.
fn code(body: &str) -> String {
    let inside = body.split_once("<Code>").map_or("", |(_, rest)| rest);
    let fits = |c: &char| c.is_ascii_alphanumeric();
    inside.chars().take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_services_code_distinguishes_container_and_blob() {
        for (code, is_container) in [
            ("ContainerNotFound", true),
            ("NoSuchBucket", true),
            ("BlobNotFound", false),
            ("NoSuchKey", false),
        ] {
            let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
            let error = answered(404, &body);
            assert_eq!(names_the_container(&error), is_container, "{code}");
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
            let error = RequestError::from(error).about("blob `b`");
            assert!(!format!("{error} {error:?}").contains("sig="), "{error:?}");
        }
    }
}
