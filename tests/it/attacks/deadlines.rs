//! Deadlines of the relay for peers that are slow or silent. These tests wait for seconds and judge no
//! latency, so they run beside others, unlike the attacks with such peers in the other files. The
//! deadline of handshakes is in `tls::handshakes`.

use std::time::{Duration, Instant, SystemTime};

use prost::Message as _;
use reveille::{
    Client,
    auth::{NewToken, Principal, TokenFile},
};
use tokio::task::JoinSet;

use super::{
    admin::half_requests,
    frames::{END_HEADERS, HEADERS, PREFACE, RawPeer, field, frame, post, request},
    peer::{Peer, Unfinished, status},
    target::{Certificates, Scheme, Target, plain_and_tls},
};
use crate::{
    binary::Binary,
    support::{figure, until},
};

const GET_FLAG: &str = "/reveille.v1.Flags/GetFlag";
const NOTIFY: &str = "/reveille.v1.Relay/Notify";
const NOTIFY_STREAM: &str = "/reveille.v1.Relay/NotifyStream";
const SUBSCRIBE: &str = "/reveille.v1.Relay/Subscribe";
const SILENT: &str = "reveille_connections_silent_total";
const WINDOW: u32 = 64 * 1024;
/// The deadlines of 5 s, on a busy machine.
const IN_TIME: Duration = Duration::from_secs(15);

/// A complete `GetFlagRequest`: one string.
#[derive(Clone, PartialEq, prost::Message)]
struct GetFlag {
    #[prost(string, tag = "1")]
    flag: String,
}

/// Starts a relay, in plain text or with TLS. Its certificates are deleted when they are dropped.
async fn start(scheme: Scheme) -> (Binary, Target, Option<Certificates>) {
    let certificates = (scheme == Scheme::Tls).then(Certificates::new);
    let tls = certificates.as_ref().map(Certificates::arguments);
    let relay = Binary::serve_with(tls.as_ref().map_or(&[][..], |tls| &tls[..]), &[]).await;
    let target = Target::new(&relay, certificates.as_ref());
    (relay, target, certificates)
}

/// Checks that the relay closes each of these connections in time.
async fn are_closed(peers: impl IntoIterator<Item = RawPeer>) {
    let waiting = peers
        .into_iter()
        .map(|mut peer| async move { peer.is_closed_within(IN_TIME).await });
    let closed = waiting.collect::<JoinSet<_>>().join_all().await;
    assert!(closed.into_iter().all(|closed| closed));
}

plain_and_tls!(
    requests_that_lack_a_byte_end_in_time,
    silent_connections_end_in_time,
    slow_first_bytes_end_in_time,
);

async fn requests_that_lack_a_byte_end_in_time(scheme: Scheme) {
    let (_relay, target, _files) = start(scheme).await;
    let peer = Peer::connect(&target, WINDOW).await;
    let half = || Unfinished::message(1024 * 1024);
    let calls = peer.call_often(100, SUBSCRIBE, half);
    let answers = tokio::time::timeout(IN_TIME, calls).await;
    for answer in answers.expect("ended by their deadline") {
        let answer = answer.expect("a status, not a broken connection");
        assert_eq!(status(&answer), Some("14"), "{answer:?}");
    }
    // The connection stays open.
    let flag = "go".to_owned();
    let get_flag = Unfinished::whole(&GetFlag { flag }.encode_to_vec());
    let whole = peer.call(GET_FLAG, get_flag).await.expect("an answer");
    assert_eq!((whole.status().as_u16(), status(&whole)), (200, None));
}

async fn silent_connections_end_in_time(scheme: Scheme) {
    let (relay, target, _files) = start(scheme).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(RawPeer::silent(&target).await);
    }
    are_closed(silent).await;
    until("counted", async || {
        figure(relay.admin(), SILENT).await == 20
    })
    .await;
}

