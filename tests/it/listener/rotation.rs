//! Streams that a relay ends as announced: the listener makes no call to its queue.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use reveille::{
    ListenerId, NodeConfig, RelayConfig,
    listener::{Hooks, Listener, ListenerConfig, ListenerMode},
    queue::MemoryQueue,
    testing::TestRelay,
};

use super::{Seen, names, put_and_notify};
use crate::support::{metered::Metered, until};

#[derive(Debug, Clone, Default)]
struct Modes(Arc<Mutex<Vec<ListenerMode>>>);

impl Hooks for Modes {
    fn on_mode_changed(&self, mode: ListenerMode, _: Option<&str>) {
        self.0.lock().expect("no panic").push(mode);
    }
}

#[tokio::test]
async fn a_rotated_stream_changes_no_mode_and_costs_no_get() {
    let relay = TestRelay::with_config(NodeConfig {
        relay: RelayConfig {
            stream_max_age: Duration::from_secs(2),
            sentinel_interval: Duration::ZERO,
            ..RelayConfig::default()
        },
        ..NodeConfig::default()
    });
    let relay = relay.await.expect("a relay");
    let address = "local/jobs".parse().expect("an address");
    let queue = Arc::new(Metered::new(Arc::new(MemoryQueue::new(address))));
    let (modes, seen) = (Modes::default(), Seen::default());
    let config = ListenerConfig::default();
    let options = config.subscription(ListenerId::unique("w").expect("a name"), &*queue);
    let wakes = relay.client().expect("a client").subscribe(options);
    let wakes = wakes.expect("subscribed");
    let link = wakes.link();
    let builder = Listener::builder(Arc::clone(&queue) as _).config(config);
    let builder = builder.wakes(wakes).hooks(modes.clone());
    let listener = builder.start(seen.handler(Duration::ZERO)).await;
    let listener = listener.expect("started");
    let early = names("early", 1);
    put_and_notify(&relay, &*queue, &early).await;
    until("one is handled, and a stream later", async || {
        let state = listener.state();
        state.stats.handled == 1 && state.active_dequeue_tasks == 0 && link.borrow().welcomes >= 2
    })
    .await;
    let before = queue.usage();
    until("three rotations", async || link.borrow().welcomes >= 5).await;
    let used = queue.usage().since(&before);
    assert_eq!(used.total(), 0, "{used:?}");
    assert_eq!(*modes.0.lock().expect("no panic"), [ListenerMode::Pushed]);
    put_and_notify(&relay, &*queue, &names("late", 1)).await;
    until("it is still told", async || {
        listener.state().stats.handled == 2
    })
    .await;
}
