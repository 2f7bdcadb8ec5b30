//! Silent connections, and too many connections.

use std::time::{Duration, Instant, SystemTime};

use reveille::{
    Client,
    auth::{NewToken, Principal, TokenFile},
};
use tokio::task::JoinSet;

use super::{
    frames::{END_HEADERS, HEADERS, PREFACE, RawPeer, field, frame, post, request},
    harness::Trial,
    target::{Scheme, Target, plain_and_tls},
};
use crate::{
    binary::Binary,
    support::{figure, get, until, within},
};

plain_and_tls!(silent_connections_do_not_block_a_regular_one);

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
        for mut peer in silent {
            assert!(peer.is_closed_within(Duration::from_secs(15)).await);
        }
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_without_a_stream_are_closed() {
    let mut trial = Trial::start(Scheme::Plain, &[]).await;
    let target = trial.target();
    let attack = async move {
        let mut peers = Vec::new();
        for _ in 0..200 {
            peers.push(RawPeer::greeting(&target).await);
        }
        for mut peer in peers {
            assert!(peer.is_closed_within(Duration::from_secs(18)).await);
        }
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(16 * 1024);
}

/// Requests that are refused must not hold a place for long.
#[tokio::test]
async fn callers_that_are_not_admitted_do_not_keep_their_connections() {
    const RULES: &str = "tokens = 'tokens.toml'\n\
        [[rule]]\nprincipals = ['p']\nactions = ['notify']\nqueues = ['a/*']\n\
        [[limit]]\nprincipals = ['p']\nconnections = 1\n";
    const NOTIFY: &str = "/reveille.v1.Relay/Notify";
    let home = tempfile::tempdir().expect("a directory");
    let rules = home.path().join("auth.toml");
    std::fs::write(&rules, RULES).expect("written");
    let new = NewToken {
        principal: Principal::new("p").expect("a name"),
        expires: None,
        note: String::new(),
    };
    let tokens = TokenFile::new(home.path().join("tokens.toml"));
    let token = tokens.add(&new, SystemTime::now()).expect("added");
    let rules = rules.to_str().expect("UTF-8");
    let relay = Binary::serve_with(&["--auth", rules], &[]).await;
    let target = Target::plain(&relay);
    let authorization = format!("Bearer {}", token.reveal());
    let known = |stream| {
        let fields = [post(NOTIFY), field("authorization", &authorization)].concat();
        frame(HEADERS, END_HEADERS, stream, &fields)
    };

    // The first connection of the principal stays; the one over its limit is closed.
    let mut first = RawPeer::greeting(&target).await;
    first.send(&known(1)).await.expect("taken");
    assert!(!first.is_closed_within(Duration::from_millis(200)).await);
    let mut second = RawPeer::greeting(&target).await;
    second.send(&known(1)).await.expect("taken");
    assert!(second.is_closed_within(Duration::from_secs(5)).await);

    let mut unknown = RawPeer::greeting(&target).await;
    let began = Instant::now();
    for stream in 0..20 {
        let sent = unknown.send(&request(1 + 2 * stream, NOTIFY)).await;
        if sent.is_err() || unknown.is_closed_within(Duration::from_secs(1)).await {
            break;
        }
    }
    let lasted = began.elapsed().as_secs();
    assert!((9..=15).contains(&lasted), "{lasted} s");
    assert!(!first.is_closed_within(Duration::from_millis(20)).await);
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
async fn a_peer_that_waits_for_a_connection_permit_is_not_counted_as_silent() {
    let relay = Binary::serve_with(&["--max-connections", "1"], &[]).await;
    let target = Target::plain(&relay);
    // Both are accepted while there is room; then only one connection can be established.
    let mut peers = [
        RawPeer::silent(&target).await,
        RawPeer::silent(&target).await,
    ];
    tokio::time::sleep(Duration::from_millis(200)).await;
    for peer in &mut peers {
        peer.greet().await.expect("taken");
    }
    // The first of them is established.
    let [one, other] = &mut peers;
    let wait = Duration::from_secs(9);
    let closed = tokio::join!(one.is_closed_within(wait), other.is_closed_within(wait));
    assert!(closed.0 != closed.1, "{closed:?}");
    let figures = ["silent", "full"].map(|kind| format!("reveille_connections_{kind}_total"));
    assert_eq!(figure(relay.admin(), &figures[0]).await, 0);
    assert_eq!(figure(relay.admin(), &figures[1]).await, 1);
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

#[tokio::test]
async fn an_idle_connection_is_kept_for_minutes() {
    let relay = Binary::serve().await;
    let client = Client::new(&relay.url()).expect("a URL");
    client.ready(Duration::from_secs(5)).await.expect("served");
    // Longer than the time limit of a connection's first stream.
    tokio::time::sleep(Duration::from_secs(13)).await;
    assert_eq!(figure(relay.admin(), "reveille_connections").await, 1);
    client.ready(Duration::from_secs(5)).await.expect("served");
}

plain_and_tls!(slow_first_bytes_have_a_deadline);

/// One byte of the preface each half second.
async fn slow_first_bytes_have_a_deadline(scheme: Scheme) {
    let mut trial = Trial::start(scheme, &[]).await;
    let target = trial.target();
    let attack = async move {
        let mut peers = JoinSet::new();
        for _ in 0..150 {
            let mut peer = RawPeer::silent(&target).await;
            peers.spawn(async move {
                for byte in PREFACE {
                    if peer.send(&[*byte]).await.is_err() {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
                // 24 bytes take 12 s, and the relay waits 5 s for all of them.
                peer.is_closed_within(Duration::from_secs(4)).await
            });
        }
        let closed = peers.join_all().await;
        assert!(closed.into_iter().all(|closed| closed));
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(16 * 1024);
    let silent = figure(trial.admin(), "reveille_connections_silent_total").await;
    assert_eq!(silent, 150);
}
