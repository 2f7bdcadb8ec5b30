//! Parks a fleet and unleashes it: a node that watches a relay, a node that polls the store, a node
//! that does both, and a late node.
//!
//! `cargo run --example park_and_unleash` uses a file in a temporary directory.
//! `cargo run --features cloud --example park_and_unleash -- az://flags` uses a container, with the
//! account in the environment. The relay runs within the example.

use std::{env, time::Duration};

use reveille::{
    FlagName, ListenerId, NodeConfig, UnleashOptions, flag::StoreFlags, release::Release, store,
    testing::TestRelay,
};
use tokio::{task::JoinSet, time::Instant};

#[tokio::main]
async fn main() -> reveille::Result<()> {
    let directory = tempfile::tempdir().expect("a directory");
    let own = format!("sqlite:{}", directory.path().join("flags.db").display());
    let url = env::args().nth(1).unwrap_or(own);
    let relay = TestRelay::with_config(NodeConfig {
        store: url.clone(),
        ..NodeConfig::default()
    });
    let relay = relay.await?;
    let client = relay.client()?;
    let go = FlagName::new("go-live")?;
    client.flags().leash(&go).await?;

    // The first step of each node; in production a process on another machine.
    let stored = StoreFlags::new(store::open(&url).await?);
    let watch = |node: &str| -> reveille::Result<_> {
        Ok(client.watch_flag(go.clone(), ListenerId::new(node)?))
    };
    let flag = || stored.global(go.clone());
    let usual = Duration::ZERO;
    let parked = [
        ("told by the relay", Release::new(watch("told")?)),
        (
            "reads the store",
            Release::reading(go.clone(), flag(), usual),
        ),
        (
            "does both",
            Release::new(watch("both")?).with_flag(go.clone(), flag(), usual),
        ),
    ];
    let mut nodes = JoinSet::new();
    for (node, mut release) in parked {
        nodes.spawn(async move { release.wait().await.map(|_| (node, Instant::now())) });
    }

    tokio::time::sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    // The flag is stored before watchers are told, so a late node finds it set.
    client
        .flags()
        .unleash(&go, &UnleashOptions::default())
        .await?;
    while let Some(released) = nodes.join_next().await {
        let (node, at) = released.expect("no panic")?;
        println!("{node}: released after {:?}", at - began);
    }
    Release::reading(go.clone(), flag(), usual).wait().await?;
    println!("a late node does not wait");
    client.flags().leash(&go).await?;
    Ok(())
}
