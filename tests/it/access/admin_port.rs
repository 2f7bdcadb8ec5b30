//! The pages of the admin port, for each kind of caller.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::GuardedRelay;
use crate::{sources::root, support::within};

/// Returns the whole answer to a request with this `authorization`: its head and its body.
pub(super) async fn answer(address: SocketAddr, path: &str, authorization: Option<&str>) -> String {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let header = authorization.map(|value| format!("authorization: {value}\r\n"));
    let header = header.unwrap_or_default();
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut answer = String::new();
    within("a page", stream.read_to_string(&mut answer))
        .await
        .expect("text");
    answer
}

/// Returns the status of a page.
async fn status(relay: &GuardedRelay, path: &str, token: Option<&str>) -> u16 {
    let address = relay.relay.admin_address().expect("a port");
    let bearer = token.map(|token| format!("Bearer {token}"));
    let answer = answer(address, path, bearer.as_deref()).await;
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    code.unwrap_or_else(|| panic!("{answer}"))
}

/// Each page, and whether it is a probe, which needs no credential. Each path of the sources has a row.
const PAGES: [(&str, bool); 6] = [
    ("/livez", true),
    ("/readyz", true),
    ("/readyz?verbose", false),
    ("/readyz/store", false),
    ("/metrics", false),
    ("/unknown", false),
];

#[tokio::test]
async fn only_probes_need_no_credential() {
    let relay = GuardedRelay::start().await;
    let (owner, other) = (relay.token("owner").await, relay.token("other").await);
    for (path, is_probe) in PAGES {
        let anyone = status(&relay, path, None).await;
        let denied = status(&relay, path, Some(other.reveal())).await;
        let allowed = status(&relay, path, Some(owner.reveal())).await;
        if is_probe {
            assert_eq!([anyone, denied, allowed], [200; 3], "{path}");
        } else {
            assert_eq!([anyone, denied], [401, 403], "{path}");
            let there = if path == "/unknown" { 404 } else { 200 };
            assert_eq!(allowed, there, "{path}");
        }
    }
    let guesses = (0..20).map(|number| format!("rvl_{number:010}_guess"));
    let mut answers = Vec::new();
    for guess in guesses {
        answers.push(status(&relay, "/metrics", Some(&guess)).await);
    }
    assert_eq!((answers[0], answers[19]), (401, 429), "{answers:?}");
    assert_eq!(status(&relay, "/metrics", Some(owner.reveal())).await, 200);
}

#[test]
fn every_route_of_the_admin_port_has_a_row() {
    let source = std::fs::read_to_string(root().join("src/console.rs")).expect("the sources");
    let routes = source.split(".route(\"").skip(1);
    let routes: Vec<_> = routes.filter_map(|rest| rest.split('"').next()).collect();
    assert!(routes.len() >= 4, "{routes:?}");
    for route in routes {
        let route = route.replace("{part}", "store");
        let row = PAGES.iter().find(|(path, _)| *path == route);
        assert!(row.is_some(), "{route} has no row");
    }
}
