//! Pushed, polling, pull-only.

use super::*;
use crate::{error::ErrorKind, listener::ListenerMode, relay::runtime::LocalSubscription};

#[tokio::test(start_paused = true)]
async fn a_pushed_listener_makes_no_call_while_there_is_no_work_and_handles_it_at_once() {
    let bench = Bench::new();
    let seen = Seen::default();
    let listener = bench.pushed(config()).start(seen.handler()).await;
    let listener = listener.expect("started");
    seconds(5).await;
    assert_eq!(listener.state().mode, ListenerMode::Pushed);
    assert_eq!(listener.state().active_dequeue_tasks, 0);
    let before = bench.usage();

    seconds(3600).await;
    assert_eq!(bench.usage().since(&before).total(), 0, "an idle hour");

    bench.put(&["one"]).await;
    bench.notify().await;
    millis(5).await;
    assert_eq!(seen.all(), ["one"]);
    seconds(3600).await;
    let used = bench.usage().since(&before);
    assert_eq!(
        (used.gets, used.empty_gets, used.deletes),
        (1, 1, 1),
        "{used:?}"
    );
    assert_eq!(
        used.total(),
        1 + 3,
        "a put, a get, a delete, an empty get: {used:?}"
    );
    assert_eq!(listener.state().active_dequeue_tasks, 0);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_fills_its_batch_costs_four_transactions_and_no_more() {
    let bench = Bench::new();
    let seen = Seen::default();
    let config = ListenerConfig {
        dequeue_batch_size: 1,
        ..config()
    };
    let listener = bench.pushed(config).start(seen.handler()).await;
    let _listener = listener.expect("started");
    seconds(5).await;
    bench.put(&["one"]).await;
    let before = bench.usage();
    bench.notify().await;
    seconds(60).await;
    let used = bench.usage().since(&before);
    let each = (used.gets, used.deletes, used.empty_gets, used.others);
    assert_eq!((each, used.total()), ((1, 1, 1, 1), 4), "{used:?}");
}

#[tokio::test(start_paused = true)]
async fn messages_older_than_the_listener_are_handled() {
    let bench = Bench::new();
    bench.put(&["early"]).await;
    let seen = Seen::default();
    let listener = bench.pushed(config()).start(seen.handler()).await;
    let _listener = listener.expect("started");
    seconds(3).await;
    assert_eq!(seen.all(), ["early"]);
}

#[tokio::test(start_paused = true)]
async fn without_a_relay_one_task_polls_about_once_a_second() {
    let bench = Bench::new();
    let seen = Seen::default();
    let listener = bench
        .pulling()
        .start(seen.handler())
        .await
        .expect("started");
    assert_eq!(listener.state().mode, ListenerMode::PullOnly);
    seconds(10).await;
    let before = bench.usage();
    seconds(100).await;
    let polled = bench.usage().since(&before);
    assert_eq!(polled.total(), polled.empty_gets);
    assert!((80..=125).contains(&polled.empty_gets), "{polled:?}");
    assert_eq!(
        listener.state().active_dequeue_tasks,
        1,
        "the last one stays"
    );

    bench.put(&["one"]).await;
    seconds(2).await;
    assert_eq!(seen.all(), ["one"]);
}

#[tokio::test(start_paused = true)]
async fn a_listener_whose_relay_is_gone_polls_and_says_so() {
    let bench = Bench::new();
    let seen = Seen::default();
    let listener = bench.pushed(config()).start(seen.handler()).await;
    let listener = listener.expect("started");
    seconds(5).await;
    bench.relay.shutdown().await;
    millis(1).await;
    assert_eq!(listener.state().mode, ListenerMode::Polling);
    let before = bench.usage();
    bench.put(&["unheard"]).await;
    seconds(40).await;
    assert_eq!(seen.all(), ["unheard"], "within the longest sleep");

    seconds(100).await;
    let before = bench.usage().since(&before);
    let calm = bench.usage();
    seconds(1000).await;
    let polled = bench.usage().since(&calm);
    assert!(
        (25..=45).contains(&polled.total()),
        "{polled:?} after {before:?}"
    );
}

/// Wake-ups with a link that the test changes.
#[derive(Debug)]
struct Flaky {
    inner: LocalSubscription,
    link: tokio::sync::watch::Receiver<crate::types::LinkState>,
}

#[async_trait::async_trait]
impl crate::types::WakeStream for Flaky {
    async fn next(&mut self) -> Option<crate::Result<crate::types::WorkDetected>> {
        self.inner.next().await
    }

    fn report(&mut self, report: crate::types::Report) -> crate::types::ReportFuture {
        self.inner.report(report)
    }

    fn link(&self) -> tokio::sync::watch::Receiver<crate::types::LinkState> {
        self.link.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn a_degraded_relay_is_not_trusted_until_it_has_recovered() {
    let bench = Bench::new();
    let config = config();
    let id = ListenerId::new("worker").expect("a name");
    let options = config.subscription(id, &*bench.queue);
    let connected = crate::types::LinkState {
        connection: crate::types::ConnectionState::Connected,
        welcomes: 1,
        ..crate::types::LinkState::default()
    };
    let degraded = crate::types::LinkState {
        degraded: true,
        ..connected.clone()
    };
    let link = tokio::sync::watch::Sender::new(crate::types::LinkState::default());
    let wakes = Flaky {
        inner: bench.relay.subscribe(options).expect("subscribed"),
        link: link.subscribe(),
    };
    let seen = Seen::default();
    let builder = bench.pulling().config(config).wakes(wakes);
    let listener = builder.start(seen.handler()).await.expect("started");
    for (state, mode) in [
        (connected.clone(), ListenerMode::Pushed),
        (degraded, ListenerMode::Polling),
        (connected, ListenerMode::Pushed),
    ] {
        link.send_replace(state);
        seconds(5).await;
        assert_eq!(listener.state().mode, mode);
        let active = usize::from(mode == ListenerMode::Polling);
        assert_eq!(listener.state().active_dequeue_tasks, active, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_listener_reports_when_it_is_busy_and_when_it_is_done() {
    let bench = Bench::new();
    let builder = bench.pushed(config());
    let listener = builder.start(|_: Delivery| async {
        seconds(20).await;
        Ok(())
    });
    let _listener = listener.await.expect("started");
    // Another listener on the queue is woken for messages that the first one leaves.
    seconds(5).await;
    bench.put(&["long"]).await;
    bench.notify().await;
    seconds(1).await;
    let busy = |bench: &Bench| {
        bench
            .relay
            .hub()
            .listeners(None, 10, bench.relay.now())
            .first()
            .map(|view| view.busy)
    };
    assert_eq!(busy(&bench), Some(1));
    seconds(25).await;
    assert_eq!(busy(&bench), Some(0), "drained");
}

#[tokio::test(start_paused = true)]
async fn the_messages_of_a_dead_listener_are_handled_when_they_are_visible_again() {
    let bench = Bench::new();
    let dying = bench.pushed(config()).start(|_: Delivery| async {
        seconds(1000).await;
        Ok(())
    });
    let dying = dying.await.expect("started");
    seconds(5).await;
    bench.put(&["stranded"]).await;
    bench.notify().await;
    seconds(1).await;
    let seen = Seen::default();
    let heir = bench.pushed(config()).start(seen.handler()).await;
    let _heir = heir.expect("started");
    seconds(5).await;
    drop(dying);
    seconds(40).await;
    assert_eq!(seen.all(), ["stranded"]);
}

#[tokio::test]
async fn a_queue_that_is_not_there_is_a_clear_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite:{}?queue=jobs", dir.path().join("q.db").display());
    let other = url.replace("jobs", "mails");
    crate::queue::create(&other).await.expect("a file");
    let queue: Arc<dyn WorkQueue> = crate::queue::open(&url).await.expect("opened");
    let started = Listener::builder(queue).start(Seen::default().handler());
    let error = started.await.expect_err("no such queue");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_configuration_that_makes_no_sense_is_refused_by_its_field() {
    let refused = |config: ListenerConfig, field: &'static str| async move {
        let bench = Bench::new();
        let started = bench
            .pulling()
            .config(config)
            .start(Seen::default().handler());
        let error = started.await.expect_err(field);
        assert!(error.message().starts_with(field), "{error}");
        assert_eq!(bench.usage().total(), 0, "nothing was tried");
    };
    let dequeue_batch_size = 0;
    refused(
        ListenerConfig {
            dequeue_batch_size,
            ..config()
        },
        "dequeue_batch_size",
    )
    .await;
    refused(
        ListenerConfig {
            max_tasks: 0,
            ..config()
        },
        "max_tasks",
    )
    .await;
    refused(
        ListenerConfig {
            max_dequeue_count: 0,
            ..config()
        },
        "max_dequeue_count",
    )
    .await;
    let visibility_timeout = Duration::from_secs(8 * 24 * 3600);
    refused(
        ListenerConfig {
            visibility_timeout,
            ..config()
        },
        "visibility_timeout",
    )
    .await;
    let away = Duration::ZERO;
    refused(ListenerConfig { away, ..config() }, "away").await;
}

#[tokio::test(start_paused = true)]
async fn a_delayed_message_is_handled_when_it_is_due() {
    let bench = Bench::new();
    let seen = Seen::default();
    let listener = bench.pushed(config()).start(seen.handler()).await;
    let _listener = listener.expect("started");
    seconds(5).await;
    let delay = Duration::from_secs(60);
    let later = NewMessage::new("later").after(delay);
    bench.queue.put(vec![later]).await.expect("put");
    let notification = Notification {
        delay,
        ..Notification::new(bench.queue.address().clone())
    };
    let publisher = bench.relay.publisher("test");
    publisher.notify(vec![notification]).await.expect("counted");
    seconds(59).await;
    assert!(seen.all().is_empty());
    seconds(6).await;
    assert_eq!(seen.all(), ["later"]);
}

/// Wake-ups that are refused at first, as by a proxy before its relay has started.
#[derive(Debug)]
struct Refused {
    inner: LocalSubscription,
    refused: bool,
    asks_at: Option<tokio::time::Instant>,
}

#[async_trait::async_trait]
impl crate::types::WakeStream for Refused {
    async fn next(&mut self) -> Option<crate::Result<crate::types::WorkDetected>> {
        if !std::mem::replace(&mut self.refused, true) {
            let error = crate::Error::new(ErrorKind::NotFound, "no such page");
            return Some(Err(error));
        }
        tokio::time::sleep_until(self.asks_at?).await;
        self.inner.next().await
    }

    fn report(&mut self, report: crate::types::Report) -> crate::types::ReportFuture {
        self.inner.report(report)
    }

    fn ask_again(&mut self, after: Duration) -> bool {
        self.asks_at = Some(tokio::time::Instant::now() + after);
        true
    }

    fn link(&self) -> tokio::sync::watch::Receiver<crate::types::LinkState> {
        self.inner.link()
    }
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_was_refused_early_asks_again_and_hears_of_work_then() {
    let bench = Bench::new();
    let config = config();
    let id = ListenerId::new("worker").expect("a name");
    let options = config.subscription(id, &*bench.queue);
    let wakes = Refused {
        inner: bench.relay.subscribe(options).expect("subscribed"),
        refused: false,
        asks_at: None,
    };
    let seen = Seen::default();
    let builder = bench.pulling().config(config).wakes(wakes);
    let listener = builder.start(seen.handler()).await.expect("started");
    seconds(30).await;
    assert_eq!(listener.state().mode, ListenerMode::Polling);
    seconds(40).await;
    assert_eq!(listener.state().mode, ListenerMode::Pushed);
    bench.put(&["one"]).await;
    bench.notify().await;
    millis(5).await;
    assert_eq!(seen.all(), ["one"]);
}
