//! Prints wake-ups for ever; reconnects and resumes automatically.
//!
//! `cargo run --example subscriber -- http://127.0.0.1:7600 'acct/ord*'`

use std::env;

use reveille::{Client, ClientConfig, ListenerId, Selector, SubscribeOptions};

#[tokio::main]
async fn main() -> reveille::Result<()> {
    let mut arguments = env::args().skip(1);
    let url = arguments
        .next()
        .unwrap_or_else(|| "http://127.0.0.1:7600".to_owned());
    let selector = arguments.next().unwrap_or_else(|| "acct/ord*".to_owned());
    let selector: Selector = selector.parse()?;

    let options = SubscribeOptions::new(ListenerId::unique("example")?, [selector]);
    let mut wakes =
        Client::with_config(&url, ClientConfig::from_environment()?)?.subscribe(options)?;
    while let Some(work) = wakes.next().await {
        let work = work?;
        // Any wake-up, with any reason and counts, means: read this queue until it is empty.
        println!(
            "{} {}: {} notifications",
            work.queue, work.reason, work.notifications
        );
    }
    Ok(())
}
