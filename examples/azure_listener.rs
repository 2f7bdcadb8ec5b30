//! Listens on a queue of Azure Queue Storage.
//!
//! `reveille serve &`, then with AZURE_STORAGE_CONNECTION_STRING set
//! `cargo run --features azure --example azure_listener -- orders`, and from another shell, with
//! the same variable and a command built with `--features full`:
//! `reveille queue put azure://ACCOUNT/orders hello --notify`. Ends on ctrl-c.

use std::{env, sync::Arc};

use reveille::{
    Client, ClientConfig, ListenerId,
    listener::{Delivery, Listener, ListenerConfig},
    queue::{AzureQueue, RetryConfig, Retrying, WorkQueue},
};

#[tokio::main]
async fn main() -> reveille::Result<()> {
    let connection = env::var("AZURE_STORAGE_CONNECTION_STRING");
    let connection = connection.expect("AZURE_STORAGE_CONNECTION_STRING is set");
    let mut arguments = env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "orders".to_owned());
    let url = arguments.next();
    let url = url.unwrap_or_else(|| "http://127.0.0.1:7600".to_owned());

    let queue = AzureQueue::from_connection_string(&connection, &name)?;
    let queue = Retrying::new(Arc::new(queue), RetryConfig::default());
    queue.create().await?;

    let config = ListenerConfig::default();
    let options = config.subscription(ListenerId::unique("worker")?, &queue);
    let listener = Listener::builder(Arc::new(queue))
        .wakes(Client::with_config(&url, ClientConfig::from_environment()?)?.subscribe(options)?)
        .config(config)
        .start(async |job: Delivery| {
            println!("{}", String::from_utf8_lossy(&job.message.body));
            Ok(())
        })
        .await?;

    tokio::signal::ctrl_c().await.expect("a signal handler");
    listener.shutdown().await;
    Ok(())
}
