//! Deadlines of the relay for peers that are slow or silent, also at its shutdown. These tests wait for
//! seconds and judge no latency, so they run beside others. The deadline of handshakes is in
//! `tls::handshakes`.

use std::{
    net::SocketAddr,
    time::{Duration, Instant, SystemTime},
};

use prost::Message as _;
use reveille::auth::{NewToken, Principal, TokenFile};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, task::JoinSet};

use super::{
    frames::{
        DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, RawPeer, field, frame, post, request,
        settings,
    },
    peer::{Peer, Unfinished, status},
    target::Target,
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

/// Checks that the relay closes each of these connections in time.
async fn are_closed(peers: impl IntoIterator<Item = RawPeer>) {
    let waiting = peers
        .into_iter()
        .map(|mut peer| async move { peer.is_closed_within(IN_TIME).await });
    let closed = waiting.collect::<JoinSet<_>>().join_all().await;
    assert!(closed.into_iter().all(|closed| closed));
}

#[tokio::test]
async fn requests_that_lack_a_byte_end_in_time() {
    let relay = Binary::serve().await;
    let target = Target::plain(&relay);
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

/// One byte of the preface each half second.
#[tokio::test]
async fn slow_first_bytes_end_in_time() {
    let relay = Binary::serve().await;
    let target = Target::plain(&relay);
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

/// Connects this many peers. Some have not begun their request, some lack the end of its head, some
/// its body.
async fn half_requests(admin: SocketAddr, count: usize) -> Vec<RawPeer> {
    let mut slow = Vec::new();
    for at in 0..count {
        let mut peer = TcpStream::connect(admin).await.expect("it listens");
        let half = match at % 3 {
            0 => "",
            1 => "GET /livez HTTP/1.1\r\nhost: localhost\r\n",
            _ => "POST /livez HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n",
        };
        // A newer connection may have displaced it.
        let _ = peer.write_all(half.as_bytes()).await;
        slow.push(RawPeer(Box::new(peer)));
    }
    slow
}

#[tokio::test]
async fn slow_requests_on_the_admin_port_end_in_time() {
    let relay = Binary::serve().await;
    are_closed(half_requests(relay.admin(), 30).await).await;
}

/// Deadlines of 10 s and more. Unit tests of `activity` check those of a connection with a paused clock.
mod full {
    use super::*;

    /// Between two messages it may be silent for any time.
    #[tokio::test]
    async fn a_stream_of_requests_has_no_deadline() {
        let relay = Binary::serve().await;
        let target = Target::plain(&relay);
        let peer = Peer::connect(&target, WINDOW).await;
        let answer = peer.call(NOTIFY_STREAM, Unfinished::silence()).await;
        let mut answer = answer.expect("answered").into_body();
        let next = super::super::peer::next(&mut answer);
        let ended = tokio::time::timeout(Duration::from_secs(12), next).await;
        assert!(ended.is_err(), "the stream has ended");
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_ends_without_waiting_for_slow_peers() {
    let mut relay = Binary::serve_with(&["--grace", "25s"], &[]).await;
    let target = Target::plain(&relay);
    let peer = Peer::connect(&target, WINDOW).await;
    let empty = || Unfinished::whole(&().encode_to_vec());
    let watch = peer.call("/reveille.v1.Admin/WatchStats", empty()).await;
    let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let reflecting = peer.call(reflection, Unfinished::silence()).await;
    let notifying = peer
        .call("/reveille.v1.Relay/NotifyStream", Unfinished::message(1000))
        .await;
    let half = tokio::spawn({
        let peer = peer.clone();
        async move {
            let half = Unfinished::message(1000);
            peer.call("/reveille.v1.Relay/Subscribe", half).await
        }
    });
    // A peer that never answers the PING of a graceful close, and half a header block.
    let mut mute = RawPeer::greeting(&target).await;
    let block = frame(HEADERS, 0, 1, &[0x83]);
    mute.send(&block).await.expect("taken");
    let mut unread = Vec::new();
    for path in [
        "/reveille.v1.Admin/WatchStats",
        "/grpc.health.v1.Health/Check",
        "/reveille.v1.Relay/NotifyStream",
        "a refusal",
    ] {
        let mut peer = RawPeer::greeting(&target).await;
        peer.send(&settings(4, 0)).await.expect("taken");
        match path.starts_with('/') {
            true => {
                peer.open(1, path).await;
                let empty = frame(DATA, END_STREAM, 1, &[0; 5]);
                peer.send(&empty).await.expect("taken");
            }
            false => peer.get(1, "/").await,
        }
        unread.push(peer);
    }
    tokio::time::sleep(Duration::from_millis(200)).await;

    let start = Instant::now();
    let status = relay.terminate().await;
    let took = start.elapsed();
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(9), "it took {took:?}");
    drop((watch, reflecting, notifying, half, mute, unread));
}
