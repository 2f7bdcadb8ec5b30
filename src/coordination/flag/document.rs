//! A flag's blobs: `flags/NAME`, whose existence means "set" with any content, and
//! `flags-ended/NAME`, which holds the newest set that is over.
//!
//! Reveille writes JSON documents with author, reason and expiry. Another content of `flags/NAME` is
//! a flag that an operator set by hand, and is valid.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost_types::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    base::{clock::micros, fnv::fnv1a},
    store::{Blob, BlobContent, BlobName, ETag},
    types::{FlagName, FlagState, Limits, UnleashOptions, check_kept_text},
};

/// The folder of the flags' blobs.
pub(crate) const FOLDER: &str = "flags/";
/// The folder of the sets that are over. It is another one, because the existence of a blob in
/// [`FOLDER`] means "set".
pub(crate) const ENDED_FOLDER: &str = "flags-ended/";
/// The prefix of the blobs of both folders, for one list of all.
pub(super) const FOLDERS: &str = "flags";

pub(crate) const HASHES: u64 = FlagState::HASHES;

/// The content of a flag's blob that reveille writes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FlagDocument {
    pub(crate) generation: u64,
    #[serde(default)]
    set_by: String,
    #[serde(default)]
    reason: String,
    /// RFC 3339, readable for people.
    set_at: String,
    /// 0 means no expiry.
    #[serde(default)]
    ttl_ms: u64,
}

/// The newest set of a flag that is over. A clearing writes it before it deletes the flag's blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndedSet {
    /// Greater than those of all sets of this flag that were over before.
    pub(crate) number: u64,
    /// The state as it was set.
    pub(crate) state: FlagState,
}

#[derive(Serialize, Deserialize)]
struct EndedDocument {
    number: u64,
    #[serde(flatten)]
    set: FlagDocument,
}

/// The ETag of a blob; `None` for no blob.
pub(super) type Version = Option<ETag>;

/// Those of the flag's blob and of its newest set that is over.
pub(super) type Versions = (Version, Version);

/// A flag's blob as it was read.
#[derive(Debug, Clone)]
pub(crate) struct StoredFlag {
    /// Set, whether it has expired or not.
    pub(crate) state: FlagState,
    pub(crate) etag: ETag,
}

impl StoredFlag {
    pub(crate) fn new(name: &FlagName, blob: Blob) -> Self {
        let state = match FlagDocument::read(&blob) {
            Some(document) => document.state(name),
            None => FlagState {
                set: true,
                set_at: Some(blob.last_modified),
                ..FlagState::unset(name.clone(), foreign_generation(&blob))
            },
        };
        Self {
            state,
            etag: blob.etag,
        }
    }

    /// Returns the state if the flag has not expired.
    pub(crate) fn active(self, wall: SystemTime) -> Option<FlagState> {
        let is_over = self.state.expires_at.is_some_and(|end| end <= wall);
        (!is_over).then_some(self.state)
    }
}

/// Returns the name of a flag's blob.
pub(crate) fn blob_name(flag: &FlagName) -> BlobName {
    BlobName::new(&format!("{FOLDER}{flag}"))
        .expect("a flag's name is a valid part of a blob's name")
}

/// Returns the name of the blob with a flag's newest set that is over.
pub(crate) fn ended_name(flag: &FlagName) -> BlobName {
    BlobName::new(&format!("{ENDED_FOLDER}{flag}"))
        .expect("a flag's name is a valid part of a blob's name")
}

impl EndedSet {
    /// Makes the end of a set after the one that ended before it.
    pub(super) fn new(state: FlagState, before: Option<&Self>, wall: SystemTime) -> Self {
        let before = before.map_or(0, |before| before.number);
        let generation = match state.generation {
            HASHES.. => micros(wall),
            generation => generation,
        };
        Self {
            number: generation.max(before + 1),
            state,
        }
    }

    /// Returns `None` for content that reveille did not write.
    pub(super) fn read(name: &FlagName, blob: &Blob) -> Option<Self> {
        let document: EndedDocument = serde_json::from_slice(&blob.content.bytes).ok()?;
        let set = document.set.checked()?;
        (document.number < HASHES).then(|| Self {
            number: document.number,
            state: set.state(name),
        })
    }

