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
        let options = config.subscription(id, queue);
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

#[tokio::test(start_paused = true)]
async fn tasks_of_a_stream_do_not_wait_for_each_other_where_slots_are_few() {
    let (two, seen) = (Two::new(), Seen::default());
    let other = start(two.builder(1, true), &seen).await;
    let (listener, mut messages) = two.builder(0, true).start_stream().await.expect("started");
    seconds(5).await;
    two.put(1, "slow").await;
    seconds(1).await;
    let mut taken = Vec::new();
    for number in 0..40 {
        two.put(0, "one").await;
        two.put(0, "two").await;
        let take = tokio::time::timeout(Duration::from_secs(60), messages.next());
        let message = take
            .await
            .unwrap_or_else(|_| panic!("{number}: none comes"));
        taken.push(message.expect("it goes on"));
        two.put(0, "three").await;
        millis(number * 7).await;
        if taken.len() > 2 {
            taken.drain(..).for_each(crate::listener::Received::done);
        }
    }
    listener.shutdown().await;
    drop(other);
}
