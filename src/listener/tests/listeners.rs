//! Listeners of several queues with one handler.

use super::*;
use crate::{
    error::{Error, ErrorKind},
    listener::{Budget, ListenerMode, Listeners},
    testing::{Call, ScriptedQueue},
    types::QueueAddress,
};

const NAMES: [&str; 3] = ["local/orders", "local/bills", "local/mails"];

fn queues() -> Vec<Arc<dyn WorkQueue>> {
    let queue = |name: &str| {
        let address = name.parse().expect("an address");
        Arc::new(MemoryQueue::new(address)) as Arc<dyn WorkQueue>
    };
    NAMES.map(queue).to_vec()
}

fn limited() -> ListenerConfig {
    ListenerConfig {
        budget: Budget::new(2),
        ..config()
    }
}

async fn put(queue: &Arc<dyn WorkQueue>, body: &str) {
    let put = queue.put(vec![NewMessage::new(body.to_owned())]);
    put.await.expect("put");
}

async fn notify(relay: &Relay, address: &QueueAddress) {
    let publisher = relay.publisher("test");
    let notification = Notification::new(address.clone());
    publisher.notify(vec![notification]).await.expect("counted");
}

/// Starts pushed listeners of these queues on the bench's relay.
async fn pushed(bench: &Bench, queues: &[Arc<dyn WorkQueue>], seen: &Seen) -> Listeners {
    let config = limited();
    let builders = queues.iter().map(|queue| {
        let id = ListenerId::new("worker").expect("a name");
        let wakes = bench.relay.subscribe(config.subscription(id, &**queue));
        let builder = Listener::builder(Arc::clone(queue)).config(config.clone());
        builder.wakes(wakes.expect("subscribed"))
    });
    let listeners = Listeners::start(builders, seen.handler()).await;
    seconds(5).await;
    listeners.expect("started")
}

#[tokio::test(start_paused = true)]
async fn each_queue_is_woken_by_its_own_wake_ups() {
    let (bench, seen, queues) = (Bench::new(), Seen::default(), queues());
    let listeners = pushed(&bench, &queues, &seen).await;
    let modes = listeners.states().into_iter().map(|(_, state)| state.mode);
    assert!(modes.eq([ListenerMode::Pushed; 3]));
    let gets = |number: usize| listeners.each()[number].state().stats.gets;
    let before = [0, 1, 2].map(gets);
    for (queue, body) in std::iter::zip(&queues, ["order", "bill", "mail"]) {
        put(queue, body).await;
    }
    notify(&bench.relay, queues[1].address()).await;
    seconds(1).await;
    assert_eq!(seen.all(), ["bill"], "the other queues got no wake-up");
    assert_eq!([gets(0), gets(2)], [before[0], before[2]]);
    notify(&bench.relay, queues[0].address()).await;
    notify(&bench.relay, queues[2].address()).await;
    seconds(1).await;
    assert_eq!(seen.all().len(), 3);
    let stats = listeners.shutdown().await;
    assert!(stats.iter().map(|one| one.handled).eq([1; 3]));
}

#[tokio::test(start_paused = true)]
async fn when_the_relay_ends_all_of_them_poll() {
    let (bench, seen, queues) = (Bench::new(), Seen::default(), queues());
    let listeners = pushed(&bench, &queues, &seen).await;
    bench.relay.shutdown().await;
    seconds(1).await;
    let modes = listeners.states().into_iter().map(|(_, state)| state.mode);
    assert!(modes.eq([ListenerMode::Polling; 3]));
    for queue in &queues {
        put(queue, "job").await;
    }
    seconds(60).await;
    assert_eq!(seen.all().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn where_one_queue_cannot_be_listened_to_none_is() {
    let mut queues = queues();
    let missing = ScriptedQueue::new("local/missing".parse().expect("an address"));
    missing.fail(
        Call::Depth,
        1,
        Error::new(ErrorKind::NotFound, "no such queue"),
    );
    queues.push(Arc::new(missing));
    put(&queues[0], "job").await;
    let seen = Seen::default();
    let builders = queues.into_iter().map(Listener::builder);
    let started = Listeners::start(builders, seen.handler()).await;
    let error = started.expect_err("missing");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    seconds(5).await;
    assert_eq!(seen.all().len(), 0);
}
