//! The contents and the metadata of blobs, and Azure's lists of them.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use quick_xml::escape::escape;

use crate::{
    coordination::{
        flag::document::{FlagDocument, HASHES, StoredFlag},
        lease::machine::{MAX_DURATION, MIN_DURATION, Record},
        unique_id,
    },
    store::{Blob, BlobName, ETag, cloud::azure_rest},
    sweep::{
        DEAD_BLOB_CONTAINER, TIME_TO_LIVE,
        document::{Document, next_boundary},
        judge::{self, Verdict, is_protected, judge},
    },
    types::{FlagName, FlagState, Limits, UnleashOptions},
    wire::{flag_from_wire, flag_to_wire},
};

pub(super) fn blobs(data: &[u8]) {
    lease(data);
    flag(data);
    job_document(data);
    list(data);
    if let Ok(text) = str::from_utf8(data) {
        if let Some(number) = unique_id::number(text) {
            assert_eq!(unique_id::number(&number.to_string()), Some(number));
            assert!(i64::try_from(number).is_ok());
        }
        expiry(text);
    }
}

/// The time of this machine.
fn now() -> SystemTime {
    UNIX_EPOCH + Duration::new(1_800_000_000, 123_456_789)
}

fn blob(content: &[u8], at: SystemTime) -> Blob {
    Blob {
        content: Bytes::copy_from_slice(content).into(),
        etag: ETag::new("1"),
        last_modified: at,
    }
}

fn lease(data: &[u8]) {
    let Ok(record) = Record::read(data) else {
        return;
    };
    assert_eq!(Record::read(&record.bytes()), Ok(record.clone()));
    assert!((MIN_DURATION..=MAX_DURATION).contains(&record.duration()));
    assert!(record.token < u64::MAX);
}

fn flag(data: &[u8]) {
    let name = FlagName::new("go").expect("a name");
    let stored = StoredFlag::new(&name, blob(data, now()));
    let state = stored.state.clone();
    check_state(&state);
    assert_eq!(
        flag_from_wire(Some(flag_to_wire(&state))).expect("ours"),
        state
    );
    let Some(active) = stored.active(now()) else {
        return;
    };
    // The flag is set again, and keeps its values.
    let options = UnleashOptions::default();
    let document = FlagDocument::new(active.generation, &options, Some(&active), now());
    let again = StoredFlag::new(&name, blob(&document.content().bytes, now())).state;
    assert_eq!(
        again,
        document.state(&name),
        "a read returns the written state"
    );
    check_state(&again);
    assert_eq!(again.generation, active.generation);
    assert_eq!(
        (&again.set_by, &again.reason),
        (&active.set_by, &active.reason)
    );
    assert_eq!(again.expires_at.is_some(), active.expires_at.is_some());
}

fn check_state(state: &FlagState) {
    assert!(state.set && (1..2 * HASHES).contains(&state.generation));
    assert!(state.set_by.len() <= Limits::MAX_TEXT && state.reason.len() <= Limits::REASON);
    if let (Some(begin), Some(end)) = (state.set_at, state.expires_at) {
        assert!(end.duration_since(begin).expect("later") <= Limits::TTL);
    }
}

/// Reads a job's document, and takes the next pages of its round.
fn job_document(data: &[u8]) {
    let Ok(document) = Document::parse(data, "sweeps/job") else {
        return;
    };
    let again = Document::parse(&document.to_bytes(), "sweeps/job");
    assert_eq!(again.expect("ours"), document);
    let containers = [("a".to_owned(), false), ("off".to_owned(), true)];
    for (interval, again) in [(1, false), (600, true), (30 * 24 * 3600, false)] {
        let interval = Duration::from_secs(interval);
        assert!(next_boundary(now(), interval) > now());
        let mut document = document.clone();
        if document.join(&containers, now(), interval, again)
            && let Some(at) = document.next()
        {
            let token = document.containers[at].token.clone();
            document.record_page(at, token.xor(Some("2".to_owned())), now());
        }
        document.join(&[], now(), interval, false);
        assert!(document.is_finished() || document.next().is_none());
        document.counts.add(&document.counts.clone());
        let written = Document::parse(&document.to_bytes(), "sweeps/job");
        assert_eq!(written.expect("ours"), document);
    }
}

/// Judges a blob; the first line is its expiry, the second one its dead-blob container.
fn expiry(text: &str) {
    let (expiry, container) = text.split_once('\n').unwrap_or((text, ""));
    let name = BlobName::new("in/a.txt").expect("a name");
    let metadata = BTreeMap::from([
        (TIME_TO_LIVE.to_owned(), expiry.to_owned()),
        (DEAD_BLOB_CONTAINER.to_owned(), container.to_owned()),
    ]);
    let verdict = judge(&name, &metadata, now(), true);
    if let Verdict::Move(to) = &verdict {
        assert!(!is_protected(&to.name));
        assert!(!to.container.is_empty() && !to.container.contains('/'));
    }
    let Some(time) = judge::time(expiry) else {
        assert!(matches!(verdict, Verdict::Leave(judge::Reason::BadTime)));
        return;
    };
    assert_eq!(time > now(), verdict == Verdict::Alive);
    let year_10000 = UNIX_EPOCH + Duration::from_secs(253_402_300_800);
    if !(UNIX_EPOCH..year_10000).contains(&time) {
        return;
    }
    let stamp = judge::stamp(time);
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_secs();
    assert_eq!(
        judge::time(&stamp),
        Some(UNIX_EPOCH + Duration::from_secs(seconds))
    );
    if stamp.len() == expiry.len() && expiry.ends_with('Z') && expiry.as_bytes()[10] == b'T' {
        // A leap second is the second before it.
        let expiry = expiry.replace(":60Z", ":59Z");
        assert_eq!(stamp, expiry, "no other time than the text states");
    }
}

/// Parses a list, and a list of the same blobs.
fn list(data: &[u8]) {
    let Some(parsed) = azure_rest::parse(data, "") else {
        return;
    };
    let mut xml = "<EnumerationResults><Blobs>".to_owned();
    for blob in &parsed.entries {
        let since = blob.last_modified.duration_since(UNIX_EPOCH);
        let (name, etag) = (escape(blob.name.as_str()), escape(blob.etag.as_str()));
        let modified = httpdate::fmt_http_date(UNIX_EPOCH + since.unwrap_or_default());
        xml += &format!(
            "<Blob><Name>{name}</Name><Properties><Last-Modified>{modified}</Last-Modified>\
             <Etag>{etag}</Etag></Properties><Metadata>"
        );
        for (name, value) in blob.metadata.iter().flatten() {
            let first = name.chars().next();
            assert!(first.is_some_and(|first| !"@$".contains(first)), "{name:?}");
            assert_eq!(*name, name.to_ascii_lowercase());
            xml += &format!("<{name}>{}</{name}>", escape(value));
        }
        xml += "</Metadata></Blob>";
    }
    let marker = parsed.next.as_deref().unwrap_or_default();
    xml += &format!("</Blobs><NextMarker>{}</NextMarker>", escape(marker));
    xml += "</EnumerationResults>";
    let again = azure_rest::parse(xml.as_bytes(), "").expect("ours");
    assert_eq!(again.next, parsed.next);
    assert_eq!(again.entries.len(), parsed.entries.len());
    for (one, two) in again.entries.iter().zip(&parsed.entries) {
        assert_eq!((&one.name, &one.etag), (&two.name, &two.etag));
        assert_eq!(one.metadata, two.metadata);
    }
}
