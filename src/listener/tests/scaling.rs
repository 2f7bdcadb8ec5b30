//! The number of tasks: policy, hooks and limits.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::{
    listener::{
        Budget, Hooks, ListenerMode,
        scaling::{Idle, StepPolicy},
    },
    types::WorkDetected,
};

#[tokio::test(start_paused = true)]
async fn as_many_tasks_as_the_depth_needs_and_none_when_it_is_done() {
    let bench = Bench::new();
    let seen = Seen::default();
    let config = ListenerConfig {
        dequeue_batch_size: 1,
        ..config()
    };
    let noting = seen.clone();
    let builder = bench.pushed(config);
    let listener = builder.start(move |delivery: Delivery| {
        noting.note(&delivery);
        async {
            seconds(1).await;
            Ok(())
        }
    });
    let listener = listener.await.expect("started");
    seconds(5).await;
    bench.put(&["job"; 150]).await;
    bench.notify().await;
    millis(500).await;
    assert_eq!(listener.state().active_dequeue_tasks, 50, "below 1,000");
    seen.wait(150).await;
    seconds(3).await;
    let state = listener.query_state().await;
    assert_eq!(
        (state.active_dequeue_tasks, state.total_dequeue_tasks),
        (0, 50)
    );
    assert_eq!(state.current_queue_depth, Some(0));
    assert_eq!(state.stats.handled, 150);
    assert!(state.stats.mean_handling_time >= Some(Duration::from_secs(1)));
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_handled_concurrently_up_to_the_bound() {
    let bench = Bench::new();
    bench.put(&["job"; 12]).await;
    let config = ListenerConfig {
        concurrency: 3,
        max_tasks: 1,
        ..config()
    };
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = Seen::default();
    let counting = (Arc::clone(&now), Arc::clone(&most), seen.clone());
    let builder = bench.pulling().config(config);
    let listener = builder.start(move |delivery: Delivery| {
        let (now, most, seen) = counting.clone();
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            seconds(1).await;
            now.fetch_sub(1, Ordering::SeqCst);
            seen.note(&delivery);
            Ok(())
        }
    });
    let _listener = listener.await.expect("started");
    seen.wait(12).await;
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn a_wake_up_is_heard_while_the_only_task_hangs() {
    let bench = Bench::new();
    let seen = Seen::default();
    let noting = seen.clone();
    let builder = bench.pushed(config());
    let listener = builder.start(move |delivery: Delivery| {
        noting.note(&delivery);
        let hangs = delivery.message.body == "hangs";
        async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            Ok(())
        }
    });
    let _listener = listener.await.expect("started");
    seconds(5).await;
    bench.put(&["hangs"]).await;
    bench.notify().await;
    seconds(1).await;
    bench.put(&["next"]).await;
    bench.notify().await;
    seconds(1).await;
    assert_eq!(seen.all(), ["hangs", "next"]);
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_never_runs_dry_leaves_slots_to_the_others() {
    let (busy, other) = (Bench::new(), Bench::new());
    let budget = Budget::new(1);
    let config = || ListenerConfig {
        budget: budget.clone(),
        dequeue_batch_size: 1,
        ..config()
    };
    busy.put(&["job"; 1000]).await;
    other.put(&["urgent"]).await;
    let slow = |seen: &Seen| {
        let seen = seen.clone();
        move |delivery: Delivery| {
            seen.note(&delivery);
            async {
                seconds(1).await;
                Ok(())
            }
        }
    };
    let (first, second) = (Seen::default(), Seen::default());
    let _busy = busy
        .pulling()
        .config(config())
        .start(slow(&first))
        .await
        .expect("started");
    first.wait(3).await;
    let _other = other
        .pulling()
        .config(config())
        .start(slow(&second))
        .await
        .expect("started");
    seconds(4).await;
    assert_eq!(
        second.all(),
        ["urgent"],
        "its turn came between two batches"
    );
    let before = first.all().len();
    seconds(10).await;
    assert!(first.all().len() > before + 5, "and went on");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_could_always_get_more_leaves_its_slot_to_another_queue() {
    let (busy, other) = (Bench::new(), Bench::new());
    let shared = ListenerConfig {
        budget: Budget::new(1),
        dequeue_batch_size: 4,
        ..config()
    };
    busy.put(&["job"; 1000]).await;
    other.put(&["urgent"]).await;
    let (first, second) = (Seen::default(), Seen::default());
    let noting = first.clone();
    let builder = busy.pulling().config(shared.clone());
    let listener = builder.start(move |delivery: Delivery| {
        noting.note(&delivery);
        // The messages never end all at the same time.
        let takes = 1_000 + 700 * (noting.all().len() as u64 % 4);
        async move {
            millis(takes).await;
            Ok(())
        }
    });
    let _busy = listener.await.expect("started");
    first.wait(8).await;
    let listener = other.pulling().config(shared).start(second.handler()).await;
    let _other = listener.expect("started");
    seconds(8).await;
    assert_eq!(second.all(), ["urgent"]);
}

/// Hooks that stop a task at once, and count their calls.
#[derive(Clone, Default)]
struct Stopping {
    empty: Arc<AtomicUsize>,
    detected: Arc<AtomicUsize>,
}

impl Hooks for Stopping {
    fn on_queue_empty(&self, idle_count: u32, _proposed: Idle) -> Idle {
        assert!(idle_count > 0);
        self.empty.fetch_add(1, Ordering::SeqCst);
        Idle::Stop
    }

    fn on_work_detected(&self, _work: Option<&WorkDetected>) {
        self.detected.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn the_hooks_decide_when_a_task_ends_but_strand_nothing() {
    let bench = Bench::new();
    let (hooks, seen) = (Stopping::default(), Seen::default());
    let builder = bench.pulling().hooks(hooks.clone());
    let listener = builder.start(seen.handler()).await.expect("started");
    seconds(10).await;
    assert_eq!(
        listener.state().active_dequeue_tasks,
        1,
        "no other listener would poll"
    );
    assert!(hooks.empty.load(Ordering::SeqCst) > 5);
    bench.put(&["one"]).await;
    seconds(2).await;
    assert_eq!(seen.all(), ["one"]);
    assert_eq!(hooks.detected.load(Ordering::SeqCst), 1, "after idleness");
}

#[tokio::test(start_paused = true)]
async fn more_tasks_are_started_by_hand_and_leave_when_there_is_nothing() {
    let bench = Bench::new();
    let listener = bench
        .pushed(config())
        .start(Seen::default().handler())
        .await;
    let listener = listener.expect("started");
    seconds(5).await;
    listener.start_listener(7);
    seconds(1).await;
    let state = listener.state();
    assert_eq!(
        (state.active_dequeue_tasks, state.mode),
        (0, ListenerMode::Pushed)
    );
    assert!(state.total_dequeue_tasks >= 1);
}

#[tokio::test(start_paused = true)]
async fn tasks_never_exceed_what_was_set() {
    let bench = Bench::new();
    bench.put(&["job"; 500]).await;
    let config = ListenerConfig {
        max_tasks: 4,
        dequeue_batch_size: 1,
        policy: Arc::new(StepPolicy::new([], 40).expect("forty")),
        ..config()
    };
    let builder = bench.pulling().config(config);
    let listener = builder.start(|_: Delivery| async {
        seconds(1).await;
        Ok(())
    });
    let listener = listener.await.expect("started");
    seconds(30).await;
    assert_eq!(listener.state().total_dequeue_tasks, 4);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_pauses_between_two_batches_holds_no_slot() {
    let (pausing, other) = (Bench::new(), Bench::new());
    let shared = ListenerConfig {
        budget: Budget::new(1),
        ..config()
    };
    let config = ListenerConfig {
        dequeue_interval: Duration::from_secs(3600),
        ..shared.clone()
    };
    pausing.put(&["job"]).await;
    let seen = Seen::default();
    let listener = pausing.pulling().config(config).start(seen.handler());
    let _pausing = listener.await.expect("started");
    seen.wait(1).await;
    other.put(&["job"]).await;
    let listener = other.pulling().config(shared).start(seen.handler()).await;
    let _other = listener.expect("started");
    seconds(5).await;
    assert_eq!(seen.all().len(), 2, "long before the pause is over");
}
