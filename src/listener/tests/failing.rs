//! Handlers that fail, panic, hang or come too late; shutdowns.

mod broken;

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::{
    error::{Error, ErrorKind},
    listener::{Action, Hooks, PoisonedMessage, Rejected},
    queue::MessageId,
    testing::ScriptedQueue,
};

/// Counts errors by action.
#[derive(Clone, Default)]
struct Errors(Arc<Mutex<Vec<(Action, String)>>>);

impl Hooks for Errors {
    fn on_error(&self, action: Action, _: Option<&MessageId>, error: &Error) {
        let mut all = self.0.lock().expect("no panic");
        all.push((action, error.to_string()));
    }
}

impl Errors {
    fn of(&self, action: Action) -> Vec<String> {
        let all = self.0.lock().expect("no panic");
        let some = all.iter().filter(|(failed, _)| *failed == action);
        some.map(|(_, text)| text.clone()).collect()
    }
}

fn poison() -> Arc<dyn WorkQueue> {
    Arc::new(MemoryQueue::new(
        "local/jobs-poison".parse().expect("an address"),
    ))
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_handler_fails_comes_back_later_and_later() {
    let bench = Bench::new();
    let (tries, errors) = (Arc::new(Mutex::new(Vec::new())), Errors::default());
    let noting = Arc::clone(&tries);
    let builder = bench.pushed(config()).hooks(errors.clone());
    let listener = builder.start(move |_: Delivery| {
        let mut tries = noting.lock().expect("no panic");
        tries.push(tokio::time::Instant::now());
        let fails = tries.len() < 4;
        async move { if fails { Err("not yet".into()) } else { Ok(()) } }
    });
    let listener = listener.await.expect("started");
    seconds(5).await;
    bench.put(&["job"]).await;
    bench.notify().await;
    seconds(60).await;
    let tries = tries.lock().expect("no panic").clone();
    let gaps: Vec<_> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps.len(), 3, "{gaps:?}");
    for (gap, (least, most)) in gaps.iter().zip([(500, 1100), (1000, 2200), (2000, 4400)]) {
        let within = Duration::from_millis(least)..=Duration::from_millis(most);
        assert!(within.contains(gap), "{gaps:?}");
    }
    assert_eq!(bench.depth().await, 0);
    assert_eq!(errors.of(Action::Handle).len(), 3);
    assert_eq!(listener.state().stats.failed, 3);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_fails_again_and_again_goes_to_the_poison_queue_with_its_error() {
    let bench = Bench::new();
    let poison = poison();
    let builder = bench.pushed(config()).poison(Arc::clone(&poison));
    let listener = builder.start(|delivery: Delivery| async move {
        match &*delivery.message.body {
            b"panics" => panic!("what a mess"),
            b"rejected" => Err(Rejected::because("never good").into()),
            _ => Err("no good".into()),
        }
    });
    let listener = listener.await.expect("started");
    seconds(5).await;
    bench.put(&["fails", "panics", "rejected"]).await;
    bench.notify().await;
    seconds(1).await;
    assert_eq!(
        poison.depth().await.ok(),
        Some(1),
        "a rejected message goes at once"
    );
    seconds(120).await;
    assert_eq!(bench.depth().await, 0);
    let mut found = Vec::new();
    for message in poison.get(10, Duration::from_secs(30)).await.expect("got") {
        let poisoned: PoisonedMessage = serde_json::from_slice(&message.body).expect("JSON");
        assert_eq!(poisoned.queue, "local/jobs");
        found.push((poisoned.body, poisoned.error, poisoned.dequeue_count));
    }
    found.sort();
    let row = |body: &str, error: &str, count| (body.to_owned(), error.to_owned(), count);
    assert_eq!(
        found,
        [
            row("fails", "no good", 5),
            row("panics", "panicked: what a mess", 5),
            row("rejected", "rejected: never good", 1),
        ]
    );
    assert_eq!(listener.state().stats.poisoned, 3);
}

/// As from a claim check: a store that is away for a while, then a missing blob.
#[tokio::test(start_paused = true)]
async fn a_message_without_its_body_is_not_handled_and_judged_by_its_fault() {
    let queue = ScriptedQueue::new("local/jobs".parse().expect("an address"));
    let (poison, seen) = (poison(), Seen::default());
    let builder = Listener::builder(Arc::new(queue.clone())).config(config());
    let builder = builder.poison(Arc::clone(&poison));
    queue.spoil(3, Error::new(ErrorKind::Unavailable, "the store is away"));
    let put = queue.put(vec![NewMessage::new("late")]).await;
    put.expect("put");
    let _listener = builder.start(seen.handler()).await.expect("started");
    seconds(600).await;
    assert_eq!(seen.all(), ["late"], "given back until it had its body");
    assert_eq!(poison.depth().await.ok(), Some(0));

    queue.spoil(1, Error::new(ErrorKind::NotFound, "no such blob"));
    let put = queue.put(vec![NewMessage::new("gone")]).await;
    put.expect("put");
    seconds(600).await;
    assert_eq!(seen.all(), ["late"]);
    let poisoned = poison.get(10, Duration::from_secs(30)).await.expect("got");
    let gone: PoisonedMessage = serde_json::from_slice(&poisoned[0].body).expect("JSON");
    assert_eq!((&*gone.body, &*gone.error), ("gone", "no such blob"));
    assert_eq!(gone.dequeue_count, 1, "at once");
    assert_eq!(queue.depth().await.expect("depth"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_message_stays_hidden_while_its_handler_runs_however_long_that_takes() {
    let bench = Bench::new();
    let seen = Seen::default();
    let noting = seen.clone();
    let builder = bench.pushed(config());
    let listener = builder.start(move |delivery: Delivery| {
        noting.note(&delivery);
        async {
            seconds(600).await;
            Ok(())
        }
    });
    let listener = listener.await.expect("started");
    seconds(5).await;
    bench.put(&["long"]).await;
    bench.notify().await;
    seconds(700).await;
    assert_eq!(seen.all(), ["long"], "handed out once");
    assert_eq!(bench.depth().await, 0);
    assert_eq!(listener.state().stats.lost, 0);
    let renews = bench.usage().renews;
    assert!((58..=62).contains(&renews), "each 10 s: {renews}");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_never_ends_is_cancelled_and_its_message_retried() {
    let bench = Bench::new();
    let config = ListenerConfig {
        max_handling_time: Duration::from_secs(100),
        ..config()
    };
    let told = Arc::new(AtomicUsize::new(0));
    let (recorder, seen) = (Arc::clone(&told), Seen::default());
    let noting = seen.clone();
    let builder = bench.pushed(config);
    let listener = builder.start(move |delivery: Delivery| {
        noting.note(&delivery);
        let told = Arc::clone(&recorder);
        tokio::spawn(async move {
            delivery.lost().await;
            told.fetch_add(1, Ordering::SeqCst);
        });
        std::future::pending()
    });
    let _listener = listener.await.expect("started");
    seconds(5).await;
    bench.put(&["endless"]).await;
    bench.notify().await;
    seconds(110).await;
    assert_eq!(told.load(Ordering::SeqCst), 1);
    assert_eq!(seen.all().len(), 2, "handed out again");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_the_handlers_and_gets_nothing_more() {
    let bench = Bench::new();
    let seen = Seen::default();
    let noting = seen.clone();
    let config = ListenerConfig {
        dequeue_batch_size: 1,
        max_tasks: 1,
        ..config()
    };
    let builder = bench.pushed(config);
    let listener = builder.start(move |delivery: Delivery| {
        let seen = noting.clone();
        async move {
            seconds(10).await;
            seen.note(&delivery);
            Ok(())
        }
    });
    let listener = listener.await.expect("started");
    seconds(5).await;
    bench.put(&["first", "second"]).await;
    bench.notify().await;
    seconds(1).await;
    listener.shutdown().await;
    assert_eq!(seen.all(), ["first"]);
    assert_eq!(bench.depth().await, 1, "the other one is left");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_releases_unfinished_messages_and_reports_them() {
    let bench = Bench::new();
    let config = ListenerConfig {
        grace: Duration::from_secs(3),
        concurrency: 1,
        ..config()
    };
    let builder = bench.pushed(config);
    let listener = builder.start(|_: Delivery| std::future::pending());
    let listener = listener.await.expect("started");
    seconds(5).await;
    bench.put(&["running", "waiting"]).await;
    bench.notify().await;
    seconds(1).await;
    let seen = Seen::default();
    let heir = bench.pushed(self::config()).start(seen.handler()).await;
    let _heir = heir.expect("started");
    seconds(5).await;
    listener.shutdown().await;
    millis(50).await;
    let mut all = seen.all();
    all.sort();
    assert_eq!(all, ["running", "waiting"], "long before their time-out");
}

#[tokio::test]
async fn a_handler_that_blocks_its_thread_keeps_its_message() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let outcome = runtime.spawn(async {
        let bench = Bench::new();
        bench.put(&["blocks"]).await;
        let seen = Seen::default();
        let noting = seen.clone();
        let config = ListenerConfig {
            visibility_timeout: Duration::from_millis(300),
            ..config()
        };
        let builder = bench.pulling().config(config);
        let listener = builder.start(move |delivery: Delivery| {
            noting.note(&delivery);
            async {
                std::thread::sleep(Duration::from_secs(1));
                Ok(())
            }
        });
        let _listener = listener.await.expect("started");
        millis(1500).await;
        (seen.all(), bench.depth().await)
    });
    assert_eq!(
        outcome.await.expect("no panic"),
        (vec!["blocks".to_owned()], 0)
    );
    runtime.shutdown_background();
}

/// Hooks that panic in every call.
struct Panicking;

impl Hooks for Panicking {
    fn on_queue_empty(
        &self,
        _: u32,
        _: crate::listener::scaling::Idle,
    ) -> crate::listener::scaling::Idle {
        panic!("on_queue_empty")
    }

    fn on_work_detected(&self, _: Option<&crate::types::WorkDetected>) {
        panic!("on_work_detected")
    }

    fn on_mode_changed(&self, _: crate::listener::scaling::ListenerMode, _: Option<&str>) {
        panic!("on_mode_changed")
    }

    fn on_error(&self, _: Action, _: Option<&MessageId>, _: &Error) {
        panic!("on_error")
    }
}

#[tokio::test(start_paused = true)]
async fn hooks_that_panic_end_no_listener() {
    let bench = Bench::new();
    let seen = Seen::default();
    let noting = seen.clone();
    let builder = bench.pushed(config()).hooks(Panicking);
    let listener = builder.start(move |delivery: Delivery| {
        noting.note(&delivery);
        let fails = delivery.message.dequeue_count == 1;
        async move { if fails { Err("once".into()) } else { Ok(()) } }
    });
    let listener = listener.await.expect("started");
    seconds(5).await;
    for body in ["one", "two"] {
        bench.put(&[body]).await;
        bench.notify().await;
        seconds(5).await;
    }
    assert_eq!(seen.all(), ["one", "one", "two", "two"]);
    assert_eq!(listener.state().active_dequeue_tasks, 0);
}
