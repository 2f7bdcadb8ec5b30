//! Limits of the relay for requests, connections, lists and tables. These tests judge no latency, so
//! they run beside others.

use std::{net::SocketAddr, time::Duration};

use http::{Method, Request};
use reveille::{
    Client, ErrorKind, ListenerId, Notification, Selector, SubscribeOptions, Subscription,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{
    deadlines::with_rules,
    frames::{ACK, DATA, GOAWAY, RST_STREAM, RawPeer, SETTINGS, WINDOW_UPDATE, frame, settings},
    peer::{Peer, Unfinished, ended},
    target::Target,
};
use crate::{
    binary::{Binary, limits},
    support::{figure, get, listening, queue, until, within, woken},
};

const NOTIFY_STREAM: &str = "/reveille.v1.Relay/NotifyStream";
const WINDOW: u32 = 64 * 1024;
/// A complete `NotifyRequest` of one event on `acct/orders`, with its prefix: one of the shortest.
const REQUEST: &[u8] = b"\0\0\0\0\x10\x0a\x0e\x0a\x04acct\x12\x06orders";
/// Maximum of unanswered requests that the protocol allows on a connection.
const REQUESTS: usize = 2_000;

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
    assert!(
        why.contains("the limit of 3 connections is reached"),
        "{why}"
    );
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
        status == 503 && why.contains("the limit of 129 connections is reached")
    })
    .await;
    assert!(!relay.log().contains("cannot accept"), "{}", relay.log());
}

