//! A publisher: puts messages into a queue, then notifies. `sqlite_listener` handles them.
//!
//! `reveille serve &`, then `cargo run --example publisher -- jobs.db http://127.0.0.1:7600`

use std::env;

use reveille::{
    Client, ClientConfig, Notification,
    queue::{NewMessage, SqliteQueue, WorkQueue},
};

#[tokio::main]
async fn main() -> reveille::Result<()> {
    let mut arguments = env::args().skip(1);
    let file = arguments.next().unwrap_or_else(|| "jobs.db".to_owned());
    let url = arguments.next();
    let url = url.unwrap_or_else(|| "http://127.0.0.1:7600".to_owned());

    let queue = SqliteQueue::create(file, "local/orders".parse()?).await?;
    let publisher =
        Client::with_config(&url, ClientConfig::from_environment()?)?.publisher("example");

    // The put first: a listener that is woken before it finds nothing, and is not woken again.
    let ids = queue.put(vec![NewMessage::new("order 1")]).await?;
    let notification = Notification {
        payload_size: 7,
        messages: 1,
        ..Notification::new(queue.address().clone())
    };
    // Returns when the relay has counted the notification; retries until its deadline.
    let accepted = publisher.notify(notification).await?;
    println!("put {}: {} listeners", ids[0], accepted.listeners);

    // One notification stands for a batch.
    let bodies = (0..10).map(|number| NewMessage::new(format!("order {number}")));
    queue.put(bodies.collect()).await?;
    let batch = Notification {
        messages: 10,
        ..Notification::new(queue.address().clone())
    };
    publisher.notify(batch).await.map(drop)
}
