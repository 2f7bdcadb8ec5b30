//! Typed messages: a message that does not parse goes to the poison queue, and delays no other.

use std::{sync::Arc, time::Duration};

use reveille::{
    listener::{Delivery, ListenerConfig, PoisonedMessage, Rejected},
    queue::{NewMessage, SqliteQueue, WorkQueue, json},
    testing::TestRelay,
};
use serde::Deserialize;

use super::builder_with_wakes;
use crate::support::{listening, until, woken};

#[derive(Debug, Deserialize)]
struct Order {
    number: u32,
}

const BAD: [&[u8]; 3] = [b"\xff\xfe", b"{\"number\":", b"{\"number\":-1}"];

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_such_value_goes_to_the_poison_queue_at_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let relay = TestRelay::start().await.expect("a relay");
    let client = relay.client().expect("a client");
    let address = "local/orders".parse().expect("an address");
    let file = directory.path().join("orders.db");
    let orders = SqliteQueue::create(file, address).await.expect("create");
    // The listener creates it.
    let poison = orders.another("local/orders-poison".parse().expect("an address"));
    let wakes = client.subscribe(listening("operator", &["local/orders-poison"]));
    let mut wakes = wakes.expect("subscribed");
    woken(&mut wakes).await;

    let queue: Arc<dyn WorkQueue> = Arc::new(orders);
    let (done, mut numbers) = tokio::sync::mpsc::unbounded_channel();
    let listener = builder_with_wakes(&relay, &queue, ListenerConfig::default())
        .poison(Arc::new(poison.clone()))
        .publisher(Arc::new(client.publisher("worker")))
        .start(move |job: Delivery| {
            let order = json::decode::<Order>(&job.message.body);
            let done = done.clone();
            async move { Ok(done.send(order.map_err(Rejected::because)?.number)?) }
        })
        .await
        .expect("started");
    let mut bodies: Vec<_> = BAD.map(NewMessage::new).into();
    bodies.push(NewMessage::new("{\"number\":7}"));
    queue.put(bodies).await.expect("put");
    relay.wake(queue.address()).await.expect("woken");

    let mut told = 0;
    while told < BAD.len() as u64 {
        told += woken(&mut wakes).await.notifications;
    }
    assert_eq!(numbers.recv().await, Some(7));
    until("handled", async || queue.depth().await.ok() == Some(0)).await;
    let kept = poison.get(32, Duration::from_secs(30)).await.expect("get");
    assert_eq!(kept.len(), BAD.len());
    for body in BAD {
        let Ok(words) = str::from_utf8(body) else {
            // Its bytes are no UTF-8: it is put unchanged.
            assert!(kept.iter().any(|message| message.body == body));
            continue;
        };
        let poisoned = kept.iter().find_map(|message| {
            let poisoned: PoisonedMessage = json::decode(&message.body).ok()?;
            (poisoned.body == words).then_some(poisoned)
        });
        let poisoned = poisoned.expect(words);
        assert_eq!(poisoned.queue, "local/orders");
        assert_eq!(poisoned.dequeue_count, 1, "no further try would help");
        assert!(poisoned.error.contains("body: is not"), "{poisoned:?}");
    }
    let stats = listener.state().stats;
    assert_eq!((stats.handled, stats.poisoned), (1, 3), "{stats:?}");
    listener.shutdown().await;
}
