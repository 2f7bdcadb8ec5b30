//! Batches that are handled as one, messages that are postponed, handlers that wind down.

use super::{foreign::Foreign, *};
use crate::{
    error::{Error, ErrorKind},
    listener::{Hooks, ListenerMode, Postponed, Rejected},
    queue::Message,
    testing::{Call, ScriptedQueue},
};

/// The batches that a handler received.
#[derive(Clone, Default)]
struct Batches(Arc<Mutex<Vec<Vec<String>>>>);

impl Batches {
    fn note(&self, batch: &[Delivery]) -> Vec<String> {
        let body = |one: &Delivery| String::from_utf8_lossy(&one.message.body).into_owned();
        let mut bodies: Vec<_> = batch.iter().map(body).collect();
        bodies.sort();
        self.0.lock().expect("no panic").push(bodies.clone());
        bodies
    }

    fn all(&self) -> Vec<Vec<String>> {
        self.0.lock().expect("no panic").clone()
    }
}

fn poison() -> Arc<MemoryQueue> {
    let address = "local/jobs-poison".parse().expect("an address");
    Arc::new(MemoryQueue::new(address))
}

#[tokio::test(start_paused = true)]
async fn the_messages_of_a_get_are_handled_as_one_and_deleted_together() {
    let bench = Bench::new();
    bench.put(&["a", "b", "c", "d", "e"]).await;
    let batches = Batches::default();
    let noting = batches.clone();
    let config = ListenerConfig {
        dequeue_batch_size: 3,
        concurrency: 1,
        max_tasks: 1,
        ..config()
    };
    let builder = bench.pulling().config(config);
    let listener = builder.start_batches(move |batch: Vec<Delivery>| {
        noting.note(&batch);
        std::future::ready(HandlerResult::Ok(()))
    });
    let listener = listener.await.expect("started");
    seconds(1).await;
    assert_eq!(batches.all(), [vec!["a", "b", "c"], vec!["d", "e"]]);
    assert_eq!(bench.depth().await, 0);
    assert_eq!(listener.state().stats.handled, 5);
}