    pub(super) fn content(&self) -> BlobContent {
        let state = &self.state;
        let set_at = state.set_at.unwrap_or(UNIX_EPOCH);
        let ttl = state
            .expires_at
            .and_then(|end| end.duration_since(set_at).ok());
        let document = EndedDocument {
            number: self.number,
            set: FlagDocument {
                generation: state.generation,
                set_by: state.set_by.clone(),
                reason: state.reason.clone(),
                set_at: Timestamp::from(set_at).to_string(),
                ttl_ms: ttl.map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
            },
        };
        json(&document)
    }
}

impl FlagDocument {
    /// Makes the document of a flag that is set now. Values that the options leave out come from
    /// `current`, the state of a flag that is set already. Its expiry stays, to the millisecond.
    pub(crate) fn new(
        generation: u64,
        options: &UnleashOptions,
        current: Option<&FlagState>,
        wall: SystemTime,
    ) -> Self {
        // Whole microseconds, and milliseconds rounded up: watchers then receive the same values
        // that a read returns.
        let set_at = UNIX_EPOCH + Duration::from_micros(micros(wall));
        let kept_end = current.and_then(|state| state.expires_at);
        // Limited: the clock that set the flag may be ahead of this one.
        let left = |end: SystemTime| end.duration_since(set_at).unwrap_or_default();
        let kept_ttl = kept_end.map(|end| left(end).min(Limits::TTL));
        let ttl = options.ttl.or(kept_ttl).unwrap_or_default();
        let ttl_ms = ttl.as_nanos().div_ceil(1_000_000);
        let text = |stated: &String, kept: fn(&FlagState) -> &String| match stated.is_empty() {
            true => current.map(kept).cloned().unwrap_or_default(),
            false => stated.clone(),
        };
        Self {
            generation,
            set_by: text(&options.set_by, |state| &state.set_by),
            reason: text(&options.reason, |state| &state.reason),
            set_at: Timestamp::from(set_at).to_string(),
            ttl_ms: u64::try_from(ttl_ms).unwrap_or(u64::MAX),
        }
    }

    /// Parses a document. Returns `None` for foreign content, or for a value out of range.
    fn read(blob: &Blob) -> Option<Self> {
        let document: Self = serde_json::from_slice(&blob.content.bytes).ok()?;
        document.checked()
    }

    fn checked(self) -> Option<Self> {
        check_kept_text("set_by", &self.set_by, Limits::MAX_TEXT).ok()?;
        check_kept_text("reason", &self.reason, Limits::REASON).ok()?;
        self.set_at()?;
        let generation = (1..HASHES * 2).contains(&self.generation);
        (generation && self.ttl() <= Limits::TTL).then_some(self)
    }

    pub(crate) fn content(&self) -> BlobContent {
        json(self)
    }

