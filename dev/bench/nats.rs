//! The official client of nats-server.

use anyhow::{Context, Result};
use async_nats::{Client, ConnectOptions, Event, Subscriber};

/// Capacity of a subscription's buffer, beyond which it drops messages. It is larger than any run,
/// as dropped messages make the sums wrong.
const CAPACITY: usize = 16 * 1024 * 1024;

/// Connects.
pub(super) async fn connect(target: &str) -> Result<Client> {
    let options = ConnectOptions::new()
        .subscription_capacity(CAPACITY)
        .event_callback(|event| async move {
            // Logs events that may explain wrong sums.
            if !matches!(event, Event::Connected) {
                tracing::warn!(%event, "nats-server");
            }
        });
    let connected = options.connect(format!("nats://{target}")).await;
    connected.with_context(|| format!("nats-server at {target} cannot be reached"))
}

/// Subscribes `count` times to all subjects, and waits until the server has registered all. Returns
/// the subscriptions to all subjects of the first subscriber, then those of the next.
pub(super) async fn subscribe(
    client: &Client,
    subjects: &[String],
    count: u64,
) -> Result<Vec<Subscriber>> {
    let mut subscribers = Vec::new();
    for _ in 0..count {
        for subject in subjects {
            subscribers.push(client.subscribe(subject.clone()).await?);
        }
    }
    // A written command may not have been read: the answer to a later request shows that it was.
    barrier(client).await?;
    Ok(subscribers)
}

/// Waits until the server has read all commands sent before.
pub(super) async fn barrier(client: &Client) -> Result<()> {
    use tokio_stream::StreamExt;
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await?;
    client.publish(inbox, "".into()).await?;
    client.flush().await?;
    answers.next().await.context("nats-server has ended")?;
    Ok(())
}
