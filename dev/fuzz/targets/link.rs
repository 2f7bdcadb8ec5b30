//! The messages between the relays of a cluster, as any client of the broker could send them.
//!
//! The first byte says what the rest is: messages to all relays, a request, or a reply. A message to
//! all relays follows its length in two bytes.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use prost::Message as _;

use super::split_first;
use crate::{
    base::clock::Tick,
    relay::{
        cluster::ClusterNode,
        hub::{Hub, HubConfig},
        link::LinkConfig,
    },
    types::cluster::{ClusterLimits, LifeId},
    wire::{
        ClusterContent, cluster_message_from_wire, cluster_message_to_wire, frame_entry_len,
        link::{PeerReply, PeerRequest, TimersRequest, peer_request::Call},
        peer_reply_from_wire, peer_request_from_wire, timer_to_wire, timers_from_wire,
    },
};

pub(super) fn link(data: &[u8]) {
    let (kind, data) = split_first(data);
    match kind % 3 {
        0 => broadcasts(data),
        1 => request(data),
        _ => reply(data),
    }
}

/// A relay takes all messages. Those that break a rule change nothing.
fn broadcasts(mut data: &[u8]) {
    let mut now = Tick::default();
    let hub = Arc::new(Hub::new(HubConfig {
        cluster: true,
        ..HubConfig::default()
    }));
    let config = LinkConfig {
        life: LifeId(1),
        relay_id: "relay".into(),
        version: "0".into(),
    };
    let mut node = ClusterNode::new(Arc::clone(&hub), config, now);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut refused = 0;
    while let Some((length, rest)) = data.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (message, rest) = rest.split_at(length);
        data = rest;
        broadcast(message);
        let queues = hub.stats().queues;
        let taken = node.on_message(&Bytes::copy_from_slice(message), 1, now);
        if taken.is_err() {
            refused += 1;
            assert_eq!(hub.stats().queues, queues, "a bad message makes a queue");
        }
        now += Duration::from_millis(700);
        node.on_tick(1, now, &mut rng);
        while node.next_output().is_some() {}
    }
    assert_eq!(node.stats().refused, refused);
}

/// A message that is read is written with the same meaning, and within the limits of its parts.
fn broadcast(bytes: &[u8]) {
    let Ok(message) = cluster_message_from_wire(bytes) else {
        return;
    };
    assert!(bytes.len() <= ClusterLimits::MESSAGE_BYTES);
    let written = cluster_message_to_wire(&message);
    let again = cluster_message_from_wire(&written);
    assert_eq!(again.as_ref().ok(), Some(&message), "{again:?}");
    if let ClusterContent::Frame(frame) = &message.content {
        let entries = frame.entries.iter().map(frame_entry_len).sum::<usize>();
        assert!(entries <= written.len());
    }
}

fn request(bytes: &[u8]) {
    if let Ok(Some(call)) = peer_request_from_wire(bytes) {
        if let Call::Timers(timers) = &call {
            handed_timers(timers);
        }
        let call = Some(call);
        let written = PeerRequest { call: call.clone() }.encode_to_vec();
        assert_eq!(peer_request_from_wire(&written).ok(), Some(call));
    }
}

fn handed_timers(request: &TimersRequest) {
    if let Ok(timers) = timers_from_wire(request.clone()) {
        let timers_again = TimersRequest {
            timers: timers.iter().map(timer_to_wire).collect(),
        };
        assert_eq!(timers_from_wire(timers_again).ok(), Some(timers));
    }
}

fn reply(bytes: &[u8]) {
    if let Ok(answer) = peer_reply_from_wire(bytes) {
        let written = PeerReply {
            answer: answer.clone(),
        }
        .encode_to_vec();
        assert_eq!(peer_reply_from_wire(&written).ok(), Some(answer));
    }
}
