//! The listener against real parts: a relay over sockets, Azurite, SQLite files.

mod azure;
mod listeners;
mod rotation;
mod sqlite;
mod typed;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use reveille::{
    ListenerId, Notification, SubscribeOptions,
    listener::{
        Delivery, Handler, HandlerResult, Listener, ListenerBuilder, ListenerConfig, ListenerMode,
    },
    queue::{NewMessage, WorkQueue},
    testing::TestRelay,
};

use crate::support::until;

/// How often each body was handled.
#[derive(Debug, Clone, Default)]
struct Seen(Arc<Mutex<BTreeMap<String, u32>>>);

impl Seen {
    fn times(&self) -> BTreeMap<String, u32> {
        self.0.lock().expect("no panic").clone()
    }

    fn bodies(&self) -> BTreeSet<String> {
        self.times().into_keys().collect()
    }

    /// Returns a handler that takes this long and counts its messages.
    fn handler(&self, takes: Duration) -> impl Handler + use<> {
        let seen = self.clone();
        move |job: Delivery| {
            let seen = seen.clone();
            async move {
                tokio::time::sleep(takes).await;
                let body = String::from_utf8_lossy(&job.message.body).into_owned();
                *seen.0.lock().expect("no panic").entry(body).or_default() += 1;
                HandlerResult::Ok(())
            }
        }
    }
}

fn names(prefix: &str, count: usize) -> BTreeSet<String> {
    (0..count)
        .map(|number| format!("{prefix}{number}"))
        .collect()
}

/// Makes a listener with the relay's wake-ups.
fn builder_with_wakes(
    relay: &TestRelay,
    queue: &Arc<dyn WorkQueue>,
    config: ListenerConfig,
) -> ListenerBuilder {
    let id = ListenerId::unique("worker").expect("a name");
    let options = SubscribeOptions {
        heartbeat: Duration::from_secs(1),
        ..config.subscription(id, &**queue)
    };
    let client = relay.client().expect("a client");
    let wakes = client.subscribe(options).expect("subscribed");
    Listener::builder(Arc::clone(queue))
        .config(config)
        .wakes(wakes)
}

async fn put(queue: &dyn WorkQueue, bodies: &BTreeSet<String>) {
    let messages = bodies.iter().cloned().map(NewMessage::new);
    queue.put(messages.collect()).await.expect("put");
}

async fn put_and_notify(relay: &TestRelay, queue: &dyn WorkQueue, bodies: &BTreeSet<String>) {
    put(queue, bodies).await;
    let publisher = relay.client().expect("a client").publisher("test");
    let notification = Notification::new(queue.address().clone());
    publisher.notify(notification).await.expect("counted");
}

/// Waits until the listeners are pushed and idle: a listener polls within two seconds after it
/// connected to a relay.
async fn pushed_and_idle(listeners: &[Listener]) {
    for listener in listeners {
        until("pushed", async || {
            listener.state().mode == ListenerMode::Pushed
        })
        .await;
    }
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    for listener in listeners {
        until("idle", async || listener.state().active_dequeue_tasks == 0).await;
    }
}
