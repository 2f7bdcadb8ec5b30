//! Requests that are never finished.

use std::time::Duration;

use prost::Message as _;

use super::{
    frames::{HEADERS, RawPeer, frame},
    harness::Trial,
    peer::{Peer, Unfinished, status},
    target::{Scheme, Target, plain_and_tls},
};

use crate::{
    binary::Binary,
    support::{listening, woken},
};

const SUBSCRIBE: &str = "/reveille.v1.Relay/Subscribe";
const NOTIFY_STREAM: &str = "/reveille.v1.Relay/NotifyStream";
const GET_FLAG: &str = "/reveille.v1.Flags/GetFlag";
const WINDOW: u32 = 64 * 1024;
/// The header with an answer's RetryInfo.
const RETRY: &str = "grpc-status-details-bin";

/// A complete `GetFlagRequest`: one string.
#[derive(Clone, PartialEq, prost::Message)]
struct GetFlag {
    #[prost(string, tag = "1")]
    flag: String,
}

fn get_flag() -> Unfinished {
    let flag = "go".to_owned();
    Unfinished::whole(&GetFlag { flag }.encode_to_vec())
}

plain_and_tls!(requests_that_lack_a_byte_end_in_time_and_take_bounded_memory);

async fn requests_that_lack_a_byte_end_in_time_and_take_bounded_memory(scheme: Scheme) {
    let mut trial = Trial::start(scheme, &[]).await;
    let target = trial.target();
    let attack = async move {
        let peer = Peer::connect(&target, WINDOW).await;
        let half = || Unfinished::message(1024 * 1024);
        let calls = peer.call_often(300, SUBSCRIBE, half);
        let answers = tokio::time::timeout(Duration::from_secs(15), calls).await;
        for answer in answers.expect("ended by their deadline") {
            let answer = answer.expect("a status, not a broken connection");
            // UNAVAILABLE for missing bytes, and for a lack of room.
            assert_eq!(status(&answer), Some("14"), "{answer:?}");
        }
        // The connection stays open.
        let whole = peer.call(GET_FLAG, get_flag()).await.expect("an answer");
        assert_eq!((whole.status().as_u16(), status(&whole)), (200, None));
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(32 * 1024);
}

plain_and_tls!(unfinished_requests_of_many_connections_share_one_budget);

async fn unfinished_requests_of_many_connections_share_one_budget(scheme: Scheme) {
    let mut trial = Trial::start(scheme, &[]).await;
    let target = trial.target();
    let attack = async move {
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..60 {
            let peer = Peer::connect(&target, WINDOW).await;
            // Sending four MiB takes a while.
            tokio::time::sleep(Duration::from_millis(20)).await;
            calls.spawn(async move {
                let half = || Unfinished::message(1024 * 1024);
                peer.call_often(4, SUBSCRIBE, half).await
            });
        }
        let answers = tokio::time::timeout(Duration::from_secs(15), calls.join_all()).await;
        let answers = answers.expect("ended by their deadline");
        let refused = answers.iter().flatten().flatten();
        // The refusal has a RetryInfo for a lack of room, but not for a missing byte.
        let told = |answer: &&http::Response<_>| answer.headers().contains_key(RETRY);
        refused.filter(told).count()
    };
    let (refused, damage) = trial.under(attack).await;
    // Each connection has room for one, and all together for 64 more, or a little less, as some
    // hold a part.
    assert!(
        refused >= 240 - 60 - 64,
        "only {refused} of 240 were refused"
    );
    // Unfinished requests, and the unread bytes of 60 connections.
    damage.is_within((60 + 64 + 60) * 1024);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unfinished_message_has_a_deadline_and_an_idle_stream_has_none() {
    let mut trial = Trial::start(Scheme::Plain, &[]).await;
    let target = trial.target();
    let attack = async move {
        let peer = Peer::connect(&target, WINDOW).await;
        let mut idle = peer
            .call(NOTIFY_STREAM, Unfinished::silence())
            .await
            .expect("answered");
        assert_eq!(status(&idle), None, "an open stream");
        let begun = peer
            .call(NOTIFY_STREAM, Unfinished::message(100 * 1024))
            .await
            .expect("answered");
        let mut begun = begun.into_body();
        let ended = tokio::time::timeout(Duration::from_secs(15), trailers(&mut begun)).await;
        let ended = ended.expect("ended by its deadline");
        assert_eq!(ended.as_deref(), Some("14"), "UNAVAILABLE");
        let more = tokio::time::timeout(Duration::from_secs(2), trailers(idle.body_mut())).await;
        assert!(more.is_err(), "the idle stream has ended: {more:?}");
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
}

/// Reads an answer to its end; returns the gRPC status of its trailers.
async fn trailers(body: &mut hyper::body::Incoming) -> Option<String> {
    use hyper::body::Body as _;
    let mut body = std::pin::Pin::new(body);
    loop {
        let frame = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await?;
        let frame = frame.expect("not a broken connection");
        if let Some(trailers) = frame.trailers_ref() {
            let status = trailers.get("grpc-status")?.to_str().expect("text");
            return Some(status.to_owned());
        }
    }
}

plain_and_tls!(half_a_frame_and_half_a_header_block_have_a_deadline);

async fn half_a_frame_and_half_a_header_block_have_a_deadline(scheme: Scheme) {
    let mut trial = Trial::start(scheme, &[]).await;
    let target = trial.target();
    let attack = async move {
        // A HEADERS frame without END_HEADERS, and one without its payload.
        let block = frame(HEADERS, 0, 1, &[0x83]);
        let cut = frame(HEADERS, 4, 1, &[0x83; 100])[..20].to_vec();
        let mut halves = Vec::new();
        for bytes in [block, cut] {
            let mut peer = RawPeer::greeting(&target).await;
            peer.send(&bytes).await.expect("taken");
            halves.push(peer);
        }
        for mut peer in halves {
            // 5 s, and a margin of 5 s; without this deadline it would take 10 s more.
            assert!(peer.is_closed_within(Duration::from_secs(9)).await);
        }
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
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
