//! Notify, subscribe, resume, report: the relay's guarantees, tested through the client library.

use std::time::Duration;

use reveille::{
    Client, ClientConfig, ConnectionState, ErrorKind, FlagName, FlagWatch, ListenerId, NodeConfig,
    Notification, PublisherOptions, RelayConfig, Report, ReportState, WakeReason, WakeStream,
    testing::TestRelay,
};

use crate::support::{figure, listening, queue, told, until, within, woken};

#[tokio::test]
async fn a_notification_wakes_a_listener() {
    let relay = TestRelay::start().await.expect("a relay");
    let client = relay.client().expect("a client");
    let mut wakes = client
        .subscribe(listening("worker-1", &["acct/orders"]))
        .expect("options");
    let first = woken(&mut wakes).await;
    assert_eq!(
        first.reason,
        WakeReason::CatchUp,
        "no resume number: one CATCH_UP"
    );

    let publisher = client.publisher("billing");
    let notification = Notification {
        payload_size: 512,
        messages: 3,
        ..Notification::new(queue("acct/orders"))
    };
    let accepted = publisher.notify(notification).await.expect("accepted");
    assert_eq!((accepted.sequence, accepted.listeners), (1, 1));
    let work = woken(&mut wakes).await;
    assert_eq!(work.queue.to_string(), "acct/orders");
    assert_eq!(work.reason, WakeReason::Notified);
    assert_eq!((work.sequence, work.notifications), (1, 1));
    assert_eq!((work.payload_size, work.messages), (512, 3));
    assert_eq!(&*work.last_event.publisher, "billing");
    assert!(work.last_event.published_at.is_some());
}

