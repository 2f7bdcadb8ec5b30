//! Messages as a stream.

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
    assert_eq!(bench.depth().await, 1, "one was dropped unanswered");
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
async fn a_dropped_stream_releases_its_messages_at_once_and_none_has_failed() {
    let bench = Bench::new();
    bench.put(&["one", "two", "three"]).await;
    let (listener, mut messages) = bench.pulling().start_stream().await.expect("started");
    let taken = messages.next().await.expect("there are three");
    // One message waits in the stream, one for room in it.
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
    assert_eq!(stats.received, 3, "no reader would take more");
    assert_eq!(bench.depth().await, 3);
    listener.shutdown().await;
}

fn short_handling() -> ListenerConfig {
    ListenerConfig {
        max_handling_time: Duration::from_secs(10),
        ..config()
    }
}

fn poison() -> Arc<MemoryQueue> {
    let address = "local/jobs-poison".parse().expect("an address");
    Arc::new(MemoryQueue::new(address))
}

#[tokio::test(start_paused = true)]
async fn a_message_that_no_reader_took_has_not_failed() {
    let bench = Bench::new();
    bench.put(&["job"; 20]).await;
    let poison = poison();
    let builder = bench.pulling().config(short_handling());
    let builder = builder.poison(Arc::clone(&poison) as _);
    let (listener, mut messages) = builder.start_stream().await.expect("started");
    seconds(600).await;
    assert_eq!(listener.state().stats.failed, 0);
    for _ in 0..20 {
        let taken = tokio::time::timeout(Duration::from_secs(60), messages.next()).await;
        let taken = taken.expect("soon").expect("there are more");
        assert!(!taken.delivery.is_lost(), "a taken message is not lost");
        seconds(8).await;
        taken.done();
    }
    seconds(1).await;
    let stats = listener.state().stats;
    assert_eq!((stats.handled, stats.failed, stats.lost), (20, 0, 0));
    assert_eq!(
        (bench.depth().await, poison.depth().await.ok()),
        (0, Some(0))
    );
}

#[tokio::test(start_paused = true)]
async fn a_taken_message_that_takes_too_long_has_failed() {
    let bench = Bench::new();
    bench.put(&["job"]).await;
    let builder = bench.pulling().config(short_handling());
    let (listener, mut messages) = builder.start_stream().await.expect("started");
    seconds(8).await;
    let taken = messages.next().await.expect("there is one");
    seconds(9).await;
    assert!(
        !taken.delivery.is_lost(),
        "its time began when it was taken"
    );
    seconds(4).await;
    assert!(taken.delivery.is_lost());
    assert_eq!(listener.state().stats.failed, 1);
}

#[tokio::test(start_paused = true)]
async fn a_stream_hides_few_messages_that_no_reader_takes() {
    let bench = Bench::new();
    bench.put(&["job"; 1000]).await;
    let (listener, mut messages) = bench.pulling().start_stream().await.expect("started");
    seconds(60).await;
    let received = listener.state().stats.received;
    assert!(received <= 4, "{received} are hidden");
    // A reader that takes many messages at a time gets all of them.
    let mut taken = Vec::new();
    for _ in 0..200 {
        let next = tokio::time::timeout(Duration::from_secs(5), messages.next()).await;
        taken.push(next.expect("soon").expect("there are more"));
    }
    for message in taken {
        message.done();
    }
    seconds(1).await;
    assert_eq!(listener.state().stats.handled, 200);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_releases_untaken_messages_at_once() {
    let bench = Bench::new();
    bench.put(&["one", "two"]).await;
    let (listener, _messages) = bench.pulling().start_stream().await.expect("started");
    seconds(1).await;
    let began = tokio::time::Instant::now();
    listener.shutdown().await;
    assert!(began.elapsed() < Duration::from_secs(1));
    let others = bench.queue.get(9, Duration::from_secs(30)).await;
    assert_eq!(others.expect("got").len(), 2);
}
