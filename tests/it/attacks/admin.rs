//! The admin port, and requests that are not gRPC.

use std::{net::SocketAddr, time::Duration};

use http::{Method, Request};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    frames::RawPeer,
    harness::Trial,
    peer::{Peer, Unfinished},
    target::{Scheme, Target},
};
use crate::{
    binary::Binary,
    support::{get, within},
};

/// Connects this many peers. Some have not begun their request, some lack the end of its head, some
/// its body.
pub(super) async fn half_requests(admin: SocketAddr, count: usize) -> Vec<RawPeer> {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_requests_on_the_admin_port_delay_no_probe() {
    let mut trial = Trial::start(Scheme::Plain, &[]).await;
    let admin = trial.admin();
    let attack = async move {
        let slow = half_requests(admin, 500).await;
        let probe = tokio::time::timeout(Duration::from_secs(1), get(admin, "/livez"));
        assert_eq!(probe.await.expect("at once").0, 200);
        tokio::time::sleep(Duration::from_millis(500)).await;
        drop(slow);
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
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
    let peer = Peer::connect(&Target::plain(&relay), 64 * 1024).await;
    for (method, kind, code) in [
        (Method::POST, Some("application/grpc"), 200),
        (Method::POST, Some("application/grpc+proto"), 200),
        (Method::POST, Some("application/grpc;charset=utf-8"), 200),
        (Method::POST, Some("application/json"), 415),
        (Method::POST, Some("application/grpcx"), 415),
        (Method::POST, Some("text/plain"), 415),
        (Method::POST, None, 415),
        (Method::GET, Some("application/grpc"), 405),
        (Method::OPTIONS, None, 405),
        (Method::PUT, Some("application/grpc"), 405),
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
        if code == 405 {
            assert_eq!(answer.headers()["allow"], "POST");
        }
    }
}
