//! The clients of a store, one for each purpose: their time-outs and retries.

use std::time::Duration;

use object_store::{ObjectStore, RetryConfig, list::PaginatedListStore};

use crate::base::https::RequestTimeout;

/// A client that lists by page as well.
pub(super) trait Client: ObjectStore + PaginatedListStore {}

impl<T: ObjectStore + PaginatedListStore> Client for T {}

/// The purpose of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Reads,
    Writes,
    Contents,
}

/// Time-outs of a request, and of each piece of large content.
const REQUEST: Duration = Duration::from_secs(10);
const PIECE: Duration = Duration::from_secs(30);
/// How long a failing read is retried.
const RETRY: Duration = Duration::from_secs(15);
/// Time-out of large content, over all attempts.
const CONTENT: Duration = Duration::from_secs(12 * 3600);
pub(super) const READS: usize = 3;
pub(super) const RETRY_AFTER: Duration = Duration::from_millis(200);

impl Purpose {
    /// Reads are retried, writes never.
    pub(super) fn retry(self) -> RetryConfig {
        RetryConfig {
            max_retries: if self == Self::Writes { 0 } else { READS },
            retry_timeout: if self == Self::Contents {
                CONTENT
            } else {
                RETRY
            },
            ..RetryConfig::default()
        }
    }

    pub(super) fn patience(self) -> RequestTimeout {
        match self {
            Self::Reads | Self::Writes => RequestTimeout::Total(REQUEST),
            Self::Contents => RequestTimeout::PerChunk(PIECE),
        }
    }
}
