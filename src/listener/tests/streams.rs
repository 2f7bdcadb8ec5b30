//! Messages as a stream.

use super::*;

#[tokio::test(start_paused = true)]
async fn messages_come_as_a_stream_and_are_deleted_when_they_are_done() {
    let bench = Bench::new();
    bench.put(&["one", "two", "three"]).await;
    let mut messages = bench.pulling().start_stream().await.expect("started");
    for _ in 0..2 {
        messages.next().await.expect("there are three").done();
    }
    drop(messages.next().await.expect("there are three"));
    seconds(1).await;
    assert_eq!(bench.depth().await, 1, "one was dropped unanswered");
    messages
        .next()
        .await
        .expect("it comes back")
        .failed("once more");
    messages.next().await.expect("and again").done();
    seconds(1).await;
    assert_eq!(bench.depth().await, 0);
    let stats = messages.shutdown().await;
    assert_eq!((stats.handled, stats.failed), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_releases_untaken_messages_at_once_and_none_has_failed() {
    let bench = Bench::new();
    bench.put(&["one", "two", "three"]).await;
    let mut messages = bench.pulling().start_stream().await.expect("started");
    let taken = messages.next().await.expect("there are three");
    // One message waits in the stream, one for room in it.
    seconds(1).await;
    let ended = tokio::spawn(messages.shutdown());
    millis(10).await;
    let others = bench.queue.get(9, Duration::from_secs(600)).await;
    assert_eq!(others.expect("got").len(), 2, "the one taken is kept");
    taken.done();
    let stats = ended.await.expect("no panic");
    assert_eq!((stats.handled, stats.failed, stats.errors), (1, 0, 0));
    assert_eq!(bench.depth().await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_was_given_up_does_not_come() {
    let bench = Bench::new();
    bench.put(&["job"]).await;
    let config = ListenerConfig {
        max_handling_time: Duration::from_secs(10),
        retry: (Duration::from_secs(600), Duration::from_secs(600)),
        ..config()
    };
    let builder = bench.pulling().config(config);
    let mut messages = builder.start_stream().await.expect("started");
    seconds(60).await;
    assert_eq!(messages.listener().state().stats.failed, 1);
    let next = tokio::time::timeout(Duration::from_secs(60), messages.next()).await;
    assert!(next.is_err(), "it waits for its retry");
    let again = messages.next().await.expect("it comes back");
    assert_eq!(again.delivery.message.dequeue_count, 2);
    assert!(!again.delivery.is_lost());
    again.done();
}
