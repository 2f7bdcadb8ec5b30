//! The fan-out's task: its work before it yields.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    task::Wake,
};

use super::*;
use crate::relay::hub::Subscription;

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
    let (id, mut rng) = (SubscriptionId(id), fastrand::Rng::with_seed(1));
    let opened = hub.subscribe(id, &options(selector), now, &mut rng);
    let subscription = opened.expect("accepted");
    while !hub.attach_some(&subscription, now) {}
    while !subscription
        .fill(now, None, &mut WakeBuilder::default())
        .complete
    {}
    subscription
}

/// A relay where `a/*` has one cursor and gets other queues from the fan-out. `b/*` has `wide`
/// cursors.
fn relay_with(wide: usize) -> (Relay, Arc<Subscription>, Arc<Subscription>) {
    let relay = Relay::start(RelayConfig {
        sentinel_interval: Duration::ZERO,
        // Patterns may take three quarters of them.
        max_cursors: (wide + 1) * 4 / 3,
        ..RelayConfig::default()
    });
    let relay = relay.expect("started");
    notify(&relay, &events("b", wide));
    // Known before: a queue that comes later gets one of the detached cursors.
    notify(&relay, &events("a", 8_000));
    let wide = subscribe(&relay, 1, "b/*");
    let narrow = subscribe(&relay, 2, "a/*");
    (relay, wide, narrow)
}

#[tokio::test]
async fn others_run_between_short_walks() {
    let (relay, ..) = relay_with(0);
    notify(&relay, &events("a", 8_000));
    let mut turns = 0;
    while !relay.shared.hub.fanout_is_empty() {
        tokio::task::yield_now().await;
        turns += 1;
    }
    assert!(turns >= 5, "8,000 walks in {turns} turns");
}

#[tokio::test]
async fn marked_streams_are_woken_before_a_closed_one_is_detached() {
    let (relay, wide, narrow) = relay_with(20_000);
    let (hub, now) = (&relay.shared.hub, relay.shared.clock.now());
    hub.unsubscribe(&wide, now);
    let cursors = hub.stats().cursors;
    assert!(cursors > 19_000, "most are left to the fan-out: {cursors}");
    let woken = Arc::new(Cursors {
        hub: Arc::clone(hub),
        left: AtomicU64::new(u64::MAX),
    });
    narrow.register(&Arc::clone(&woken).into());
    notify(&relay, &events("a", 8_000)[1..]);
    while woken.left.load(Ordering::Relaxed) == u64::MAX {
        tokio::task::yield_now().await;
    }
    let left = woken.left.load(Ordering::Relaxed);
    assert!(left + 512 >= cursors, "{left} of {cursors} cursors");
    while hub.stats().cursors > 1 {
        tokio::task::yield_now().await;
    }
}
