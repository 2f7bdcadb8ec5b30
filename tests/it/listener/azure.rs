//! On Azurite: no request while there is no work, and a service that dies and comes back.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use reveille::{
    NodeConfig, RelayConfig,
    listener::{ListenerConfig, ListenerMode},
    queue::{AzureQueue, WorkQueue},
    scaling::StepPolicy,
    testing::TestRelay,
};

use super::{Seen, builder_with_wakes, names, pushed_and_idle, put, put_and_notify};
use crate::support::{
    azurite::{ACCOUNT, Azurite, azurite},
    until,
};

async fn queue_of(azurite: &Azurite, name: &str) -> Arc<dyn WorkQueue> {
    let queue = AzureQueue::from_connection_string(&azurite.connection_string(), name);
    let queue = queue.expect("a queue");
    queue.create().await.expect("create");
    Arc::new(queue)
}

/// Returns the requests for a queue that Azurite has answered.
fn requests(name: &str) -> Vec<String> {
    let path = format!("/{ACCOUNT}/{name}");
    let mut requests = azurite().requests();
    requests.retain(|request| request.contains(&path));
    requests
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pushed_listener_sends_no_request_while_there_is_no_work() {
    let name = "pushed-and-idle";
    let relay = TestRelay::start().await.expect("a relay");
    let queue = queue_of(azurite(), name).await;
    let seen = Seen::default();
    let builder = builder_with_wakes(&relay, &queue, ListenerConfig::default());
    let listener = builder.start(seen.handler(Duration::ZERO)).await;
    let listener = listener.expect("started");
    for round in ["first", "second"] {
        pushed_and_idle(std::slice::from_ref(&listener)).await;
        let before = requests(name);
        assert!(!before.is_empty(), "the log names the queue");
        // A listener that polls sends about one a second.
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        let idle = &requests(name)[before.len()..];
        assert!(idle.is_empty(), "asked for nothing: {idle:?}");

        put_and_notify(&relay, &*queue, &names(round, 1)).await;
        until("handled", async || {
            seen.bodies().is_superset(&names(round, 1))
        })
        .await;
        until("deleted", async || {
            let after = &requests(name)[before.len()..];
            after.iter().any(|request| request.starts_with("DELETE "))
        })
        .await;
    }
    // Counted when the listener has the answer to its deletion.
    let stats = || listener.state().stats;
    until("counted", async || stats().handled == 2).await;
    assert_eq!(stats().errors, 0, "{:?}", stats());
    listener.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sentinel_costs_a_fleet_one_request_per_interval() {
    let name = "sentinel-of-twenty";
    let config = NodeConfig {
        relay: RelayConfig {
            sentinel_interval: Duration::from_secs(2),
            ..RelayConfig::default()
        },
        ..NodeConfig::default()
    };
    let relay = TestRelay::with_config(config).await.expect("a relay");
    let queue = queue_of(azurite(), name).await;
    let mut fleet = Vec::new();
    for _ in 0..20 {
        let builder = builder_with_wakes(&relay, &queue, ListenerConfig::default());
        let listener = builder.start(Seen::default().handler(Duration::ZERO)).await;
        fleet.push(listener.expect("started"));
    }
    pushed_and_idle(&fleet).await;
    let (before, began) = (requests(name).len(), Instant::now());
    until("five checks", async || requests(name).len() >= before + 5).await;
    let took = began.elapsed();
    let checks = &requests(name)[before..];
    // Four whole intervals, each +/- 10%, so 7.2 s at least, and up to one more before the first
    // check: 11 s. On a busy machine a check may be reported late, and another listener is asked for it
    // a second later; if each listener checked, an interval would have twenty.
    let bounds = Duration::from_secs(6)..Duration::from_secs(20);
    assert!(bounds.contains(&took), "{took:?}: {checks:?}");
    assert!(
        checks.iter().all(|check| check.starts_with("GET ")),
        "{checks:?}"
    );
    for listener in fleet {
        listener.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_killed_in_mid_flight_costs_no_message() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut azurite = Azurite::on_disk(directory.path());
    let relay = TestRelay::start().await.expect("a relay");
    let queue = queue_of(&azurite, "mid-flight").await;
    let (early, late) = (names("early", 40), names("late", 20));
    put(&*queue, &early).await;
    until("written down", async || {
        azurite.has_written_down(early.len())
    })
    .await;

    let config = ListenerConfig {
        dequeue_batch_size: 4,
        visibility_timeout: Duration::from_secs(3),
        policy: Arc::new(StepPolicy::new([], 2).expect("two tasks")),
        ..ListenerConfig::default()
    };
    let seen = Seen::default();
    let builder = builder_with_wakes(&relay, &queue, config);
    let listener = builder.start(seen.handler(Duration::from_millis(50))).await;
    let listener = listener.expect("started");
    until("some", async || seen.bodies().len() >= 8).await;
    azurite.kill();
    until("failed gets", async || listener.state().stats.errors >= 3).await;
    assert!(seen.bodies().len() < early.len(), "killed too late");
    let azurite = tokio::task::spawn_blocking(move || {
        azurite.restart();
        azurite
    });
    let _azurite = azurite.await.expect("it starts again");

    until("the rest", async || seen.bodies().is_superset(&early)).await;
    put_and_notify(&relay, &*queue, &late).await;
    until("all", async || seen.bodies() == &early | &late).await;
    until("an empty queue", async || {
        queue.depth().await.ok() == Some(0)
    })
    .await;
    assert_eq!(listener.state().mode, ListenerMode::Pushed);
    listener.shutdown().await;
}
