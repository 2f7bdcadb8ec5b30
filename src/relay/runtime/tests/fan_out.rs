//! The fan-out's task: its work before it yields.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    task::Wake,
};

use super::*;
use crate::relay::hub::{Subscription, WakeBuilder};

/// Notes the hub's number of cursors when it is woken.
struct Cursors {
    hub: Arc<Hub>,
    left: AtomicU64,
}

impl Wake for Cursors {
    fn wake(self: Arc<Self>) {
        self.left.store(self.hub.stats().cursors, Ordering::Relaxed);
    }
}

fn events(account: &str, count: usize) -> Vec<Notification> {
    (0..count)
        .map(|at| event(&format!("{account}/q{at}")))
        .collect()
}

fn notify(relay: &Relay, events: &[Notification]) {
    for part in events.chunks(1_000) {
        let counted = relay
            .shared
            .hub
            .notify_all(&"p".into(), part, relay.shared.clock.now());
        counted.expect("counted");
    }
}

/// Subscribes without a stream, and takes the first entries.
fn subscribe(relay: &Relay, id: u128, selector: &str) -> Arc<Subscription> {
    let (hub, now) = (&relay.shared.hub, relay.shared.clock.now());
    let opened = hub.subscribe(SubscriptionId(id), &options(selector), now);
    let subscription = opened.expect("accepted");
    while !hub.introduce_some(&subscription, now) {}
    while !subscription
        .fill(now, None, &mut WakeBuilder::default())
        .complete
    {}
    subscription
}

/// A relay with more subscriptions of `a/*` than a notification wakes itself, and one of `b/*`.
fn relay() -> (Relay, Arc<Subscription>, Vec<Arc<Subscription>>) {
    let relay = Relay::start(RelayConfig {
        sentinel_interval: Duration::ZERO,
        ..RelayConfig::default()
    });
    let relay = relay.expect("started");
    let wide = subscribe(&relay, 1, "b/*");
    let narrow = (2..102).map(|id| subscribe(&relay, id, "a/*"));
    let narrow = narrow.collect();
    (relay, wide, narrow)
}

#[tokio::test]
async fn others_run_between_short_walks() {
    let (relay, ..) = relay();
    notify(&relay, &events("a", 2_000));
    let mut turns = 0;
    while !relay.shared.hub.fanout.is_empty() {
        tokio::task::yield_now().await;
        turns += 1;
    }
    assert!(turns >= 5, "2,000 walks in {turns} turns");
}

#[tokio::test]
async fn marked_streams_are_woken_before_a_closed_one_is_detached() {
    let (relay, wide, narrow) = relay();
    let (hub, now) = (&relay.shared.hub, relay.shared.clock.now());
    notify(&relay, &events("b", 20_000));
    hub.unsubscribe(&wide, now);
    let cursors = hub.stats().cursors;
    assert!(cursors > 19_000, "most are left to the fan-out: {cursors}");
    let woken = Arc::new(Cursors {
        hub: Arc::clone(hub),
        left: AtomicU64::new(u64::MAX),
    });
    narrow[0].mailbox.waker.register(&Arc::clone(&woken).into());
    notify(&relay, &events("a", 1));
    while woken.left.load(Ordering::Relaxed) == u64::MAX {
        tokio::task::yield_now().await;
    }
    let left = woken.left.load(Ordering::Relaxed);
    assert!(left + 512 >= cursors, "{left} of {cursors} cursors");
    while hub.stats().cursors > 100 {
        tokio::task::yield_now().await;
    }
}
