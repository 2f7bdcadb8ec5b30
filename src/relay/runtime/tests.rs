//! The relay in process: wake-ups without a network.

mod fan_out;
mod peer_calls;

use std::time::Duration;

use super::*;
use crate::types::{ConnectionState, ListenerId, Notifier, ReportState, WakeReason, WakeStream};

fn options(queue: &str) -> SubscribeOptions {
    let queue: crate::types::Selector = queue.parse().expect("a selector");
    SubscribeOptions::new(ListenerId::new("w").expect("a name"), [queue])
}

fn event(queue: &str) -> Notification {
    Notification::new(queue.parse().expect("an address"))
}

/// A relay whose sentinel is off.
fn unguarded() -> Relay {
    let config = RelayConfig {
        sentinel_interval: Duration::ZERO,
        ..RelayConfig::default()
    };
    Relay::start(config).expect("started")
}

async fn looked(relay: &Relay, queue: &str) -> LocalSubscription {
    let mut wakes = relay.subscribe(options(queue)).expect("subscribed");
    let work = wakes.next().await.expect("alive").expect("no refusal");
    assert_eq!(work.reason, WakeReason::CatchUp);
    wakes
}

#[tokio::test]
async fn a_claim_that_is_over_at_once_is_refused() {
    let none = |config: &mut RelayConfig, field: &str| match field {
        "claim_timeout" => config.claim_timeout = Duration::ZERO,
        _ => config.busy_lease = Duration::ZERO,
    };
    for field in ["claim_timeout", "busy_lease"] {
        let mut config = RelayConfig::default();
        none(&mut config, field);
        let error = Relay::start(config).expect_err(field);
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains(field), "{error}");
    }
}

/// Its frame would be refused by every relay of a cluster, the sender included.
#[tokio::test]
async fn a_time_outside_of_the_calendar_is_refused() {
    let relay = unguarded();
    let publisher = relay.publisher("tests");
    let year_10000 = Duration::from_secs(253_402_300_800);
    let nanosecond = Duration::from_nanos(1);
    for (since_1970, is_taken) in [(year_10000, false), (year_10000 - nanosecond, true)] {
        let notification = Notification {
            published_at: Some(std::time::SystemTime::UNIX_EPOCH + since_1970),
            ..event("acct/orders")
        };
        let notified = publisher.notify(vec![notification]).await;
        assert_eq!(notified.is_ok(), is_taken, "{notified:?}");
        if let Err(error) = notified {
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().starts_with("published_at"), "{error}");
        }
    }
}

#[tokio::test]
async fn a_relay_of_a_cluster_keeps_queues_for_a_minute() {
    let forgetting = |seconds| RelayConfig {
        forget_after: Duration::from_secs(seconds),
        ..RelayConfig::default()
    };
    Relay::start_with(forgetting(60), Some(ClusterAck::Broker)).expect("long enough");
    Relay::start_with(forgetting(59), None).expect("a relay alone");
    let refused = Relay::start_with(forgetting(59), Some(ClusterAck::Broker));
    let error = refused.expect_err("too short");
    let rule = "forget_after: must be at least 60s in a cluster, not 59s";
    assert_eq!((error.kind(), error.message()), (ErrorKind::Invalid, rule));
}

#[tokio::test]
async fn a_notification_wakes_a_subscriber_of_this_process() {
    let relay = Relay::start(RelayConfig::default()).expect("started");
    let mut wakes = looked(&relay, "a/q").await;
    relay
        .publisher("p")
        .notify(vec![event("a/q")])
        .await
        .expect("counted");
    let work = wakes.next().await.expect("alive").expect("no refusal");
    assert_eq!((work.reason, work.notifications), (WakeReason::Notified, 1));
    assert_eq!(&*work.last_event.publisher, "p");
}

#[tokio::test]
async fn counts_as_great_as_can_be_stated_wake_and_break_nothing() {
    let relay = Relay::start(RelayConfig::default()).expect("started");
    let queues: Vec<crate::types::Selector> = ["a/q", "a/r"]
        .map(|queue| queue.parse().expect("a selector"))
        .into();
    let options = SubscribeOptions::new(ListenerId::new("w").expect("a name"), queues);
    let mut wakes = relay.subscribe(options).expect("subscribed");
    for _ in 0..2 {
        wakes.next().await.expect("alive").expect("a first look");
    }
    let most = |queue| Notification {
        notifications: u64::MAX,
        payload_size: u64::MAX,
        messages: u64::MAX,
        ..event(queue)
    };
    let events = vec![most("a/q"), most("a/r"), most("a/r")];
    relay.publisher("p").notify(events).await.expect("counted");
    for _ in 0..2 {
        let work = wakes.next().await.expect("alive").expect("no refusal");
        assert_eq!((work.notifications, work.messages), (u64::MAX, u64::MAX));
    }
}

#[tokio::test]
async fn many_subscribers_are_woken_by_the_fan_out() {
    let relay = Relay::start(RelayConfig::default()).expect("started");
    let mut all = Vec::new();
    for _ in 0..200 {
        all.push(looked(&relay, "a/q").await);
    }
    relay
        .publisher("p")
        .notify(vec![event("a/q")])
        .await
        .expect("counted");
    for wakes in &mut all {
        assert_eq!(
            wakes
                .next()
                .await
                .expect("alive")
                .expect("no refusal")
                .notifications,
            1
        );
    }
    assert!(relay.stats().0.fanned_out > 0);
}

