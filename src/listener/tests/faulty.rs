//! A queue whose calls hang or fail while a message is handled.

use super::*;
use crate::{
    error::{Error, ErrorKind},
    testing::{Call, ScriptedQueue},
};

fn scripted() -> ScriptedQueue {
    ScriptedQueue::new("local/jobs".parse().expect("an address"))
}

/// Runs two listeners on the queue for ten minutes, with one slow message; returns how often it was
/// handled.
async fn two_listeners(queue: &ScriptedQueue, takes: u64) -> usize {
    let seen = Seen::default();
    queue.put(vec![NewMessage::new("job")]).await.expect("put");
    let mut listeners = Vec::new();
    for _ in 0..2 {
        let noting = seen.clone();
        let builder = Listener::builder(Arc::new(queue.clone())).config(config());
        let listener = builder.start(move |delivery: Delivery| {
            noting.note(&delivery);
            async move {
                seconds(takes).await;
                Ok(())
            }
        });
        listeners.push(listener.await.expect("started"));
    }
    seconds(600).await;
    assert_eq!(queue.depth().await.ok(), Some(0));
    seen.all().len()
}

#[tokio::test(start_paused = true)]
async fn two_renewals_that_hang_cost_no_message() {
    for hanging in [1, 2] {
        let queue = scripted();
        queue.hang(Call::Renew, hanging, Duration::MAX);
        assert_eq!(two_listeners(&queue, 60).await, 1, "{hanging} hang");
    }
}

#[tokio::test(start_paused = true)]
async fn two_renewals_of_a_long_handling_that_hang_cost_no_message() {
    let queue = scripted();
    let hanging = queue.clone();
    let late = tokio::spawn(async move {
        seconds(120).await;
        hanging.hang(Call::Renew, 2, Duration::MAX);
    });
    assert_eq!(two_listeners(&queue, 300).await, 1);
    late.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn renewals_that_fail_at_once_are_tried_as_often_as_there_is_time() {
    let queue = scripted();
    let error = Error::new(ErrorKind::Unavailable, "it restarts");
    queue.fail(Call::Renew, 2, error);
    assert_eq!(two_listeners(&queue, 60).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_handled_message_stays_hidden_while_its_delete_fails() {
    // The waits between the calls grow to 5 s: about two minutes in all.
    let queue = scripted();
    let error = Error::new(ErrorKind::Unavailable, "it restarts");
    queue.fail(Call::Delete, 30, error);
    assert_eq!(two_listeners(&queue, 1).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_handled_message_is_deleted_without_an_attempt_when_it_returns() {
    let queue = scripted();
    let error = Error::new(ErrorKind::Denied, "the credentials are being changed");
    queue.fail(Call::Delete, 1, error);
    let seen = Seen::default();
    queue.put(vec![NewMessage::new("job")]).await.expect("put");
    let builder = Listener::builder(Arc::new(queue.clone())).config(config());
    let listener = builder.start(seen.handler()).await.expect("started");
    seconds(60).await;
    assert_eq!(seen.all(), ["job"]);
    assert_eq!(queue.depth().await.ok(), Some(0));
    assert_eq!(listener.state().stats.handled, 1);
}

#[tokio::test(start_paused = true)]
async fn a_handled_message_is_not_handled_again_while_its_delete_hangs() {
    let queue = scripted();
    queue.hang(Call::Delete, 4, Duration::MAX);
    queue.hang(Call::Renew, 100, Duration::MAX);
    let seen = Seen::default();
    queue.put(vec![NewMessage::new("job")]).await.expect("put");
    let builder = Listener::builder(Arc::new(queue.clone())).config(config());
    let listener = builder.start(seen.handler()).await.expect("started");
    seconds(300).await;
    assert_eq!(seen.all(), ["job"], "it came back after its time-out");
    assert_eq!(queue.depth().await.ok(), Some(0));
    assert_eq!(listener.state().stats.handled, 1);
}
