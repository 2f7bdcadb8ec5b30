//! What happens to a blob: decided by its name, its metadata and the time, without I/O.

use std::{collections::BTreeMap, str::FromStr, time::SystemTime};

use httpdate::{fmt_http_date, parse_http_date};
use prost_types::Timestamp;

use crate::{
    coordination::{flag, lease, unique_id},
    store::{BlobEntry, BlobName},
};

/// The metadata with a blob's expiry. Names of metadata are not case-sensitive.
pub const TIME_TO_LIVE: &str = "timetolive";
/// The metadata with the destination of an expired blob. Without it the blob is deleted.
pub const DEAD_BLOB_CONTAINER: &str = "deadblobcontainer";
/// Metadata of a moved blob: its source.
pub const SWEPT_FROM: &str = "sweptfrom";
/// Metadata of a moved blob: the time of the move.
pub const SWEPT_AT: &str = "sweptat";

/// The decision on a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It has no expiry.
    Unmarked,
    /// It has not expired.
    Alive,
    Delete,
    Move(Destination),
    Leave(Reason),
    /// It was changed or deleted during the work.
    Changed,
}

/// Why a blob with an expiry is left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// Its expiry is malformed.
    BadTime,
    /// It names a dead-blob container, but the job has no account for dead blobs.
    NoDeadAccount,
    /// Its dead-blob container is not a valid name.
    BadDestination,
    /// It would be moved onto itself.
    OntoItself,
    /// It belongs to a lease or a job, or would overwrite such a blob.
    Protected,
    /// Another blob has the destination's name.
    Occupied,
}

/// The destination of a move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) container: String,
    pub(crate) name: BlobName,
}

/// Decides on a blob whose metadata is known. `dead` is whether the job has an account for dead
/// blobs.
pub(crate) fn judge(
    name: &BlobName,
    metadata: &BTreeMap<String, String>,
    now: SystemTime,
    dead: bool,
) -> Verdict {
    let Some(text) = metadata.get(TIME_TO_LIVE) else {
        return Verdict::Unmarked;
    };
    let Some(end) = time(text) else {
        return Verdict::Leave(Reason::BadTime);
    };
    if end > now {
        return Verdict::Alive;
    }
    if is_protected(name) {
        return Verdict::Leave(Reason::Protected);
    }
    match metadata.get(DEAD_BLOB_CONTAINER).map(|value| value.trim()) {
        None | Some("") => Verdict::Delete,
        Some(_) if !dead => Verdict::Leave(Reason::NoDeadAccount),
        Some(value) => match destination(value, name) {
            Some(to) if is_protected(&to.name) => Verdict::Leave(Reason::Protected),
            Some(to) => Verdict::Move(to),
            None => Verdict::Leave(Reason::BadDestination),
        },
    }
}

/// Returns whether a blob belongs to a flag, a lease, a counter of ids or a job. Such a blob is neither
/// swept nor overwritten: a lease would have two holders, and ids would repeat.
pub(crate) fn is_protected(name: &BlobName) -> bool {
    let own = [
        lease::FOLDER,
        super::FOLDER,
        unique_id::FOLDER,
        flag::FOLDER,
        flag::ENDED_FOLDER,
    ];
    own.iter().any(|folder| name.as_str().starts_with(folder))
}

/// Parses an expiry: RFC 3339 with a zone, or an HTTP date. Returns `None` for anything else. It is
/// not guessed, because a wrong guess deletes.
pub(crate) fn time(text: &str) -> Option<SystemTime> {
    let text = text.trim();
    // Other forms of a date are older, one of them with two digits for the year.
    if let Some(time) = parse_http_date(text)
        .ok()
        .filter(|time| fmt_http_date(*time) == text)
    {
        return Some(time);
    }
    // A date alone, or a time without a zone, is ambiguous.
    let clock = text.is_ascii().then(|| text.get(10..)).flatten()?;
    if !clock.ends_with(['Z', 'z']) && !clock.contains(['+', '-']) {
        return None;
    }
    SystemTime::try_from(Timestamp::from_str(text).ok()?).ok()
}

/// Applies the three rules of names. A value that ends in `/` has the blob's name appended. A value
/// without `/` is a container. Any other value is the complete name.
fn destination(value: &str, name: &BlobName) -> Option<Destination> {
    let value = value.trim_start_matches('/');
    let full = match value.contains('/') {
        true if value.ends_with('/') => format!("{value}{name}"),
        true => value.to_owned(),
        false => format!("{value}/{name}"),
    };
    let (container, blob) = full.split_once('/')?;
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.$".contains(c);
    if container.is_empty() || !container.chars().all(fits) {
        return None;
    }
    Some(Destination {
        container: container.to_owned(),
        name: BlobName::new(blob).ok()?,
    })
}

/// Returns the copy's metadata: without the expiry, and with the source. The source blob keeps its
/// expiry until it is deleted.
pub(crate) fn provenance(
    head: &BlobEntry,
    source: &str,
    now: SystemTime,
) -> BTreeMap<String, String> {
    let mut metadata = head.metadata.clone().unwrap_or_default();
    metadata.remove(TIME_TO_LIVE);
    metadata.remove(DEAD_BLOB_CONTAINER);
    metadata.insert(SWEPT_FROM.to_owned(), origin(head, source));
    metadata.insert(SWEPT_AT.to_owned(), stamp(now));
    metadata
}

/// Returns a blob's address in the form that its copy records.
pub(crate) fn origin(head: &BlobEntry, source: &str) -> String {
    printable(&format!("{source}/{}", head.name))
}

