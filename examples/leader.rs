//! A leader by lease: one of several nodes works, and another takes over where it ends.
//!
//! `cargo run --example leader`: three nodes on one file, in a directory of its own, which is
//! removed. One of them dies without a word.

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

/// Waits until it leads, and leads for a while. Nodes would be processes, on several machines.
async fn node(number: u32, store: Arc<dyn BlobStore>) -> reveille::Result<()> {
    let config = LeaseConfig {
        // A crash costs the others this much; 15 s unless said otherwise.
        duration: Duration::from_secs(2),
        holder: format!("node-{number}"),
        ..LeaseConfig::default()
    };
    let lease = Lease::new(store, "leader", config)?;
    let held = lease.acquire().await?;
    println!("node-{number} leads with token {}", held.token());
    tokio::select! {
        // Whatever it does as a leader stops here, before another one begins.
        loss = held.lost() => println!("node-{number} leads no more: {loss}"),
        () = lead(&held) => {
            if number == 2 {
                println!("node-{number} dies; its lease ends by itself");
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
        // What it writes carries the token, and is refused where a greater one was there before: a
        // machine that slept for an hour still believes for a moment.
        println!("  write, fenced by {}", held.token());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