    pub(crate) fn state(&self, name: &FlagName) -> FlagState {
        let set_at = self.set_at();
        let ttl = Some(self.ttl()).filter(|ttl| !ttl.is_zero());
        FlagState {
            name: name.clone(),
            set: true,
            generation: self.generation,
            set_by: self.set_by.clone(),
            reason: self.reason.clone(),
            set_at,
            expires_at: ttl.and_then(|ttl| set_at?.checked_add(ttl)),
        }
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    fn set_at(&self) -> Option<SystemTime> {
        self.set_at.parse::<Timestamp>().ok()?.try_into().ok()
    }
}

fn json(document: &impl Serialize) -> BlobContent {
    let bytes = serde_json::to_vec(document).expect("numbers and texts are written as JSON");
    bytes::Bytes::from(bytes).into()
}

/// FNV-1a of ETag and last-modified: the same on every machine and in every version.
fn foreign_generation(blob: &Blob) -> u64 {
    let since = blob.last_modified.duration_since(UNIX_EPOCH);
    let time = since.unwrap_or_default().as_nanos().to_be_bytes();
    let bytes = blob.etag.as_str().bytes().chain(time);
    fnv1a(bytes) % HASHES + HASHES
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the state of a blob with this content.
    fn state(name: &FlagName, text: &str, etag: &str) -> FlagState {
        let blob = Blob {
            content: bytes::Bytes::from(text.to_owned()).into(),
            etag: ETag::new(etag),
            last_modified: UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        };
        StoredFlag::new(name, blob).state
    }

    #[test]
    fn watchers_receive_the_state_that_a_read_returns() {
        let name = FlagName::new("go").expect("a name");
        let wall = UNIX_EPOCH + Duration::from_nanos(1_700_000_000_123_456_789);
        for ttl in [
            Duration::ZERO,
            Duration::from_nanos(1),
            Duration::from_secs(9),
            Limits::TTL,
        ] {
            let (set_by, reason) = ("ops \"7\"".to_owned(), "ä".to_owned());
            let options = UnleashOptions {
                ttl: Some(ttl),
                set_by,
                reason,
            };
            let document = FlagDocument::new(42, &options, None, wall);
            let text = String::from_utf8(document.content().bytes.to_vec()).expect("a text");
            let told = document.state(&name);
            assert_eq!(told, state(&name, &text, "1"), "{text}");
            assert!(told.expires_at.is_none_or(|end| end > wall));
            assert_eq!(told.expires_at.is_none(), ttl.is_zero());
        }
    }

    #[test]
    fn the_end_of_a_set_is_read_with_the_state_that_was_written() {
        let name = FlagName::new("go").expect("a name");
        let wall = UNIX_EPOCH + Duration::from_nanos(1_700_000_000_123_456_789);
        let blob = |content| Blob {
            content,
            etag: ETag::new("1"),
            last_modified: wall,
        };
        let options = UnleashOptions {
            ttl: Some(Duration::from_millis(1)),
            set_by: "ops".to_owned(),
            reason: "ä".to_owned(),
        };
        let own = FlagDocument::new(7, &options, None, wall).content();
        for content in [own, "by hand".into()] {
            let state = StoredFlag::new(&name, blob(content)).state;
            let ended = EndedSet::new(state, None, wall);
            let read = EndedSet::read(&name, &blob(ended.content()));
            assert_eq!(read, Some(ended));
        }
    }

    #[test]
    fn the_document_is_readable_by_people() {
        let wall = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let options = UnleashOptions {
            ttl: Some(Duration::from_secs(60)),
            ..UnleashOptions::default()
        };
        let content = FlagDocument::new(7, &options, None, wall).content();
        assert_eq!(
            std::str::from_utf8(&content.bytes),
            Ok(
                r#"{"generation":7,"set_by":"","reason":"","set_at":"2023-11-14T22:13:20Z","ttl_ms":60000}"#
            )
        );
    }

    #[test]
    fn a_kept_expiry_is_within_the_limit_where_the_other_clock_was_ahead() {
        let name = FlagName::new("go").expect("a name");
        let wall = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let options = UnleashOptions {
            ttl: Some(Limits::TTL),
            ..UnleashOptions::default()
        };
        let ahead = FlagDocument::new(7, &options, None, wall + Duration::from_secs(3600));
        let (again, current) = (UnleashOptions::default(), ahead.state(&name));
        let document = FlagDocument::new(7, &again, Some(&current), wall);
        let text = String::from_utf8(document.content().bytes.to_vec()).expect("a text");
        let read = state(&name, &text, "1");
        assert_eq!((read.generation, &read), (7, &document.state(&name)));
        assert_eq!(read.expires_at, Some(wall + Limits::TTL));
    }

    #[test]
    fn a_blob_with_any_content_sets_the_flag() {
        let name = FlagName::new("go").expect("a name");
        let at = "2023-11-14T22:13:20Z";
        let long = "x".repeat(129);
        for text in [
            String::new(),
            "true".into(),
            "{}".into(),
            "\u{0}\u{1}".into(),
            format!(r#"{{"generation":0,"set_at":"{at}"}}"#),
            format!(r#"{{"generation":18446744073709551615,"set_at":"{at}"}}"#),
            format!(r#"{{"generation":7,"set_at":"{at}","set_by":"{long}"}}"#),
            format!(r#"{{"generation":7,"set_at":"{at}","ttl_ms":18446744073709551615}}"#),
            r#"{"generation":7,"set_at":"yesterday"}"#.into(),
        ] {
            let (one, two) = (state(&name, &text, "1"), state(&name, &text, "2"));
            assert!(one.set && one.expires_at.is_none(), "{text}");
            assert!(one.generation >= HASHES, "{text}");
            assert_ne!(
                one.generation, two.generation,
                "each write is another generation"
            );
        }
        // Pinned: every version of this program must compute the same number.
        let pinned = state(&name, "x", "1").generation;
        assert_eq!(pinned, 6_682_539_630_242_877_532);
    }
}
