//! The connection with real servers: order, restarts, room, and faults of the configuration.

mod credentials;
mod faults;

use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use super::{connection::NatsPublisher, events::Kind, *};
use crate::{
    log::{Log, log_to},
    nats_server::NatsServer,
    relay::runtime::PeerTransport as _,
    types::cluster::LifeId,
};

const PATIENCE: Duration = Duration::from_secs(30);
/// Of an attempt to connect, and a part.
const LONGEST_DELAY: Duration = Duration::from_millis(2_500);
const LIVE: &str = "live";
const A: LifeId = LifeId(0xa);
const B: LifeId = LifeId(0xb);

fn config(server: &NatsServer) -> NatsConfig {
    NatsConfig {
        servers: vec![server.url()],
        ..NatsConfig::default()
    }
}

async fn connect(server: &NatsServer, life: LifeId) -> NatsConnection {
    let connected = NatsConnection::connect(&config(server), life).await;
    let mut connection = connected.expect("a connection");
    // The server has both subscriptions when the message returns.
    assert!(
        connection
            .publisher()
            .publish(Bytes::from_static(LIVE.as_bytes()))
    );
    let live = NatsMessage::All(Bytes::from_static(LIVE.as_bytes()));
    let returned = async { while connection.next().await.as_ref() != Some(&live) {} };
    timeout(PATIENCE, returned).await.expect("it returns");
    connection
}

/// Returns the next message of a test.
async fn next(connection: &mut NatsConnection) -> NatsMessage {
    loop {
        let message = timeout(PATIENCE, connection.next()).await;
        match message.expect("a message in time").expect("a client") {
            NatsMessage::All(message) if message == LIVE => {}
            message => return message,
        }
    }
}

async fn next_of_all(connection: &mut NatsConnection) -> Bytes {
    match next(connection).await {
        NatsMessage::All(message) => message,
        other => panic!("{other:?}"),
    }
}

/// Waits until a condition is true.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = timeout(PATIENCE, waiting).await;
    assert!(waited.is_ok(), "not in time: {what}");
}

/// Publishes a number; waits where there is no room.
async fn publish(publisher: &NatsPublisher, number: u32) {
    let message = Bytes::copy_from_slice(&number.to_be_bytes());
    until("room", || publisher.publish(message.clone())).await;
}

fn number(message: &Bytes) -> u32 {
    u32::from_be_bytes(message[..].try_into().expect("four bytes"))
}

/// Begins a log of the test's thread.
fn logged() -> (Log, tracing::subscriber::DefaultGuard) {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter("info,async_nats=off")
        .with_ansi(false)
        .with_writer(move || writer.clone());
    (log, log_to(subscriber.finish()))
}

#[tokio::test]
async fn own_messages_return_and_each_senders_messages_keep_their_order() {
    const COUNT: u32 = 2_000;
    // Fewer than the client of a receiver keeps for it.
    let room = tokio::sync::Semaphore::new(200);
    let server = NatsServer::start();
    let (mut a, b) = (connect(&server, A).await, connect(&server, B).await);
    let (from_a, from_b) = (a.publisher(), b.publisher());
    let sending = async {
        for count in 0..COUNT {
            room.acquire_many(2).await.expect("open").forget();
            publish(&from_a, 2 * count).await;
            publish(&from_b, 2 * count + 1).await;
        }
    };
    let receiving = async {
        let mut next_of = [0, 1];
        while next_of != [2 * COUNT, 2 * COUNT + 1] {
            let number = number(&next_of_all(&mut a).await);
            let expected = &mut next_of[number as usize % 2];
            assert_eq!(number, *expected);
            *expected += 2;
            room.add_permits(1);
        }
    };
    tokio::join!(sending, receiving);
}

#[tokio::test]
async fn a_request_is_answered_and_one_to_an_unknown_life_is_refused() {
    let server = NatsServer::start();
    let (a, mut b) = (connect(&server, A).await, connect(&server, B).await);
    let (from_a, from_b) = (a.publisher(), b.publisher());
    let answering = tokio::spawn(async move {
        let NatsMessage::Ask { reply_to, request } = next(&mut b).await else {
            panic!("no request");
        };
        assert_eq!(request, "which queues");
        assert!(from_b.send(reply_to, Bytes::from_static(b"these")));
        b
    });
    // NATS tells a client of another connection's subscription with a delay.
    let reply = loop {
        let request = from_a.request(B, Bytes::from_static(b"which queues"));
        if let Some(reply) = timeout(PATIENCE, request).await.expect("in time") {
            break reply;
        }
    };
    assert_eq!(reply, "these");
    // Dropped earlier, the client would not write its reply.
    let _b = answering.await.expect("answered");
    let unknown = from_a.request(LifeId(0xc), Bytes::new());
    let refused = timeout(Duration::from_secs(2), unknown).await;
    assert_eq!(refused.expect("at once"), None);
}

#[tokio::test]
async fn requests_arrive_beside_a_flood_of_messages_to_all() {
    let server = NatsServer::start();
    let (mut a, b) = (connect(&server, A).await, connect(&server, B).await);
    let from_b = b.publisher();
    for count in 0..4_000 {
        publish(&from_b, count).await;
    }
    let asking = tokio::spawn(async move { from_b.request(A, Bytes::new()).await });
    // All messages wait in the client by now.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut before = 0;
    while matches!(next(&mut a).await, NatsMessage::All(_)) {
        before += 1;
    }
    assert!(before <= 2, "{before} messages before the request");
    asking.abort();
}

