//! Very many queues that share a budget of tasks: measures the cost of a message, with and without
//! the budget.
//!
//! All queues are in memory and have their messages before the listeners start, so that every queue
//! always waits for a slot. There is no relay: the listeners poll.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Result;
use reveille::{
    listener::{Budget, Delivery, Listener, ListenerConfig},
    queue::{MemoryQueue, NewMessage, WorkQueue},
};
use tokio::time::sleep;

use super::{
    args::BudgetArgs,
    drain::LossTimer,
    progress::Progress,
    report::{Figures, Unit},
    usage::Usage,
};

/// Measurements with one budget.
struct Drained {
    wall: Duration,
    /// Processor time in seconds.
    cpu: Option<f64>,
}

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Runs the benchmark once.
pub(super) async fn once(args: &BudgetArgs, progress: &Progress) -> Result<Figures> {
    let messages = args.queues * args.messages;
    let slots = usize::try_from(args.slots)?;
    progress.step("with a shared budget");
    let shared = drain(args, &Budget::new(slots)).await?;
    progress.step("without one");
    let free = drain(args, &Budget::unlimited()).await?;
    let mut figures = Figures::of_counts(&[
        ("queues", args.queues),
        ("slots", args.slots),
        ("messages", messages),
    ]);
    for (name, drained) in [("shared", &shared), ("unlimited", &free)] {
        let wall = drained.wall.as_secs_f64();
        figures.add(format!("{name} wall"), Unit::Seconds, wall);
        let each = drained.cpu.map(|cpu| cpu * 1e6 / messages as f64);
        figures.add(format!("{name} cpu/message"), Unit::Micros, each);
    }
    Ok(figures)
}

async fn drain(args: &BudgetArgs, budget: &Budget) -> Result<Drained> {
    let handled = Arc::<AtomicU64>::default();
    let mut queues = Vec::new();
    for number in 0..args.queues {
        let queue = MemoryQueue::new(format!("bench/queue-{number}").parse()?);
        for _ in 0..args.messages {
            queue.put(vec![NewMessage::new("payload")]).await?;
        }
        queues.push(Arc::new(queue));
    }
    let (before, began) = (Usage::own(), Instant::now());
    let mut listeners = Vec::new();
    for queue in queues {
        let config = ListenerConfig {
            // One message for each slot: the highest possible rate of requests to the budget.
            dequeue_batch_size: 1,
            budget: budget.clone(),
            ..ListenerConfig::default()
        };
        let handled = Arc::clone(&handled);
        let listener = Listener::builder(queue).config(config);
        let listener = listener.start(move |_: Delivery| {
            handled.fetch_add(1, Ordering::Relaxed);
            async { Ok(()) }
        });
        listeners.push(listener.await?);
    }
    until(&handled, args.queues * args.messages).await?;
    let drained = Drained {
        wall: began.elapsed(),
        cpu: Usage::own().seconds_since(&before),
    };
    for listener in listeners {
        listener.shutdown().await;
    }
    Ok(drained)
}

async fn until(handled: &AtomicU64, messages: u64) -> Result<()> {
    let mut timer = LossTimer::start();
    loop {
        let now = handled.load(Ordering::Relaxed);
        if now >= messages {
            return Ok(());
        }
        timer.check(now, messages)?;
        sleep(POLL_INTERVAL).await;
    }
}