/// One byte of the preface each half second.
async fn slow_first_bytes_end_in_time(scheme: Scheme) {
    let (relay, target, _files) = start(scheme).await;
    let mut peers = JoinSet::new();
    for _ in 0..20 {
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
    until("counted", async || {
        figure(relay.admin(), SILENT).await == 20
    })
    .await;
}

#[tokio::test]
async fn slow_requests_on_the_admin_port_end_in_time() {
    let relay = Binary::serve().await;
    are_closed(half_requests(relay.admin(), 30).await).await;
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
    // One of them is established.
    let [one, other] = &mut peers;
    let left = tokio::select! {
        closed = one.is_closed_within(IN_TIME) => closed.then_some(other),
        closed = other.is_closed_within(IN_TIME) => closed.then_some(one),
    };
    let left = left.expect("one is closed");
    assert!(!left.is_closed_within(Duration::from_millis(200)).await);
    let figures = ["silent", "full"].map(|kind| format!("reveille_connections_{kind}_total"));
    assert_eq!(figure(relay.admin(), &figures[0]).await, 0);
    assert_eq!(figure(relay.admin(), &figures[1]).await, 1);
}

/// Deadlines of 10 s and more. Unit tests of `activity` check those of a connection with a paused clock.
mod full {
    use super::*;

    /// No request of such a peer is admitted.
    #[tokio::test]
    async fn half_a_frame_and_half_a_header_block_end_in_time() {
        let (_relay, target, _files) = start(Scheme::Plain).await;
        let halves = [
            frame(HEADERS, 0, 1, &[0x83]),
            frame(HEADERS, END_HEADERS, 1, &[0x83; 100])[..20].to_vec(),
        ];
        let mut peers = Vec::new();
        for half in halves {
            let mut peer = RawPeer::greeting(&target).await;
            peer.send(&half).await.expect("taken");
            peers.push(peer);
        }
        are_closed(peers).await;
    }

    /// Between two messages it may be silent for any time.
    #[tokio::test]
    async fn a_stream_of_requests_has_no_deadline() {
        let (_relay, target, _files) = start(Scheme::Plain).await;
        let peer = Peer::connect(&target, WINDOW).await;
        let answer = peer.call(NOTIFY_STREAM, Unfinished::silence()).await;
        let mut answer = answer.expect("answered").into_body();
        let next = super::super::peer::next(&mut answer);
        let ended = tokio::time::timeout(Duration::from_secs(12), next).await;
        assert!(ended.is_err(), "the stream has ended");
    }

    #[tokio::test]
    async fn connections_without_a_stream_are_closed() {
        let (_relay, target, _files) = start(Scheme::Plain).await;
        let mut peers = Vec::new();
        for _ in 0..200 {
            peers.push(RawPeer::greeting(&target).await);
        }
        are_closed(peers).await;
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

    /// Requests that are refused must not hold a place for long.
    #[tokio::test]
    async fn callers_without_a_credential_do_not_keep_their_connections() {
        let home = tempfile::tempdir().expect("a directory");
        let (relay, _) = with_rules(home.path()).await;
        let mut unknown = RawPeer::greeting(&Target::plain(&relay)).await;
        let began = Instant::now();
        for stream in 0..20 {
            let sent = unknown.send(&request(1 + 2 * stream, NOTIFY)).await;
            if sent.is_err() || unknown.is_closed_within(Duration::from_secs(1)).await {
                break;
            }
        }
        let lasted = began.elapsed().as_secs();
        assert!((9..=15).contains(&lasted), "{lasted} s");
    }
}

/// Starts a relay with one principal that may have one connection; returns its `authorization`.
pub(super) async fn with_rules(home: &std::path::Path) -> (Binary, String) {
    const RULES: &str = "tokens = 'tokens.toml'\n\
        [[rule]]\nprincipals = ['p']\nactions = ['notify']\nqueues = ['a/*']\n\
        [[limit]]\nprincipals = ['p']\nconnections = 1\n";
    let rules = home.join("auth.toml");
    std::fs::write(&rules, RULES).expect("written");
    let new = NewToken {
        principal: Principal::new("p").expect("a name"),
        expires: None,
        note: String::new(),
    };
    let tokens = TokenFile::new(home.join("tokens.toml"));
    let token = tokens.add(&new, SystemTime::now()).expect("added");
    let rules = rules.to_str().expect("UTF-8");
    let relay = Binary::serve_with(&["--auth", rules], &[]).await;
    (relay, format!("Bearer {}", token.reveal()))
}

#[tokio::test]
async fn a_connection_over_the_limit_of_its_principal_is_closed() {
    let home = tempfile::tempdir().expect("a directory");
    let (relay, authorization) = with_rules(home.path()).await;
    let target = Target::plain(&relay);
    let fields = [post(NOTIFY), field("authorization", &authorization)].concat();
    let known = frame(HEADERS, END_HEADERS, 1, &fields);
    let mut first = RawPeer::greeting(&target).await;
    first.send(&known).await.expect("taken");
    assert!(!first.is_closed_within(Duration::from_millis(200)).await);
    let mut second = RawPeer::greeting(&target).await;
    second.send(&known).await.expect("taken");
    assert!(second.is_closed_within(IN_TIME).await);
    assert!(!first.is_closed_within(Duration::from_millis(20)).await);
}
