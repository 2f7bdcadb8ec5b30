//! A client at its relay's limits: a full table of queues, and requests that would be too large.

use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use reveille::{
    Accepted, Client, ErrorKind, ListenerId, NodeConfig, Notification, Publisher, PublisherOptions,
    RelayConfig, Selector, SubscribeOptions, WakeReason, testing::TestRelay,
};

use crate::{
    binary::{Binary, limits},
    support::{Log, Wire, eager, get, listening, log_to, queue, told, until, within, woken},
};

/// Starts a relay with this limit of queues.
async fn small(max_queues: usize) -> TestRelay {
    limited(RelayConfig {
        max_queues,
        ..RelayConfig::default()
    })
    .await
}

async fn limited(relay: RelayConfig) -> TestRelay {
    let config = NodeConfig {
        relay,
        ..NodeConfig::default()
    };
    TestRelay::with_config(config).await.expect("a relay")
}

fn event(name: &str) -> Notification {
    Notification::new(queue(name))
}

async fn notify(publisher: &Publisher, name: &str) -> reveille::Result<Accepted> {
    within("an answer", publisher.notify(event(name))).await
}

#[tokio::test]
async fn a_full_relay_refuses_new_queues_and_wakes_the_known_ones() {
    let relay = small(1).await;
    let client = eager(&relay.url());
    let publisher = client.publisher("p");
    let mut known = client
        .subscribe(listening("worker-1", &["acct/known"]))
        .expect("options");
    woken(&mut known).await;

    let begun = Instant::now();
    let refused = notify(&publisher, "acct/new").await.expect_err("full");
    assert_eq!(refused.kind(), ErrorKind::Exhausted, "{refused}");
    assert!(!refused.message().contains("dropped"), "{refused}");
    assert!(begun.elapsed() < Duration::from_secs(4), "refused at once");
    for round in 1..=20 {
        let both = vec![event("acct/known"), event("acct/new-2")];
        // No caller waits for them.
        let _ = publisher.notify_each(both).now_or_never();
        let accepted = notify(&publisher, "acct/known").await.expect("counted");
        assert!(accepted.sequence >= round, "{accepted:?}");
    }
    told(&mut known, 40).await;
    assert_eq!(publisher.pending(), 2, "kept for when there is room");
}

#[tokio::test]
async fn one_refused_queue_among_a_thousand_takes_none_with_it() {
    const KNOWN: usize = 999;
    let relay = small(KNOWN).await;
    let client = eager(&relay.url());
    let names: Vec<_> = (0..KNOWN).map(|at| format!("acct/q{at}")).collect();
    let listened: Vec<_> = names.iter().map(String::as_str).collect();
    let mut wakes = client
        .subscribe(listening("worker-1", &listened))
        .expect("options");
    for _ in 0..KNOWN {
        assert_eq!(woken(&mut wakes).await.reason, WakeReason::CatchUp);
    }
    let publisher = client.publisher_with(PublisherOptions {
        batch: 1024,
        ..PublisherOptions::default()
    });
    let mut all: Vec<_> = listened.iter().map(|name| event(name)).collect();
    all.insert(500, event("acct/new"));
    let results = within("answered", publisher.notify_each(all)).await;
    let mut results = results.expect("the relay is there");
    let refused = results.remove(500).expect_err("no room");
    assert_eq!(refused.kind(), ErrorKind::Exhausted, "{refused}");
    let once = |result: &reveille::Result<Accepted>| {
        result.as_ref().is_ok_and(|accepted| accepted.sequence == 1)
    };
    assert!(results.iter().all(once));
    for _ in 0..KNOWN {
        let work = woken(&mut wakes).await;
        assert_eq!((work.reason, work.notifications), (WakeReason::Notified, 1));
    }
    // The refused one is sent again meanwhile, and no other.
    let second = tokio::time::timeout(Duration::from_secs(2), woken(&mut wakes)).await;
    assert!(second.is_err(), "{second:?}");
    assert_eq!(publisher.pending(), 1);
    let again = within("an answer", publisher.notify(event("acct/q7"))).await;
    assert_eq!(again.expect("counted").sequence, 2);
}

#[tokio::test]
async fn a_relay_with_many_delayed_wake_ups_refuses_more_and_sends_the_others_at_once() {
    let relay = limited(RelayConfig {
        max_timers: 2,
        ..RelayConfig::default()
    })
    .await;
    let client = eager(&relay.url());
    let publisher = client.publisher("p");
    let delayed = |name| Notification {
        delay: Duration::from_secs(3600),
        ..event(name)
    };
    for name in ["acct/a", "acct/b"] {
        publisher.notify(delayed(name)).await.expect("counted");
    }
    let refused = publisher.notify(delayed("acct/c")).await;
    let refused = refused.expect_err("full");
    assert_eq!(refused.kind(), ErrorKind::Exhausted, "{refused}");
    assert!(
        refused.message().contains("delay: the limit of 2 "),
        "{refused}"
    );
    let accepted = notify(&publisher, "acct/c").await.expect("counted");
    assert_eq!(accepted.sequence, 1);
}

