//! Listeners of several queues on one subscription.

use super::*;
use crate::{
    error::{Error, ErrorKind},
    listener::{Budget, ListenerMode, Listeners, PoisonedMessage, Rejected},
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
    let id = ListenerId::new("worker").expect("a name");
    let options = config.subscription_of(id, queues);
    let wakes = bench.relay.subscribe(options).expect("subscribed");
    let builder = Listeners::builder(queues.to_vec()).config(config);
    let listeners = builder.wakes(wakes).start(seen.handler()).await;
    seconds(5).await;
    listeners.expect("started")
}

#[tokio::test(start_paused = true)]
async fn each_queue_is_woken_by_its_own_wake_ups_on_one_stream() {
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
async fn all_are_paused_together_and_go_on_together() {
    let (bench, seen, queues) = (Bench::new(), Seen::default(), queues());
    let listeners = pushed(&bench, &queues, &seen).await;
    listeners.pause();
    seconds(5).await;
    for queue in &queues {
        put(queue, "job").await;
        notify(&bench.relay, queue.address()).await;
    }
    seconds(60).await;
    assert_eq!(seen.all().len(), 0);
    listeners.resume();
    seconds(1).await;
    assert_eq!(seen.all().len(), 3);
    for queue in &queues {
        put(queue, "job").await;
        notify(&bench.relay, queue.address()).await;
    }
    seconds(1).await;
    assert_eq!(seen.all().len(), 6, "the stream is there again");
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
async fn json_values_are_handled_and_other_messages_poisoned() {
    let queues = queues();
    let address = "local/poison".parse().expect("an address");
    let poison: Arc<dyn WorkQueue> = Arc::new(MemoryQueue::new(address));
    let (kept, sum) = (Arc::clone(&poison), Arc::new(Mutex::new(0)));
    let adding = Arc::clone(&sum);
    let listeners = Listeners::builder(queues.clone())
        .config(limited())
        .poison(move |queue| (queue.queue_name() == "bills").then(|| Arc::clone(&kept)))
        .start_json(move |number: u32, delivery: Delivery| {
            let adding = Arc::clone(&adding);
            async move {
                if delivery.queue.queue_name() == "mails" {
                    return Err(Rejected::because("no mails").into());
                }
                *adding.lock().expect("no panic") += number;
                Ok(())
            }
        });
    let _listeners = listeners.await.expect("started");
    for (queue, body) in std::iter::zip(&queues, ["3", "4", "5"]) {
        put(queue, body).await;
        put(queue, "no number").await;
    }
    seconds(5).await;
    assert_eq!(*sum.lock().expect("no panic"), 7);
    let got = poison.get(32, Duration::from_secs(30)).await.expect("get");
    assert_eq!(got.len(), 1);
    let poisoned: PoisonedMessage = serde_json::from_slice(&got[0].body).expect("JSON");
    assert_eq!(poisoned.body, "no number");
    assert!(poisoned.error.contains("expected"), "{}", poisoned.error);
}

#[tokio::test]
async fn queues_that_are_none_or_the_same_are_refused() {
    let seen = Seen::default();
    let none = Listeners::builder([]).start(seen.handler()).await;
    assert!(none.expect_err("none").message().contains("queues"));
    let mut queues = queues();
    queues.push(Arc::clone(&queues[1]));
    let twice = Listeners::builder(queues).start(seen.handler()).await;
    let error = twice.expect_err("twice");
    assert!(error.message().contains("local/bills"), "{error}");
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
    let builder = Listeners::builder(queues).config(limited());
    let error = builder.start(seen.handler()).await.expect_err("missing");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    seconds(5).await;
    assert_eq!(seen.all().len(), 0);
}
