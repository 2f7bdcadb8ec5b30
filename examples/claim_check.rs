//! Messages above the queue's limit: the body in a blob store, a reference in the queue.
//!
//! `cargo run --example claim_check`: writes into a temporary directory, and removes it.

use std::{sync::Arc, time::Duration};

use reveille::{
    queue::{ClaimCheck, ClaimConfig, NewMessage, SqliteQueue, WorkQueue},
    store::SqliteStore,
};

#[tokio::main]
async fn main() -> reveille::Result<()> {
    let directory = tempfile::tempdir().expect("a directory");
    let store = SqliteStore::open(directory.path().join("blobs.db")).await?;
    let queue = directory.path().join("jobs.db");
    let queue = SqliteQueue::create(queue, "local/jobs".parse()?).await?;
    println!("the queue takes {} bytes", queue.limits().body);

    // Producers and consumers wrap the queue in the same way, including a listener's queue.
    let inner = Arc::new(queue);
    let queue = ClaimCheck::new(
        Arc::clone(&inner) as _,
        Arc::new(store),
        ClaimConfig::default(),
    )?;
    let report = vec![b'x'; 1_000_000];
    queue.put(vec![NewMessage::new(report)]).await?;

    for reference in inner.peek(1).await? {
        println!("in the queue: {} bytes", reference.body.len());
    }
    for message in queue.get(1, Duration::from_secs(30)).await? {
        // Fails if the blob is gone or temporarily unreadable.
        println!("got: {} bytes", message.payload()?.len());
        // Deletes the message, then its blob.
        queue.delete(&message.receipt).await?;
    }
    Ok(())
}
