//! The budget of unfinished requests, and the room that regular requests keep.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use prost::Message as _;
use tokio::task::JoinSet;

use super::{
    harness::Trial,
    peer::{Peer, Unfinished, ended, status},
    target::{Scheme, Target, plain_and_tls},
};
use crate::{binary::Binary, support::within};

const SUBSCRIBE: &str = "/reveille.v1.Relay/Subscribe";
const NOTIFY: &str = "/reveille.v1.Relay/Notify";
const NOTIFY_STREAM: &str = "/reveille.v1.Relay/NotifyStream";
const REPORT: &str = "/reveille.v1.Relay/Report";
const WINDOW: u32 = 64 * 1024;
const MIB: usize = 1024 * 1024;

/// The long fields of a `SubscribeRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct Subscribe {
    #[prost(string, tag = "1")]
    listener_id: String,
    #[prost(message, repeated, tag = "2")]
    selectors: Vec<Queue>,
    #[prost(message, repeated, tag = "6")]
    positions: Vec<Queue>,
}

/// A selector; with a token, a position.
#[derive(Clone, PartialEq, prost::Message)]
struct Queue {
    #[prost(string, tag = "1")]
    storage_account: String,
    #[prost(string, tag = "2")]
    queue_name: String,
    #[prost(bytes, tag = "3")]
    token: Vec<u8>,
}

impl Queue {
    fn new(queue_name: String, token: Vec<u8>) -> Self {
        Self {
            storage_account: "a".repeat(120),
            queue_name,
            token,
        }
    }
}

/// A valid request of about this many bytes, mostly positions.
fn subscribe(listener: usize, bytes: usize) -> Unfinished {
    let position = |at| Queue::new(format!("{at:0>100}"), vec![1; 48]);
    let each = 2 + position(0).encoded_len();
    let request = Subscribe {
        listener_id: format!("listener-{listener}"),
        selectors: vec![Queue::new(format!("orders-{listener}"), Vec::new())],
        positions: (0..bytes / each).map(position).collect(),
    };
    Unfinished::whole(&request.encode_to_vec())
}

