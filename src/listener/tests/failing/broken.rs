//! Queues whose calls fail, and answers that are lost.

use super::*;
use crate::{
    queue::{Message, MessageId, PeekedMessage, QueueLimits, Receipt},
    testing::Call,
    types::QueueAddress,
};

/// A queue on which every call except a get fails with one error.
#[derive(Debug)]
struct Broken {
    inner: MemoryQueue,
    kind: ErrorKind,
    gets: bool,
    failed: AtomicUsize,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("broken")
    }
}

impl Broken {
    fn error<T>(&self) -> crate::Result<T> {
        self.failed.fetch_add(1, Ordering::SeqCst);
        Err(Error::new(self.kind, "it is broken"))
    }
}

#[async_trait::async_trait]
impl WorkQueue for Broken {
    fn address(&self) -> &QueueAddress {
        self.inner.address()
    }

    fn limits(&self) -> QueueLimits {
        self.inner.limits()
    }

    async fn create(&self) -> crate::Result<bool> {
        self.inner.create().await
    }

    async fn put(&self, messages: Vec<NewMessage>) -> crate::Result<Vec<MessageId>> {
        self.inner.put(messages).await
    }

    async fn get(&self, max: usize, timeout: Duration) -> crate::Result<Vec<Message>> {
        match self.gets {
            true => self.inner.get(max, timeout).await,
            false => self.error(),
        }
    }

    async fn delete(&self, _receipt: &Receipt) -> crate::Result<()> {
        self.error()
    }

    async fn renew(&self, _receipt: &Receipt, _timeout: Duration) -> crate::Result<Receipt> {
        self.error()
    }

    async fn release(&self, _receipt: &Receipt, _delay: Duration) -> crate::Result<()> {
        self.error()
    }

    async fn depth(&self) -> crate::Result<u64> {
        self.inner.depth().await
    }

    async fn peek(&self, max: usize) -> crate::Result<Vec<PeekedMessage>> {
        self.inner.peek(max).await
    }

    async fn purge(&self) -> crate::Result<()> {
        self.inner.purge().await
    }
}

fn broken(kind: ErrorKind, gets: bool) -> Arc<Broken> {
    Arc::new(Broken {
        inner: MemoryQueue::new("local/jobs".parse().expect("an address")),
        kind,
        gets,
        failed: AtomicUsize::new(0),
    })
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_fails_is_tried_again_without_a_storm() {
    for (kind, most) in [(ErrorKind::Unavailable, 600), (ErrorKind::Denied, 70)] {
        let queue = broken(kind, false);
        let errors = Errors::default();
        let builder = Listener::builder(Arc::clone(&queue) as Arc<dyn WorkQueue>);
        let builder = builder.config(config()).hooks(errors.clone());
        let _listener = builder
            .start(Seen::default().handler())
            .await
            .expect("started");
        seconds(1200).await;
        let failed = queue.failed.load(Ordering::SeqCst);
        assert!(
            (30..most).contains(&failed),
            "{kind:?}: {failed} in 20 minutes"
        );
        assert_eq!(errors.of(Action::Get).len(), failed, "each is observable");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_whose_message_cannot_be_renewed_is_cancelled() {
    let queue = broken(ErrorKind::Conflict, true);
    queue.put(vec![NewMessage::new("job")]).await.expect("put");
    let told = Arc::new(AtomicUsize::new(0));
    let recorder = Arc::clone(&told);
    let builder = Listener::builder(Arc::clone(&queue) as Arc<dyn WorkQueue>).config(config());
    let listener = builder.start(move |delivery: Delivery| {
        let told = Arc::clone(&recorder);
        async move {
            delivery.lost().await;
            told.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    });
    let listener = listener.await.expect("started");
    seconds(20).await;
    assert_eq!(told.load(Ordering::SeqCst), 1);
    assert_eq!(listener.state().stats.lost, 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_answer_was_lost_strands_no_message() {
    for call in [Call::Release, Call::Renew] {
        let bench = Bench::new();
        let queue = Arc::new(ScriptedQueue::new(bench.queue.address().clone()));
        queue.lose_answers(call, 1, Error::new(ErrorKind::Timeout, "lost"));
        let seen = Seen::default();
        let noting = seen.clone();
        let id = ListenerId::new("worker").expect("a name");
        let config = config();
        let options = config.subscription(id, &*queue);
        let wakes = bench.relay.subscribe(options).expect("subscribed");
        let builder = Listener::builder(Arc::clone(&queue) as Arc<dyn WorkQueue>);
        let builder = builder.config(config).wakes(wakes);
        let listener = builder.start(move |delivery: Delivery| {
            noting.note(&delivery);
            let first = delivery.message.dequeue_count == 1;
            async move {
                match (first, call) {
                    (true, Call::Renew) => seconds(35).await,
                    (true, _) => return Err("once".into()),
                    _ => {}
                }
                Ok(())
            }
        });
        let _listener = listener.await.expect("started");
        seconds(5).await;
        queue.put(vec![NewMessage::new("job")]).await.expect("put");
        bench.notify().await;
        seconds(120).await;
        assert_eq!(seen.all(), ["job", "job"], "{call:?}");
        assert_eq!(queue.depth().await.ok(), Some(0), "{call:?}");
    }
}