#[tokio::test(start_paused = true)]
async fn a_delayed_notification_wakes_when_it_is_due() {
    let relay = unguarded();
    let mut wakes = looked(&relay, "a/q").await;
    let delay = Duration::from_secs(60);
    let started = tokio::time::Instant::now();
    relay
        .publisher("p")
        .notify(vec![Notification {
            delay,
            ..event("a/q")
        }])
        .await
        .expect("taken");
    let work = wakes.next().await.expect("alive").expect("no refusal");
    let after = started.elapsed();
    assert_eq!((work.reason, work.notifications), (WakeReason::Timed, 1));
    assert!(after >= delay && after <= delay + delay / 15, "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_ends_busy_has_its_queue_woken_again() {
    let relay = Relay::start(RelayConfig::default()).expect("started");
    let mut other = looked(&relay, "a/q").await;
    let mut dying = looked(&relay, "a/q").await;
    let mut report = Report::new("a/q".parse().expect("an address"));
    report.state = ReportState::Drained;
    other.report(report.clone()).await.expect("known");
    report.state = ReportState::Busy;
    dying.report(report).await.expect("known");
    drop(dying);
    let work = other.next().await.expect("alive").expect("no refusal");
    assert_eq!(work.reason, WakeReason::Timed);
}

#[tokio::test(start_paused = true)]
async fn an_in_process_subscription_never_grows_old() {
    let relay = unguarded();
    let mut wakes = looked(&relay, "a/q").await;
    let waited = tokio::time::timeout(Duration::from_secs(24 * 3600), wakes.next()).await;
    assert!(waited.is_err(), "a day of heartbeats, and no end");
    assert!(wakes.link().borrow().is_pushed());
}

#[tokio::test]
async fn a_shutdown_ends_subscriptions_and_refuses_new_ones() {
    let relay = Relay::start(RelayConfig::default()).expect("started");
    let mut wakes = looked(&relay, "a/q").await;
    relay.shutdown().await;
    assert!(wakes.next().await.is_none());
    assert_eq!(wakes.link().borrow().connection, ConnectionState::Closed);
    let error = relay.subscribe(options("a/q")).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_subscription_of_another_relay_is_unavailable_and_an_unknown_one_not_found() {
    let relay = Relay::start(RelayConfig::default()).expect("started");
    let report = Report::new("a/q".parse().expect("an address"));
    for (id, kind) in [
        ("other/0123", ErrorKind::Unavailable),
        ("relay/0123", ErrorKind::NotFound),
        ("relay/xyz", ErrorKind::NotFound),
        ("nonsense", ErrorKind::NotFound),
    ] {
        assert_eq!(
            relay.report(id, &report).await.expect_err(id).kind(),
            kind,
            "{id}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_sentinel_asks_for_a_check_within_an_interval_and_a_tenth() {
    let relay = Relay::start(RelayConfig::default()).expect("started");
    let mut wakes = looked(&relay, "a/q").await;
    let started = tokio::time::Instant::now();
    let work = wakes.next().await.expect("alive").expect("no refusal");
    assert_eq!(work.reason, WakeReason::Sentinel);
    assert!(started.elapsed() <= Duration::from_secs(67));
}

#[tokio::test(start_paused = true)]
async fn a_member_that_does_not_report_is_followed_by_another() {
    let relay = unguarded();
    let group = GroupName::new("g").expect("a name");
    let member = || {
        let options = SubscribeOptions {
            group: Some(group.clone()),
            ..options("a/q")
        };
        relay.subscribe(options).expect("subscribed")
    };
    let (mut first, mut second) = (member(), member());
    let started = tokio::time::Instant::now();
    let look = first.next().await.expect("alive").expect("no refusal");
    assert_eq!(look.reason, WakeReason::CatchUp);
    let look = second.next().await.expect("alive").expect("no refusal");
    assert_eq!(look.reason, WakeReason::Reassigned);
    let waited = started.elapsed().as_millis();
    assert!((1000..1100).contains(&waited), "{waited}");
}

#[tokio::test(start_paused = true)]
async fn the_latency_of_a_wake_is_that_of_the_oldest_notification_it_tells_of() {
    let config = RelayConfig {
        sentinel_interval: Duration::ZERO,
        // A member that takes nothing for so long is not replaced.
        claim_timeout: Duration::from_secs(60),
        ..RelayConfig::default()
    };
    let relay = Relay::start(config).expect("started");
    let mut wakes = looked(&relay, "a/q").await;
    let mut member = options("a/q");
    member.group = Some(GroupName::new("workers").expect("a name"));
    let mut member = relay.subscribe(member).expect("subscribed");
    member.next().await.expect("alive").expect("no refusal");
    // At the next poll its stream has sent that: before, the member is assigned nothing.
    assert!(futures_util::poll!(Box::pin(member.next())).is_pending());
    let publisher = relay.publisher("p");
    let second = Duration::from_secs(1);
    let notify = async || publisher.notify(vec![event("a/q")]).await.expect("counted");
    let sum = || {
        let (_, sent) = relay.stats();
        sent.wake_latency.snapshot().sum.as_secs_f64().round()
    };
    tokio::time::advance(second).await;
    notify().await;
    tokio::time::advance(3 * second).await;
    notify().await;
    tokio::time::advance(2 * second).await;
    let told = wakes.next().await.expect("alive").expect("no refusal");
    assert_eq!((told.notifications, sum()), (2, 5.0));
    let told = member.next().await.expect("alive").expect("no refusal");
    assert_eq!((told.reason, sum()), (WakeReason::Notified, 10.0));
    // The next one begins anew.
    notify().await;
    tokio::time::advance(2 * second).await;
    wakes.next().await.expect("alive").expect("no refusal");
    assert_eq!(sum(), 12.0);
    let (_, sent) = relay.stats();
    let counts = sent.wake_latency.snapshot().counts;
    assert_eq!(counts.iter().sum::<u64>(), 3);
}