/// Sends requests that declare a byte more than the limit and lack a byte. Checks that each is
/// refused before its deadline, and that little of it was held.
async fn beyond_its_limit(scheme: Scheme, path: &'static str, limit: usize) {
    let mut trial = Trial::start(scheme, &[]).await;
    let target = trial.target();
    let attack = async move {
        let peer = Peer::connect(&target, WINDOW).await;
        for declared in [limit + 1, MIB] {
            let start = Instant::now();
            let half = || Unfinished::message(declared);
            for answer in peer.call_often(150, path, half).await {
                let answer = answer.expect("a status, not a broken connection");
                let (code, message) = within("an end", ended(answer)).await;
                assert_eq!(code, "8", "RESOURCE_EXHAUSTED: {message}");
                let expected = format!("request: the limit is {limit} bytes, got {declared}");
                assert_eq!(message, expected);
            }
            let took = start.elapsed();
            assert!(took < Duration::from_secs(4), "{declared}: {took:?}");
        }
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(24 * 1024);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_beyond_its_limit_is_refused_before_it_is_read() {
    beyond_its_limit(Scheme::Plain, REPORT, 64 * 1024).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notify_request_beyond_its_limit_is_refused_before_it_is_read() {
    beyond_its_limit(Scheme::Plain, NOTIFY, 512 * 1024).await;
}

plain_and_tls!(a_streamed_notify_request_beyond_its_limit_is_refused_before_it_is_read);

async fn a_streamed_notify_request_beyond_its_limit_is_refused_before_it_is_read(scheme: Scheme) {
    beyond_its_limit(scheme, NOTIFY_STREAM, 512 * 1024).await;
}

#[tokio::test]
async fn requests_before_a_too_large_one_are_answered() {
    let relay = Binary::serve().await;
    let peer = Peer::connect(&Target::plain(&relay), WINDOW).await;
    for (declared, limit) in [(600_000_usize, 512 * 1024), (u32::MAX as usize, 512 * 1024)] {
        // An empty request, which is answered with an error, and the start of a too large one.
        let mut bytes = vec![0; 10];
        bytes[6..].copy_from_slice(&u32::try_from(declared).expect("32 bits").to_be_bytes());
        let body = Unfinished::bytes(bytes);
        let answer = within("an answer", peer.call(NOTIFY_STREAM, body)).await;
        let (answers, code, message) = super::peer::read(answer.expect("answered")).await;
        assert!(answers > 5, "no answer to the first request");
        assert_eq!(code, "8", "{message}");
        assert!(message.contains(&format!("limit is {limit} bytes")));
    }
}

/// A `NotifyRequest` of one event on `acct/orders`, with a long field that the relay ignores.
#[derive(Clone, PartialEq, prost::Message)]
struct Notify {
    #[prost(message, repeated, tag = "1")]
    events: Vec<Event>,
    #[prost(bytes, tag = "100")]
    ignored: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Event {
    #[prost(string, tag = "1")]
    storage_account: String,
    #[prost(string, tag = "2")]
    queue_name: String,
}

plain_and_tls!(a_stream_frees_a_large_request_after_its_answer);

async fn a_stream_frees_a_large_request_after_its_answer(scheme: Scheme) {
    let mut trial = Trial::start(scheme, &[]).await;
    let target = trial.target();
    let event = Event {
        storage_account: "acct".to_owned(),
        queue_name: "orders".to_owned(),
    };
    let request = Notify {
        events: vec![event],
        ignored: vec![7; 500 * 1024],
    };
    let request = request.encode_to_vec();
    let attack = async move {
        let peer = Peer::connect(&target, WINDOW).await;
        let mut open = Vec::new();
        for _ in 0..200 {
            let body = Unfinished::open(&request);
            let answer = within("an answer", peer.call(NOTIFY_STREAM, body)).await;
            let mut answer = answer.expect("answered").into_body();
            let read = super::peer::next(&mut answer);
            assert!(within("an answer's message", read).await > 5);
            open.push(answer);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        open.len()
    };
    let (open, damage) = trial.under(attack).await;
    assert_eq!(open, 200);
    damage.is_within(16 * 1024);
}

/// Until `over` is set, 20 connections repeatedly declare four requests of 1 MiB each and send five
/// bytes of them.
async fn declare(target: Target, over: Arc<AtomicBool>) {
    let mut attackers = JoinSet::new();
    for _ in 0..20 {
        let (target, over) = (target.clone(), Arc::clone(&over));
        attackers.spawn(async move {
            let peer = Peer::connect(&target, WINDOW).await;
            let mut calls = JoinSet::new();
            while !over.load(Ordering::Relaxed) {
                for _ in 0..4 {
                    let (peer, body) = (peer.clone(), Unfinished::declared(MIB));
                    calls.spawn(async move { peer.call(SUBSCRIBE, body).await });
                }
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
        });
    }
    attackers.join_all().await;
}

/// 24 connections repeatedly hold four requests of 1 MiB less a byte each.
async fn hold(target: Target) {
    let mut attackers = JoinSet::new();
    for at in 0..24 {
        let target = target.clone();
        attackers.spawn(async move {
            // Spread, as this tests the budget and not a burst.
            tokio::time::sleep(at * Duration::from_millis(50)).await;
            let peer = Peer::connect(&target, WINDOW).await;
            loop {
                let half = || Unfinished::message(MIB);
                peer.call_often(4, SUBSCRIBE, half).await;
            }
        });
    }
    attackers.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn declared_lengths_take_no_room_from_valid_requests() {
    let mut trial = Trial::start(Scheme::Plain, &[]).await;
    let target = trial.target();
    let attack = async move {
        let over = Arc::new(AtomicBool::new(false));
        let attack = tokio::spawn(declare(target.clone(), Arc::clone(&over)));
        tokio::time::sleep(Duration::from_millis(700)).await;
        let answers = honest(&target, 900 * 1024).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        over.store(true, Ordering::Relaxed);
        attack.await.expect("no panic");
        answers
    };
    let (refused, damage) = trial.under(attack).await;
    assert_eq!(refused, None, "an honest request was refused");
    damage.is_within(24 * 1024);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_has_room_for_one_request_when_others_use_the_whole_budget() {
    let mut trial = Trial::start(Scheme::Plain, &[]).await;
    let target = trial.target();
    let attack = async move {
        let attack = tokio::spawn(hold(target.clone()));
        // All connections hold their maximum.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let answers = honest(&target, 900 * 1024).await;
        assert!(!attack.is_finished(), "an attacker has ended");
        attack.abort();
        answers
    };
    let (refused, damage) = trial.under(attack).await;
    assert_eq!(refused, None, "an honest request was refused");
    // 64 MiB of unfinished requests in all, one more of each connection, and windows.
    damage.is_within((64 + 2 * 24) * 1024);
}

/// Subscribes ten times in sequence; returns the first refusal.
async fn honest(target: &Target, bytes: usize) -> Option<String> {
    for at in 0..10 {
        let peer = Peer::connect(target, WINDOW).await;
        let call = peer.call(SUBSCRIBE, subscribe(at, bytes));
        let answer = within("an answer", call).await.expect("answered");
        if let Some(code) = status(&answer) {
            return Some(format!("{code} {:?}", answer.headers().get("grpc-message")));
        }
    }
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_requests_of_one_connection_do_not_block_each_other() {
    let mut trial = Trial::start(Scheme::Plain, &[]).await;
    let target = trial.target();
    let attack = async move {
        let peer = Peer::connect(&target, WINDOW).await;
        let mut calls = JoinSet::new();
        for at in 0..60 {
            let peer = peer.clone();
            calls.spawn(async move {
                let start = Instant::now();
                let answer = peer.call(SUBSCRIBE, subscribe(at, 370 * 1024)).await;
                (answer.expect("answered"), start.elapsed())
            });
        }
        within("all answers", calls.join_all()).await
    };
    let (answers, damage) = trial.under(attack).await;
    let mut taken = 0;
    for (answer, took) in answers {
        assert!(took < Duration::from_secs(3), "{took:?}");
        match status(&answer) {
            None => taken += 1,
            Some(code) => {
                assert_eq!(code, "14", "UNAVAILABLE: {:?}", answer.headers());
                let details = answer.headers().get("grpc-status-details-bin");
                assert!(details.is_some(), "a RetryInfo");
            }
        }
    }
    assert!(taken >= 40, "only {taken} of 60 were taken");
    damage.is_within(48 * 1024);
}
