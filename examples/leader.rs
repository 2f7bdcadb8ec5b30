//! Leader election with a lease: one of several nodes leads, and another takes over after it.
//!
//! `cargo run --example leader`: three nodes on one file in a temporary directory. One of them
//! simulates a crash.

use std::{sync::Arc, time::Duration};

use reveille::{
    lease::{Lease, LeaseConfig, LeaseGuard},
    store::{BlobStore, SqliteStore},
};

#[tokio::main]
async fn main() -> reveille::Result<()> {
    let directory = tempfile::tempdir().expect("a directory");
    let store = SqliteStore::open(directory.path().join("shared.db")).await?;
    let store: Arc<dyn BlobStore> = Arc::new(store);
    let nodes = (1..=3).map(|number| tokio::spawn(node(number, Arc::clone(&store))));
    for node in nodes.collect::<Vec<_>>() {
        node.await.expect("no panic")?;
    }
    Ok(())
}

/// Waits until it leads, and leads for a while. In production, nodes are processes on several
/// machines.
async fn node(number: u32, store: Arc<dyn BlobStore>) -> reveille::Result<()> {
    let config = LeaseConfig {
        // The others wait this long after a crash; the default is 15 s.
        duration: Duration::from_secs(2),
        holder: format!("node-{number}"),
        ..LeaseConfig::default()
    };
    let lease = Lease::new(store, "leader", config)?;
    let held = lease.acquire().await?;
    println!("node-{number} leads with token {}", held.token());
    tokio::select! {
        // The leader's work stops here, before another node leads.
        loss = held.lost() => println!("node-{number} leads no more: {loss}"),
        () = lead(&held) => {
            if number == 2 {
                println!("node-{number} dies; its lease expires");
                return Ok(());
            }
            held.release().await?;
            println!("node-{number} has handed over");
        }
    }
    Ok(())
}

async fn lead(held: &LeaseGuard) {
    for _ in 0..3 {
        // Each write carries the token, and the target refuses a write if it has seen a greater
        // token. A machine that wakes up after an hour still counts itself as leader for a moment.
        println!("  write, fenced by {}", held.token());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
