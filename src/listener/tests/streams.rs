//! Messages that are taken from a stream.

use super::*;

#[tokio::test(start_paused = true)]
async fn messages_come_as_a_stream_and_are_deleted_when_they_are_done() {
    let bench = Bench::new();
    bench.put(&["one", "two", "three"]).await;
    let (listener, mut messages) = bench.pulling().start_stream().await.expect("started");
    for _ in 0..2 {
        messages.next().await.expect("there are three").done();
    }
    drop(messages.next().await.expect("there are three"));
    seconds(1).await;
    assert_eq!(bench.depth().await, 1, "one was dropped without a word");
    messages
        .next()
        .await
        .expect("it comes back")
        .failed("once more");
    messages.next().await.expect("and again").done();
    seconds(1).await;
    assert_eq!(bench.depth().await, 0);
    listener.shutdown().await;
    assert!(messages.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn what_a_dropped_stream_held_is_given_back_at_once_and_has_not_failed() {
    let bench = Bench::new();
    bench.put(&["one", "two", "three"]).await;
    let (listener, mut messages) = bench.pulling().start_stream().await.expect("started");
    let taken = messages.next().await.expect("there are three");
    // One waits in the stream, one for a place in it.
    millis(10).await;
    drop(messages);
    millis(10).await;
    let others = bench.queue.get(9, Duration::from_secs(600)).await;
    assert_eq!(others.expect("got").len(), 2, "the one taken is kept");
    taken.done();
    bench.put(&["four"]).await;
    seconds(60).await;
    let stats = listener.state().stats;
    assert_eq!((stats.handled, stats.failed, stats.errors), (1, 0, 0));
    assert_eq!(stats.received, 3, "nobody would take more");
    assert_eq!(bench.depth().await, 3);
    listener.shutdown().await;
}
