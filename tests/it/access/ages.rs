//! The maximum age of a connection, as peers see it that are not this crate's client.

use std::time::Duration;

use tokio::{task::JoinSet, time::Instant};

use crate::{
    attacks::{
        frames::{GOAWAY, RawPeer},
        peer::{Peer, Unfinished, ended},
        target::Target,
    },
    binary::{Binary, limits},
    support::within,
};

const PUBLISHER: &str = "/reveille.v1.Relay/NotifyStream";
const LIMIT: &str = "max_connection_age = '3s'";
/// The age less its tenth.
const EARLIEST: Duration = Duration::from_millis(2_700);
/// The age and its tenth, and time for a busy machine. A connection has no other time-out before 10 s.
const LATEST: Duration = Duration::from_millis(3_300 + 3_000);

/// Opens a connection with a stream; returns the time until its GOAWAY.
async fn goaway(target: Target) -> Duration {
    let start = Instant::now();
    let mut peer = RawPeer::greeting(&target).await;
    peer.open(1, PUBLISHER).await;
    while peer.next_frame().await.0 != GOAWAY {}
    start.elapsed()
}

#[tokio::test]
async fn connections_get_goaway_about_their_maximum_age_and_not_all_at_once() {
    let relay = Binary::serve_with(&["--config", &limits(LIMIT)], &[]).await;
    let target = Target::plain(&relay);
    let mut connections = JoinSet::new();
    for _ in 0..16 {
        connections.spawn(goaway(target.clone()));
    }
    let ages = within("all GOAWAYs", connections.join_all()).await;
    let (first, last) = (ages.iter().min(), ages.iter().max());
    let (first, last) = (*first.expect("an age"), *last.expect("an age"));
    assert!(first >= EARLIEST && last <= LATEST, "{ages:?}");
    // Of 16 random ages within 600 ms, all lie within 100 ms in one of 10^11 runs.
    assert!(last - first > Duration::from_millis(100), "{ages:?}");
}

#[tokio::test]
async fn a_publishers_stream_ends_with_ok_at_the_maximum_age() {
    ends_with_ok_at_the_maximum_age(PUBLISHER, Unfinished::silence()).await;
}

async fn ends_with_ok_at_the_maximum_age(path: &str, request: Unfinished) {
    let relay = Binary::serve_with(&["--config", &limits(LIMIT)], &[]).await;
    let start = Instant::now();
    let peer = Peer::connect(&Target::plain(&relay), 65_535).await;
    let answer = within("headers", peer.call(path, request)).await;
    let status = ended(answer.expect("an answer")).await;
    assert_eq!(status, ("0".to_owned(), String::new()));
    let age = start.elapsed();
    assert!((EARLIEST..=LATEST).contains(&age), "{age:?}");
}
