//! The client library over a wire that breaks: what is told, how often, and how soon.

use std::{
    io,
    time::{Duration, Instant},
};

use reveille::{
    Accepted, Client, ClientConfig, ConnectionState, ErrorKind, FlagName, Notification, Publisher,
    PublisherOptions, WakeReason, testing::TestRelay,
};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinHandle,
};

use crate::support::{Wire, eager, listening, queue, told, until, within, woken};

#[tokio::test]
async fn a_subscription_survives_the_relays_restart() {
    let mut relay = TestRelay::start().await.expect("a relay");
    let mut wakes = eager(&relay.url())
        .subscribe(listening("worker-1", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    relay.restart().await.expect("started again");
    assert_eq!(woken(&mut wakes).await.reason, WakeReason::CatchUp);
    relay.wake(&queue("acct/orders")).await.expect("counted");
    assert_eq!(woken(&mut wakes).await.notifications, 1);
}

#[tokio::test]
async fn after_a_cut_it_is_told_exactly_what_it_missed() {
    let relay = TestRelay::start().await.expect("a relay");
    let wire = Wire::of(&relay).await;
    let orders = queue("acct/orders");
    let mut wakes = eager(&wire.url())
        .subscribe(listening("worker-1", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    for round in 1..=5 {
        relay.wake(&orders).await.expect("counted");
        assert_eq!(told(&mut wakes, 1).await.sequence, round * 4 - 3);
        wire.cut();
        for _ in 0..3 {
            relay.wake(&orders).await.expect("counted");
        }
        wire.mend();
        let missed = told(&mut wakes, 3).await;
        assert_eq!(missed.reason, WakeReason::Notified, "resumed, not guessed");
        assert_eq!(missed.sequence, round * 4);
    }
}

#[tokio::test]
async fn a_silent_relay_is_noticed_by_its_missing_heartbeats() {
    let relay = TestRelay::start().await.expect("a relay");
    let wire = Wire::of(&relay).await;
    let mut wakes = eager(&wire.url())
        .subscribe(listening("worker-1", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    let mut link = wakes.link();
    let reading = tokio::spawn(async move { woken(&mut wakes).await });
    within(
        "connected",
        link.wait_for(|l| l.connection == ConnectionState::Connected),
    )
    .await
    .expect("it lives");

    wire.stall();
    let stalled = Instant::now();
    within(
        "noticed",
        link.wait_for(|l| l.connection == ConnectionState::Reconnecting),
    )
    .await
    .expect("it lives");
    // 2.5 heartbeats of one second, and what a busy machine adds.
    assert!(stalled.elapsed() < Duration::from_secs(5));

    relay.wake(&queue("acct/orders")).await.expect("counted");
    wire.mend();
    let missed = within("it comes back", reading).await.expect("no panic");
    assert_eq!(missed.reason, WakeReason::CatchUp);
}

#[tokio::test]
async fn a_refused_subscription_ends_with_the_refusal() {
    let relay = TestRelay::start().await.expect("a relay");
    let options = reveille::SubscribeOptions {
        selectors: Vec::new(),
        ..listening("worker-1", &["acct/orders"])
    };
    let refused = eager(&relay.url()).subscribe(options).expect_err("none");
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.message().starts_with("selectors:"), "{refused}");
}

#[tokio::test]
async fn notify_waits_until_the_relay_is_back() {
    let mut relay = TestRelay::start().await.expect("a relay");
    let publisher = eager(&relay.url()).publisher("p");
    relay.stop().await;
    let waiting = notify_all(&publisher, vec![Notification::new(queue("acct/orders"))]);
    until("it waits", async || publisher.pending() == 1).await;
    relay.restart().await.expect("started again");
    let accepted = within("acknowledged", waiting).await.expect("no panic");
    assert_eq!(accepted.expect("accepted")[0].sequence, 1);
    assert_eq!(publisher.pending(), 0);
}

/// Notifies in the background.
fn notify_all(
    publisher: &Publisher,
    events: Vec<Notification>,
) -> JoinHandle<reveille::Result<Vec<Accepted>>> {
    let publisher = publisher.clone();
    tokio::spawn(async move { publisher.notify_all(events).await })
}

#[tokio::test]
async fn an_unreachable_relay_costs_queues_not_events() {
    let mut relay = TestRelay::start().await.expect("a relay");
    let publisher = eager(&relay.url()).publisher("p");
    let orders = queue("acct/orders");
    relay.stop().await;
    let events = (0..10_000).flat_map(|round| {
        let address = queue(&format!("acct/orders-{}", round % 10));
        [address, orders.clone()].map(Notification::new)
    });
    let waiting = notify_all(&publisher, events.collect());
    until("all wait", async || publisher.pending() >= 11).await;
    assert!(publisher.pending() <= 22, "{} wait", publisher.pending());
    relay.restart().await.expect("started again");
    let mut wakes = eager(&relay.url())
        .subscribe(listening("worker-1", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    let accepted = within("all acknowledged", waiting).await;
    accepted.expect("no panic").expect("accepted");
    assert_eq!(publisher.pending(), 0);
}

#[tokio::test]
async fn conflated_events_are_counted_each() {
    let mut relay = TestRelay::start().await.expect("a relay");
    let client = eager(&relay.url());
    let publisher = client.publisher("p");
    let mut wakes = client
        .subscribe(listening("worker-1", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    relay.stop().await;
    let one = Notification {
        payload_size: 3,
        ..Notification::new(queue("acct/orders"))
    };
    let waiting = notify_all(&publisher, vec![one; 10_000]);
    until("it waits", async || publisher.pending() > 0).await;
    relay.restart().await.expect("started again");
    let (mut notifications, mut payload) = (0, 0);
    let counted = async {
        while notifications < 10_000 {
            let work = woken(&mut wakes).await;
            notifications += work.notifications;
            payload += work.payload_size;
            if work.reason == WakeReason::CatchUp && work.sequence > 0 {
                // It came back after they were counted: one look stands for all of them.
                return None;
            }
        }
        Some((notifications, payload))
    };
    let (accepted, counted) = tokio::join!(waiting, counted);
    accepted.expect("no panic").expect("accepted");
    assert!(
        matches!(counted, None | Some((10_000, 30_000))),
        "{counted:?}"
    );
}

#[tokio::test]
async fn a_deadline_that_passes_is_an_error_to_the_caller() {
    let mut relay = TestRelay::start().await.expect("a relay");
    let options = PublisherOptions {
        deadline: Duration::from_millis(500),
        ..PublisherOptions::default()
    };
    let publisher = eager(&relay.url()).publisher_with(options);
    relay.stop().await;
    let late = within(
        "an answer",
        publisher.notify(Notification::new(queue("acct/orders"))),
    )
    .await
    .expect_err("nobody acknowledged it");
    assert_eq!(late.kind(), ErrorKind::Timeout, "{late}");
    let named = late.message().contains("the last attempt failed: ");
    assert!(named, "{late}");
    // It is sent all the same.
    relay.restart().await.expect("started again");
    until("sent", async || publisher.pending() == 0).await;
    let accepted = relay.wake(&queue("acct/orders")).await.expect("counted");
    assert_eq!(accepted.sequence, 2);
}

#[tokio::test]
async fn a_refused_notification_fails_its_own_caller_only() {
    let relay = TestRelay::with_config(reveille::NodeConfig {
        relay: reveille::RelayConfig {
            max_queues: 1,
            ..reveille::RelayConfig::default()
        },
        ..reveille::NodeConfig::default()
    })
    .await
    .expect("a relay");
    let publisher = eager(&relay.url()).publisher("p");
    let too_long = Notification {
        delay: Duration::from_secs(15 * 24 * 3600),
        ..Notification::new(queue("acct/orders"))
    };
    let good = Notification::new(queue("acct/orders"));
    let (bad, good) = tokio::join!(publisher.notify(too_long), publisher.notify(good));
    assert_eq!(bad.expect_err("15 days").kind(), ErrorKind::Invalid);
    assert_eq!(good.expect("accepted").sequence, 1);
}

#[tokio::test]
async fn pipelined_requests_survive_a_cut() {
    let relay = TestRelay::start().await.expect("a relay");
    let wire = Wire::of(&relay).await;
    let options = PublisherOptions {
        batch: 1,
        pipeline: 8,
        ..PublisherOptions::default()
    };
    let publisher = eager(&wire.url()).publisher_with(options);
    let name = |round| queue(&format!("acct/orders-{round}"));
    let mut waiting = Vec::new();
    for round in 0..200 {
        let event = Notification::new(name(round));
        waiting.push(notify_all(&publisher, vec![event]));
        if round % 50 == 25 {
            until("connected", async || wire.connections() > 0).await;
            wire.cut();
            wire.mend();
        }
    }
    for one in waiting {
        let accepted = within("acknowledged", one).await;
        accepted.expect("no panic").expect("accepted");
    }
    for round in 0..200 {
        let accepted = relay.wake(&name(round)).await.expect("counted");
        // A request whose answer was lost may be counted twice, none may be lost.
        assert!(accepted.sequence > 1, "{round}: {accepted:?}");
    }
}

async fn three_relays() -> (Vec<TestRelay>, Client) {
    let mut relays = Vec::new();
    for _ in 0..3 {
        relays.push(TestRelay::start().await.expect("a relay"));
    }
    let urls: Vec<_> = relays.iter().map(TestRelay::url).collect();
    let client = Client::new(&urls.join(",")).expect("a client");
    (relays, client)
}

#[tokio::test]
async fn a_client_of_several_relays_goes_to_another_one_when_its_relay_ends() {
    let (mut relays, client) = three_relays().await;
    let orders = queue("acct/orders");
    let publisher = client.publisher("billing");
    let mut wakes = client
        .subscribe(listening("worker-1", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    let notification = || Notification::new(orders.clone());
    publisher.notify(notification()).await.expect("counted");
    assert_eq!(woken(&mut wakes).await.notifications, 1);
    for ended in 0..2 {
        let before = client.url().to_owned();
        let used = relays.iter().position(|relay| relay.url() == before);
        let mut used = relays.remove(used.expect("one of them"));
        let began = Instant::now();
        let end = async {
            match ended {
                0 => used.stop().await,
                _ => drop(used),
            }
        };
        let moved = async { (woken(&mut wakes).await, began.elapsed()) };
        let ((), (work, moved)) = tokio::join!(end, moved);
        assert_eq!(work.reason, WakeReason::CatchUp);
        assert!(moved < Duration::from_secs(2), "{moved:?}");
        assert_ne!(client.url(), before);
        // The publisher and the calls go there as well.
        let began = Instant::now();
        publisher.notify(notification()).await.expect("counted");
        assert_eq!(woken(&mut wakes).await.notifications, 1);
        let listed = client.listeners().await.expect("listed");
        assert_eq!(listed.len(), 1);
        let moved = began.elapsed();
        assert!(moved < Duration::from_secs(2), "{moved:?}");
    }
}

#[tokio::test]
async fn a_call_goes_to_the_relays_that_can_be_reached() {
    let relay = TestRelay::start().await.expect("a relay");
    for _ in 0..10 {
        let urls = format!("http://127.0.0.1:9,http://127.0.0.1:1,{}", relay.url());
        let client = Client::new(&urls).expect("a client");
        client.queues().await.expect("listed at the third");
        assert_eq!(client.url(), relay.url());
    }
    let client = Client::new("http://127.0.0.1:9,http://127.0.0.1:1").expect("a client");
    let error = client.queues().await.expect_err("no relay");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

/// A host that is off answers no SYN. The queue of this socket is full, so the system answers none.
async fn off() -> (TcpListener, Vec<JoinHandle<io::Result<TcpStream>>>) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(([127, 0, 0, 1], 0).into()).expect("a port");
    let listener = socket.listen(1).expect("it listens");
    let address = listener.local_addr().expect("bound");
    let connect = |_| tokio::spawn(TcpStream::connect(address));
    let filling: Vec<_> = (0..8).map(connect).collect();
    until("the queue is full", async || {
        let connecting = TcpStream::connect(address);
        let connected = tokio::time::timeout(Duration::from_millis(200), connecting);
        connected.await.is_err()
    })
    .await;
    (listener, filling)
}

#[tokio::test]
async fn a_change_goes_to_another_relay_where_no_connection_is_made_in_time() {
    let relay = TestRelay::start().await.expect("a relay");
    let (off, _filling) = off().await;
    let off = format!("http://{}", off.local_addr().expect("bound"));
    let config = ClientConfig {
        connect_timeout: Duration::from_millis(500),
        ..ClientConfig::default()
    };
    let urls = format!("{off},{}", relay.url());
    let client = loop {
        // Each client begins at a random relay of its list.
        let client = Client::with_config(&urls, config.clone()).expect("a client");
        if client.url() == off {
            break client;
        }
    };
    let began = Instant::now();
    let flag = FlagName::new("go").expect("a name");
    client.flags().leash(&flag).await.expect("cleared");
    assert!(began.elapsed() < Duration::from_secs(4));
    assert_eq!(client.url(), relay.url());
}

#[tokio::test]
async fn a_client_stays_with_its_relay() {
    let (mut relays, client) = three_relays().await;
    let used = client.url().to_owned();
    let mut streams = Vec::new();
    for number in 0..20 {
        let listener = listening(&format!("worker-{number}"), &["acct/orders"]);
        let mut wakes = client.subscribe(listener).expect("options");
        woken(&mut wakes).await;
        streams.push(wakes);
    }
    // Others end: nothing moves.
    for relay in &mut relays {
        if relay.url() != used {
            relay.stop().await;
        }
    }
    let publisher = client.publisher("billing");
    let sent = publisher.notify(Notification::new(queue("acct/orders")));
    assert_eq!(sent.await.expect("counted").listeners, 20);
    assert_eq!(client.url(), used);
}
