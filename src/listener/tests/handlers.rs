//! Messages that are postponed, handlers that wind down, hooks.

use super::*;
use crate::{
    listener::{HandlerError, Hooks, ListenerMode, Postponed},
    queue::Message,
};

fn poison() -> Arc<MemoryQueue> {
    let address = "local/jobs-poison".parse().expect("an address");
    Arc::new(MemoryQueue::new(address))
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
async fn a_handler_that_never_ends_is_cancelled_and_dropped() {
    let bench = Bench::new();
    bench.put(&["job"]).await;
    let config = ListenerConfig {
        grace: Duration::from_secs(1),
        ..config()
    };
    let (held, mut dropped) = tokio::sync::mpsc::channel::<()>(1);
    let (told, mut hears) = tokio::sync::mpsc::channel(1);
    let builder = bench.pulling().config(config);
    let listener = builder.start(move |delivery: Delivery| {
        let (held, told) = (held.clone(), told.clone());
        async move {
            delivery.lost().await;
            told.send(()).await?;
            let _held = held;
            std::future::pending().await
        }
    });
    let listener = listener.await.expect("started");
    seconds(1).await;
    listener.shutdown().await;
    assert_eq!(hears.recv().await, Some(()));
    assert_eq!(dropped.recv().await, None, "the run is gone");
    let again = bench.queue.get(1, Duration::from_secs(1)).await;
    assert_eq!(again.expect("got").len(), 1, "given back");
}

#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Hooks for Told {
    fn on_mode_changed(&self, mode: ListenerMode, _: Option<&str>) {
        self.0.lock().expect("no panic").push(format!("{mode:?}"));
    }

    fn on_start(&self, message: &Message) {
        let body = String::from_utf8_lossy(&message.body).into_owned();
        self.0.lock().expect("no panic").push(body);
    }

    fn on_end(&self, _: &Message, error: Option<&HandlerError>, _: Duration) {
        let end = error.map_or_else(|| "handled".to_owned(), ToString::to_string);
        self.0.lock().expect("no panic").push(end);
    }

    fn on_poisoned(&self, message: &Message, error: &HandlerError) {
        let body = String::from_utf8_lossy(&message.body).into_owned();
        let mut all = self.0.lock().expect("no panic");
        all.push(format!("{body} {error}"));
    }
}

#[tokio::test(start_paused = true)]
async fn hooks_observe_each_mode_each_handling_and_poisoned_messages() {
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
    assert_eq!(told, ["Pushed", "job", "no good", "job no good", "Polling"]);
}