#[tokio::test(start_paused = true)]
async fn one_bad_message_fails_its_batch_but_goes_to_the_poison_queue_alone() {
    let bench = Bench::new();
    bench.put(&["bad", "good", "fine"]).await;
    let (batches, poison) = (Batches::default(), poison());
    let noting = batches.clone();
    let config = ListenerConfig {
        max_dequeue_count: 2,
        ..config()
    };
    let builder = bench.pulling().config(config);
    let listener = builder
        .poison(Arc::clone(&poison) as Arc<dyn WorkQueue>)
        .start_batches(move |batch: Vec<Delivery>| {
            let bad = noting.note(&batch).contains(&"bad".to_owned());
            async move { if bad { Err("it is bad".into()) } else { Ok(()) } }
        });
    let listener = listener.await.expect("started");
    seconds(10).await;
    let all = batches.all();
    assert_eq!(all[0], ["bad", "fine", "good"]);
    assert_eq!(all.len(), 4, "and each by itself: {all:?}");
    assert_eq!(bench.depth().await, 0);
    let stats = listener.state().stats;
    assert_eq!((stats.handled, stats.failed, stats.poisoned), (2, 4, 1));
    assert_eq!(poison.depth().await.ok(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_poisoned_unhandled_keeps_no_batch_waiting() {
    let queue = Arc::new(Foreign {
        age: Duration::from_secs(36_000),
        ..Foreign::new("local/jobs")
    });
    let put = queue.put(vec![NewMessage::new("deadly")]).await;
    put.expect("put");
    queue.waste(100).await;
    let put = queue.put(vec![NewMessage::new("fine")]).await;
    put.expect("put");
    let (batches, poison) = (Batches::default(), poison());
    let noting = batches.clone();
    let builder = Listener::builder(Arc::clone(&queue) as Arc<dyn WorkQueue>);
    let builder = builder.config(config()).poison(poison);
    let listener = builder.start_batches(move |batch: Vec<Delivery>| {
        noting.note(&batch);
        std::future::ready(HandlerResult::Ok(()))
    });
    let _listener = listener.await.expect("started");
    seconds(5).await;
    assert_eq!(batches.all(), [["fine"]]);
    assert_eq!(queue.depth().await.ok(), Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_cannot_be_read_keeps_no_batch_waiting() {
    let queue = Arc::new(ScriptedQueue::new(
        "local/jobs".parse().expect("an address"),
    ));
    queue.spoil(1, Error::new(ErrorKind::Unavailable, "the store is away"));
    queue.hang(Call::Release, 1, Duration::from_secs(20));
    let put = vec![NewMessage::new("unread"), NewMessage::new("fine")];
    queue.put(put).await.expect("put");
    let batches = Batches::default();
    let noting = batches.clone();
    let builder = Listener::builder(queue as Arc<dyn WorkQueue>).config(config());
    let listener = builder.start_batches(move |batch: Vec<Delivery>| {
        noting.note(&batch);
        std::future::ready(HandlerResult::Ok(()))
    });
    let _listener = listener.await.expect("started");
    seconds(5).await;
    assert_eq!(batches.all(), [["fine"]]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_rejected_is_tried_one_by_one_before_any_of_it_is_poisoned() {
    let bench = Bench::new();
    bench.put(&["bad", "good", "fine"]).await;
    let (batches, poison) = (Batches::default(), poison());
    let noting = batches.clone();
    let builder = bench
        .pulling()
        .poison(Arc::clone(&poison) as Arc<dyn WorkQueue>);
    let listener = builder.start_batches(move |batch: Vec<Delivery>| {
        let bad = noting.note(&batch).contains(&"bad".to_owned());
        async move {
            match bad {
                true => Err(Rejected::because("one is bad").into()),
                false => Ok(()),
            }
        }
    });
    let listener = listener.await.expect("started");
    seconds(10).await;
    let all = batches.all();
    assert_eq!(all[0], ["bad", "fine", "good"]);
    assert_eq!(all.len(), 4, "and each by itself: {all:?}");
    assert_eq!(bench.depth().await, 0);
    let stats = listener.state().stats;
    assert_eq!((stats.handled, stats.failed, stats.poisoned), (2, 4, 1));
    let poisoned = poison.get(9, Duration::from_secs(30)).await.expect("got");
    let poisoned: crate::listener::PoisonedMessage =
        serde_json::from_slice(&poisoned[0].body).expect("JSON");
    assert_eq!((&*poisoned.body, poisoned.dequeue_count), ("bad", 2));
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_panics_is_handed_out_again() {
    let bench = Bench::new();
    bench.put(&["a", "b"]).await;
    let batches = Batches::default();
    let noting = batches.clone();
    let listener = bench
        .pulling()
        .start_batches(move |batch: Vec<Delivery>| {
            noting.note(&batch);
            let first = noting.all().len() == 1;
            async move {
                assert!(!first, "what a mess");
                Ok(())
            }
        })
        .await
        .expect("started");
    seconds(5).await;
    assert_eq!(batches.all()[0], ["a", "b"]);
    assert_eq!(bench.depth().await, 0);
    assert_eq!(listener.state().stats.failed, 2);
}

#[tokio::test(start_paused = true)]
async fn a_postponed_message_comes_back_on_time_and_has_not_failed() {
    let bench = Bench::new();
    let seen = Seen::default();
    let noting = seen.clone();
    let listener = bench.pushed(config()).start(move |delivery: Delivery| {
        noting.note(&delivery);
        assert_eq!(delivery.message.dequeue_count, 1, "it was not tried");
        let first = noting.all().len() == 1;
        async move {
            if first {
                return Err(Postponed::by(Duration::from_secs(60)).into());
            }
            Ok(())
        }
    });
    let listener = listener.await.expect("started");
    seconds(5).await;
    bench.put(&["later"]).await;
    bench.notify().await;
    seconds(59).await;
    assert_eq!(seen.all().len(), 1);
    seconds(6).await;
    assert_eq!(seen.all().len(), 2);
    let stats = listener.state().stats;
    assert_eq!((stats.handled, stats.failed, stats.errors), (1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_is_told_to_end_may_wind_down_before_others_get_its_message() {
    let bench = Bench::new();
    let config = ListenerConfig {
        grace: Duration::from_secs(3),
        wind_down: Duration::from_secs(60),
        ..config()
    };
    let seen = Seen::default();
    let noting = seen.clone();
    let listener = bench.pushed(config).start(move |delivery: Delivery| {
        let seen = noting.clone();
        async move {
            delivery.lost().await;
            // Longer than the time-out: the message is kept hidden the whole time.
            seconds(45).await;
            seen.note(&delivery);
            Err("ended early".into())
        }
    });
    let listener = listener.await.expect("started");
    seconds(5).await;
    bench.put(&["job"]).await;
    bench.notify().await;
    seconds(1).await;
    let heir = Seen::default();
    let inherits = bench.pushed(self::config()).start(heir.handler()).await;
    let _inherits = inherits.expect("started");
    seconds(5).await;
    let shutdown = tokio::spawn(listener.shutdown());
    seconds(47).await;
    assert!(heir.all().is_empty(), "before it wound down");
    seconds(2).await;
    assert_eq!((seen.all().len(), heir.all().len()), (1, 1));
    shutdown.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_succeeds_just_in_time_has_handled_its_message() {
    let bench = Bench::new();
    let config = ListenerConfig {
        max_handling_time: Duration::from_secs(10),
        ..config()
    };
    bench.put(&["job"]).await;
    let builder = bench.pulling().config(config);
    let listener = builder.start(|delivery: Delivery| async move {
        delivery.lost().await;
        seconds(1).await;
        Ok(())
    });
    let listener = listener.await.expect("started");
    seconds(20).await;
    assert_eq!(listener.state().stats.handled, 1);
    assert_eq!(bench.depth().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_never_ends_is_cancelled_and_dropped() {
    let bench = Bench::new();
    bench.put(&["a", "b"]).await;
    let config = ListenerConfig {
        grace: Duration::from_secs(1),
        ..config()
    };
    let (held, mut dropped) = tokio::sync::mpsc::channel::<()>(1);
    let (told, mut hears) = tokio::sync::mpsc::channel(1);
    let builder = bench.pulling().config(config);
    let listener = builder.start_batches(move |batch: Vec<Delivery>| {
        let (held, told) = (held.clone(), told.clone());
        async move {
            batch[0].lost().await;
            told.send(batch.len()).await?;
            let _held = held;
            std::future::pending().await
        }
    });
    let listener = listener.await.expect("started");
    seconds(1).await;
    listener.shutdown().await;
    assert_eq!(hears.recv().await, Some(2));
    assert_eq!(dropped.recv().await, None, "the run is gone");
    let again = bench.queue.get(2, Duration::from_secs(1)).await;
    assert_eq!(again.expect("got").len(), 2, "given back");
}

#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Hooks for Told {
    fn on_mode_changed(&self, mode: ListenerMode, _: Option<&str>) {
        self.0.lock().expect("no panic").push(format!("{mode:?}"));
    }

    fn on_poisoned(&self, message: &Message, error: &crate::listener::HandlerError) {
        let body = String::from_utf8_lossy(&message.body).into_owned();
        let mut all = self.0.lock().expect("no panic");
        all.push(format!("{body} {error}"));
    }
}

#[tokio::test(start_paused = true)]
async fn hooks_observe_each_mode_and_poisoned_messages() {
    let bench = Bench::new();
    let told = Told::default();
    let config = ListenerConfig {
        max_dequeue_count: 1,
        ..config()
    };
    let builder = bench.pushed(config).hooks(told.clone()).poison(poison());
    let listener = builder.start(|_: Delivery| async { Err("no good".into()) });
    let _listener = listener.await.expect("started");
    bench.put(&["job"]).await;
    bench.notify().await;
    seconds(10).await;
    bench.relay.shutdown().await;
    seconds(1).await;
    let told = told.0.lock().expect("no panic").clone();
    assert_eq!(told, ["Pushed", "job no good", "Polling"]);
}
