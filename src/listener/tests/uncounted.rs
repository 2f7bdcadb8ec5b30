//! Gets without a try: they do not count towards the poison queue.

use super::{foreign::Foreign, *};
use crate::{
    error::{Error, ErrorKind},
    listener::{PoisonedMessage, Postponed},
    testing::{Call, ScriptedQueue},
};

fn poison() -> Arc<dyn WorkQueue> {
    let address = "local/jobs-poison".parse().expect("an address");
    Arc::new(MemoryQueue::new(address))
}

fn two_tries() -> ListenerConfig {
    ListenerConfig {
        max_dequeue_count: 2,
        ..config()
    }
}

/// A queue with one message, whose body is unavailable for nine gets.
async fn behind_an_outage() -> ScriptedQueue {
    let queue = ScriptedQueue::new("local/jobs".parse().expect("an address"));
    queue.spoil(9, Error::new(ErrorKind::Unavailable, "the store is away"));
    let put = queue.put(vec![NewMessage::new("job")]).await;
    put.expect("put");
    queue
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_blob_store_costs_a_message_no_try() {
    let queue = behind_an_outage().await;
    let (poison, seen) = (poison(), Seen::default());
    let noting = seen.clone();
    let builder = Listener::builder(Arc::new(queue.clone())).config(two_tries());
    let builder = builder.poison(Arc::clone(&poison));
    let listener = builder.start(move |delivery: Delivery| {
        noting.note(&delivery);
        let fails = noting.all().len() == 1;
        async move { if fails { Err("once".into()) } else { Ok(()) } }
    });
    let _listener = listener.await.expect("started");
    seconds(3600).await;
    assert_eq!(seen.all(), ["job", "job"], "both of its tries");
    assert_eq!(poison.depth().await.ok(), Some(0));
    assert_eq!(queue.depth().await.ok(), Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_message_still_goes_to_the_poison_queue_after_as_many_tries_as_it_has() {
    let queue = behind_an_outage().await;
    let (poison, seen) = (poison(), Seen::default());
    let noting = seen.clone();
    let builder = Listener::builder(Arc::new(queue.clone())).config(two_tries());
    let builder = builder.poison(Arc::clone(&poison));
    let listener = builder.start(move |delivery: Delivery| {
        noting.note(&delivery);
        std::future::ready(HandlerResult::Err("no good".into()))
    });
    let _listener = listener.await.expect("started");
    seconds(3600).await;
    assert_eq!(seen.all(), ["job", "job"]);
    assert_eq!(poison.depth().await.ok(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_postponed_message_has_all_its_attempts_left() {
    let bench = Bench::new();
    bench.put(&["job"]).await;
    let (poison, seen) = (poison(), Seen::default());
    let noting = seen.clone();
    let builder = bench.pulling().config(two_tries());
    let builder = builder.poison(Arc::clone(&poison));
    let listener = builder.start(move |delivery: Delivery| {
        noting.note(&delivery);
        let later = noting.all().len() < 6;
        async move {
            match later {
                true => Err(Postponed::by(Duration::from_secs(1)).into()),
                false => Ok(()),
            }
        }
    });
    let _listener = listener.await.expect("started");
    seconds(60).await;
    assert_eq!(seen.all().len(), 6);
    assert_eq!(poison.depth().await.ok(), Some(0));
    assert_eq!(bench.depth().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_blob_store_that_stays_away_is_asked_less_and_less_often() {
    let queue = ScriptedQueue::new("local/jobs".parse().expect("an address"));
    queue.spoil(
        1_000,
        Error::new(ErrorKind::Unavailable, "the store is away"),
    );
    let put = queue.put(vec![NewMessage::new("job")]).await;
    put.expect("put");
    let builder = Listener::builder(Arc::new(queue.clone())).config(config());
    let builder = builder.poison(poison());
    let listener = builder.start(Seen::default().handler());
    let _listener = listener.await.expect("started");
    seconds(600).await;
    let asked = queue.count(Call::Release);
    assert!((7..=14).contains(&asked), "{asked} times in ten minutes");
}

/// Runs this many listeners on one queue; all postpone each message for two minutes. Returns how
/// many messages were handled, and how many were poisoned.
async fn fleet(queue: Arc<dyn WorkQueue>, listeners: usize, messages: usize) -> (usize, u64) {
    let (poison, handled) = (poison(), Seen::default());
    let put = (0..messages).map(|number| NewMessage::new(number.to_string()));
    queue.put(put.collect()).await.expect("put");
    let until = tokio::time::Instant::now() + Duration::from_secs(120);
    let mut fleet = Vec::new();
    for seed in 0..listeners {
        let config = ListenerConfig {
            seed: Some(seed as u64),
            ..ListenerConfig::default()
        };
        let handled = handled.clone();
        let builder = Listener::builder(Arc::clone(&queue)).config(config);
        let builder = builder.poison(Arc::clone(&poison));
        let listener = builder.start(move |delivery: Delivery| {
            let later = tokio::time::Instant::now() < until;
            if !later {
                handled.note(&delivery);
            }
            async move {
                match later {
                    true => Err(Postponed::by(Duration::from_secs(5)).into()),
                    false => Ok(()),
                }
            }
        });
        fleet.push(listener.await.expect("started"));
    }
    seconds(180).await;
    (
        handled.all().len(),
        poison.depth().await.expect("in memory"),
    )
}

#[tokio::test(start_paused = true)]
async fn a_fleet_that_postpones_handles_all_and_poisons_nothing() {
    for listeners in [1, 2, 4, 10] {
        let foreign = Foreign::new("local/jobs");
        let own = MemoryQueue::new("local/jobs".parse().expect("an address"));
        let queues: [Arc<dyn WorkQueue>; 2] = [Arc::new(foreign), Arc::new(own)];
        for queue in queues {
            let outcome = fleet(queue, listeners, 50).await;
            assert_eq!(outcome, (50, 0), "{listeners} listeners");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_untried_elsewhere_has_one_attempt_here_and_its_error_when_poisoned() {
    for good in [true, false] {
        let queue = Arc::new(Foreign::new("local/jobs"));
        let put = queue.put(vec![NewMessage::new("job")]).await;
        put.expect("put");
        queue.waste(7).await;
        let (poison, seen) = (poison(), Seen::default());
        let noting = seen.clone();
        let builder = Listener::builder(Arc::clone(&queue) as Arc<dyn WorkQueue>);
        let builder = builder.config(config()).poison(Arc::clone(&poison));
        let listener = builder.start(move |delivery: Delivery| {
            noting.note(&delivery);
            async move { if good { Ok(()) } else { Err("no good".into()) } }
        });
        let _listener = listener.await.expect("started");
        seconds(600).await;
        assert_eq!(seen.all(), ["job"]);
        assert_eq!(queue.depth().await.ok(), Some(0));
        let poisoned = poison.get(9, Duration::from_secs(30)).await.expect("got");
        assert_eq!(poisoned.len(), usize::from(!good));
        if let Some(poisoned) = poisoned.first() {
            let poisoned: PoisonedMessage = serde_json::from_slice(&poisoned.body).expect("JSON");
            assert_eq!((&*poisoned.error, poisoned.dequeue_count), ("no good", 8));
        }
    }
}

/// A message with very many gets may have crashed a process each time, if it is old enough for as
/// many time-outs.
#[tokio::test(start_paused = true)]
async fn only_a_message_that_may_have_crashed_many_processes_is_poisoned_untried() {
    for (gets, age, tried) in [(50, 36_000, true), (100, 600, true), (100, 36_000, false)] {
        let queue = Arc::new(Foreign {
            age: Duration::from_secs(age),
            ..Foreign::new("local/jobs")
        });
        let put = queue.put(vec![NewMessage::new("deadly")]).await;
        put.expect("put");
        queue.waste(gets).await;
        let (poison, seen) = (poison(), Seen::default());
        let builder = Listener::builder(Arc::clone(&queue) as Arc<dyn WorkQueue>);
        let builder = builder.config(config()).poison(Arc::clone(&poison));
        let _listener = builder.start(seen.handler()).await.expect("started");
        seconds(5).await;
        assert_eq!(
            seen.all().len(),
            usize::from(tried),
            "{gets} gets in {age} s"
        );
        assert_eq!(queue.depth().await.ok(), Some(0));
        let poisoned = poison.get(9, Duration::from_secs(30)).await.expect("got");
        assert_eq!(poisoned.len(), usize::from(!tried));
        if let Some(poisoned) = poisoned.first() {
            let poisoned: PoisonedMessage = serde_json::from_slice(&poisoned.body).expect("JSON");
            assert!(poisoned.error.contains("was got 101 times"), "{poisoned:?}");
            assert!(poisoned.error.contains("not tried"), "{poisoned:?}");
            assert_eq!(poisoned.dequeue_count, 101);
        }
    }
}
