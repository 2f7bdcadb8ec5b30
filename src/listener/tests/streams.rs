//! Messages as a stream.

use super::*;
use crate::{
    error::{Error, ErrorKind},
    testing::{Call, ScriptedQueue},
};

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
async fn messages_that_are_not_taken_cost_no_attempt_and_do_not_come() {
    let bench = Bench::new();
    bench.put(&["one", "two", "three"]).await;
    let config = ListenerConfig {
        max_handling_time: Duration::from_secs(10),
        max_dequeue_count: 2,
        ..config()
    };
    let poison = Arc::new(MemoryQueue::new("local/dead".parse().expect("an address")));
    let builder = bench.pulling().config(config);
    let builder = builder.poison(Arc::clone(&poison) as Arc<dyn WorkQueue>);
    let mut messages = builder.start_stream().await.expect("started");
    seconds(600).await;
    let stats = messages.listener().state().stats;
    assert_eq!((stats.failed, stats.poisoned), (0, 0));
    for _ in 0..3 {
        let received = messages.next().await.expect("it comes back");
        assert_eq!(received.delivery.message.dequeue_count, 1);
        // Longer than it may wait for the program.
        seconds(4).await;
        assert!(!received.delivery.is_lost());
        received.done();
        millis(1).await;
    }
    let stats = messages.shutdown().await;
    assert_eq!((stats.handled, stats.failed), (3, 0));
    assert_eq!(
        (bench.depth().await, poison.depth().await.ok()),
        (0, Some(0))
    );
}

#[tokio::test(start_paused = true)]
async fn a_message_that_was_lost_does_not_come() {
    let queue = ScriptedQueue::new("local/jobs".parse().expect("an address"));
    queue.put(vec![NewMessage::new("job")]).await.expect("put");
    let conflict = Error::new(ErrorKind::Conflict, "another listener has it");
    queue.fail(Call::Renew, 1, conflict);
    let builder = Listener::builder(Arc::new(queue.clone())).config(config());
    let mut messages = builder.start_stream().await.expect("started");
    // The first renewal after 10 s fails; the message is visible again after 30 s.
    seconds(11).await;
    assert_eq!(messages.listener().state().stats.lost, 1);
    let next = tokio::time::timeout(Duration::from_secs(15), messages.next()).await;
    assert!(next.is_err(), "it is hidden");
    let again = messages.next().await.expect("it comes back");
    assert_eq!(again.delivery.message.dequeue_count, 2);
    again.done();
    let stats = messages.shutdown().await;
    assert_eq!((stats.handled, stats.failed), (1, 0));
    assert_eq!(queue.depth().await.ok(), Some(0));
}
