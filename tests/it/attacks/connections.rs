//! Silent connections, and too many connections. Their deadlines are in `deadlines`.

use std::time::Duration;

use super::{
    frames::{PREFACE, RawPeer},
    harness::Trial,
    target::{Scheme, Target, plain_and_tls},
};
use crate::{
    binary::Binary,
    support::{figure, get, until, within},
};

/// Time for which slow peers are held.
const HELD: Duration = Duration::from_millis(500);

plain_and_tls!(
    silent_connections_do_not_block_a_regular_one,
    slow_first_bytes_disturb_no_listener,
);

async fn silent_connections_do_not_block_a_regular_one(scheme: Scheme) {
    let mut trial = Trial::start(scheme, &["--max-connections", "20"]).await;
    let target = trial.target();
    let attack = async move {
        let mut silent = Vec::new();
        for _ in 0..500 {
            silent.push(RawPeer::silent(&target).await);
        }
        // Within a few round trips, before the deadline of the silent ones.
        let client = target.client();
        let ready = client.ready(Duration::from_secs(2)).await;
        ready.expect("a regular client is served at once");
        tokio::time::sleep(HELD).await;
        drop(silent);
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_address_has_a_bounded_number_of_connections() {
    let mut trial = Trial::start(Scheme::Plain, &["--max-connections-per-address", "10"]).await;
    let target = trial.target();
    let attack = async move {
        let mut peers = Vec::new();
        for _ in 0..50 {
            // Refused connections may be reset while they write.
            peers.extend(RawPeer::greeting_from([127, 0, 0, 9], &target).await.ok());
        }
        let mut open = 0;
        for peer in &mut peers {
            open += usize::from(!peer.is_closed_within(Duration::from_millis(20)).await);
        }
        assert_eq!(open, 10);
        // The limit does not affect other addresses.
        let other = RawPeer::greeting_from([127, 0, 0, 10], &target).await;
        let mut other = other.expect("taken");
        assert!(!other.is_closed_within(Duration::from_millis(100)).await);
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
    let refused = figure(trial.admin(), "reveille_connections_refused_total").await;
    assert!(refused >= 40, "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_of_an_address_keep_no_neighbour_out() {
    const MINE: [u8; 4] = [127, 0, 0, 9];
    let limit = ["--max-connections-per-address", "10"];
    let mut trial = Trial::start(Scheme::Tls, &limit).await;
    let target = trial.target();
    let attack = async move {
        let mut greeted = Vec::new();
        for _ in 0..15 {
            greeted.push(RawPeer::greeting_from(MINE, &target).await.expect("taken"));
        }
        // A regular neighbour behind the same address, whose connection is not displaced later.
        let mut neighbour = RawPeer::greeting_from(MINE, &target).await.expect("taken");
        neighbour.open(1, "/reveille.v1.Relay/NotifyStream").await;
        neighbour.is_answered().await;
        for _ in 0..15 {
            greeted.push(RawPeer::greeting_from(MINE, &target).await.expect("taken"));
        }
        let mut open = greeted.len();
        // They are closed soon, and the last ones only at the deadline of a handshake.
        for _ in 0..50 {
            open = 0;
            for peer in &mut greeted {
                open += usize::from(!peer.is_closed_within(Duration::from_millis(20)).await);
            }
            if open <= 9 {
                break;
            }
        }
        assert_eq!(open, 9, "with the neighbour's connection ten");
        assert!(!neighbour.is_closed_within(Duration::from_millis(100)).await);
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
}

#[tokio::test]
async fn a_full_relay_is_alive_and_not_ready() {
    let relay = Binary::serve_with(&["--max-connections", "3"], &[]).await;
    let target = Target::plain(&relay);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(RawPeer::greeting(&target).await);
    }
    until("full", async || {
        get(relay.admin(), "/readyz").await.0 == 503
    })
    .await;
    let (_, why) = get(relay.admin(), "/readyz").await;
    assert!(why.contains("3 of 3 connections"), "{why}");
    assert_eq!(get(relay.admin(), "/livez").await.0, 200);
    assert_eq!(figure(relay.admin(), "reveille_connections").await, 3);
    assert_eq!(figure(relay.admin(), "reveille_connections_limit").await, 3);
    drop(held);
    until("ready again", async || {
        get(relay.admin(), "/readyz").await.0 == 200
    })
    .await;
}

#[tokio::test]
async fn connections_leave_file_descriptors_in_reserve() {
    // 300 less 128 in reserve are 172, of which a quarter may be before their preface.
    let relay = Binary::serve_with_open_files(300).await;
    let limit = figure(relay.admin(), "reveille_connections_limit").await;
    assert_eq!(limit, 129);
    let target = Target::plain(&relay);
    let mut held = Vec::new();
    for _ in 0..limit {
        let mut peer = RawPeer::greeting(&target).await;
        within("settings", peer.is_answered()).await;
        held.push(peer);
    }
    // Together more than all of its file descriptors. These wait in the kernel's backlog.
    for _ in 0..270 {
        held.push(within("a place in the backlog", RawPeer::greeting(&target)).await);
    }
    // The store and the admin port still have theirs.
    until("full", async || {
        let (status, why) = get(relay.admin(), "/readyz").await;
        status == 503 && why.contains("129 of 129 connections")
    })
    .await;
    assert!(!relay.log().contains("cannot accept"), "{}", relay.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_without_a_stream_disturb_no_listener() {
    let mut trial = Trial::start(Scheme::Plain, &[]).await;
    let target = trial.target();
    let attack = async move {
        let mut peers = Vec::new();
        for _ in 0..200 {
            let mut peer = RawPeer::greeting(&target).await;
            within("settings", peer.is_answered()).await;
            peers.push(peer);
        }
        tokio::time::sleep(HELD).await;
        drop(peers);
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(16 * 1024);
}

/// One byte of the preface each 50 ms.
async fn slow_first_bytes_disturb_no_listener(scheme: Scheme) {
    let mut trial = Trial::start(scheme, &[]).await;
    let target = trial.target();
    let attack = async move {
        let mut peers = Vec::new();
        for _ in 0..150 {
            peers.push(RawPeer::silent(&target).await);
        }
        for byte in &PREFACE[..10] {
            for peer in &mut peers {
                peer.send(&[*byte]).await.expect("before its deadline");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(16 * 1024);
}
