//! Gets that were no try: they bring no message nearer to the poison queue.

use super::*;
use crate::{
    error::{Error, ErrorKind},
    listener::Postponed,
    testing::ScriptedQueue,
};

fn poison() -> Arc<dyn WorkQueue> {
    let address = "local/jobs-poison".parse().expect("an address");
    Arc::new(MemoryQueue::new(address))
}

fn two_tries() -> ListenerConfig {
    ListenerConfig {
        max_dequeue_count: 2,
        ..config()
    }
}

/// A queue with one message, whose body is away for nine gets.
async fn behind_an_outage() -> ScriptedQueue {
    let queue = ScriptedQueue::new("local/jobs".parse().expect("an address"));
    queue.spoil(9, Error::new(ErrorKind::Unavailable, "the store is away"));
    let put = queue.put(vec![NewMessage::new("job")]).await;
    put.expect("put");
    queue
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_blob_store_costs_a_message_no_try() {
    let queue = behind_an_outage().await;
    let (poison, seen) = (poison(), Seen::default());
    let noting = seen.clone();
    let builder = Listener::builder(Arc::new(queue.clone())).config(two_tries());
    let builder = builder.poison(Arc::clone(&poison));
    let listener = builder.start(move |delivery: Delivery| {
        noting.note(&delivery);
        let fails = noting.all().len() == 1;
        async move { if fails { Err("once".into()) } else { Ok(()) } }
    });
    let _listener = listener.await.expect("started");
    seconds(3600).await;
    assert_eq!(seen.all(), ["job", "job"], "both of its tries");
    assert_eq!(poison.depth().await.ok(), Some(0));
    assert_eq!(queue.depth().await.ok(), Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_message_still_goes_to_the_poison_queue_after_as_many_tries_as_it_has() {
    let queue = behind_an_outage().await;
    let (poison, seen) = (poison(), Seen::default());
    let noting = seen.clone();
    let builder = Listener::builder(Arc::new(queue.clone())).config(two_tries());
    let builder = builder.poison(Arc::clone(&poison));
    let listener = builder.start(move |delivery: Delivery| {
        noting.note(&delivery);
        std::future::ready(HandlerResult::Err("no good".into()))
    });
    let _listener = listener.await.expect("started");
    seconds(3600).await;
    assert_eq!(seen.all(), ["job", "job"]);
    assert_eq!(poison.depth().await.ok(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn what_is_postponed_has_all_its_tries_left() {
    let bench = Bench::new();
    bench.put(&["job"]).await;
    let (poison, seen) = (poison(), Seen::default());
    let noting = seen.clone();
    let builder = bench.pulling().config(two_tries());
    let builder = builder.poison(Arc::clone(&poison));
    let listener = builder.start(move |delivery: Delivery| {
        noting.note(&delivery);
        let later = noting.all().len() < 6;
        async move {
            match later {
                true => Err(Postponed::by(Duration::from_secs(1)).into()),
                false => Ok(()),
            }
        }
    });
    let _listener = listener.await.expect("started");
    seconds(60).await;
    assert_eq!(seen.all().len(), 6);
    assert_eq!(poison.depth().await.ok(), Some(0));
    assert_eq!(bench.depth().await, 0);
}
