//! The contract of work queues, as checks for every back-end.
//!
//! [`check`] and [`check_races`] panic at the first broken guarantee of [`WorkQueue`] and name it.
//! Each check empties the queue first, so use a dedicated queue. The checks use the shortest
//! time-outs that the queue accepts, and tokio's clock. A queue that uses tokio's clock too is
//! checked in no time under `#[tokio::test(start_paused = true)]`; any other takes some ten seconds.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    error::{ErrorKind, Result},
    queue::{Message, NewMessage, WorkQueue},
};

const LONG: Duration = Duration::from_secs(60);

/// Runs all checks that need one handle.
///
/// # Panics
/// If the queue breaks the contract, or a call fails.
pub async fn check(queue: &dyn WorkQueue) {
    queue.create().await.expect("create");
    assert!(!queue.create().await.expect("create"), "it exists already");
    a_get_returns_each_put_message_once(queue).await;
    a_message_is_visible_again_after_its_time_out(queue).await;
    a_deleted_message_never_comes_back(queue).await;
    a_receipt_is_valid_until_the_next_get(queue).await;
    a_renewed_receipt_replaces_the_old_one(queue).await;
    a_released_message_is_visible_after_its_delay(queue).await;
    an_untried_release_does_not_count_if_it_returns_true(queue).await;
    a_delayed_message_is_visible_after_its_delay(queue).await;
    a_get_returns_at_most_a_batch(queue).await;
    a_peek_changes_nothing(queue).await;
    any_bytes_are_kept(queue).await;
    invalid_requests_are_refused_and_change_nothing(queue).await;
}

/// Runs all checks that need several handles on one queue. The handles may be clones, or use
/// separate connections. Use a multi-threaded runtime.
///
/// # Panics
/// As [`check`], and for an empty slice.
pub async fn check_races(queues: &[Arc<dyn WorkQueue>]) {
    queues[0].create().await.expect("create");
    nothing_is_got_twice_by_many(queues).await;
}

/// Returns a short visibility time-out, and a time after which it is over.
fn short(queue: &dyn WorkQueue) -> (Duration, Duration) {
    let least = queue.limits().visibility.0.max(Duration::from_millis(200));
    (least, least + Duration::from_millis(300))
}

async fn empty(queue: &dyn WorkQueue) {
    queue.purge().await.expect("purge");
    assert_eq!(queue.depth().await.expect("depth"), 0);
}

async fn put(queue: &dyn WorkQueue, body: &'static str) {
    let put = queue.put(vec![NewMessage::new(body)]).await;
    assert_eq!(put.expect("put").len(), 1);
}

async fn get(queue: &dyn WorkQueue, timeout: Duration) -> Vec<Message> {
    queue.get(32, timeout).await.expect("get")
}

async fn one(queue: &dyn WorkQueue, timeout: Duration) -> Message {
    let mut got = get(queue, timeout).await;
    assert_eq!(got.len(), 1, "{got:?}");
    got.pop().expect("just counted")
}

async fn none(queue: &dyn WorkQueue, why: &str) {
    let got = get(queue, LONG).await;
    assert!(got.is_empty(), "{why}: {got:?}");
}

#[track_caller]
fn assert_lost<T: std::fmt::Debug>(outcome: Result<T>) {
    let error = outcome.expect_err("the receipt is invalid");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
}

async fn a_get_returns_each_put_message_once(queue: &dyn WorkQueue) {
    empty(queue).await;
    let messages = ["a", "b", "c"].map(NewMessage::new).to_vec();
    let ids = queue.put(messages).await.expect("put");
    assert_eq!(queue.depth().await.expect("depth"), 3);
    let got = get(queue, LONG).await;
    let bodies: HashMap<_, _> = got.iter().map(|m| (m.id.clone(), m.body.clone())).collect();
    let put = ids.into_iter().zip(["a", "b", "c"].map(Bytes::from));
    assert_eq!(bodies, put.collect());
    assert!(got.iter().all(|message| message.dequeue_count == 1));
    let names_message = |one: &Message| *one.receipt.message_id() == one.id;
    assert!(got.iter().all(names_message), "a receipt names its message");
    none(queue, "hidden").await;
    let depth = queue.depth().await.expect("depth");
    assert_eq!(depth, 3, "hidden messages count");
}

