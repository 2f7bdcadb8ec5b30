//! Several queues on one stream of a relay over sockets.

use std::{sync::Arc, time::Duration};

use reveille::{
    ListenerId,
    listener::{Budget, ListenerConfig, ListenerMode, Listeners},
    queue::{MemoryQueue, WorkQueue},
    testing::TestRelay,
};

use super::{Seen, names, put_and_notify};
use crate::support::until;

#[tokio::test(flavor = "multi_thread")]
async fn several_queues_share_a_stream_that_ends_while_they_are_paused() {
    let mut relay = TestRelay::start().await.expect("a relay");
    let client = relay.client().expect("a client");
    let queues: Vec<Arc<dyn WorkQueue>> = (0..20)
        .map(|number| {
            let address = format!("local/jobs-{number}").parse().expect("an address");
            Arc::new(MemoryQueue::new(address)) as Arc<dyn WorkQueue>
        })
        .collect();
    let config = ListenerConfig {
        budget: Budget::new(4),
        ..ListenerConfig::default()
    };
    let id = ListenerId::unique("worker").expect("a name");
    let wakes = client.subscribe(config.subscription_of(id, &queues));
    let seen = Seen::default();
    let listeners = Listeners::builder(queues.clone())
        .config(config)
        .wakes(wakes.expect("subscribed"))
        .start(seen.handler(Duration::from_millis(5)))
        .await
        .expect("started");
    let streams = async || {
        client
            .listeners()
            .await
            .map(|all| all.len())
            .unwrap_or(usize::MAX)
    };
    let pushed = async || {
        let mut states = listeners.states().into_iter();
        states.all(|(_, state)| state.mode == ListenerMode::Pushed)
    };
    until("pushed", pushed).await;
    assert_eq!(streams().await, 1);
    for (number, queue) in queues.iter().enumerate() {
        put_and_notify(&relay, &**queue, &names(&format!("{number}-early-"), 3)).await;
    }
    until("handled", async || seen.bodies().len() == 60).await;

    listeners.pause();
    until("the stream has ended", async || streams().await == 0).await;
    for (number, queue) in queues.iter().enumerate() {
        put_and_notify(&relay, &**queue, &names(&format!("{number}-late-"), 3)).await;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(seen.bodies().len(), 60);
    listeners.resume();
    until("all are handled", async || seen.bodies().len() == 120).await;
    until("one stream again", async || streams().await == 1).await;

    relay.restart().await.expect("restarted");
    until("one stream at the next relay", async || {
        streams().await == 1
    })
    .await;
    until("pushed again", pushed).await;
    for (number, queue) in queues.iter().enumerate() {
        put_and_notify(&relay, &**queue, &names(&format!("{number}-last-"), 3)).await;
    }
    until("told by the next relay", async || {
        seen.bodies().len() == 180
    })
    .await;
    let stats = listeners.shutdown().await;
    assert!(stats.iter().all(|one| one.handled == 9), "{stats:?}");
}
