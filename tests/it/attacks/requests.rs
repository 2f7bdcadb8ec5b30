//! Requests that are begun and never finished.

use std::time::Duration;

use prost::Message as _;
use tokio::io::AsyncWriteExt;

use super::{
    frames::{HEADERS, RawPeer, frame},
    harness::Trial,
    peer::{Peer, Unfinished, status},
};

const SUBSCRIBE: &str = "/reveille.v1.Relay/Subscribe";
const NOTIFY_STREAM: &str = "/reveille.v1.Relay/NotifyStream";
const GET_FLAG: &str = "/reveille.v1.Flags/GetFlag";
const WINDOW: u32 = 64 * 1024;

/// A whole `GetFlagRequest`: one string.
#[derive(Clone, PartialEq, prost::Message)]
struct GetFlag {
    #[prost(string, tag = "1")]
    flag: String,
}

fn get_flag() -> Unfinished {
    let flag = "go".to_owned();
    Unfinished::whole(&GetFlag { flag }.encode_to_vec())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_one_byte_short_end_in_time_and_take_bounded_memory() {
    let mut trial = Trial::start(&[]).await;
    let address = trial.address();
    let attack = async move {
        let peer = Peer::connect(address, WINDOW).await;
        let half = || Unfinished::message(1024 * 1024);
        let calls = peer.call_often(300, SUBSCRIBE, half);
        let answers = tokio::time::timeout(Duration::from_secs(15), calls).await;
        for answer in answers.expect("ended by their deadline") {
            let answer = answer.expect("a status, not a broken connection");
            // UNAVAILABLE where the bytes were missing, RESOURCE_EXHAUSTED where there was no room.
            assert!(matches!(status(&answer), Some("14" | "8")), "{answer:?}");
        }
        // The connection goes on.
        let whole = peer.call(GET_FLAG, get_flag()).await.expect("an answer");
        assert_eq!((whole.status().as_u16(), status(&whole)), (200, None));
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(32 * 1024);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_requests_of_many_connections_share_one_budget() {
    let mut trial = Trial::start(&[]).await;
    let address = trial.address();
    let attack = async move {
        let mut peers = Vec::new();
        for _ in 0..60 {
            peers.push(Peer::connect(address, WINDOW).await);
        }
        let mut calls = tokio::task::JoinSet::new();
        for peer in peers {
            calls.spawn(async move {
                let half = || Unfinished::message(1024 * 1024);
                peer.call_often(4, SUBSCRIBE, half).await
            });
        }
        let answers = tokio::time::timeout(Duration::from_secs(15), calls.join_all()).await;
        let answers = answers.expect("ended by their deadline");
        let refused = answers.iter().flatten().flatten();
        refused.filter(|answer| status(answer) == Some("8")).count()
    };
    let (refused, damage) = trial.under(attack).await;
    assert!(refused >= 150, "only {refused} of 240 were refused");
    // 64 MiB of unfinished requests in all, and what 60 connections hold before they are read.
    damage.is_within(64 * 1024 + 60 * 1024);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_was_begun_has_a_deadline_and_an_idle_stream_has_none() {
    let mut trial = Trial::start(&[]).await;
    let address = trial.address();
    let attack = async move {
        let peer = Peer::connect(address, WINDOW).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_frame_and_half_a_header_block_have_a_deadline() {
    let mut trial = Trial::start(&[]).await;
    let address = trial.address();
    let attack = async move {
        // A HEADERS frame without END_HEADERS; and one whose payload does not come.
        let block = frame(HEADERS, 0, 1, &[0x83]);
        let cut = frame(HEADERS, 4, 1, &[0x83; 100])[..20].to_vec();
        let mut halves = Vec::new();
        for bytes in [block, cut] {
            let mut peer = RawPeer::greeting(address).await;
            peer.0.write_all(&bytes).await.expect("taken");
            halves.push(peer);
        }
        for mut peer in halves {
            // 5 s, and as much patience; without a deadline of its own it is 10 s more.
            assert!(peer.is_closed_within(Duration::from_secs(9)).await);
        }
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
}