async fn a_message_is_visible_again_after_its_time_out(queue: &dyn WorkQueue) {
    empty(queue).await;
    put(queue, "again").await;
    let (timeout, after) = short(queue);
    let first = one(queue, timeout).await;
    none(queue, "hidden").await;
    tokio::time::sleep(after).await;
    let second = one(queue, LONG).await;
    assert_eq!((&second.id, &second.body), (&first.id, &first.body));
    assert_eq!(second.dequeue_count, 2);
    assert_eq!(second.inserted_at, first.inserted_at);
}

async fn a_deleted_message_never_comes_back(queue: &dyn WorkQueue) {
    empty(queue).await;
    put(queue, "gone").await;
    let (timeout, after) = short(queue);
    let message = one(queue, timeout).await;
    queue.delete(&message.receipt).await.expect("delete");
    assert_eq!(queue.depth().await.expect("depth"), 0);
    tokio::time::sleep(after).await;
    none(queue, "deleted").await;
    assert_lost(queue.delete(&message.receipt).await);
    assert_lost(queue.renew(&message.receipt, LONG).await);
    assert_lost(queue.release(&message.receipt, Duration::ZERO).await);
}

async fn a_receipt_is_valid_until_the_next_get(queue: &dyn WorkQueue) {
    empty(queue).await;
    put(queue, "slow").await;
    let (timeout, after) = short(queue);
    let slow = one(queue, timeout).await;
    tokio::time::sleep(after).await;
    let other = one(queue, timeout).await;
    assert_lost(queue.delete(&slow.receipt).await);
    assert_lost(queue.renew(&slow.receipt, LONG).await);
    tokio::time::sleep(after).await;
    let late = queue.delete(&other.receipt).await;
    late.expect("the receipt stays valid after its time-out, until the next get");
    none(queue, "deleted").await;
}

async fn a_renewed_receipt_replaces_the_old_one(queue: &dyn WorkQueue) {
    empty(queue).await;
    put(queue, "long").await;
    let (timeout, after) = short(queue);
    let message = one(queue, timeout).await;
    let renewed = queue.renew(&message.receipt, LONG).await.expect("renew");
    tokio::time::sleep(after).await;
    none(queue, "hidden for longer").await;
    if renewed != message.receipt {
        assert_lost(queue.delete(&message.receipt).await);
    }
    queue.delete(&renewed).await.expect("delete");
    assert_eq!(queue.depth().await.expect("depth"), 0);
}

async fn a_released_message_is_visible_after_its_delay(queue: &dyn WorkQueue) {
    empty(queue).await;
    put(queue, "back").await;
    let message = one(queue, LONG).await;
    let released = queue.release(&message.receipt, Duration::ZERO).await;
    released.expect("release");
    let again = one(queue, LONG).await;
    assert_eq!(again.dequeue_count, 2);
    assert_lost(queue.delete(&message.receipt).await);
    let delay = Duration::from_secs(1);
    let released = queue.release(&again.receipt, delay).await;
    released.expect("release");
    none(queue, "released with a delay").await;
    tokio::time::sleep(delay + Duration::from_millis(300)).await;
    assert_eq!(one(queue, LONG).await.dequeue_count, 3);
}

async fn an_untried_release_does_not_count_if_it_returns_true(queue: &dyn WorkQueue) {
    empty(queue).await;
    put(queue, "untried").await;
    let mut count = 0;
    for delay in [Duration::ZERO, Duration::from_secs(1)] {
        let message = one(queue, LONG).await;
        count += 1;
        assert_eq!(message.dequeue_count, count);
        let released = queue.release_untried(&message.receipt, delay).await;
        if released.expect("release") {
            count -= 1;
        }
        assert_lost(queue.delete(&message.receipt).await);
        if !delay.is_zero() {
            none(queue, "released with a delay").await;
        }
        tokio::time::sleep(delay + Duration::from_millis(300)).await;
    }
    assert_eq!(one(queue, LONG).await.dequeue_count, count + 1);
}

async fn a_delayed_message_is_visible_after_its_delay(queue: &dyn WorkQueue) {
    empty(queue).await;
    let delay = Duration::from_secs(1);
    let later = NewMessage::new("later").after(delay);
    queue.put(vec![later]).await.expect("put");
    assert_eq!(queue.depth().await.expect("depth"), 1);
    none(queue, "delayed").await;
    assert!(queue.peek(1).await.expect("peek").is_empty());
    tokio::time::sleep(delay + Duration::from_millis(300)).await;
    assert_eq!(one(queue, LONG).await.body, "later");
}

