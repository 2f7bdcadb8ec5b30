//! Listens on a queue in a SQLite file: no call to the queue while there is no work.
//!
//! `reveille serve &`, then `cargo run --example sqlite_listener -- jobs.db http://127.0.0.1:7600`;
//! `publisher` puts work into the same file. Ends on ctrl-c, after the messages in work are handled.

use std::{env, sync::Arc};

use reveille::{
    Client, ClientConfig, ListenerId,
    listener::{Delivery, HandlerResult, Listener, ListenerConfig},
    queue::SqliteQueue,
};

/// After `Ok` the message is deleted; after an error it is delivered again.
async fn handle(job: Delivery) -> HandlerResult {
    let order = str::from_utf8(&job.message.body)?;
    println!("{}: {order}", job.queue);
    Ok(())
}

#[tokio::main]
async fn main() -> reveille::Result<()> {
    let mut arguments = env::args().skip(1);
    let file = arguments.next().unwrap_or_else(|| "jobs.db".to_owned());
    let url = arguments.next();
    let url = url.unwrap_or_else(|| "http://127.0.0.1:7600".to_owned());

    let queue = SqliteQueue::create(file, "local/orders".parse()?).await?;
    let poison = queue.another("local/orders-poison".parse()?);

    let config = ListenerConfig::default();
    let options = config.subscription(ListenerId::unique("worker")?, &queue);
    let listener = Listener::builder(Arc::new(queue))
        .wakes(Client::with_config(&url, ClientConfig::from_environment()?)?.subscribe(options)?)
        .poison(Arc::new(poison))
        .config(config)
        .start(handle)
        .await?;

    tokio::signal::ctrl_c().await.expect("a signal handler");
    println!("{:?}", listener.state());
    listener.shutdown().await;
    Ok(())
}
