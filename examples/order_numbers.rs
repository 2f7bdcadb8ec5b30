//! Order numbers from many nodes, unique without communication between the nodes.
//!
//! `cargo run --example order_numbers -- sqlite:shop.db`. A second run continues after the first,
//! and so does `reveille ids next orders --store sqlite:shop.db`. Without a store it uses a
//! temporary directory.

use std::{collections::HashSet, env};

use reveille::{
    store::{self, BlobName},
    unique_id::{BlobSyncStore, IdConfig, UniqueIdGenerator},
};

/// One node; in production a process on another machine.
async fn node(url: String, orders: usize) -> reveille::Result<Vec<u64>> {
    // A node needs no setup; the first one creates the blob.
    let store = store::open(&url).await?;
    let blob = BlobSyncStore::new(store, BlobName::new("ids/orders")?);
    let config = IdConfig {
        // One write of the blob per 100 orders. A node that ends leaves a gap of at most a range.
        range_size: 100,
        start: 100_000,
        ..IdConfig::default()
    };
    let numbers = UniqueIdGenerator::new(blob, config)?;
    let mut taken = Vec::new();
    for _ in 0..orders {
        taken.push(numbers.next_id().await?);
    }
    Ok(taken)
}

#[tokio::main]
async fn main() -> reveille::Result<()> {
    let directory = tempfile::tempdir().expect("a directory");
    let own = format!("sqlite:{}", directory.path().join("shop.db").display());
    let url = env::args().nth(1).unwrap_or(own);

    let nodes: Vec<_> = (0..4)
        .map(|_| tokio::spawn(node(url.clone(), 1000)))
        .collect();
    let mut all = HashSet::new();
    for (number, node) in nodes.into_iter().enumerate() {
        let taken = node.await.expect("no panic")?;
        println!("node {number}: {} to {}", taken[0], taken[999]);
        all.extend(taken);
    }
    println!("{} orders, {} numbers", 4 * 1000, all.len());
    Ok(())
}
