//! Requests that are never finished. Their deadlines are in `deadlines`.

use std::time::Duration;

use prost::Message as _;
use tokio::task::JoinSet;

use super::{
    harness::Trial,
    peer::{Peer, Unfinished, status},
    target::{Scheme, Target, plain_and_tls},
};
use crate::{
    binary::Binary,
    support::{listening, within, woken},
};

const SUBSCRIBE: &str = "/reveille.v1.Relay/Subscribe";
const WINDOW: u32 = 64 * 1024;
/// The header with an answer's RetryInfo.
const RETRY: &str = "grpc-status-details-bin";

plain_and_tls!(requests_that_lack_a_byte_take_bounded_memory);

async fn requests_that_lack_a_byte_take_bounded_memory(scheme: Scheme) {
    let mut trial = Trial::start(scheme, &[]).await;
    let target = trial.target();
    let attack = async move {
        let peer = Peer::connect(&target, WINDOW).await;
        let half = || Unfinished::message(1024 * 1024);
        let calls = peer.call_often(300, SUBSCRIBE, half);
        // Some wait for their deadline of 5 s.
        let answers = tokio::time::timeout(Duration::from_secs(1), calls).await;
        assert!(answers.is_err(), "no request was held");
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(32 * 1024);
}

plain_and_tls!(unfinished_requests_of_many_connections_share_one_budget);

async fn unfinished_requests_of_many_connections_share_one_budget(scheme: Scheme) {
    let mut trial = Trial::start(scheme, &[]).await;
    let target = trial.target();
    let attack = async move {
        let mut calls = JoinSet::new();
        for _ in 0..60 {
            let peer = Peer::connect(&target, WINDOW).await;
            // Sending four MiB takes a while.
            tokio::time::sleep(Duration::from_millis(20)).await;
            for _ in 0..4 {
                let (peer, half) = (peer.clone(), Unfinished::message(1024 * 1024));
                calls.spawn(async move { peer.call(SUBSCRIBE, half).await });
            }
        }
        // Each connection has room for one, and all together for 64 more, or a little less, as some
        // hold a part.
        let mut refused = 0;
        let most = async {
            while refused < 240 - 60 - 64 {
                let answer = calls.join_next().await;
                let answer = answer.expect("most of 240 are refused").expect("no panic");
                // A refusal has a RetryInfo for a lack of room, but not for a missing byte.
                refused += usize::from(answer.is_ok_and(|a| a.headers().contains_key(RETRY)));
            }
        };
        within("refusals", most).await;
    };
    let ((), damage) = trial.under(attack).await;
    // Unfinished requests, and the unread bytes of 60 connections.
    damage.is_within((60 + 64 + 60) * 1024);
}

/// The first field of a `ReportRequest`, and the queue's name.
#[derive(Clone, PartialEq, prost::Message)]
struct Report {
    #[prost(string, tag = "1")]
    subscription_id: String,
    #[prost(string, tag = "2")]
    storage_account: String,
    #[prost(string, tag = "3")]
    queue_name: String,
    #[prost(int32, tag = "4")]
    state: i32,
}

#[tokio::test]
async fn an_unknown_subscription_id_is_not_repeated_in_the_answer() {
    let relay = Binary::serve().await;
    let peer = Peer::connect(&Target::plain(&relay), WINDOW).await;
    let report = Report {
        subscription_id: "s".repeat(60_000),
        storage_account: "acct".to_owned(),
        queue_name: "orders".to_owned(),
        state: 1,
    };
    let body = Unfinished::whole(&report.encode_to_vec());
    let answer = peer.call("/reveille.v1.Relay/Report", body).await;
    let (code, message) = super::peer::ended(answer.expect("answered")).await;
    assert!(
        matches!(code.as_str(), "3" | "5" | "14"),
        "{code} {message}"
    );
    assert!(message.contains("subscription_id"), "{message}");
    assert!(message.len() < 500, "{message}");
}

#[tokio::test]
async fn reflection_that_is_switched_off_is_not_served() {
    const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    for (switch, status) in [("off", Some("12")), ("on", None)] {
        let relay = Binary::serve_with(&["--reflection", switch], &[]).await;
        let peer = Peer::connect(&Target::plain(&relay), 64 * 1024).await;
        let list_services = Unfinished::whole(b"\x3a\x00");
        let answer = peer
            .call(REFLECTION, list_services)
            .await
            .expect("answered");
        let stated = answer.headers().get("grpc-status");
        let stated = stated.map(|status| status.to_str().expect("a number"));
        assert_eq!(stated, status, "reflection {switch}");
    }
}

/// Watches of the health need no credential, so they must not take the streams of others.
#[tokio::test]
async fn watches_of_the_health_leave_the_streams_of_others() {
    const WATCH: &str = "/grpc.health.v1.Health/Watch";
    let relay = Binary::serve_with(&["--max-streams", "3"], &[]).await;
    let target = Target::plain(&relay);
    let (mut open, mut refused) = (Vec::new(), 0);
    // 64 of a connection, and a thousand of all.
    for _ in 0..17 {
        let peer = Peer::connect(&target, WINDOW).await;
        for answer in peer.call_often(70, WATCH, || Unfinished::whole(b"")).await {
            let answer = answer.expect("answered");
            match status(&answer) {
                None => open.push(answer),
                Some(code) => {
                    assert_eq!(code, "8");
                    refused += 1;
                }
            }
        }
    }
    assert_eq!((open.len(), refused), (1000, 190));
    let client = reveille::Client::new(&relay.url()).expect("a client");
    let mut wakes = client
        .subscribe(listening("good", &["good/pair"]))
        .expect("options");
    woken(&mut wakes).await;
}
