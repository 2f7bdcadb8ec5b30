//! Limits of a principal: what is over them is refused with the limit's name, and is not lost.

use std::time::Duration;

use reveille::{
    ConnectionState, Credential, NodeConfig, Notification, ServerLimits, Subscription,
    testing::TestRelay,
};
use tokio::process::Command;

use super::{GuardedRelay, RULES, client};
use crate::{
    python::{python, run, stubs},
    sources::root,
    support::{Wire, figure, listening, queue, until, within, woken},
};

const LIMITS: &str = r#"
[[limit]]
principals = ["owner"]
connections = 2
streams = 3
selectors = 4
subscribed_queues = 5
notify_rate = 10
notify_burst = 1024
"#;

/// Checks that a subscription is not admitted: the first wake-up of one comes at once.
async fn is_not_woken(wakes: &mut Subscription) {
    let woken = tokio::time::timeout(Duration::from_millis(500), wakes.next());
    assert!(woken.await.is_err(), "not refused");
}

/// Starts a relay whose rules have these limits.
async fn limited(limits: &str) -> GuardedRelay {
    let rules = format!("{RULES}{limits}");
    GuardedRelay::with(&rules, |config| config).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stock_client_gets_the_name_of_each_limit_and_the_time_of_the_next_try() {
    let relay = limited(LIMITS).await;
    let stubs = stubs().await;
    let mut command = Command::new(python());
    command.arg("tests/python/quotas.py");
    let node = relay.relay.node().expect("it runs");
    command.arg(node.address().to_string());
    for principal in ["owner", "other"] {
        command.arg(relay.token(principal).await.reveal());
    }
    command
        .env("PYTHONPATH", stubs.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(root());
    run(&mut command, "quotas.py").await;
}

/// A publisher over its rate is slowed, and each of its notifications is counted.
#[tokio::test]
async fn a_publisher_over_its_rate_loses_nothing() {
    const EXTRA: u64 = 600;
    let relay =
        limited("[[limit]]\nprincipals = [\"owner\"]\nnotify_rate = 400\nnotify_burst = 1024\n")
            .await;
    let credential = Credential::text(relay.token("owner").await.reveal());
    let client = relay.client(credential);
    let mut wakes = client
        .subscribe(listening("worker", &["acct/*"]))
        .expect("options");
    woken(&mut wakes).await;
    let publisher = client.publisher("p");
    let start = tokio::time::Instant::now();
    let orders = |number| Notification::new(queue(&format!("acct/orders-{number}")));
    let notified = publisher.notify_all((0..1024 + EXTRA).map(orders).collect());
    within("all are counted", notified)
        .await
        .expect("none is refused for good");
    // Six hundred at four hundred a second, and one second less for what was earned in between.
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(1_000), "{took:?}");
    let mut counted = 0;
    while counted < 1024 + EXTRA {
        counted += woken(&mut wakes).await.notifications;
    }
    assert_eq!(counted, 1024 + EXTRA);
}

/// A pattern beyond the limit of subscribed queues is told of them under its own name.
#[tokio::test]
async fn a_pattern_over_the_limit_of_queues_is_woken_under_its_own_name() {
    let relay = limited("[[limit]]\nprincipals = [\"owner\"]\nsubscribed_queues = 2\n").await;
    let client = relay.client(Credential::text(relay.token("owner").await.reveal()));
    let mut named = client
        .subscribe(listening("named", &["acct/a", "acct/b", "acct/c"]))
        .expect("options");
    is_not_woken(&mut named).await;
    drop(named);
    let mut wakes = client
        .subscribe(listening("pattern", &["acct/*"]))
        .expect("options");
    let publisher = client.publisher("test");
    let mut under_pattern = 0;
    for number in 0..5 {
        let address = queue(&format!("acct/q{number}"));
        within("counted", publisher.notify(Notification::new(address)))
            .await
            .expect("allowed");
    }
    let told = async {
        let mut queues = std::collections::HashSet::new();
        while under_pattern == 0 || queues.len() < 2 {
            let work = woken(&mut wakes).await;
            match work.queue.is_pattern() {
                false => drop(queues.insert(work.queue)),
                true => under_pattern += 1,
            }
        }
    };
    within("two queues and the pattern", told).await;
    // A cursor of the closed subscription is free again.
    drop(wakes);
    let mut named = client
        .subscribe(listening("named", &["acct/a", "acct/b"]))
        .expect("options");
    woken(&mut named).await;
}

/// Other limits apply after a reload, also to streams that are open.
#[tokio::test]
async fn limits_are_read_again_with_the_rules() {
    let relay = limited("[[limit]]\nprincipals = [\"owner\"]\nstreams = 1\n").await;
    let client = relay.client(Credential::text(relay.token("owner").await.reveal()));
    let mut first = client
        .subscribe(listening("first", &["acct/a"]))
        .expect("options");
    woken(&mut first).await;
    let mut second = client
        .subscribe(listening("second", &["acct/a"]))
        .expect("options");
    is_not_woken(&mut second).await;
    let rules = format!("{RULES}[[limit]]\nprincipals = [\"*\"]\nstreams = 2\n");
    std::fs::write(relay.path("auth.toml"), rules).expect("written");
    relay.reload().await;
    woken(&mut second).await;
}

/// The limit of all streams holds also where no caller is known.
#[tokio::test]
async fn streams_over_the_limit_of_the_relay_are_refused_and_tried_again() {
    let relay = TestRelay::with_config(NodeConfig {
        limits: ServerLimits {
            max_streams: 1,
            ..ServerLimits::default()
        },
        ..NodeConfig::default()
    });
    let relay = relay.await.expect("a relay");
    let client = relay.client().expect("a client");
    let mut first = client
        .subscribe(listening("first", &["acct/a"]))
        .expect("options");
    woken(&mut first).await;
    let mut second = client
        .subscribe(listening("second", &["acct/a"]))
        .expect("options");
    is_not_woken(&mut second).await;
    drop(first);
    woken(&mut second).await;
    let admin = relay.admin_address().expect("an admin port");
    until("one stream", async || {
        figure(admin, "reveille_streams").await == 1
    })
    .await;
}

/// A connection at its maximum age is replaced, and its streams go on elsewhere.
#[tokio::test]
async fn a_connection_at_its_maximum_age_is_replaced_and_nothing_is_lost() {
    let relay = TestRelay::with_config(NodeConfig {
        limits: ServerLimits {
            max_connection_age: Duration::from_secs(1),
            ..ServerLimits::default()
        },
        ..NodeConfig::default()
    });
    let relay = relay.await.expect("a relay");
    let wire = Wire::to(relay.node().expect("it runs").address()).await;
    let client = client(&wire.url(), Credential::default());
    let mut wakes = client
        .subscribe(listening("worker", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    let publisher = client.publisher("test");
    let first = Notification::new(queue("acct/orders"));
    within("counted", publisher.notify(first))
        .await
        .expect("counted");
    assert_eq!(woken(&mut wakes).await.notifications, 1);
    let first_connections = wire.connections();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(4);
    let (mut sent, mut counted) = (0, 0);
    while tokio::time::Instant::now() < deadline {
        let orders = Notification::new(queue("acct/orders"));
        within("counted", publisher.notify(orders))
            .await
            .expect("counted");
        sent += 1;
        counted += woken(&mut wakes).await.notifications;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Without the limit the client keeps its first connections.
    assert!(wire.connections() > first_connections, "not replaced");
    // The stream of wake-ups has an age of its own, and stays on its connection until then.
    assert_eq!(wakes.link().borrow().connection, ConnectionState::Connected);
    assert!(counted >= sent, "{counted} of {sent}");
}
