//! The public error: a message, and a kind that tells the caller what to do.
//!
//! Modules have private errors with exact messages where they need them, and convert them to this
//! one at their public interface. Knows neither gRPC nor SQL: `wire` maps kinds to status codes.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The class of an error, by what the caller can do. Each kind maps to gRPC status codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request breaks a rule; repeating it changes nothing. `INVALID_ARGUMENT`.
    Invalid,
    /// The named thing does not exist. `NOT_FOUND`.
    NotFound,
    /// Another writer was first, or the thing exists already. `ABORTED`, `ALREADY_EXISTS`.
    Conflict,
    /// Not allowed. `PERMISSION_DENIED`, `UNAUTHENTICATED`.
    Denied,
    /// Held by another process at the moment. `FAILED_PRECONDITION`.
    Busy,
    /// A limit is reached; the message names it. `RESOURCE_EXHAUSTED`.
    Exhausted,
    /// Temporarily unreachable or unable to answer: try again. `UNAVAILABLE`.
    Unavailable,
    /// The time limit was exceeded. `DEADLINE_EXCEEDED`.
    Timeout,
    /// It was shut down, or the file of a store or queue was taken away. `CANCELLED`.
    Closed,
    /// This version does not support the call. `UNIMPLEMENTED`.
    Unsupported,
    /// A fault in reveille or in a library it uses. `INTERNAL`.
    Internal,
}

/// An error: its kind, a message that names the failed thing, and an optional cause.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    retry_after: Option<Duration>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl ErrorKind {
    /// Returns whether the same call may succeed later without a change.
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Busy | Self::Exhausted | Self::Unavailable | Self::Timeout
        )
    }

    /// Returns whether a call that failed with this kind was refused and so certainly changed
    /// nothing. After any other kind the call may have taken effect, and only its answer was lost.
    /// `Conflict` is not a refusal: the conflict may be with an earlier attempt of the same call.
    pub fn is_refusal(self) -> bool {
        matches!(
            self,
            Self::Invalid
                | Self::NotFound
                | Self::Denied
                | Self::Busy
                | Self::Exhausted
                | Self::Unsupported
        )
    }
}

impl Error {
    /// Creates an error. The message is lower case, without a full stop, and names the thing that
    /// failed.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            retry_after: None,
            source: None,
        }
    }

    /// Creates an error for a request's field that breaks a rule.
    pub fn invalid(field: &str, rule: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Invalid, format!("{field}: {rule}"))
    }

    /// Creates the error for a setting that needs a back-end which this build lacks.
    #[cfg(feature = "store")]
    pub(crate) fn not_compiled(setting: &str, shown: &str, feature: &str) -> Self {
        let rule = format_args!(
            "`{shown}` needs the feature `{feature}`, which this build lacks: build with \
             `--features {feature}` or `full` (`cargo install --path cli --features full`)"
        );
        Self::invalid(setting, rule)
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into().into());
        self
    }

    /// Sets the minimum wait before a retry.
    #[must_use]
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Returns the kind, which is what callers match on.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the message without its causes.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns whether the same call may succeed later without a change.
    pub fn is_retryable(&self) -> bool {
        self.kind.is_retryable()
    }

    /// Returns the minimum wait before a retry, if known.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_cause_and_does_not_paste_it() {
        let error = Error::new(ErrorKind::Unavailable, "store `flags.db` cannot be written")
            .with_source(std::io::Error::other("disk full"));
        assert_eq!(error.to_string(), "store `flags.db` cannot be written");
        assert_eq!(
            error.source().map(ToString::to_string).as_deref(),
            Some("disk full")
        );
        assert!(error.is_retryable());
    }

    #[test]
    fn only_a_refusal_guarantees_that_nothing_changed() {
        use ErrorKind as K;
        for kind in [K::Busy, K::Exhausted, K::Invalid, K::NotFound, K::Denied] {
            assert!(kind.is_refusal(), "{kind:?}");
        }
        for kind in [K::Timeout, K::Unavailable, K::Conflict, K::Internal] {
            assert!(!kind.is_refusal(), "{kind:?}");
        }
    }

    #[test]
    fn permanent_kinds_are_not_retryable() {
        for kind in [
            ErrorKind::Invalid,
            ErrorKind::NotFound,
            ErrorKind::Denied,
            ErrorKind::Closed,
        ] {
            assert!(!kind.is_retryable(), "{kind:?}");
        }
    }
}
