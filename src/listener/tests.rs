//! The listener against a real relay and real queues, all in this process and under a paused clock.

mod budgets;
mod failing;
mod faulty;
mod foreign;
mod handlers;
mod listeners;
mod modes;
mod outcomes;
mod places;
mod poisoning;
mod polling;
mod retrying;
mod scaling;
mod streams;
mod uncounted;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::{
    listener::{Delivery, Handler, HandlerResult, Listener, ListenerBuilder, ListenerConfig},
    queue::{MemoryQueue, NewMessage, WorkQueue},
    relay::runtime::{Relay, RelayConfig},
    testing::{Metered, QueueUsage},
    types::{ListenerId, Notification, Notifier},
};

/// A queue with counted calls, and a relay.
struct Bench {
    queue: Arc<Metered<MemoryQueue>>,
    relay: Relay,
}

/// The messages that a handler received, in order.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Bench {
    fn new() -> Self {
        let queue = MemoryQueue::new("local/jobs".parse().expect("an address"));
        Self {
            queue: Arc::new(Metered::new(Arc::new(queue))),
            // Off, so that only the listener's own calls are counted.
            relay: Relay::start(RelayConfig {
                sentinel_interval: Duration::ZERO,
                ..RelayConfig::default()
            })
            .expect("started"),
        }
    }

    fn pulling(&self) -> ListenerBuilder {
        Listener::builder(Arc::clone(&self.queue) as Arc<dyn WorkQueue>).config(config())
    }

    fn pushed(&self, config: ListenerConfig) -> ListenerBuilder {
        let id = ListenerId::new("worker").expect("a name");
        let options = config.subscription(id, &*self.queue);
        let wakes = self.relay.subscribe(options).expect("subscribed");
        self.pulling().config(config).wakes(wakes)
    }

    async fn put(&self, bodies: &[&str]) {
        let messages = bodies.iter().map(|body| NewMessage::new(body.to_string()));
        self.queue.put(messages.collect()).await.expect("put");
    }

    async fn notify(&self) {
        let notification = Notification::new(self.queue.address().clone());
        let publisher = self.relay.publisher("test");
        publisher.notify(vec![notification]).await.expect("counted");
    }

    fn usage(&self) -> QueueUsage {
        self.queue.usage()
    }

    async fn depth(&self) -> u64 {
        self.queue.inner().depth().await.expect("in memory")
    }
}

impl Seen {
    fn note(&self, delivery: &Delivery) {
        let body = String::from_utf8_lossy(&delivery.message.body).into_owned();
        self.0.lock().expect("no panic").push(body);
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().expect("no panic").clone()
    }

    /// Returns a handler that records its messages.
    fn handler(&self) -> impl Handler {
        let seen = self.clone();
        move |delivery: Delivery| {
            seen.note(&delivery);
            std::future::ready(HandlerResult::Ok(()))
        }
    }

    /// Waits until this many messages were handled.
    async fn wait(&self, count: usize) {
        let waited = async {
            while self.all().len() < count {
                millis(1).await;
            }
        };
        let seen = tokio::time::timeout(Duration::from_secs(3600), waited).await;
        assert!(seen.is_ok(), "only {:?}", self.all());
    }
}

fn config() -> ListenerConfig {
    ListenerConfig {
        seed: Some(7),
        ..ListenerConfig::default()
    }
}

async fn millis(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

async fn seconds(seconds: u64) {
    millis(seconds * 1000).await;
}
