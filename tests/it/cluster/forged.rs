//! Messages on the cluster's subject that no relay has sent: malformed ones, and ones with forged
//! numbers, sums and lives.

use std::time::Duration;

use async_nats::Client as Broker;
use futures_util::StreamExt as _;
use prost::Message as _;
use reveille::{Client, Notification, WakeReason, WakeStream};

use super::processes::{Fleet, each_is_told, notify, quiet};
use crate::support::{figure, get, queue, until, within, woken};

/// The fields of `proto/reveille/link/v1/link.proto` that these tests forge.
#[derive(Clone, PartialEq, prost::Message)]
struct Broadcast {
    #[prost(bytes, tag = "1")]
    life: Vec<u8>,
    #[prost(message, optional, tag = "2")]
    frame: Option<Frame>,
    #[prost(message, optional, tag = "3")]
    heartbeat: Option<Heartbeat>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Frame {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(message, repeated, tag = "2")]
    entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Entry {
    #[prost(string, tag = "1")]
    storage_account: String,
    #[prost(string, tag = "2")]
    queue_name: String,
    #[prost(uint64, tag = "3")]
    causes: u64,
    #[prost(uint64, tag = "4")]
    notifications: u64,
    #[prost(uint64, tag = "5")]
    payload_size: u64,
    #[prost(uint64, tag = "6")]
    messages: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Heartbeat {
    #[prost(uint64, tag = "1")]
    heartbeat: u64,
    #[prost(uint64, tag = "2")]
    frame: u64,
    #[prost(uint64, tag = "3")]
    complete_above: u64,
    #[prost(fixed64, repeated, tag = "4")]
    queue_hashes: Vec<u64>,
    #[prost(uint64, repeated, tag = "5")]
    queue_ages: Vec<u64>,
    #[prost(string, tag = "7")]
    relay_id: String,
}

const SUBJECT: &str = "reveille1.reveille.all";
const REFUSED: &str = "reveille_cluster_messages_refused_total";
const FORGED: [u8; 16] = [7; 16];
const MAX_CAUSES: u64 = 1 << 32;

/// An entry of `acct/orders` with the same number in each sum.
fn entry(causes: u64, sums: u64) -> Entry {
    Entry {
        storage_account: "acct".to_owned(),
        queue_name: "orders".to_owned(),
        causes,
        notifications: sums,
        payload_size: sums,
        messages: sums,
    }
}

fn frame(life: &[u8], number: u64, entries: Vec<Entry>) -> Vec<u8> {
    Broadcast {
        life: life.to_vec(),
        frame: Some(Frame { number, entries }),
        heartbeat: None,
    }
    .encode_to_vec()
}

fn heartbeat(life: &[u8], heartbeat: Heartbeat) -> Vec<u8> {
    Broadcast {
        life: life.to_vec(),
        frame: None,
        heartbeat: Some(heartbeat),
    }
    .encode_to_vec()
}

/// Returns a heartbeat of these numbers that names all queues of the newest frame.
fn beat(number: u64, frame: u64) -> Vec<u8> {
    let forged = Heartbeat {
        heartbeat: number,
        frame,
        complete_above: frame.saturating_sub(1),
        ..Heartbeat::default()
    };
    heartbeat(&FORGED, forged)
}

/// Messages that break a rule.
fn malformed() -> Vec<Vec<u8>> {
    let good = frame(&FORGED, 1, vec![entry(1, 1)]);
    let hashes = |hashes: usize, ages: Vec<u64>| Heartbeat {
        heartbeat: 1,
        frame: 1,
        queue_hashes: vec![0; hashes],
        queue_ages: ages,
        ..Heartbeat::default()
    };
    vec![
        Vec::new(),
        b"garbage, and no message at all".to_vec(),
        good[..good.len() - 3].to_vec(),
        vec![0; 64 * 1024 + 1],
        frame(&[7; 3], 1, vec![entry(1, 1)]),
        frame(&FORGED, 0, vec![entry(1, 1)]),
        frame(&FORGED, 1, vec![entry(MAX_CAUSES + 1, 1)]),
        frame(&FORGED, 1, vec![entry(1, 1); 513]),
        frame(&FORGED, 1, vec![Entry::default()]),
        beat(0, 0),
        heartbeat(&FORGED, hashes(5_001, vec![0; 5_001])),
        heartbeat(&FORGED, hashes(2, vec![0])),
        heartbeat(&FORGED, hashes(1, vec![2])),
    ]
}

async fn broker(fleet: &Fleet) -> Broker {
    let connected = within("a connection", async_nats::connect(fleet.broker.url())).await;
    connected.expect("connected")
}

async fn publish(broker: &Broker, messages: Vec<Vec<u8>>) {
    for message in messages {
        let published = broker.publish(SUBJECT, message.into()).await;
        published.expect("sent");
    }
    broker.flush().await.expect("written");
}

/// Takes wake-ups until each subscriber is told of a notification.
async fn told_of_a_notification(streams: &mut [impl WakeStream]) {
    for wakes in streams {
        while woken(wakes).await.reason != WakeReason::Notified {}
    }
}

/// Waits until resyncs of all, which begin a second later and take two, are over.
async fn settled(streams: &mut [reveille::Subscription]) {
    tokio::time::sleep(Duration::from_secs(5)).await;
    quiet(streams).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_messages_are_counted_and_logged_once_and_change_nothing() {
    let fleet = Fleet::start().await;
    let mut streams = fleet.subscribe("acct/orders").await;
    quiet(&mut streams).await;
    let broker = broker(&fleet).await;
    let count = malformed().len() as u64;
    publish(&broker, malformed()).await;
    for relay in &fleet.relays {
        let admin = relay.admin();
        until("all are counted", async || {
            figure(admin, REFUSED).await == count
        })
        .await;
        let lines = || {
            let log = relay.log();
            log.matches("a message of the cluster is dropped").count()
        };
        until("a line is written", async || lines() > 0).await;
        assert_eq!(lines(), 1, "{}", relay.log());
        assert_eq!(get(admin, "/readyz").await.0, 200);
    }
    for wakes in &mut streams {
        let woken = tokio::time::timeout(Duration::from_secs(1), wakes.next()).await;
        assert!(woken.is_err(), "woken by a bad message: {woken:?}");
    }
    let client = Client::new(&fleet.relays[0].url()).expect("a URL");
    notify(&client, "acct/orders").await;
    for wakes in &mut streams {
        let work = woken(wakes).await;
        assert_eq!((work.reason, work.notifications), (WakeReason::Notified, 1));
    }
}

/// Returns the life of the first relay.
async fn life(broker: &Broker) -> Vec<u8> {
    let mut messages = broker.subscribe(SUBJECT).await.expect("subscribed");
    loop {
        let message = within("a heartbeat", messages.next()).await.expect("open");
        let message = Broadcast::decode(message.payload).expect("a message");
        let heartbeat = message.heartbeat.unwrap_or_default();
        if heartbeat.relay_id == "relay-0" {
            return message.life;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_requests_are_counted_and_logged_once_and_change_nothing() {
    let fleet = Fleet::start().await;
    let mut streams = fleet.subscribe("acct/orders").await;
    let broker = broker(&fleet).await;
    let epoch: [u8; 16] = life(&broker).await.try_into().expect("16 bytes");
    let to = format!("reveille1.reveille.to.{:032x}", u128::from_le_bytes(epoch));
    let reply_to = "reveille1.reveille.inbox.forged.7";
    let too_long = vec![0; 64 * 1024 + 1];
    let garbage = b"garbage, and no message at all".to_vec();
    let bad = [
        (to.clone(), Some(reply_to), garbage),
        (to.clone(), Some(reply_to), too_long),
        // A reply to it would be published on a subject of others.
        (to.clone(), Some("orders.delete"), Vec::new()),
        (to, None, Vec::new()),
    ];
    let count = bad.len() as u64;
    for (subject, reply_to, message) in bad {
        let sent = match reply_to.map(str::to_owned) {
            Some(reply_to) => broker.publish_with_reply(subject, reply_to, message.into()),
            None => {
                broker.publish(subject, message.into()).await.expect("sent");
                continue;
            }
        };
        sent.await.expect("sent");
    }
    broker.flush().await.expect("written");
    let relay = &fleet.relays[0];
    until("all are counted", async || {
        figure(relay.admin(), REFUSED).await == count
    })
    .await;
    let lines = || {
        relay
            .log()
            .matches("a message of the cluster is dropped")
            .count()
    };
    until("it is logged", async || lines() > 0).await;
    assert_eq!(lines(), 1, "{}", relay.log());
    // Lists of all relays need requests and replies.
    for relay in &fleet.relays {
        let client = Client::new(&relay.url()).expect("a URL");
        let listed = within("a list", client.listeners()).await.expect("listed");
        assert_eq!((listed.len(), listed.unanswered.len()), (3, 0));
        notify(&client, "acct/orders").await;
        each_is_told(&mut streams).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_numbers_and_sums_end_no_relay_and_hide_no_notification() {
    let fleet = Fleet::start().await;
    let mut streams = fleet.subscribe("acct/orders").await;
    let broker = broker(&fleet).await;
    // The largest sums, numbers that skip, repeat and go back, and the largest numbers.
    let huge = || vec![entry(MAX_CAUSES, u64::MAX); 512];
    let forged = vec![
        frame(&FORGED, 1, huge()),
        frame(&FORGED, 1_000_000, huge()),
        frame(&FORGED, 1_000_000, huge()),
        frame(&FORGED, 5, huge()),
        beat(9, 2_000_000),
        frame(&FORGED, u64::MAX, huge()),
        beat(u64::MAX, u64::MAX),
        frame(&[8; 16], u64::MAX, vec![entry(1, u64::MAX)]),
    ];
    publish(&broker, forged).await;
    told_of_a_notification(&mut streams).await;
    settled(&mut streams).await;
    for relay in &fleet.relays {
        assert_eq!(get(relay.admin(), "/readyz").await.0, 200);
        assert_eq!(figure(relay.admin(), REFUSED).await, 0);
    }
    for relay in &fleet.relays {
        let publisher = Client::new(&relay.url()).expect("a URL").publisher("tests");
        let notified = publisher.notify(Notification::new(queue("acct/orders")));
        within("an answer", notified).await.expect("confirmed");
        told_of_a_notification(&mut streams).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_heartbeat_whose_number_goes_back_is_a_check_of_all_queues() {
    let fleet = Fleet::start().await;
    let mut streams = fleet.subscribe("acct/orders").await;
    let broker = broker(&fleet).await;
    publish(&broker, vec![beat(9, 0)]).await;
    settled(&mut streams).await;
    let resyncs = "reveille_cluster_resyncs_of_all_total";
    let mut before = Vec::new();
    for relay in &fleet.relays {
        before.push(figure(relay.admin(), resyncs).await);
    }
    publish(&broker, vec![beat(5, 0)]).await;
    for (relay, before) in fleet.relays.iter().zip(before) {
        let admin = relay.admin();
        until("a resync", async || {
            figure(admin, resyncs).await == before + 1
        })
        .await;
    }
    for wakes in &mut streams {
        assert_eq!(woken(wakes).await.reason, WakeReason::CatchUp);
    }
    let client = Client::new(&fleet.relays[0].url()).expect("a URL");
    notify(&client, "acct/orders").await;
    told_of_a_notification(&mut streams).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_forged_in_the_name_of_a_relay_ends_it_and_the_others_serve() {
    let mut fleet = Fleet::start().await;
    let mut streams = fleet.subscribe("acct/orders").await.split_off(1);
    let broker = broker(&fleet).await;
    let life = life(&broker).await;
    publish(&broker, vec![frame(&life, 1_000, vec![entry(1, 1)])]).await;
    let status = fleet.relays[0].ended().await;
    assert_eq!(status.code(), Some(1), "{status}");
    let log = fleet.relays[0].log();
    assert!(log.contains("another machine runs this life"), "{log}");
    settled(&mut streams).await;
    let client = Client::new(&fleet.relays[1].url()).expect("a URL");
    notify(&client, "acct/orders").await;
    each_is_told(&mut streams).await;
}
