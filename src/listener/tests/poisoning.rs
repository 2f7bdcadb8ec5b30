//! Poison queues that are slow, that have a small limit, or that are the queue itself.

use super::{foreign::Foreign, *};
use crate::{
    error::{Error, ErrorKind},
    listener::{PoisonedMessage, Rejected},
    testing::{Call, ScriptedQueue},
};

fn rejecting(builder: ListenerBuilder) -> impl Future<Output = crate::Result<Listener>> {
    builder.start(|_: Delivery| async { Err(Rejected::because("never good").into()) })
}

#[tokio::test(start_paused = true)]
async fn a_slow_poison_queue_makes_no_copies() {
    let bench = Bench::new();
    let poison = ScriptedQueue::new("local/jobs-poison".parse().expect("an address"));
    poison.hang(Call::Put, 4, Duration::from_secs(45));
    bench.put(&["bad"]).await;
    let mut listeners = Vec::new();
    for _ in 0..4 {
        let builder = bench.pulling().poison(Arc::new(poison.clone()));
        listeners.push(rejecting(builder).await.expect("started"));
    }
    seconds(600).await;
    assert_eq!(poison.depth().await.ok(), Some(1));
    assert_eq!(bench.depth().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_poison_queue_that_hangs_holds_no_task_for_ever() {
    let bench = Bench::new();
    let poison = ScriptedQueue::new("local/jobs-poison".parse().expect("an address"));
    poison.hang(Call::Put, 1, Duration::MAX);
    bench.put(&["bad"]).await;
    let builder = bench.pulling().poison(Arc::new(poison.clone()));
    let listener = rejecting(builder).await.expect("started");
    seconds(600).await;
    assert_eq!(poison.depth().await.ok(), Some(1), "by a later try");
    assert_eq!((bench.depth().await, listener.state().is_idle), (0, true));
}

#[tokio::test(start_paused = true)]
async fn a_message_too_long_for_the_poison_queue_stays_in_its_queue() {
    let bench = Bench::new();
    let poison = Arc::new(Foreign {
        body: 30_000,
        ..Foreign::new("local/jobs-poison")
    });
    let long = NewMessage::new(vec![255_u8; 40_000]);
    bench.queue.put(vec![long]).await.expect("put");
    bench.put(&["bad"]).await;
    let builder = bench.pulling().poison(Arc::clone(&poison) as _);
    let listener = rejecting(builder).await.expect("started");
    seconds(3600).await;
    assert_eq!(
        (bench.depth().await, poison.depth().await.ok()),
        (1, Some(1))
    );
    let stats = listener.state().stats;
    assert_eq!((stats.poisoned, stats.handled), (1, 0));
    assert!((5..100).contains(&stats.errors), "{stats:?}");
}

/// A queue of text takes no bytes and no control characters.
#[tokio::test(start_paused = true)]
async fn a_message_that_the_poison_queue_does_not_take_goes_there_wrapped() {
    let bench = Bench::new();
    let poison = ScriptedQueue::new("local/jobs-poison".parse().expect("an address"));
    poison.fail(Call::Put, 1, Error::invalid("body", "must be text"));
    let put = bench
        .queue
        .put(vec![NewMessage::new(vec![255_u8; 3])])
        .await;
    put.expect("put");
    let builder = bench.pulling().poison(Arc::new(poison.clone()));
    let listener = rejecting(builder).await.expect("started");
    seconds(600).await;
    assert_eq!(bench.depth().await, 0);
    assert_eq!(listener.state().stats.received, 1, "not round and round");
    let got = poison.get(9, Duration::from_secs(30)).await.expect("got");
    let found: PoisonedMessage = serde_json::from_slice(&got[0].body).expect("JSON");
    assert_eq!(found.body, "");
    assert_eq!(found.body_base64.as_deref(), Some("////"), "all of it");
}

#[tokio::test(start_paused = true)]
async fn a_queue_is_not_its_own_poison_queue() {
    let bench = Bench::new();
    let own = Arc::new(MemoryQueue::new(bench.queue.address().clone()));
    for poison in [Arc::clone(&bench.queue) as Arc<dyn WorkQueue>, own] {
        let refused = rejecting(bench.pulling().poison(poison)).await;
        let error = refused.expect_err("it would go round and round");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().starts_with("poison: "), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_tried_here_is_tried_again_after_any_number_of_gets() {
    let queue = Foreign {
        age: Duration::from_secs(36_000),
        ..Foreign::new("local/jobs")
    };
    let poison = ScriptedQueue::new("local/jobs-poison".parse().expect("an address"));
    let denied = Error::new(ErrorKind::Denied, "the credentials are being changed");
    poison.fail(Call::Put, 60, denied);
    let put = queue.put(vec![NewMessage::new("bad")]).await;
    put.expect("put");
    let seen = Seen::default();
    let noting = seen.clone();
    let config = ListenerConfig {
        max_dequeue_count: 2,
        retry: (Duration::from_secs(10), Duration::from_secs(10)),
        ..config()
    };
    let builder = Listener::builder(Arc::new(queue)).config(config);
    let listener = builder
        .poison(Arc::new(poison.clone()))
        .start(move |delivery: Delivery| {
            noting.note(&delivery);
            async { Err("the mill is broken".into()) }
        });
    let _listener = listener.await.expect("started");
    seconds(3600).await;
    assert!(seen.all().len() > 60, "{}", seen.all().len());
    let got = poison.get(32, Duration::from_secs(30)).await.expect("get");
    let poisoned: PoisonedMessage = serde_json::from_slice(&got[0].body).expect("JSON");
    assert_eq!(poisoned.error, "the mill is broken");
}
