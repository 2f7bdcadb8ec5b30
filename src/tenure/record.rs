//! A lease's blob: one JSON object that people can read.
//!
//! ```json
//! {"token":1700000000000000,"holder":"node-7","nonce":"0f…32 digits","duration_ms":15000,"released":false}
//! ```
//!
//! `token` grows with every holder. `nonce` is another one in every write: it alone says whose a
//! write was, and it keeps the ETags of two renewals apart where a store makes them of the content.
//! `duration_ms` is the holder's, which challengers go by. `released` is the tombstone: the blob
//! stays, so that tokens go on. Later versions may add fields.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::Terms;

/// What a contender writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) token: u64,
    pub(crate) holder: String,
    pub(crate) nonce: String,
    duration_ms: u64,
    pub(crate) released: bool,
}

/// Content that is no record, shortened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unreadable(String);

/// Durations that are believed of a record: what cannot be is rather shown than waited for.
pub(crate) const SHORTEST: Duration = Duration::from_secs(1);
pub(crate) const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Characters of what cannot be read that are shown.
const SHOWN: usize = 60;

impl Record {
    pub(super) fn new(token: u64, nonce: String, terms: &Terms, released: bool) -> Self {
        // Rounded up: nobody waits for less than the holder goes by.
        let millis = terms.duration.as_nanos().div_ceil(1_000_000);
        Self {
            token,
            holder: terms.holder.clone(),
            nonce,
            duration_ms: u64::try_from(millis).unwrap_or(u64::MAX),
            released,
        }
    }

    /// Reads a blob's content.
    ///
    /// # Errors
    /// It is no lease.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Unreadable> {
        let sound = |record: &Self| {
            let nonce = record.nonce.len() == 32;
            // The next holder's token must be a greater one.
            nonce && record.token < u64::MAX && (SHORTEST..=LONGEST).contains(&record.duration())
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
