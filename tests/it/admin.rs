//! The admin port: liveness, readiness and metrics.

use reveille::testing::TestRelay;

use crate::support::{figure, get, listening, queue, until, woken};

#[tokio::test]
async fn a_serving_relay_is_alive_and_ready() {
    let relay = TestRelay::start().await.expect("a relay");
    let admin = relay.admin_address().expect("an admin port");
    assert_eq!(get(admin, "/livez").await, (200, "ok\n".to_owned()));
    assert_eq!(get(admin, "/readyz").await, (200, "ready\n".to_owned()));
    let parts = "[+]relay ok\n[+]capacity ok\n[+]store ok\nready\n";
    assert_eq!(get(admin, "/readyz?verbose").await, (200, parts.to_owned()));
    assert_eq!(
        get(admin, "/readyz/store").await,
        (200, "ready\n".to_owned())
    );
    let (status, text) = get(admin, "/readyz/kitchen").await;
    assert_eq!(status, 404);
    assert!(text.contains("relay, capacity, store"), "{text}");
    assert_eq!(get(admin, "/elsewhere").await.0, 404);
}

#[tokio::test]
async fn a_draining_relay_is_alive_but_not_ready() {
    let relay = TestRelay::start().await.expect("a relay");
    let admin = relay.admin_address().expect("an admin port");
    relay.node().expect("it runs").relay().drain();
    assert_eq!(get(admin, "/livez").await.0, 200);
    let (status, why) = get(admin, "/readyz").await;
    assert_eq!(status, 503);
    assert!(why.contains("shutting down"), "{why}");
}

#[tokio::test]
async fn the_metrics_count_notifications_and_subscriptions() {
    let relay = TestRelay::start().await.expect("a relay");
    let admin = relay.admin_address().expect("an admin port");
    let mut wakes = relay
        .client()
        .expect("a client")
        .subscribe(listening("worker-1", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    for _ in 0..3 {
        relay.wake(&queue("acct/orders")).await.expect("counted");
        woken(&mut wakes).await;
    }
    for (name, value) in [
        ("reveille_notifications_total", 3),
        ("reveille_wakes_total", 4),
        ("reveille_wake_notifications_total", 3),
        ("reveille_queues", 1),
        ("reveille_subscriptions", 1),
        ("reveille_connections", 1),
    ] {
        assert_eq!(figure(admin, name).await, value, "{name}");
    }
    drop(wakes);
    until("the subscription's end", async || {
        figure(admin, "reveille_subscriptions").await == 0
    })
    .await;
}

#[tokio::test]
async fn the_latency_of_wakes_is_measured_from_acceptance_to_sending() {
    let relay = TestRelay::start().await.expect("a relay");
    let admin = relay.admin_address().expect("an admin port");
    let mut wakes = relay
        .client()
        .expect("a client")
        .subscribe(listening("worker-1", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    let counted = async || figure(admin, "reveille_wake_latency_seconds_count").await;
    assert_eq!(counted().await, 0, "a CATCH_UP waits for no notification");
    for wake in 1..=3 {
        relay.wake(&queue("acct/orders")).await.expect("counted");
        woken(&mut wakes).await;
        assert_eq!(counted().await, wake);
    }
    let (_, text) = get(admin, "/metrics").await;
    assert!(
        text.contains("reveille_wake_latency_seconds_bucket{le=\"10.0\"} 3"),
        "{text}"
    );
}
