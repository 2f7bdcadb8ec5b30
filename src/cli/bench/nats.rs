//! A nats-server's client as its users have it: the official one.

use anyhow::{Context, Result};
use async_nats::{Client, ConnectOptions, Event, Subscriber};

/// Messages that a subscription holds for a reader that is behind, before it drops some: more than
/// any run has, as a run with wrong sums counts for nothing.
const HELD: usize = 16 * 1024 * 1024;

/// Connects.
pub(super) async fn connect(target: &str) -> Result<Client> {
    let options = ConnectOptions::new()
        .subscription_capacity(HELD)
        .event_callback(|event| async move {
            // What would make the sums wrong is said, so that they can be understood.
            if !matches!(event, Event::Connected) {
                tracing::warn!(%event, "nats-server");
            }
        });
    let connected = options.connect(format!("nats://{target}")).await;
    connected.with_context(|| format!("nats-server at {target} cannot be reached"))
}

/// Subscribes `count` times to all subjects, and waits until the server knows of it. Returns the
/// subscriptions to all subjects of the first subscriber, then those of the next.
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
    // Written is not yet known: an answer to a request of our own comes after both.
    barrier(client).await?;
    Ok(subscribers)
}

/// Waits until the server has taken in all that was sent before.
pub(super) async fn barrier(client: &Client) -> Result<()> {
    use tokio_stream::StreamExt;
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await?;
    client.publish(inbox, "".into()).await?;
    client.flush().await?;
    answers.next().await.context("nats-server has gone")?;
    Ok(())
}
