//! Servers that do not fit the configuration: at the start an error, later a line of the log.

use super::*;
use crate::error::{Error, ErrorKind};

/// A server whose user `relay` has these permissions.
fn permitting(permissions: &str) -> String {
    format!(
        "authorization {{ users = [{{ user: relay, password: hunter2, permissions: \
         {{ {permissions} }} }}] }}"
    )
}

const ALL: &str = r#"publish: "reveille1.reveille.>", subscribe: "reveille1.reveille.>""#;

/// Returns the configuration, and the directory of the password's file.
fn as_relay(server: &NatsServer, password: &str) -> (NatsConfig, tempfile::TempDir) {
    let home = tempfile::tempdir().expect("a directory");
    let password_file = home.path().join("password");
    std::fs::write(&password_file, password).expect("written");
    let credentials = NatsCredentials::Password {
        user: "relay".to_owned(),
        password_file,
    };
    let config = NatsConfig {
        credentials: Some(credentials),
        ..config(server)
    };
    (config, home)
}

async fn refused(config: &NatsConfig) -> Error {
    let connecting = NatsConnection::connect(config, A);
    let connected = timeout(PATIENCE, connecting).await.expect("in time");
    connected.expect_err("refused")
}

#[tokio::test]
async fn a_login_is_used_and_a_wrong_one_is_denied() {
    let (log, _guard) = logged();
    let server = NatsServer::with_config(&permitting(ALL));
    let (good, _home) = as_relay(&server, "hunter2\n");
    let mut a = NatsConnection::connect(&good, A).await.expect("permitted");
    publish(&a.publisher(), 1).await;
    next_of_all(&mut a).await;
    let (wrong, _home) = as_relay(&server, "hunter3");
    let wrong = refused(&wrong).await;
    assert_eq!(wrong.kind(), ErrorKind::Denied);
    let text = wrong.to_string();
    assert!(text.starts_with("cluster: NATS at 127.0.0.1:"), "{text}");
    assert!(text.contains("authorization violation"), "{text}");
    let none = refused(&config(&server)).await;
    assert_eq!(none.kind(), ErrorKind::Denied);
    for shown in [log.text(), format!("{a:?} {good:?} {wrong:?} {none:?}")] {
        assert!(!shown.contains("hunter"), "{shown}");
    }
}

#[tokio::test]
async fn a_missing_permission_is_logged_with_its_subject() {
    for (permissions, word, subject) in [
        (
            r#"publish: "x", subscribe: "reveille1.reveille.>""#,
            "Publish",
            "reveille1.reveille.all".to_owned(),
        ),
        (
            r#"publish: "reveille1.reveille.>", subscribe: "reveille1.reveille.all""#,
            "Subscription",
            format!("reveille1.reveille.to.{A}"),
        ),
    ] {
        let (log, _guard) = logged();
        let server = NatsServer::with_config(&permitting(permissions));
        let (config, _home) = as_relay(&server, "hunter2");
        let a = NatsConnection::connect(&config, A).await.expect("a login");
        publish(&a.publisher(), 1).await;
        // The client writes it in lower case.
        let refusal = format!("permissions violation for {word} to \"{subject}\"").to_lowercase();
        until(&refusal, || log.text().to_lowercase().contains(&refusal)).await;
    }
}

#[tokio::test]
async fn messages_of_64_kib_must_be_permitted() {
    let small = NatsServer::with_config("max_payload: 65535");
    let error = refused(&config(&small)).await;
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let text = error.to_string();
    assert!(
        text.starts_with("cluster: max_payload") && text.contains("65536"),
        "{text}"
    );
    let exact = NatsServer::with_config("max_payload: 65536");
    let mut a = connect(&exact, A).await;
    let largest = Bytes::from(vec![1; 65_536]);
    assert!(a.publisher().publish(largest.clone()));
    assert_eq!(next_of_all(&mut a).await, largest);
}

