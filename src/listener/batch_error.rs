//! The error of a batch, which each of its messages gets.

use std::{fmt, sync::Arc};

/// The error of messages that were rejected together: it is not known which of them is bad.
#[derive(Debug)]
pub(super) struct RejectedTogether(pub(super) SharedError);

/// One error that all messages of a batch share.
#[derive(Debug, Clone)]
pub(super) struct SharedError(pub(super) Arc<dyn std::error::Error + Send + Sync>);

impl fmt::Display for RejectedTogether {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rejected with others: {}", self.0)
    }
}

impl std::error::Error for RejectedTogether {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

impl fmt::Display for SharedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for SharedError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}
