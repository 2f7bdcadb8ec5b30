//! Slow messages in listeners that share a budget.

use super::*;
use crate::listener::Budget;

/// Two queues in memory on one relay, each with a listener; the budget has two slots.
struct Two {
    relay: Relay,
    queues: [Arc<dyn WorkQueue>; 2],
    budget: Budget,
}

impl Two {
    fn new() -> Self {
        let queue = |name: &str| {
            let address = name.parse().expect("an address");
            Arc::new(MemoryQueue::new(address)) as Arc<dyn WorkQueue>
        };
        Self {
            relay: Bench::new().relay,
            queues: [queue("local/jobs"), queue("local/others")],
            budget: Budget::new(2),
        }
    }

    fn builder(&self, number: usize, pushed: bool) -> ListenerBuilder {
        let config = ListenerConfig {
            budget: self.budget.clone(),
            ..config()
        };
        let queue = &self.queues[number];
        let id = ListenerId::unique("worker").expect("a name");
        let options = config.subscription(id, &**queue);
        let builder = Listener::builder(Arc::clone(queue)).config(config);
        match pushed {
            true => builder.wakes(self.relay.subscribe(options).expect("subscribed")),
            false => builder,
        }
    }

    async fn put(&self, number: usize, body: &str) {
        let put = self.queues[number].put(vec![NewMessage::new(body.to_owned())]);
        put.await.expect("put");
        let notification = Notification::new(self.queues[number].address().clone());
        let publisher = self.relay.publisher("test");
        publisher.notify(vec![notification]).await.expect("counted");
    }
}

/// Starts a listener whose `slow` messages take an hour.
async fn start(builder: ListenerBuilder, seen: &Seen) -> Listener {
    let noting = seen.clone();
    let listener = builder.start(move |delivery: Delivery| {
        let (noting, slow) = (noting.clone(), &*delivery.message.body == b"slow");
        async move {
            noting.note(&delivery);
            seconds(if slow { 3600 } else { 0 }).await;
            Ok(())
        }
    });
    listener.await.expect("started")
}

#[tokio::test(start_paused = true)]
async fn a_task_with_free_places_polls_while_no_slot_is_free_for_another() {
    for pushed in [true, false] {
        let (two, seen) = (Two::new(), [Seen::default(), Seen::default()]);
        let mut listeners = Vec::new();
        for (number, seen) in seen.iter().enumerate() {
            listeners.push(start(two.builder(number, pushed), seen).await);
        }
        seconds(5).await;
        for number in 0..2 {
            two.put(number, "slow").await;
        }
        seconds(60).await;
        for body in ["quick", "quicker"] {
            two.put(0, body).await;
            seconds(60).await;
        }
        assert_eq!(seen[0].all(), ["slow", "quick", "quicker"], "{pushed}");
        assert_eq!(seen[1].all(), ["slow"], "{pushed}");
    }
}
