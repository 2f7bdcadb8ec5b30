//! A custom scale policy: the number of dequeue tasks for a queue's depth.
//!
//! `cargo run --example custom_policy`: one process, no relay, one task per hundred messages.

use std::{sync::Arc, time::Duration};

use reveille::{
    listener::{Delivery, Listener, ListenerConfig},
    queue::{MemoryQueue, NewMessage, WorkQueue},
    scaling::{Load, ScalePolicy},
};

/// One task per hundred messages, and one more if handling is slow.
#[derive(Debug)]
struct Hundreds;

impl ScalePolicy for Hundreds {
    fn tasks(&self, load: &Load) -> usize {
        let slow = load
            .handling_time
            .is_some_and(|time| time > Duration::from_secs(1));
        let hundreds = usize::try_from(load.depth.div_ceil(100)).unwrap_or(usize::MAX);
        hundreds.saturating_add(usize::from(slow))
    }
}

#[tokio::main]
async fn main() -> reveille::Result<()> {
    let queue = Arc::new(MemoryQueue::new("local/jobs".parse()?));
    let bodies = (0..500).map(|number| NewMessage::new(format!("job {number}")));
    queue.put(bodies.collect()).await?;

    let config = ListenerConfig {
        policy: Arc::new(Hundreds),
        // The upper bound for any policy. A `Budget` is such a bound for several listeners together.
        max_tasks: 8,
        ..ListenerConfig::default()
    };
    let listener = Listener::builder(queue)
        .config(config)
        .start(async |_job: Delivery| {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok(())
        })
        .await?;

    while listener.state().stats.handled < 500 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let state = listener.query_state().await;
    println!("at most {} tasks at a time", state.total_dequeue_tasks);
    listener.shutdown().await;
    Ok(())
}
