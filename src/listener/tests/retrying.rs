//! Queues that retry internally: an answer that is lost inside strands no message.

use super::*;
use crate::{
    error::{Error, ErrorKind},
    queue::{RetryConfig, Retrying},
    testing::{Call, ScriptedQueue},
};

/// A listener on a queue that retries, woken by a relay without a sentinel.
struct Wrapped {
    bench: Bench,
    queue: ScriptedQueue,
    _listener: Listener,
}

impl Wrapped {
    async fn start(handler: impl Handler) -> Self {
        let bench = Bench::new();
        let queue = ScriptedQueue::new(bench.queue.address().clone());
        let wrapped = Retrying::new(Arc::new(queue.clone()), RetryConfig::default());
        let id = ListenerId::new("worker").expect("a name");
        let config = config();
        let wakes = bench.relay.subscribe(config.subscription(id, &queue));
        let builder = Listener::builder(Arc::new(wrapped) as Arc<dyn WorkQueue>);
        let builder = builder.config(config).wakes(wakes.expect("subscribed"));
        let listener = builder.start(handler).await.expect("started");
        seconds(5).await;
        Self {
            bench,
            queue,
            _listener: listener,
        }
    }

    async fn put(&self) {
        let put = self.queue.put(vec![NewMessage::new("job")]).await;
        put.expect("put");
        self.bench.notify().await;
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Timeout, "the answer is lost")
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_get_lost_its_answer_is_handled_when_it_comes_back() {
    let seen = Seen::default();
    let wrapped = Wrapped::start(seen.handler()).await;
    wrapped.queue.lose_answers(Call::Get, 1, lost());
    wrapped.put().await;
    seconds(120).await;
    assert_eq!(seen.all(), ["job"]);
    assert_eq!(wrapped.queue.depth().await.ok(), Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_release_lost_its_answer_is_handled_after_its_delay() {
    let seen = Seen::default();
    let noting = seen.clone();
    let wrapped = Wrapped::start(move |delivery: Delivery| {
        noting.note(&delivery);
        let first = delivery.message.dequeue_count == 1;
        async move { if first { Err("once".into()) } else { Ok(()) } }
    });
    let wrapped = wrapped.await;
    wrapped.queue.lose_answers(Call::Release, 1, lost());
    wrapped.put().await;
    // Much less than the visibility time-out.
    seconds(10).await;
    assert_eq!(seen.all(), ["job", "job"]);
    assert_eq!(wrapped.queue.depth().await.ok(), Some(0));
}
