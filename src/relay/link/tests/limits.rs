//! Bad messages, and the bounds of memory.

use std::{mem::size_of, sync::Arc};

use bytes::Bytes;

use super::world::{World, at, entry};
use crate::{
    base::fault::Fault,
    relay::link::{
        Action, ClusterLink, FrameDraft, LinkConfig, MAX_PEERS, Resync, frames::LARGEST_ENTRY,
        peer::Peer,
    },
    types::{
        GroupName, LastEvent, QueueAddress,
        cluster::{ClusterLimits, Frame, FrameEntry, LifeId},
    },
    wire::{
        ClusterContent, ClusterMessage, cluster_message_to_wire, frame_entry_len, link::Heartbeat,
    },
};

fn link() -> ClusterLink {
    let config = LinkConfig {
        life: LifeId(1),
        relay_id: Arc::from("relay"),
        version: Arc::from("0"),
    };
    ClusterLink::new(config, at(0))
}

fn heartbeat(life: u128, number: u64) -> Bytes {
    let heartbeat = Heartbeat {
        heartbeat: number,
        ..Heartbeat::default()
    };
    cluster_message_to_wire(&ClusterMessage {
        life: LifeId(life),
        content: ClusterContent::Heartbeat(heartbeat),
    })
}

/// Returns the largest entry that the rules for names and texts allow.
fn largest() -> FrameEntry {
    let name = "x".repeat(128);
    let group = |number| GroupName::new(&format!("{number:0>128}")).expect("a name");
    FrameEntry {
        queue: QueueAddress::new(&name, &name).expect("a name"),
        causes: u64::MAX,
        notifications: u64::MAX,
        payload_size: u64::MAX,
        messages: u64::MAX,
        last_event: LastEvent {
            publisher: Arc::from(&*name),
            published_at: Some(std::time::SystemTime::now()),
            traceparent: Arc::from(&*name),
        },
        served_groups: (0..ClusterLimits::GROUPS).map(group).collect(),
        checked: true,
    }
}

#[test]
fn a_bad_message_is_an_error_and_changes_nothing() {
    let mut link = link();
    for bad in [&b"not protobuf"[..], b"", &[0; 70_000]] {
        let error = link
            .on_message(&Bytes::copy_from_slice(bad), 0, at(1))
            .expect_err("bad");
        assert_eq!(error.kind(), crate::ErrorKind::Invalid);
    }
    assert_eq!(link.next_action(), None);
    assert_eq!(link.peers(at(1)).count(), 0);
}

#[test]
fn forged_lives_displace_each_other_and_each_displaced_one_is_a_resync() {
    let mut link = link();
    for life in 2..6_000 {
        link.on_message(&heartbeat(life, 1), 0, at(1))
            .expect("valid");
    }
    assert_eq!(link.peers(at(1)).count(), MAX_PEERS);
    let actions: Vec<_> = std::iter::from_fn(|| link.next_action()).collect();
    assert_eq!(actions.len(), 5_998 - MAX_PEERS);
    assert!(
        actions
            .iter()
            .all(|action| *action == Action::Resync(Resync::All))
    );
}

#[test]
fn a_peer_takes_at_most_400_bytes() {
    // The table's keys and nodes, and two names of 24 bytes.
    let bytes = size_of::<Peer>() + 2 * size_of::<LifeId>() + 2 * (16 + 24);
    assert!(bytes <= 400, "{bytes}");
}

#[test]
fn the_largest_entries_fit_a_frame_and_a_frame_fits_a_message() {
    assert!(frame_entry_len(&largest()) <= LARGEST_ENTRY);
    for entries in [
        vec![largest(); 100],
        (0..1_000).map(|queue| entry(queue, 1)).collect(),
    ] {
        let mut draft = FrameDraft::default();
        draft.note_flags_written();
        for entry in entries {
            if draft.has_room() {
                draft.push_entry(entry);
            }
        }
        assert!(draft.frame.entries.len() >= 11);
        assert!(draft.frame.entries.len() <= ClusterLimits::ENTRIES);
        let frame = Frame {
            number: u64::MAX,
            ..draft.frame
        };
        let content = ClusterContent::Frame(frame);
        let bytes = cluster_message_to_wire(&ClusterMessage {
            life: LifeId(1),
            content,
        });
        assert!(
            bytes.len() <= ClusterLimits::MESSAGE_BYTES,
            "{}",
            bytes.len()
        );
        crate::wire::cluster_message_from_wire(&bytes).expect("valid");
    }
}

#[test]
fn the_list_of_a_heartbeat_is_bounded_and_fits_a_message() {
    let mut world = World::settled(2, Fault::None);
    for queue in 0..20_000 {
        world.notify(0, queue, 1);
    }
    world.run(3_000);
    let bytes = world.nodes[0].last_published();
    assert!(
        (40_000..=ClusterLimits::MESSAGE_BYTES).contains(&bytes.len()),
        "{}",
        bytes.len()
    );
    assert_eq!(world.nodes[1].applied.len(), 20_000);
}

#[test]
fn an_own_message_of_long_ago_changes_nothing() {
    let mut world = World::settled(1, Fault::None);
    world.notify(0, 1, 1);
    world.run(10);
    let old = world.published(0, 1);
    let heartbeat = world.nodes[0].last_published();
    world.run(100_000);
    world.notify(0, 1, 1);
    world.run(10);
    world.forget_log();
    world.hand(0, &old[0]);
    world.hand(0, &heartbeat);
    assert!(world.nodes[0].log.is_empty(), "{:?}", world.nodes[0].log);
}