/// Formats a wall-clock time as RFC 3339, to the second.
pub(crate) fn stamp(time: SystemTime) -> String {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    Timestamp { seconds, nanos: 0 }.to_string()
}

/// Metadata must be ASCII of limited length.
fn printable(text: &str) -> String {
    const MAX_LENGTH: usize = 1024;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'!'..=b'~' if byte != b'%' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out.truncate(MAX_LENGTH);
    out
}

impl Reason {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::BadTime => "its TimeToLive is not a valid time",
            Self::NoDeadAccount => {
                "it names a dead-blob container, and the job has no dead account"
            }
            Self::BadDestination => "its DeadBlobContainer is not a valid name",
            Self::OntoItself => "its DeadBlobContainer is its own place",
            Self::Protected => "it belongs to a lease or a job, or would overwrite such a blob",
            Self::Occupied => "another blob exists at its DeadBlobContainer",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn name(text: &str) -> BlobName {
        BlobName::new(text).expect("a name")
    }

    fn at(text: &str) -> SystemTime {
        time(text).expect("a time")
    }

    fn judged(blob: &str, pairs: &[(&str, &str)]) -> Verdict {
        let pairs = pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        judge(
            &name(blob),
            &pairs.collect(),
            at("2026-11-20T12:00:00Z"),
            true,
        )
    }

    #[test]
    fn a_blob_expires_at_its_time_and_not_before() {
        assert_eq!(judged("a", &[]), Verdict::Unmarked);
        for (time, verdict) in [
            ("2026-11-20T12:00:00Z", Verdict::Delete),
            ("2026-11-20T11:59:59.999Z", Verdict::Delete),
            ("2026-11-20T12:00:00.001Z", Verdict::Alive),
            ("2026-11-20T14:00:00+02:00", Verdict::Delete),
            ("2026-11-20T12:00:00-01:00", Verdict::Alive),
            ("Fri, 20 Nov 2026 11:59:00 GMT", Verdict::Delete),
            ("Fri, 20 Nov 2026 12:01:00 GMT", Verdict::Alive),
            ("2026-11-20", Verdict::Leave(Reason::BadTime)),
            ("2026-11-20T11:00:00", Verdict::Leave(Reason::BadTime)),
            ("tomorrow", Verdict::Leave(Reason::BadTime)),
            ("", Verdict::Leave(Reason::BadTime)),
            ("0", Verdict::Leave(Reason::BadTime)),
            ("2026-11-2öT11:00:00Z", Verdict::Leave(Reason::BadTime)),
        ] {
            assert_eq!(judged("a", &[(TIME_TO_LIVE, time)]), verdict, "{time}");
        }
    }

    #[test]
    fn a_dead_blob_container_has_three_forms() {
        let dead = |value| {
            judged(
                "in/a.txt",
                &[
                    (TIME_TO_LIVE, "2000-01-01T00:00:00Z"),
                    (DEAD_BLOB_CONTAINER, value),
                ],
            )
        };
        for (value, container, blob) in [
            ("dead", "dead", "in/a.txt"),
            ("dead/2026/", "dead", "2026/in/a.txt"),
            ("dead/", "dead", "in/a.txt"),
            ("dead/exactly.this", "dead", "exactly.this"),
        ] {
            let to = Destination {
                container: container.to_owned(),
                name: name(blob),
            };
            assert_eq!(dead(value), Verdict::Move(to), "{value}");
        }
        assert_eq!(dead(""), Verdict::Delete);
        for value in ["coordination/leases/billing", "a/sweeps/"] {
            assert_eq!(dead(value), Verdict::Leave(Reason::Protected), "{value}");
        }
        for value in ["a//b", "a/../b", "spa ce"] {
            assert_eq!(
                dead(value),
                Verdict::Leave(Reason::BadDestination),
                "{value}"
            );
        }
    }

    #[test]
    fn protected_blobs_and_moves_without_an_account_are_left_alone() {
        let metadata = [
            (TIME_TO_LIVE.to_owned(), "2000-01-01T00:00:00Z".to_owned()),
            (DEAD_BLOB_CONTAINER.to_owned(), "dead".to_owned()),
        ];
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000);
        let verdict = judge(&name("a"), &metadata.into(), now, false);
        assert_eq!(verdict, Verdict::Leave(Reason::NoDeadAccount));
        let expired = [(TIME_TO_LIVE, "2000-01-01T00:00:00Z")];
        for own in ["leases/leader", "sweeps/job"] {
            assert_eq!(judged(own, &expired), Verdict::Leave(Reason::Protected));
        }
    }

    #[test]
    fn the_copy_records_its_source_and_has_no_expiry() {
        let head = BlobEntry {
            name: name("ä b%"),
            etag: crate::store::ETag::new("x"),
            last_modified: SystemTime::UNIX_EPOCH,
            metadata: Some(
                [
                    (TIME_TO_LIVE, "2000-01-01T00:00:00Z"),
                    (DEAD_BLOB_CONTAINER, "dead"),
                    ("other", "kept"),
                ]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into(),
            ),
        };
        let metadata = provenance(&head, "az://state", at("2026-11-20T12:00:00Z"));
        let expected = [
            ("other", "kept"),
            (SWEPT_AT, "2026-11-20T12:00:00Z"),
            (SWEPT_FROM, "az://state/%C3%A4%20b%25"),
        ];
        let expected = expected.map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(metadata, expected.into());
    }
}