async fn a_get_returns_at_most_a_batch(queue: &dyn WorkQueue) {
    empty(queue).await;
    let batch = queue.limits().batch;
    let many = (0..=batch).map(|number| NewMessage::new(number.to_string()));
    queue.put(many.collect()).await.expect("put");
    let got = queue.get(usize::MAX, LONG).await.expect("get");
    assert_eq!(got.len(), batch, "more is not an error");
    assert_eq!(get(queue, LONG).await.len(), 1);
}

async fn a_peek_changes_nothing(queue: &dyn WorkQueue) {
    empty(queue).await;
    put(queue, "here").await;
    for _ in 0..2 {
        let peeked = queue.peek(32).await.expect("peek");
        assert_eq!(peeked.len(), 1);
        let (body, count) = (&peeked[0].body, peeked[0].dequeue_count);
        assert_eq!((&body[..], count), (&b"here"[..], 0));
    }
    let got = one(queue, LONG).await;
    assert_eq!(got.dequeue_count, 1);
    assert!(queue.peek(32).await.expect("peek").is_empty(), "hidden");
}

async fn any_bytes_are_kept(queue: &dyn WorkQueue) {
    empty(queue).await;
    let all: Vec<u8> = (0..=255).collect();
    let largest = vec![b'x'; queue.limits().body];
    for body in [Vec::new(), all, largest] {
        let put = queue.put(vec![NewMessage::new(body.clone())]).await;
        put.expect("put");
        let got = one(queue, LONG).await;
        assert!(got.body == body, "{} bytes", body.len());
        queue.delete(&got.receipt).await.expect("delete");
    }
}

async fn invalid_requests_are_refused_and_change_nothing(queue: &dyn WorkQueue) {
    empty(queue).await;
    put(queue, "kept").await;
    let limits = queue.limits();
    let tick = Duration::from_millis(1);
    let refused = |outcome: Result<()>, field: &str| {
        let error = outcome.expect_err(field);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.message().starts_with(field), "{field}: {error}");
    };
    let good = NewMessage::new("not put");
    let large = NewMessage::new(vec![0; limits.body + 1]);
    let both = queue.put(vec![good.clone(), large]).await;
    refused(both.map(|_| ()), "body");
    let late = good.after(limits.delay + tick);
    refused(queue.put(vec![late]).await.map(|_| ()), "delay");
    refused(queue.get(0, LONG).await.map(|_| ()), "max");
    refused(queue.peek(0).await.map(|_| ()), "max");
    for timeout in [Duration::ZERO, limits.visibility.1 + tick] {
        let got = queue.get(1, timeout).await;
        refused(got.map(|_| ()), "visibility_timeout");
    }
    let got = one(queue, LONG).await;
    let renewed = queue.renew(&got.receipt, Duration::ZERO).await;
    refused(renewed.map(|_| ()), "visibility_timeout");
    let released = queue.release(&got.receipt, limits.delay + tick).await;
    refused(released, "delay");
    queue.delete(&got.receipt).await.expect("still valid");
    assert_eq!(queue.depth().await.expect("depth"), 0);
}

async fn nothing_is_got_twice_by_many(queues: &[Arc<dyn WorkQueue>]) {
    const MESSAGES: usize = 300;
    empty(&*queues[0]).await;
    for batch in (0..MESSAGES).collect::<Vec<_>>().chunks(50) {
        let batch = batch
            .iter()
            .map(|number| NewMessage::new(number.to_string()));
        queues[0].put(batch.collect()).await.expect("put");
    }
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8 {
        let queue = Arc::clone(&queues[task % queues.len()]);
        tasks.spawn(async move {
            let mut bodies = Vec::new();
            loop {
                let got = queue.get(7, LONG).await.expect("get");
                if got.is_empty() {
                    return bodies;
                }
                for message in got {
                    queue.delete(&message.receipt).await.expect("delete");
                    bodies.push(message.body);
                }
            }
        });
    }
    let mut all = tasks.join_all().await.concat();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), MESSAGES);
    assert_eq!(queues[0].depth().await.expect("depth"), 0);
}