#[tokio::test]
async fn a_restarted_server_is_found_and_both_subscriptions_work_again() {
    let (log, _guard) = logged();
    let mut server = NatsServer::start();
    let mut a = connect(&server, A).await;
    let publisher = a.publisher();
    assert_eq!(a.publisher().connects(), 1);
    for round in 2..4 {
        server.kill();
        until("it is seen", || !publisher.is_connected()).await;
        server.restart();
        until("a connection", || publisher.is_connected()).await;
        publish(&publisher, 5).await;
        assert_eq!(number(&next_of_all(&mut a).await), 5);
        assert_eq!(
            a.publisher().connects(),
            round,
            "counted before its first message"
        );
        let asked = tokio::select! {
            _ = publisher.request(A, Bytes::new()) => panic!("nobody replies"),
            asked = next(&mut a) => asked,
        };
        assert!(matches!(asked, NatsMessage::Ask { .. }), "{asked:?}");
    }
    for words in ["connected to NATS", "is broken"] {
        assert_eq!(log.count(words), 1, "{words}: {}", log.text());
    }
}

#[tokio::test]
async fn while_the_server_is_away_messages_are_dropped() {
    let mut server = NatsServer::start();
    let mut a = connect(&server, A).await;
    let publisher = a.publisher();
    server.kill();
    until("it is seen", || !publisher.is_connected()).await;
    let begun = tokio::time::Instant::now();
    for count in 0..10_000u32 {
        assert!(!publisher.publish(Bytes::copy_from_slice(&count.to_be_bytes())));
    }
    assert!(begun.elapsed() < Duration::from_secs(1));
    server.restart();
    until("a connection", || publisher.is_connected()).await;
    publish(&publisher, 77).await;
    let first = number(&next_of_all(&mut a).await);
    assert_eq!(first, 77, "no dropped message comes later");
}

#[tokio::test]
async fn a_full_channel_drops_messages_and_waits_for_nothing() {
    let server = NatsServer::start();
    let a = connect(&server, A).await;
    let publisher = a.publisher();
    // The client's task runs only when this one waits.
    let taken = (0..300)
        .filter(|_| publisher.publish(Bytes::from_static(b"x")))
        .count();
    assert_eq!(taken, 256);
    assert_eq!(publisher.events.count(Kind::NoRoom), 44);
    until("room", || publisher.publish(Bytes::from_static(b"x"))).await;
}

#[tokio::test]
async fn a_task_without_budget_publishes() {
    use futures_util::FutureExt as _;
    let server = NatsServer::start();
    let publisher = connect(&server, A).await.publisher();
    let (sender, mut receiver) = tokio::sync::mpsc::channel(1_000);
    for _ in 0..1_000 {
        sender.send(()).await.expect("room");
    }
    tokio::task::yield_now().await;
    while receiver.recv().now_or_never().is_some() {}
    assert!(!receiver.is_empty(), "the budget is used up");
    assert!(publisher.publish(Bytes::from_static(b"x")));
}

#[tokio::test]
async fn a_server_that_does_not_answer_takes_no_endless_messages() {
    let server = NatsServer::start();
    let a = connect(&server, A).await;
    let publisher = a.publisher();
    server.freeze();
    let frame = Bytes::from(vec![7; 60 * 1024]);
    let mut taken = 0;
    let filling = async {
        while publisher.publish(frame.clone()) {
            taken += 1;
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, filling).await.expect("it gets full");
    // The buffers of both sockets and the client's channel.
    assert!(taken < 1_000, "{taken}");
    server.resume();
    until("room", || publisher.publish(frame.clone())).await;
}

#[tokio::test]
async fn a_relay_starts_without_its_server_and_finds_it_later() {
    let (log, _guard) = logged();
    let mut server = NatsServer::start();
    server.kill();
    let config = config(&server);
    let connected = NatsConnection::connect(&config, A).await;
    let mut a = connected.expect("it waits");
    let publisher = a.publisher();
    assert!(!publisher.publish(Bytes::from_static(b"x")));
    assert_eq!(a.publisher().connects(), 0);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let lines = log.count("NATS cannot be reached");
    assert_eq!(lines, 1, "{}", log.text());
    server.restart();
    until("a connection", || publisher.is_connected()).await;
    publish(&publisher, 3).await;
    assert_eq!(number(&next_of_all(&mut a).await), 3);
    assert_eq!(a.publisher().connects(), 1);
}

#[tokio::test]
async fn the_last_messages_are_written_before_the_connection_closes() {
    let server = NatsServer::start();
    let (a, mut b) = (connect(&server, A).await, connect(&server, B).await);
    let leaving = Bytes::from_static(b"leaving");
    assert!(a.publisher().publish(leaving.clone()));
    a.close().await;
    assert_eq!(next_of_all(&mut b).await, leaving);
}

#[tokio::test]
async fn a_closed_connection_ends_in_time_and_makes_no_further_attempts() {
    let (log, _guard) = logged();
    let mut server = NatsServer::start();
    let a = connect(&server, A).await;
    let publisher = a.publisher();
    server.kill();
    until("it is seen", || !publisher.is_connected()).await;
    let closing = a.close();
    timeout(Duration::from_millis(500), closing)
        .await
        .expect("no wait");
    // The attempt that was due already is made, and fails.
    tokio::time::sleep(LONGEST_DELAY).await;
    server.restart();
    tokio::time::sleep(LONGEST_DELAY).await;
    assert_eq!(publisher.connects(), 1);
    assert_eq!(log.count("connected to NATS"), 1, "{}", log.text());
}