#[tokio::test]
async fn notifications_conflate_and_their_sums_are_exact() {
    let relay = TestRelay::start().await.expect("a relay");
    let client = relay.client().expect("a client");
    let mut wakes = client
        .subscribe(listening("worker-1", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    let events = vec![
        Notification {
            payload_size: 10,
            ..Notification::new(queue("acct/orders"))
        };
        1000
    ];
    client.publisher("p").notify_all(events).await.expect("all");
    // The subscription was not polled, but the relay may have sent more than one wake-up.
    let (mut sum, mut payload) = (0, 0);
    while sum < 1000 {
        let work = woken(&mut wakes).await;
        sum += work.notifications;
        payload += work.payload_size;
    }
    assert_eq!((sum, payload), (1000, 10_000));
}

#[tokio::test]
async fn a_subscriber_that_resumes_with_a_kept_number_is_told_which_queues_changed() {
    let relay = TestRelay::start().await.expect("a relay");
    let client = relay.client().expect("a client");
    let (orders, bills) = (queue("acct/orders"), queue("acct/bills"));
    let options = listening("worker-1", &["acct/orders", "acct/bills"]);
    let mut wakes = client.subscribe(options.clone()).expect("options");
    for _ in 0..2 {
        woken(&mut wakes).await;
    }
    while wakes.resume().is_empty() {
        let silence = tokio::time::timeout(Duration::from_millis(100), wakes.next()).await;
        assert!(silence.is_err(), "{silence:?}");
    }
    let resume = wakes.resume().clone();
    drop(wakes);

    for _ in 0..5 {
        relay.wake(&orders).await.expect("counted");
    }
    let options = reveille::SubscribeOptions { resume, ..options };
    let mut again = client.subscribe(options).expect("options");
    let changed = woken(&mut again).await;
    assert_eq!(changed.queue.to_string(), "acct/orders");
    assert_eq!((changed.reason, changed.sequence), (WakeReason::CatchUp, 5));
    relay.wake(&bills).await.expect("counted");
    let next = woken(&mut again).await;
    assert_eq!(next.queue.to_string(), "acct/bills");
    assert_eq!((next.reason, next.notifications), (WakeReason::Notified, 1));
}

#[tokio::test]
async fn a_pattern_is_woken_for_queues_that_are_created_later() {
    let relay = TestRelay::start().await.expect("a relay");
    let client = relay.client().expect("a client");
    let mut wakes = client
        .subscribe(listening("worker-1", &["acct/ord*"]))
        .expect("options");
    let look = woken(&mut wakes).await;
    assert_eq!(
        look.queue.to_string(),
        "acct/ord*",
        "read all matching queues"
    );
    relay
        .wake(&queue("acct/invoices"))
        .await
        .expect("another queue");
    relay.wake(&queue("acct/orders-7")).await.expect("counted");
    let work = told(&mut wakes, 1).await;
    assert_eq!(work.queue.to_string(), "acct/orders-7");
}

#[tokio::test]
async fn a_delayed_notification_wakes_when_it_is_due() {
    let relay = TestRelay::start().await.expect("a relay");
    let client = relay.client().expect("a client");
    let mut wakes = client
        .subscribe(listening("worker-1", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    let delayed = Notification {
        delay: Duration::from_millis(200),
        ..Notification::new(queue("acct/orders"))
    };
    let accepted = client.publisher("p").notify(delayed).await.expect("taken");
    assert_eq!(accepted.sequence, 0, "counted when it is due");
    let work = woken(&mut wakes).await;
    assert_eq!(work.reason, WakeReason::Timed);
    assert_eq!((work.sequence, work.notifications), (1, 1));
}

#[tokio::test]
async fn messages_made_visible_again_wake_the_queue() {
    let relay = TestRelay::start().await.expect("a relay");
    let client = relay.client().expect("a client");
    let orders = queue("acct/orders");
    let mut worker = client
        .subscribe(listening("worker-1", &["acct/orders"]))
        .expect("options");
    woken(&mut worker).await;
    relay.wake(&orders).await.expect("counted");
    let work = woken(&mut worker).await;
    let report = Report {
        state: ReportState::Drained,
        sequence: work.sequence,
        visible_in: Some(Duration::ZERO),
        ..Report::new(orders)
    };
    worker.report(report).await.expect("taken");
    assert_eq!(woken(&mut worker).await.reason, WakeReason::Timed);
}

#[tokio::test]
async fn a_busy_listeners_queue_is_woken_again_after_its_end() {
    let relay = TestRelay::start().await.expect("a relay");
    let client = relay.client().expect("a client");
    let orders = queue("acct/orders");
    let mut other = client
        .subscribe(listening("worker-2", &["acct/orders"]))
        .expect("options");
    woken(&mut other).await;
    let options = reveille::SubscribeOptions {
        visibility_timeout: Duration::from_millis(100),
        ..listening("worker-1", &["acct/orders"])
    };
    let mut busy = client.subscribe(options).expect("options");
    woken(&mut busy).await;
    let taken = Report {
        state: ReportState::Busy,
        ..Report::new(orders)
    };
    busy.report(taken).await.expect("taken");
    drop(busy);
    let work = woken(&mut other).await;
    assert_eq!(
        work.reason,
        WakeReason::Timed,
        "its messages are visible again"
    );
}

#[tokio::test]
async fn a_report_after_a_restart_is_not_found_until_the_next_welcome() {
    let mut relay = TestRelay::start().await.expect("a relay");
    let client = relay.client().expect("a client");
    let mut wakes = client
        .subscribe(listening("worker-1", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    relay.restart().await.expect("started again");
    // Not polled since, so it has not noticed that its stream belongs to the previous epoch.
    let report = Report::new(queue("acct/orders"));
    let refused = wakes.report(report.clone()).await.expect_err("unknown");
    assert_eq!(refused.kind(), ErrorKind::NotFound, "{refused}");
    assert_eq!(woken(&mut wakes).await.reason, WakeReason::CatchUp);
    wakes.report(report).await.expect("taken");
}

#[tokio::test]
async fn a_busy_stream_gets_a_heartbeat_an_interval_and_so_does_a_silent_one() {
    let relay = TestRelay::start().await.expect("a relay");
    let admin = relay.admin_address().expect("an admin port");
    let client = relay.client().expect("a client");
    let mut wakes = client
        .subscribe(listening("worker-1", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    // Once an interval of a second, for its resume number.
    for _ in 0..15 {
        relay.wake(&queue("acct/orders")).await.expect("counted");
        woken(&mut wakes).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let busy = figure(admin, "reveille_heartbeats_total").await;
    assert!((1..=4).contains(&busy), "{busy}");
    let polled = async {
        let work = wakes.next().await;
        panic!("unexpected wake-up: {work:?}");
    };
    let silent = until("a heartbeat", async || {
        figure(admin, "reveille_heartbeats_total").await > busy
    });
    tokio::select! {
        () = polled => {}
        () = silent => {}
    }
    assert_eq!(wakes.link().borrow().connection, ConnectionState::Connected);
}

#[tokio::test]
async fn a_shut_down_relay_says_goodbye_and_ends_at_once() {
    let mut relay = TestRelay::start().await.expect("a relay");
    let client = relay.client().expect("a client");
    let mut wakes = client
        .subscribe(listening("worker-1", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    let reading = tokio::spawn(async move {
        let next = wakes.next().await;
        (wakes, next)
    });
    // The grace period is 5 s here; a stream that ends by itself does not need it.
    tokio::time::timeout(Duration::from_secs(4), relay.stop())
        .await
        .expect("no grace needed");
    relay.restart().await.expect("started again");
    let (_, next) = within("the subscriber's reconnection", reading)
        .await
        .expect("no panic");
    let work = next.expect("not ended").expect("not refused");
    assert_eq!(work.reason, WakeReason::CatchUp);
}

#[tokio::test]
async fn a_notification_without_listeners_wakes_a_later_one() {
    let relay = TestRelay::start().await.expect("a relay");
    let orders = queue("acct/orders");
    let accepted = relay.wake(&orders).await.expect("counted");
    assert_eq!((accepted.sequence, accepted.listeners), (1, 0));
    let mut wakes = relay
        .client()
        .expect("a client")
        .subscribe(listening("late", &["acct/orders"]))
        .expect("options");
    let work = woken(&mut wakes).await;
    assert_eq!(work.reason, WakeReason::CatchUp);
    assert_eq!(work.sequence, 1);
}

#[tokio::test]
async fn the_longest_durations_mean_never() {
    let longest = Duration::MAX;
    let config = NodeConfig {
        relay: RelayConfig {
            forget_after: longest,
            stream_max_age: longest,
            ..RelayConfig::default()
        },
        flag_refresh: longest,
        ..NodeConfig::default()
    };
    let relay = TestRelay::with_config(config).await.expect("a relay");
    let config = ClientConfig {
        connect_timeout: longest,
        request_timeout: longest,
        reconnect_base: longest,
        reconnect_max: longest,
        ..ClientConfig::default()
    };
    let client = Client::with_config(&relay.url(), config).expect("a client");
    within("an answer", client.queues()).await.expect("ready");
    // Several watches, because their ages are jittered: half of them exceed the configured one.
    let mut streams = Vec::new();
    for _ in 0..8 {
        let mut options = listening("worker-1", &["acct/orders"]);
        options.heartbeat = longest;
        let mut wakes = client.subscribe(options).expect("options");
        woken(&mut wakes).await;
        let flag = FlagName::new("go-live").expect("a name");
        let mut watch = client.watch_flag(flag, ListenerId::new("worker-1").expect("a name"));
        let state = within("the flag's state", watch.next()).await;
        assert!(!state.expect("alive").expect("not refused").set);
        streams.push((wakes, watch));
    }
    let publisher = client.publisher_with(PublisherOptions {
        deadline: longest,
        ..PublisherOptions::default()
    });
    let notified = publisher.notify(Notification::new(queue("acct/orders")));
    within("an acknowledgement", notified)
        .await
        .expect("counted");
    for (wakes, _) in &mut streams {
        assert_eq!(woken(wakes).await.notifications, 1);
    }
}