#[tokio::test]
async fn a_notification_that_a_full_relay_refused_is_sent_when_it_has_room() {
    // The proxy's address leads to the second relay later, which has room.
    let relay = small(1).await;
    let wire = Wire::of(&relay).await;
    let roomy = TestRelay::start().await.expect("a relay");
    let publisher = eager(&wire.url()).publisher("p");
    // A queue with a listener is not displaced.
    let mut known = eager(&relay.url())
        .subscribe(listening("worker-0", &["acct/known"]))
        .expect("options");
    woken(&mut known).await;
    notify(&publisher, "acct/new").await.expect_err("full");
    let mut wakes = eager(&roomy.url())
        .subscribe(listening("worker-1", &["acct/new"]))
        .expect("options");
    woken(&mut wakes).await;
    wire.lead_to(roomy.node().expect("it runs").address());
    wire.cut();
    until("cut", async || wire.open() == 0).await;
    wire.mend();
    assert_eq!(told(&mut wakes, 1).await.reason, WakeReason::Notified);
    until("all is sent", async || publisher.pending() == 0).await;
}

#[tokio::test]
async fn a_thousand_notifications_of_the_longest_names_go_in_one_batch() {
    let relay = TestRelay::start().await.expect("a relay");
    let options = PublisherOptions {
        batch: 1024,
        ..PublisherOptions::default()
    };
    let publisher = eager(&relay.url()).publisher_with(options);
    let fullest = |number: usize| {
        let name = format!("{number:0>128}");
        Notification {
            payload_size: u64::MAX / 2,
            messages: u64::MAX / 2,
            delay: Duration::from_secs(13 * 24 * 3600),
            traceparent: "t".repeat(128).into(),
            ..Notification::new(queue(&format!("{name}/{name}")))
        }
    };
    let all = (0..1024).map(fullest).collect();
    let accepted = within("counted", publisher.notify_all(all))
        .await
        .expect("accepted");
    assert_eq!(accepted.len(), 1024);
}

#[tokio::test]
async fn a_subscriber_of_many_long_names_reconnects_after_a_break() {
    const QUEUES: usize = 4_096;
    let name = |number: usize| format!("{}/{number:0>119}", "a".repeat(120));
    let relay = TestRelay::start().await.expect("a relay");
    let wire = Wire::of(&relay).await;
    let selectors = (0..QUEUES).map(|number| name(number).parse::<Selector>().expect("a selector"));
    let listener = ListenerId::new("worker-1").expect("a name");
    let mut wakes = eager(&wire.url())
        .subscribe(SubscribeOptions::new(listener, selectors))
        .expect("options");
    for _ in 0..QUEUES {
        woken(&mut wakes).await;
    }
    let before = wakes.link().borrow().welcomes;
    wire.cut();
    until("cut", async || wire.open() == 0).await;
    relay.wake(&queue(&name(7))).await.expect("counted");
    wire.mend();
    loop {
        let work = woken(&mut wakes).await;
        if work.queue.to_string() == name(7) {
            break;
        }
        // Its position did not fit into the request: it gets a CATCH_UP.
        assert_eq!(work.reason, WakeReason::CatchUp, "{work:?}");
    }
    assert_eq!(wakes.link().borrow().welcomes, before + 1);
}

#[tokio::test]
async fn selectors_that_fit_no_request_are_refused_at_once() {
    let name = |number: usize| format!("{0}/{number:0>128}", "a".repeat(128));
    let selectors = (0..4_096).map(|number| name(number).parse::<Selector>().expect("a selector"));
    let listener = ListenerId::new("worker-1").expect("a name");
    let refused = eager("http://127.0.0.1:1")
        .subscribe(SubscribeOptions::new(listener, selectors))
        .expect_err("too many");
    assert_eq!(refused.kind(), ErrorKind::Exhausted);
    assert!(
        refused.message().starts_with("selectors: the limit is"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_stream_that_cannot_be_opened_is_logged_with_its_reason() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _logs = log_to(subscriber);
    let mut wakes = eager("http://127.0.0.1:1")
        .subscribe(listening("worker-1", &["acct/orders"]))
        .expect("options");
    let waiting = tokio::time::timeout(Duration::from_secs(2), wakes.next());
    assert!(waiting.await.is_err(), "no relay is there");
    let text = log.text();
    assert!(text.contains("no stream stays open"), "{text}");
    assert!(
        text.contains("refused") && text.contains("worker-1"),
        "{text}"
    );
}

#[tokio::test]
async fn a_full_relay_counts_and_logs_refusals() {
    let relay = Binary::serve_with(&["--config", &limits("max_queues = 1")], &[]).await;
    let client = Client::new(&relay.url()).expect("a URL");
    let publisher = client.publisher("orders-service");
    // A queue with a listener is not displaced.
    let listening = listening("worker-1", &["acct/one"]);
    let mut wakes = client.subscribe(listening).expect("options");
    woken(&mut wakes).await;
    let refused = notify(&publisher, "acct/two").await.expect_err("full");
    assert_eq!(refused.kind(), ErrorKind::Exhausted);
    let (_, metrics) = get(relay.admin(), "/metrics").await;
    let counted = metrics
        .lines()
        .find_map(|line| line.strip_prefix("reveille_notify_refused_total "));
    let counted: u64 = counted.expect("a counter").parse().expect("a number");
    assert!(counted >= 1, "{metrics}");
    until("a line of the log", async || {
        relay
            .log()
            .contains("refused notifications for want of room")
    })
    .await;
    assert!(
        metrics.contains("process_resident_memory_bytes "),
        "{metrics}"
    );
    assert!(
        metrics.contains("reveille_build_info{version="),
        "{metrics}"
    );
}
