//! Slow messages, and other messages that are handled at the same time.

use super::*;
use crate::listener::ListenerMode;

/// Returns a handler that takes as many seconds as a numeric body states, and 10 ms for any other
/// body.
fn slow_where_it_says_so(seen: &Seen) -> impl Handler {
    let seen = seen.clone();
    move |delivery: Delivery| {
        let seen = seen.clone();
        async move {
            let body = String::from_utf8_lossy(&delivery.message.body).into_owned();
            match body.parse() {
                Ok(span) => seconds(span).await,
                Err(_) => millis(10).await,
            }
            seen.note(&delivery);
            Ok(())
        }
    }
}

/// One message in a hundred takes 30 s: handled batch by batch, each of four tasks would wait for
/// 10.
#[tokio::test(start_paused = true)]
async fn a_slow_message_keeps_one_place_and_not_those_of_its_batch() {
    for relay in [true, false] {
        let bench = Bench::new();
        let seen = Seen::default();
        let config = ListenerConfig {
            max_tasks: 4,
            ..config()
        };
        let builder = match relay {
            true => bench.pushed(config),
            false => bench.pulling().config(config),
        };
        let listener = builder.start(slow_where_it_says_so(&seen)).await;
        let _listener = listener.expect("started");
        seconds(5).await;
        let body = |number: usize| if number % 100 == 50 { "30" } else { "quick" };
        let bodies: Vec<_> = (0..1_000).map(body).collect();
        bench.put(&bodies).await;
        bench.notify().await;
        seconds(5).await;
        let quick = seen.all().len();
        assert_eq!(quick, 990, "all that is quick, within 5 s; relay: {relay}");
        seen.wait(1_000).await;
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_relay_a_slow_handler_does_not_stop_polling() {
    // One task with many places, one task for each message, and one spare task.
    for (max_tasks, dequeue_batch_size) in [(100, 16), (1, 16), (2, 1), (3, 4)] {
        let bench = Bench::new();
        let seen = Seen::default();
        let config = ListenerConfig {
            max_tasks,
            dequeue_batch_size,
            ..config()
        };
        let builder = bench.pulling().config(config);
        let listener = builder.start(slow_where_it_says_so(&seen)).await;
        let _listener = listener.expect("started");
        bench.put(&["3000"]).await;
        seconds(30).await;
        bench.put(&["quick"; 10]).await;
        seconds(2).await;
        let case = format!("{max_tasks} tasks of {dequeue_batch_size}");
        assert_eq!(seen.all().len(), 10, "{case}");
        let before = bench.usage();
        seconds(100).await;
        let gets = bench.usage().since(&before).empty_gets;
        assert!((80..=130).contains(&gets), "one task polls: {gets}, {case}");
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_relay_is_away_a_slow_handler_does_not_stop_polling() {
    let bench = Bench::new();
    let seen = Seen::default();
    let builder = bench.pushed(config());
    let listener = builder.start(slow_where_it_says_so(&seen)).await;
    let listener = listener.expect("started");
    seconds(5).await;
    bench.put(&["3000"]).await;
    bench.notify().await;
    seconds(5).await;
    bench.relay.shutdown().await;
    millis(1).await;
    assert_eq!(listener.state().mode, ListenerMode::Polling);
    for round in 1..=3 {
        bench.put(&["quick"]).await;
        seconds(40).await;
        assert_eq!(seen.all().len(), round, "within the longest sleep");
    }
    let before = bench.usage();
    seconds(1_000).await;
    let polled = bench.usage().since(&before);
    assert!((25..=45).contains(&polled.empty_gets), "{polled:?}");
}

#[tokio::test(start_paused = true)]
async fn a_wake_up_is_heard_where_every_task_is_at_work_and_has_a_place_left() {
    let bench = Bench::new();
    let seen = Seen::default();
    let config = ListenerConfig {
        max_tasks: 1,
        ..config()
    };
    let builder = bench.pushed(config);
    let listener = builder.start(slow_where_it_says_so(&seen)).await;
    let _listener = listener.expect("started");
    seconds(5).await;
    for body in ["3000", "3001", "quick"] {
        bench.put(&[body]).await;
        bench.notify().await;
        seconds(1).await;
    }
    assert_eq!(seen.all(), ["quick"]);
}

#[tokio::test(start_paused = true)]
async fn a_task_holds_no_more_messages_than_it_has_places() {
    let bench = Bench::new();
    bench.put(&["1"; 200]).await;
    let config = ListenerConfig {
        max_tasks: 2,
        dequeue_batch_size: 8,
        concurrency: 4,
        ..config()
    };
    let seen = Seen::default();
    let builder = bench.pulling().config(config);
    let listener = builder.start(slow_where_it_says_so(&seen)).await;
    let listener = listener.expect("started");
    for _ in 0..20 {
        seconds(1).await;
        let stats = listener.state().stats;
        let held = stats.received - stats.handled;
        assert!(held <= 16, "{held} are held");
    }
    assert!(
        seen.all().len() >= 140,
        "eight a second: {}",
        seen.all().len()
    );
}
