//! The rules of messages between relays, and their round trip.

use std::time::SystemTime;

use bytes::Bytes;
use prost::Message as _;
use prost_types::Timestamp;

use super::{
    ClusterContent, ClusterMessage, cluster_message_from_wire, cluster_message_to_wire, link,
};
use crate::types::cluster::{ClusterLimits, LifeId};

fn frame() -> link::Frame {
    link::Frame {
        number: 7,
        entries: vec![entry()],
        flags_written: true,
    }
}

fn entry() -> link::FrameEntry {
    link::FrameEntry {
        storage_account: "acct".to_owned(),
        queue_name: "orders".to_owned(),
        causes: 1 << 32,
        notifications: 2,
        payload_size: 3,
        messages: 4,
        publisher: "billing".to_owned(),
        published_at: Some(Timestamp::from(SystemTime::UNIX_EPOCH)),
        traceparent: "00-0".to_owned(),
        served_groups: vec!["workers".to_owned()],
        checked: true,
    }
}

fn heartbeat() -> link::Heartbeat {
    link::Heartbeat {
        heartbeat: 5,
        frame: 9,
        complete_above: 6,
        queue_hashes: vec![1, u64::MAX],
        queue_ages: vec![0, 8],
        leaving: true,
        relay_id: "relay-1".to_owned(),
        version: "0.1.0".to_owned(),
        streams: 11,
        queues: 12,
        degraded: true,
        store: 13,
    }
}

fn encode(content: Option<link::broadcast::Content>) -> Bytes {
    let life = Bytes::copy_from_slice(&LifeId(77).0.to_le_bytes());
    link::Broadcast { life, content }.encode_to_vec().into()
}

fn of_frame(frame: link::Frame) -> Bytes {
    encode(Some(link::broadcast::Content::Frame(frame)))
}

fn of_heartbeat(heartbeat: link::Heartbeat) -> Bytes {
    encode(Some(link::broadcast::Content::Heartbeat(heartbeat)))
}

#[track_caller]
fn refused(bytes: &[u8], field: &str) {
    let error = cluster_message_from_wire(bytes).expect_err(field);
    assert!(
        error.message().starts_with(&format!("{field}: ")),
        "{field}: {error}"
    );
}

#[test]
fn messages_survive_the_wire() {
    for bytes in [of_frame(frame()), of_heartbeat(heartbeat())] {
        let message = cluster_message_from_wire(&bytes).expect("valid");
        assert_eq!(message.life, LifeId(77));
        assert_eq!(cluster_message_to_wire(&message), bytes);
    }
}

#[test]
fn an_unknown_kind_and_unknown_fields_are_no_errors() {
    let unknown = |message: ClusterMessage| message.content == ClusterContent::Unknown;
    assert!(unknown(
        cluster_message_from_wire(&encode(None)).expect("valid")
    ));
    let later = [&encode(None)[..], &[0x82, 0x01, 2, 1, 1]].concat();
    assert!(unknown(cluster_message_from_wire(&later).expect("valid")));
}

#[test]
fn a_message_that_breaks_a_rule_is_refused_with_field_and_rule() {
    refused(b"\xff", "message");
    refused(&vec![0; ClusterLimits::MESSAGE_BYTES + 1], "message");
    refused(&link::Broadcast::default().encode_to_vec(), "life");
    refused(
        &of_frame(link::Frame {
            number: 0,
            ..frame()
        }),
        "frame.number",
    );
    let entries = vec![link::FrameEntry::default(); ClusterLimits::ENTRIES + 1];
    refused(
        &of_frame(link::Frame { entries, ..frame() }),
        "frame.entries",
    );
    let long = "x".repeat(129);
    let late = Some(Timestamp {
        seconds: i64::MAX,
        nanos: 0,
    });
    let groups = vec!["g".to_owned(); ClusterLimits::GROUPS + 1];
    let bad_entries = [
        (
            "causes",
            link::FrameEntry {
                causes: (1 << 32) + 1,
                ..entry()
            },
        ),
        (
            "storage_account",
            link::FrameEntry {
                storage_account: String::new(),
                ..entry()
            },
        ),
        (
            "queue_name",
            link::FrameEntry {
                queue_name: "a/b".to_owned(),
                ..entry()
            },
        ),
        (
            "publisher",
            link::FrameEntry {
                publisher: long,
                ..entry()
            },
        ),
        (
            "traceparent",
            link::FrameEntry {
                traceparent: "\n".to_owned(),
                ..entry()
            },
        ),
        (
            "published_at",
            link::FrameEntry {
                published_at: late,
                ..entry()
            },
        ),
        (
            "served_groups",
            link::FrameEntry {
                served_groups: groups,
                ..entry()
            },
        ),
        (
            "group",
            link::FrameEntry {
                served_groups: vec![String::new()],
                ..entry()
            },
        ),
    ];
    for (field, entry) in bad_entries {
        refused(
            &of_frame(link::Frame {
                entries: vec![entry],
                ..frame()
            }),
            field,
        );
    }
}

#[test]
fn a_heartbeat_that_breaks_a_rule_is_refused_with_field_and_rule() {
    let too_many = vec![0; ClusterLimits::RECENT_QUEUES + 1];
    for (field, bad) in [
        (
            "heartbeat.heartbeat",
            link::Heartbeat {
                heartbeat: 0,
                ..heartbeat()
            },
        ),
        (
            "complete_above",
            link::Heartbeat {
                complete_above: 10,
                ..heartbeat()
            },
        ),
        (
            "queue_hashes",
            link::Heartbeat {
                queue_hashes: too_many,
                ..heartbeat()
            },
        ),
        (
            "queue_ages",
            link::Heartbeat {
                queue_ages: vec![1],
                ..heartbeat()
            },
        ),
        (
            "queue_ages",
            link::Heartbeat {
                queue_ages: vec![1, 9],
                ..heartbeat()
            },
        ),
        (
            "relay_id",
            link::Heartbeat {
                relay_id: "\u{7}".to_owned(),
                ..heartbeat()
            },
        ),
        (
            "version",
            link::Heartbeat {
                version: "x".repeat(129),
                ..heartbeat()
            },
        ),
    ] {
        refused(&of_heartbeat(bad), field);
    }
}
