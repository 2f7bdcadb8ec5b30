//! A lease's blob: one JSON object that people can read.
//!
//! ```json
//! {"token":1700000000000000,"holder":"node-7","nonce":"0f…32 digits","duration_ms":15000,"released":false}
//! ```
//!
//! `token` grows with every holder. `nonce` is new in every write. It alone identifies the writer
//! of a record, and it keeps the ETags of two renewals apart where the ETag is a hash of the
//! content. `duration_ms` is the holder's duration, which challengers wait for. `released` marks a
//! tombstone: the blob stays, so that tokens keep growing. Later versions may add fields.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::ContenderConfig;

/// The content of a lease's blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) token: u64,
    pub(crate) holder: String,
    pub(crate) nonce: String,
    duration_ms: u64,
    pub(crate) released: bool,
}

/// The beginning of content that is no record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unreadable(String);

/// Range of durations in a valid record. A record outside of it is an error and is not waited for.
pub(crate) const MIN_DURATION: Duration = Duration::from_secs(1);
pub(crate) const MAX_DURATION: Duration = Duration::from_secs(24 * 3600);
/// Characters shown of unreadable content.
const SHOWN: usize = 60;

impl Record {
    pub(super) fn new(token: u64, nonce: String, config: &ContenderConfig, released: bool) -> Self {
        // Rounded up: no challenger waits for less than the holder's duration.
        let millis = config.duration.as_nanos().div_ceil(1_000_000);
        Self {
            token,
            holder: config.holder.clone(),
            nonce,
            duration_ms: u64::try_from(millis).unwrap_or(u64::MAX),
            released,
        }
    }

    /// Parses a blob's content.
    ///
    /// # Errors
    /// The content is no lease.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Unreadable> {
        let sound = |record: &Self| {
            let nonce = record.nonce.len() == 32;
            // Leaves room for the next holder's token.
            nonce
                && record.token < u64::MAX
                && (MIN_DURATION..=MAX_DURATION).contains(&record.duration())
        };
        let record = serde_json::from_slice(bytes).ok().filter(sound);
        record.ok_or_else(|| {
            let start = &bytes[..bytes.len().min(SHOWN * 4)];
            Unreadable::of(&String::from_utf8_lossy(start))
        })
    }

    pub(crate) fn bytes(&self) -> bytes::Bytes {
        let text = serde_json::to_vec(self).expect("numbers and texts are written as JSON");
        text.into()
    }

    pub(crate) fn duration(&self) -> Duration {
        Duration::from_millis(self.duration_ms)
    }
}

impl Unreadable {
    pub(super) fn of(text: &str) -> Self {
        Self(text.chars().take(SHOWN).collect())
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
