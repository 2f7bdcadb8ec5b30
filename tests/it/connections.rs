//! A client's connections: their number, their sharing, and when one is retired.

use std::time::{Duration, Instant};

use reveille::{
    Client, ClientConfig, FlagName, FlagWatch, ListenerId, Notification, Notifier, QueueAddress,
    SubscribeOptions, UnleashOptions, WakeReason, testing::TestRelay,
};

use crate::support::{
    Way, Wire, eager_config, figure, listening, queue, told, until, within, woken,
};

/// A client with short reconnect waits and a request time-out of a second.
fn quick(url: &str) -> Client {
    let config = ClientConfig {
        request_timeout: Duration::from_secs(1),
        ..eager_config()
    };
    Client::with_config(url, config).expect("a client")
}

/// A queue with a name of about 200 bytes.
fn long(number: usize) -> QueueAddress {
    queue(&format!("{}/{number:0>110}", "a".repeat(100)))
}

#[tokio::test]
async fn unread_streams_do_not_starve_others() {
    let relay = TestRelay::start().await.expect("a relay");
    let client = relay.client().expect("a client");
    let publisher = relay.node().expect("it runs").relay().publisher("p");
    // More than a stream's window, for each of them.
    let all: Vec<_> = (0..400)
        .map(|number| Notification::new(long(number)))
        .collect();
    publisher.notify(all.clone()).await.expect("counted");
    let mut unread = Vec::new();
    for number in 0..40 {
        let pattern = format!("{}/*", "a".repeat(100));
        let mut wakes = client
            .subscribe(listening(&format!("unread-{number}"), &[&pattern]))
            .expect("options");
        woken(&mut wakes).await;
        unread.push(wakes);
    }
    let admin = relay.admin_address().expect("an admin port");
    for _ in 0..3 {
        publisher.notify(all.clone()).await.expect("counted");
    }
    // The relay stops sending when the unread bytes fill the streams' windows.
    let mut sent = 0;
    until("the streams are full", async || {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let before = std::mem::replace(
            &mut sent,
            figure(admin, "reveille_wake_entries_total").await,
        );
        before == sent
    })
    .await;

    let (flag, node) = (FlagName::new("go"), ListenerId::new("node"));
    let (flag, node) = (flag.expect("a name"), node.expect("an id"));
    let mut watch = client.watch_flag(flag.clone(), node);
    let state = within("the current state", FlagWatch::next(&mut watch)).await;
    assert!(!state.expect("not ended").expect("not refused").set);
    let mut fresh = client
        .subscribe(listening("fresh", &["acct/orders"]))
        .expect("options");
    woken(&mut fresh).await;
    relay.wake(&queue("acct/orders")).await.expect("counted");
    told(&mut fresh, 1).await;
    let (flags, options) = (client.flags(), UnleashOptions::default());
    let unleashed = within("unleashed", flags.unleash(&flag, &options)).await;
    unleashed.expect("written");
    let state = within("the flag", FlagWatch::next(&mut watch)).await;
    assert!(state.expect("not ended").expect("not refused").set);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_of_many_unread_streams_with_short_wake_ups_is_kept() {
    const STREAMS: usize = 200;
    let relay = TestRelay::start().await.expect("a relay");
    let wire = Wire::of(&relay).await;
    let client = Client::new(&wire.url()).expect("a client");
    let publisher = relay.node().expect("it runs").relay().publisher("p");
    let mut unread = Vec::new();
    for number in 0..STREAMS {
        let options = listening(&format!("unread-{number}"), &["acct/orders"]);
        let mut wakes = client.subscribe(options).expect("options");
        woken(&mut wakes).await;
        unread.push(wakes);
    }
    assert_eq!(wire.connections(), 1);
    // Each is a separate Wake while a stream has room.
    let admin = relay.admin_address().expect("an admin port");
    let mut notified = 0;
    let mut sent = figure(admin, "reveille_wake_entries_total").await;
    loop {
        for _ in 0..50 {
            let orders = Notification::new(queue("acct/orders"));
            publisher.notify(vec![orders]).await.expect("counted");
            notified += 1;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let before = std::mem::replace(
            &mut sent,
            figure(admin, "reveille_wake_entries_total").await,
        );
        if before == sent {
            break;
        }
    }
    assert!(notified > 500, "{notified}: the streams were full too soon");
    for wakes in &mut unread {
        told(wakes, notified).await;
    }
    assert_eq!(
        wire.connections(),
        1,
        "the streams had to move to another one"
    );
}

#[tokio::test]
async fn a_client_opens_more_connections_for_more_than_a_thousand_streams() {
    const STREAMS: usize = 1_100;
    let relay = TestRelay::start().await.expect("a relay");
    let wire = Wire::of(&relay).await;
    let admin = relay.admin_address().expect("an admin port");
    let client = Client::new(&wire.url()).expect("a client");
    let mut all = Vec::new();
    for number in 0..STREAMS {
        let id = ListenerId::new(&format!("w-{number}")).expect("a name");
        let options = SubscribeOptions::new(id, [queue("acct/orders")]);
        let mut wakes = client.subscribe(options).expect("options");
        woken(&mut wakes).await;
        all.push(wakes);
    }
    assert_eq!(
        figure(admin, "reveille_subscriptions").await,
        STREAMS as u64
    );
    assert_eq!(wire.connections(), 5, "256 streams each");
    relay.wake(&queue("acct/orders")).await.expect("counted");
    for wakes in &mut all {
        assert_eq!(told(wakes, 1).await.reason, WakeReason::Notified);
    }
    // Connections with room are used first, and unused ones are closed.
    drop(all.split_off(10));
    until("the others have ended", async || {
        figure(admin, "reveille_subscriptions").await == 10 && wire.open() == 1
    })
    .await;
    let mut fresh = client
        .subscribe(listening("fresh", &["acct/orders"]))
        .expect("options");
    woken(&mut fresh).await;
    assert_eq!(wire.connections(), 5, "no other is opened");
    drop((fresh, all));
    until("one is kept", async || wire.open() == 1).await;
    drop(client);
    until("none is left", async || wire.open() == 0).await;
}

#[tokio::test]
async fn a_publisher_retires_a_silent_connection() {
    let relay = TestRelay::start().await.expect("a relay");
    let wire = Wire::of(&relay).await;
    let publisher = quick(&wire.url()).publisher("p");
    let orders = Notification::new(queue("acct/orders"));
    publisher.notify(orders.clone()).await.expect("counted");
    wire.silence(Way::Both);
    let silent = Instant::now();
    within("acknowledged", publisher.notify(orders))
        .await
        .expect("on another connection");
    // A second for the answer, a tenth for the back-off, and a margin for a busy machine.
    let took = silent.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
    assert_eq!(wire.connections(), 2);
}

#[tokio::test]
async fn a_call_after_an_unanswered_one_uses_another_connection() {
    let relay = TestRelay::start().await.expect("a relay");
    let wire = Wire::of(&relay).await;
    let client = quick(&wire.url());
    client.queues().await.expect("an answer");
    client.queues().await.expect("an answer");
    assert_eq!(wire.connections(), 1, "calls share one");
    wire.silence(Way::Both);
    client.queues().await.expect_err("none in time");
    client.queues().await.expect("another connection");
    assert_eq!(wire.connections(), 2);
}

#[tokio::test]
async fn subscriptions_retire_a_silent_connection() {
    let relay = TestRelay::start().await.expect("a relay");
    let wire = Wire::of(&relay).await;
    let client = quick(&wire.url());
    let subscribe = |id: &str| {
        let options = listening(id, &["acct/orders"]);
        client.subscribe(options).expect("options")
    };
    let (mut one, mut two) = (subscribe("one"), subscribe("two"));
    woken(&mut one).await;
    woken(&mut two).await;
    assert_eq!(wire.connections(), 1);
    wire.silence(Way::Both);
    relay.wake(&queue("acct/orders")).await.expect("counted");
    let silent = Instant::now();
    let both = tokio::join!(woken(&mut one), woken(&mut two));
    // 2.5 heartbeats of a second, and a margin for a busy machine; not a second silence.
    let took = silent.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!((both.0.sequence, both.1.sequence), (1, 1));
    assert_eq!(wire.connections(), 2, "both moved to the same one");
}
