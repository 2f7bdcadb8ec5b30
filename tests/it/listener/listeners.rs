//! Several queues with one handler, on a relay over sockets.

use std::{sync::Arc, time::Duration};

use reveille::{
    ListenerId,
    listener::{Budget, Listener, ListenerConfig, ListenerMode, Listeners},
    queue::{MemoryQueue, WorkQueue},
    testing::TestRelay,
};

use super::{Seen, names, put_and_notify};
use crate::support::until;

#[tokio::test(flavor = "multi_thread")]
async fn several_queues_share_a_handler_and_a_budget() {
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
    let seen = Seen::default();
    let builders = queues.iter().map(|queue| {
        let id = ListenerId::unique("worker").expect("a name");
        let wakes = client.subscribe(config.subscription(id, &**queue));
        let builder = Listener::builder(Arc::clone(queue)).config(config.clone());
        builder.wakes(wakes.expect("subscribed"))
    });
    let handler = seen.handler(Duration::from_millis(5));
    let listeners = Listeners::start(builders, handler).await.expect("started");
    let pushed = async || {
        let mut states = listeners.states().into_iter();
        states.all(|(_, state)| state.mode == ListenerMode::Pushed)
    };
    until("pushed", pushed).await;
    for (number, queue) in queues.iter().enumerate() {
        put_and_notify(&relay, &**queue, &names(&format!("{number}-early-"), 3)).await;
    }
    until("handled", async || seen.bodies().len() == 60).await;

    relay.restart().await.expect("restarted");
    until("pushed again", pushed).await;
    for (number, queue) in queues.iter().enumerate() {
        put_and_notify(&relay, &**queue, &names(&format!("{number}-last-"), 3)).await;
    }
    until("told by the next relay", async || {
        seen.bodies().len() == 120
    })
    .await;
    let stats = listeners.shutdown().await;
    assert!(stats.iter().all(|one| one.handled == 6), "{stats:?}");
}