#[tokio::test]
async fn a_server_of_another_protocol_and_a_silent_one_are_awaited() {
    use tokio::io::AsyncWriteExt as _;
    async fn serve(answer: &'static [u8]) -> NatsConfig {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async move {
            let mut peers = Vec::new();
            loop {
                let (mut peer, _) = listener.accept().await.expect("it listens");
                peer.write_all(answer).await.expect("written");
                peers.push(peer);
            }
        });
        NatsConfig {
            servers: vec![format!("nats://{address}")],
            ..NatsConfig::default()
        }
    }
    for answer in [&b"SSH-2.0-OpenSSH_9.6\r\n"[..], b""] {
        let (log, _guard) = logged();
        let config = serve(answer).await;
        let a = NatsConnection::connect(&config, A).await.expect("it waits");
        assert!(!a.publisher().publish(Bytes::new()));
        let lines = log.count("NATS cannot be reached");
        assert_eq!(lines, 1, "{}", log.text());
        assert!(
            log.text().contains(&config.servers[0][7..]),
            "{}",
            log.text()
        );
    }
}

#[tokio::test]
async fn faults_that_come_with_a_restart_are_logged_once_and_outlived() {
    let (log, _guard) = logged();
    let mut server = NatsServer::with_config(&permitting(ALL));
    let (config, _home) = as_relay(&server, "hunter2");
    let mut a = NatsConnection::connect(&config, A)
        .await
        .expect("permitted");
    let publisher = a.publisher();

    server.kill();
    until("it is seen", || !publisher.is_connected()).await;
    server.restart_with(&permitting("publish: x, subscribe: x"));
    until("a connection", || publisher.is_connected()).await;
    for count in 0..10 {
        publish(&publisher, count).await;
    }
    until("the refusals", || {
        publisher.events.count(Kind::ServerError) >= 12
    })
    .await;
    assert_eq!(log.count("NATS reports an error"), 1, "{}", log.text());

    server.kill();
    until("it is seen", || !publisher.is_connected()).await;
    server.restart_with(&format!("max_payload: 1024, {}", permitting(ALL)));
    until("a connection", || publisher.is_connected()).await;
    for _ in 0..10 {
        assert!(!publisher.publish(Bytes::from(vec![0; 1_025])));
    }
    assert_eq!(publisher.events.count(Kind::TooLarge), 10);
    assert_eq!(log.count("a message is dropped"), 1, "{}", log.text());

    server.kill();
    until("it is seen", || !publisher.is_connected()).await;
    server.restart_with("authorization { user: relay, password: other }");
    tokio::time::sleep(Duration::from_secs(1)).await;
    server.kill();
    server.restart_with(&permitting(ALL));
    until("a connection", || publisher.is_connected()).await;
    publish(&publisher, 4).await;
    assert_eq!(number(&next_of_all(&mut a).await), 4);
    assert!(!log.text().contains("hunter2"), "{}", log.text());
}

#[tokio::test]
async fn the_reason_of_a_later_failure_is_logged() {
    let (log, _guard) = logged();
    let mut server = NatsServer::with_config(&permitting(ALL));
    let (config, _home) = as_relay(&server, "hunter2");
    let a = NatsConnection::connect(&config, A)
        .await
        .expect("permitted");
    server.kill();
    until("it is seen", || !a.publisher().is_connected()).await;
    server.restart_with("authorization { user: relay, password: other }");
    until("the reason", || log.count("NATS cannot be reached") == 1).await;
    let text = log.text();
    let reasons = ["authorization violation", "IO error"];
    assert!(reasons.iter().any(|reason| text.contains(reason)), "{text}");
    assert!(a.publisher().connects() <= 2);
}

#[tokio::test]
async fn messages_that_the_relay_does_not_take_are_dropped_and_that_is_logged() {
    let (log, _guard) = logged();
    let server = NatsServer::start();
    let (a, b) = (connect(&server, A).await, connect(&server, B).await);
    let (from_b, of_a) = (b.publisher(), a.publisher());
    for count in 0..9_000 {
        publish(&from_b, count).await;
    }
    let dropped = || of_a.events.count(Kind::SlowConsumer);
    until("drops", || dropped() > 100).await;
    assert!(log.count("too slowly") <= 2, "{}", log.text());
    assert!(log.count("too slowly") >= 1, "{}", log.text());
}
