//! Publishes: put the work first, then say so.
//!
//! `cargo run --example publisher -- http://127.0.0.1:7600 acct/orders`

use std::env;

use reveille::{Client, Notification, QueueAddress};

#[tokio::main]
async fn main() -> reveille::Result<()> {
    let mut arguments = env::args().skip(1);
    let url = arguments
        .next()
        .unwrap_or_else(|| "http://127.0.0.1:7600".to_owned());
    let queue = arguments.next().unwrap_or_else(|| "acct/orders".to_owned());
    let queue: QueueAddress = queue.parse()?;

    let publisher = Client::new(&url)?.publisher("example");

    // ... put a message of 512 bytes into the queue here, then:
    let notification = Notification {
        payload_size: 512,
        messages: 1,
        ..Notification::new(queue.clone())
    };
    let accepted = publisher.notify(notification).await?;
    println!(
        "sequence {}, {} listeners",
        accepted.sequence, accepted.listeners
    );

    // In a hot loop: post, and flush at the end. What waits for one queue becomes one entry.
    for _ in 0..1000 {
        publisher.post(Notification::new(queue.clone()))?;
    }
    publisher.flush().await
}
