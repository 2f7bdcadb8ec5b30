//! A parked node: waits for a durable flag, then works. `reveille unleash go-live` releases it.
//!
//! `cargo run --example release -- http://127.0.0.1:7600 go-live`

use std::env;

use reveille::{Client, ClientConfig, FlagName, ListenerId, release::Release};

#[tokio::main]
async fn main() -> reveille::Result<()> {
    let mut arguments = env::args().skip(1);
    let url = arguments
        .next()
        .unwrap_or_else(|| "http://127.0.0.1:7600".to_owned());
    let name = arguments.next().unwrap_or_else(|| "go-live".to_owned());
    let name = FlagName::new(&name)?;

    let client = Client::with_config(&url, ClientConfig::from_environment()?)?;

    // Watches before it reads, so that no unleash in between is missed.
    let watch = client.watch_flag(name.clone(), ListenerId::unique("node")?);
    let mut release = Release::new(watch);
    println!("parked until `{name}` is set");
    let flag = release.wait().await?;
    println!("released by {:?}: {}", flag.set_by, flag.reason);

    // In the background: the acknowledgement does not delay the work.
    let acknowledged = tokio::spawn(release.acknowledge());
    println!("working");
    acknowledged.await.expect("no panic")
}
