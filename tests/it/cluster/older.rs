//! A relay of a version that knows neither `served_groups` nor `checked`, in a cluster with new
//! ones.
//!
//! It has a broker for itself. A bridge passes the messages between the brokers and takes these two
//! fields out, in both directions. So all relays run the program that is shipped, and nothing in it
//! is for this test.

use std::time::Duration;

use async_nats::{Client as Broker, ConnectOptions};
use bytes::{Buf as _, Bytes};
use futures_util::StreamExt as _;
use prost::encoding::{decode_key, decode_varint, encode_key, encode_varint};
use reveille::{Client, Subscription, WakeReason};
use tokio::task::JoinSet;

use super::{
    drained, member,
    processes::notify,
    settings::see_each_other,
    witness::{Witness, all_are_told, names, publish},
};
use crate::{
    binary::Binary,
    support::{nats::NatsServer, within, woken},
};

const SUBJECT: &str = "reveille1.reveille.all";
/// `Broadcast.frame`, `Frame.entries`, and the two fields of an entry.
const FRAME: u32 = 2;
const ENTRIES: u32 = 2;
const UNKNOWN: [u32; 2] = [10, 11];

/// Returns a message without the fields at the end of this path.
fn without(message: &[u8], path: &[u32], dropped: &[u32]) -> Vec<u8> {
    let (mut rest, mut kept) = (message, Vec::new());
    while rest.has_remaining() {
        let (tag, kind) = decode_key(&mut rest).expect("a key");
        let start = rest;
        let body = match kind {
            prost::encoding::WireType::Varint => {
                decode_varint(&mut rest).expect("a number");
                None
            }
            prost::encoding::WireType::SixtyFourBit => {
                rest.advance(8);
                None
            }
            prost::encoding::WireType::LengthDelimited => {
                let length = decode_varint(&mut rest).expect("a length");
                let (body, after) = rest.split_at(usize::try_from(length).expect("short"));
                rest = after;
                Some(body)
            }
            other => panic!("{other:?} in a message between relays"),
        };
        if path.is_empty() && dropped.contains(&tag) {
            continue;
        }
        encode_key(tag, kind, &mut kept);
        match (body, path.split_first()) {
            (Some(body), Some((&first, further))) if first == tag => {
                let body = without(body, further, dropped);
                encode_varint(body.len() as u64, &mut kept);
                kept.extend(body);
            }
            _ => kept.extend(&start[..start.len() - rest.len()]),
        }
    }
    kept
}

/// Passes all messages from one broker to another.
async fn pass(from: Broker, to: Broker) {
    let mut messages = from.subscribe(SUBJECT).await.expect("subscribed");
    while let Some(message) = messages.next().await {
        let stripped = without(&message.payload, &[FRAME, ENTRIES], &UNKNOWN);
        let passed = to.publish(SUBJECT, Bytes::from(stripped)).await;
        passed.expect("sent");
        to.flush().await.expect("written");
    }
}

async fn bridge(one: &NatsServer, other: &NatsServer) -> JoinSet<()> {
    let connect = async |server: &NatsServer| {
        // Its own messages must not come back, or they would go round.
        let options = ConnectOptions::new().no_echo();
        let connected = within("a connection", options.connect(server.url())).await;
        connected.expect("connected")
    };
    let (one, other) = (connect(one).await, connect(other).await);
    let mut tasks = JoinSet::new();
    tasks.spawn(pass(one.clone(), other.clone()));
    tasks.spawn(pass(other, one));
    tasks
}

/// Takes the next wake-up; returns whether it is NOTIFIED. It may be a CATCH_UP: on a busy machine a
/// relay may have been cut off.
async fn is_notified(wakes: &mut Subscription) -> bool {
    let work = woken(wakes).await;
    drained(wakes, &work).await;
    work.reason == WakeReason::Notified
}

/// Returns how many wake-ups still arrive.
async fn further(wakes: &mut Subscription) -> usize {
    let mut count = 0;
    while let Ok(work) = tokio::time::timeout(Duration::from_secs(1), woken(wakes)).await {
        drained(wakes, &work).await;
        count += 1;
    }
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_of_the_version_before_costs_wake_ups_of_groups_and_loses_none() {
    let (new, old) = (NatsServer::start(), NatsServer::start());
    let _bridge = bridge(&new, &old).await;
    let home = tempfile::tempdir().expect("a directory");
    let store = format!("sqlite:{}", home.path().join("flags.db").display());
    let mut relays = Vec::new();
    for (id, broker) in [("new-0", &new), ("new-1", &new), ("old", &old)] {
        let url = broker.url();
        let arguments = ["--store", &store, "--cluster", &url, "--relay-id", id];
        relays.push(Binary::serve_with(&arguments, &[]).await);
    }
    see_each_other(&relays).await;

    let queues = names("mixed", 15);
    let mut witnesses = Vec::new();
    for (number, relay) in relays.iter().enumerate() {
        let id = format!("worker-{number}");
        witnesses.push(Witness::of(&relay.url(), &id, &queues).await);
    }
    for (relay, part) in relays.iter().zip(queues.chunks(5)) {
        let client = Client::new(&relay.url()).expect("a URL");
        let all = publish(client, part.to_vec(), Duration::from_millis(10)).await;
        for witness in &witnesses {
            let bound = Duration::from_millis(150);
            all_are_told(witness, &all, all[0].began, bound).await;
        }
    }

    let mut members = Vec::new();
    for (number, relay) in relays.iter().enumerate() {
        let client = Client::new(&relay.url()).expect("a URL");
        let options = member(&format!("member-{number}"), "acct/shared");
        let mut wakes = client.subscribe(options).expect("options");
        let first = woken(&mut wakes).await;
        drained(&mut wakes, &first).await;
        members.push(wakes);
    }
    // The idle member at the new relay takes each, and the old relay does not know that.
    let client = Client::new(&relays[0].url()).expect("a URL");
    let mut notified = [0_usize; 3];
    for _ in 0..10 {
        notify(&client, "acct/shared").await;
        for number in [0, 2] {
            notified[number] += usize::from(is_notified(&mut members[number]).await);
        }
        // A member whose stream has not ended its last send counts as busy, and then both relays wake
        // one.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(notified[0] >= 5 && notified[2] >= 5, "{notified:?} of 10");
    let other = further(&mut members[1]).await;
    assert!(
        other < 5,
        "the other new relay woke its member {other} times"
    );
    // The old relay's member takes each, and it does not say so.
    let client = Client::new(&relays[2].url()).expect("a URL");
    let mut notified = [0_usize; 3];
    for _ in 0..10 {
        notify(&client, "acct/shared").await;
        for (count, wakes) in notified.iter_mut().zip(&mut members) {
            *count += usize::from(is_notified(wakes).await);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(
        notified.iter().all(|&count| count >= 5),
        "{notified:?} of 10"
    );
    for wakes in &mut members {
        let more = further(wakes).await;
        assert!(more < 5, "woken {more} times more");
    }
}