/// Sends a request with these header lines; returns the answer.
async fn ask(admin: SocketAddr, lines: &str) -> String {
    let mut stream = TcpStream::connect(admin).await.expect("it listens");
    let request = format!("{lines}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut answer = String::new();
    within("an answer", stream.read_to_string(&mut answer))
        .await
        .expect("text");
    answer
}

#[tokio::test]
async fn the_admin_port_accepts_configured_host_names_only() {
    let relay = Binary::serve_with(&["--admin-host", "relay.internal,other.internal"], &[]).await;
    let admin = relay.admin();
    let port = admin.port();
    for (host, code) in [
        (format!("127.0.0.1:{port}"), 200),
        ("127.0.0.1".to_owned(), 200),
        ("[::1]:80".to_owned(), 200),
        (format!("localhost:{port}"), 200),
        ("LOCALHOST".to_owned(), 200),
        ("relay.internal:7601".to_owned(), 200),
        ("Other.Internal".to_owned(), 200),
        // A page of this name, resolved to this address, would read the metrics.
        (format!("attacker.example:{port}"), 421),
        ("127.0.0.1.attacker.example".to_owned(), 421),
        ("localhost.attacker.example".to_owned(), 421),
        (String::new(), 421),
        // Of two hosts a proxy may have checked the other one.
        ("localhost\r\nhost: attacker.example".to_owned(), 421),
        ("localhost\r\nhost: localhost".to_owned(), 421),
    ] {
        for path in ["/metrics", "/livez", "/elsewhere"] {
            let answer = ask(admin, &format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n")).await;
            let code = if path == "/elsewhere" && code == 200 {
                404
            } else {
                code
            };
            let expected = format!("HTTP/1.1 {code} ");
            assert!(answer.starts_with(&expected), "{host:?}: {answer}");
            assert_eq!(answer.contains("--admin-host"), code == 421, "{answer}");
        }
    }
    // Probes with HTTP/1.0 state no host; browsers always do.
    assert!(
        ask(admin, "GET /livez HTTP/1.0\r\n")
            .await
            .contains(" 200 ")
    );
    // The host of the request target counts as well.
    let absolute = ask(
        admin,
        "GET http://attacker.example/livez HTTP/1.1\r\nhost: localhost\r\n",
    );
    assert!(absolute.await.contains(" 421 "));
}

#[tokio::test]
async fn a_body_is_refused_on_the_admin_port() {
    let relay = Binary::serve().await;
    for body in ["content-length: 1048576", "transfer-encoding: chunked"] {
        let lines = format!("POST /metrics HTTP/1.1\r\nhost: localhost\r\n{body}\r\n");
        let answer = ask(relay.admin(), &lines).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    }
}

#[tokio::test]
async fn a_request_that_is_not_grpc_is_refused_with_an_http_status() {
    let relay = Binary::serve().await;
    let peer = Peer::connect(&Target::plain(&relay), WINDOW).await;
    for (method, kind, code) in [
        (Method::POST, Some("application/grpc"), 200),
        (Method::POST, Some("application/grpc+proto"), 200),
        (Method::POST, Some("application/grpc;charset=utf-8"), 200),
        (Method::POST, Some("application/json"), 415),
        (Method::POST, Some("application/grpcx"), 415),
        (Method::POST, Some("text/plain"), 415),
        (Method::POST, None, 415),
        (Method::GET, Some("application/grpc"), 415),
        (Method::OPTIONS, None, 415),
        (Method::PUT, Some("application/grpc"), 415),
    ] {
        let mut request = Request::builder()
            .method(method.clone())
            .uri("http://relay/reveille.v1.Flags/ListFlags");
        if let Some(kind) = kind {
            request = request.header("content-type", kind);
        }
        let request = request.body(Unfinished::whole(&[])).expect("a request");
        let answer = within("an answer", peer.send(request))
            .await
            .expect("answered");
        assert_eq!(answer.status().as_u16(), code, "{method} {kind:?}");
    }
}

/// What the relay reads of a request before it refuses it is at most the limit of its service.
#[tokio::test]
async fn requests_beyond_their_limits_are_refused() {
    let relay = Binary::serve().await;
    let peer = Peer::connect(&Target::plain(&relay), WINDOW).await;
    for (path, limit) in [
        ("/reveille.v1.Relay/Report", 64 * 1024),
        ("/reveille.v1.Relay/Notify", 1024 * 1024),
        (NOTIFY_STREAM, 1024 * 1024),
        ("/reveille.v1.Relay/Subscribe", 1024 * 1024),
        ("/reveille.v1.Flags/GetFlag", 64 * 1024),
    ] {
        for bytes in [limit + 1, 2 * 1024 * 1024] {
            let answers = peer
                .call_often(20, path, || Unfinished::whole(&vec![0; bytes]))
                .await;
            for answer in answers {
                let answer = answer.expect("a status, not a broken connection");
                let (code, message) = within("an end", ended(answer)).await;
                assert_eq!(code, "8", "{path}: {message}");
                assert!(message.contains("limit is"), "{path} {code}: {message}");
            }
        }
    }
}

#[tokio::test]
async fn reflection_that_is_switched_off_is_not_served() {
    const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    for (switch, status) in [("false", Some("12")), ("true", None)] {
        let relay = Binary::serve_with(
            &["--config", &limits(&format!("reflection = {switch}"))],
            &[],
        )
        .await;
        let peer = Peer::connect(&Target::plain(&relay), WINDOW).await;
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

/// Checks of the health are received before their caller is known.
#[tokio::test]
async fn callers_that_are_not_known_hold_little() {
    let home = tempfile::tempdir().expect("a directory");
    let (relay, _) = with_rules(home.path()).await;
    let target = Target::plain(&relay);
    let before = relay.resident();
    let path = "/grpc.health.v1.Health/Check";
    for _ in 0..2 {
        let peer = Peer::connect(&target, WINDOW).await;
        let answers = peer.call_often(900, path, || Unfinished::message(64 * 1024));
        for answer in answers.await {
            let (code, message) = ended(answer.expect("answered")).await;
            assert_eq!(code, "8", "{path}: {message}");
        }
    }
    let grown = relay.resident().saturating_sub(before);
    // All of it would be 112 MiB.
    assert!(grown < 48 * 1024, "{grown} KiB");
}

/// Removes the complete messages; returns their number.
fn take_messages(body: &mut Vec<u8>) -> usize {
    let (mut count, mut end) = (0, 0);
    while let Some([_, length @ .., _]) = body.get(end..end + 6) {
        let length: [u8; 4] = length.try_into().expect("four bytes");
        let next = end + 5 + u32::from_be_bytes(length) as usize;
        if next > body.len() {
            break;
        }
        (count, end) = (count + 1, next);
    }
    body.drain(..end);
    count
}

/// It sends the requests, each in a separate frame, before it reads an answer.
#[tokio::test]
async fn a_publisher_that_reads_its_answers_late_gets_all_of_them() {
    let relay = Binary::serve().await;
    let mut peer = RawPeer::greeting(&Target::plain(&relay)).await;
    peer.send(&settings(4, 0)).await.expect("taken");
    assert_eq!(peer.next_frame().await.0, SETTINGS);
    // Until then the stream has HTTP/2's default window.
    let taken = frame(SETTINGS, ACK, 0, &[]);
    peer.send(&taken).await.expect("taken");
    peer.open(1, NOTIFY_STREAM).await;
    let all = frame(DATA, 0, 1, REQUEST).repeat(REQUESTS);
    peer.send(&all).await.expect("taken");
    tokio::time::sleep(Duration::from_millis(500)).await;
    let more = (1_u32 << 30).to_be_bytes();
    let update = frame(WINDOW_UPDATE, 0, 1, &more);
    peer.send(&update).await.expect("kept");
    let (mut answers, mut body) = (0, Vec::new());
    while answers < REQUESTS {
        let (kind, payload) = peer.next_frame().await;
        assert!(
            !matches!(kind, GOAWAY | RST_STREAM),
            "frame {kind} after {answers} answers: {payload:?}"
        );
        if kind == DATA {
            body.extend(payload);
            answers += take_messages(&mut body);
        }
    }
}

/// Subscribes with many long names; returns the streams, which must stay open.
async fn crowd(target: &Target, listeners: usize, names: usize) -> Vec<Subscription> {
    let mut held = Vec::new();
    for listener in 0..listeners {
        // A separate client each: unread streams would fill a shared connection.
        let client = target.client();
        let name = |at: usize| -> Selector {
            let text = format!("{}/{listener}-{at}-{}", "a".repeat(100), "q".repeat(90));
            text.parse().expect("a selector")
        };
        let id = ListenerId::new(&format!("listener-{listener}")).expect("a name");
        let selectors: Vec<_> = (0..names).map(name).collect();
        let options = SubscribeOptions::new(id, selectors);
        let mut wakes = client.subscribe(options).expect("options");
        woken(&mut wakes).await;
        held.push(wakes);
    }
    held
}

#[tokio::test]
async fn every_listener_is_listed_once_on_pages_of_bounded_size() {
    let relay = Binary::serve().await;
    let held = crowd(&Target::plain(&relay), 40, 1200).await;
    let client = Client::new(&relay.url()).expect("a URL");
    // The relay admits a stream in steps of 1,024 queues, and its first wake-up may come between two.
    let mut listed = Vec::new();
    until("all queues are admitted", async || {
        listed = client.listeners().await.expect("all pages").entries;
        listed.iter().all(|listener| listener.queues == 1200)
    })
    .await;
    listed.sort_by(|a, b| a.listener_id.cmp(&b.listener_id));
    listed.dedup_by(|a, b| a.listener_id == b.listener_id);
    assert_eq!(listed.len(), 40);
    for listener in &listed {
        let selectors = listener.selectors.iter();
        let written = selectors.map(|one| one.storage_account.len() + 1 + one.queue_name.len());
        let bytes: usize = written.sum();
        assert!((8 * 1024..=16 * 1024).contains(&bytes), "{bytes} bytes");
    }
    drop(held);
}

#[tokio::test]
async fn unread_lists_lock_no_operator_out() {
    let relay = Binary::serve().await;
    let held = crowd(&Target::plain(&relay), 4, 400).await;
    let target = Target::plain(&relay);
    let flags = "/reveille.v1.Flags/ListFlags";
    let queues = "/reveille.v1.Admin/ListQueues";
    // More on one connection than are computed at one time, and some of many.
    let greedy = Peer::connect(&target, 1).await;
    let mut unread = Vec::new();
    unread.extend(
        greedy
            .call_often(20, queues, || Unfinished::whole(&[]))
            .await,
    );
    for _ in 0..20 {
        let peer = Peer::connect(&target, 1).await;
        unread.extend(peer.call_often(2, flags, || Unfinished::whole(&[])).await);
    }
    let client = Client::new(&relay.url()).expect("a URL");
    assert_eq!(client.queues().await.expect("a list").len(), 1_600);
    assert_eq!(client.listeners().await.expect("a list").len(), 4);
    assert!(client.flags().list("").await.expect("a list").is_empty());
    drop((unread, held));
}

#[tokio::test]
async fn a_table_of_queues_in_use_refuses_more_and_the_probe_reports_it() {
    let relay = Binary::serve_with(&["--config", &limits("max_queues = 10")], &[]).await;
    let client = Client::new(&relay.url()).expect("a URL");
    let names: Vec<_> = (0..10).map(|number| format!("needed/q{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut wakes = client.subscribe(listening("all", &names)).expect("options");
    for _ in 0..10 {
        woken(&mut wakes).await;
    }
    let publisher = client.publisher("p");
    let refused = publisher.notify(Notification::new(queue("one/more"))).await;
    let error = refused.expect_err("full");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.message().contains("limit of 10 queues"), "{error}");
    until("the probe reports it", async || {
        let (status, text) = get(relay.admin(), "/readyz").await;
        status == 503 && text.contains("full: the limit of 10 queues")
    })
    .await;
    let (live, _) = get(relay.admin(), "/livez").await;
    assert_eq!(live, 200);
    // The existing queues go on.
    let known = publisher.notify(Notification::new(queue("needed/q3")));
    known.await.expect("counted");
}
