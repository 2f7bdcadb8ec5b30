//! A relay inside of one process: no network, the same traits.
//!
//! `cargo run --example in_process`

use reveille::{
    ListenerId, Notification, Notifier, QueueAddress, Relay, RelayConfig, SubscribeOptions,
    WakeStream,
};

/// Works with any source of wake-ups, in process or over the network.
async fn work(mut wakes: impl WakeStream, rounds: usize) -> reveille::Result<()> {
    for _ in 0..rounds {
        let Some(work) = wakes.next().await else {
            break;
        };
        let work = work?;
        println!("{} {}", work.queue, work.reason);
    }
    Ok(())
}

#[tokio::main]
async fn main() -> reveille::Result<()> {
    let relay = Relay::start(RelayConfig::default())?;
    let orders: QueueAddress = "local/orders".parse()?;
    let options = SubscribeOptions::new(ListenerId::new("worker-1")?, [orders.clone()]);
    let wakes = relay.subscribe(options)?;

    let publisher = relay.publisher("example");
    publisher.notify(vec![Notification::new(orders)]).await?;
    work(wakes, 1).await?;
    relay.shutdown().await;
    Ok(())
}
