//! Resuming a stream of many queues, after a rotation and a break.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use reveille::{
    LinkState, NodeConfig, Notification, Publisher, RelayConfig, Subscription, WakeReason,
    testing::TestRelay,
};
use tokio::sync::watch;

use crate::support::{Wire, eager, figure, listening, queue, until, within};

const QUEUES: usize = 6_000;

/// The reasons of a subscriber's wake-ups, by queue.
type Told = Arc<Mutex<BTreeMap<String, Vec<WakeReason>>>>;

/// A subscriber that reads in a separate task.
struct Reader {
    told: Told,
    link: watch::Receiver<LinkState>,
    _task: tokio::task::JoinSet<()>,
}

impl Reader {
    fn start(mut wakes: Subscription) -> Self {
        let (told, link) = (Told::default(), wakes.link());
        let mut task = tokio::task::JoinSet::new();
        let into = Arc::clone(&told);
        task.spawn(async move {
            while let Some(work) = wakes.next().await {
                let work = work.expect("not refused");
                let mut told = into.lock().expect("no panic");
                let queue = work.queue.queue_name().to_owned();
                told.entry(queue).or_default().push(work.reason);
            }
        });
        Self {
            told,
            link,
            _task: task,
        }
    }

    fn count(&self) -> usize {
        self.told.lock().expect("no panic").len()
    }

    fn take(&self) -> BTreeMap<String, Vec<WakeReason>> {
        std::mem::take(&mut *self.told.lock().expect("no panic"))
    }

    /// Waits until more than `streams` streams were opened.
    async fn welcomed_after(&mut self, streams: u64) {
        let welcomed = self.link.wait_for(|link| link.welcomes > streams);
        within("a stream", welcomed).await.expect("it reads");
    }
}

/// Waits for two further heartbeats: then no wake-up is pending, and the first heartbeat has
/// arrived.
async fn silence(relay: &TestRelay) {
    let admin = relay.admin_address().expect("an admin port");
    let before = figure(admin, "reveille_heartbeats_total").await;
    until("two heartbeats", async || {
        figure(admin, "reveille_heartbeats_total").await > before + 1
    })
    .await;
}

fn name(number: usize) -> String {
    format!("q{number:05}")
}

async fn notify(publisher: &Publisher, names: impl Iterator<Item = String>) {
    let event = |name| Notification::new(queue(&format!("acct/{name}")));
    let notified = publisher.notify_all(names.map(event).collect());
    within("notified", notified).await.expect("counted");
}

/// Starts a relay whose streams have this maximum age, and a subscriber of all queues through a
/// proxy.
async fn start_and_catch_up(max_age: Duration) -> (TestRelay, Wire, Publisher, Reader) {
    let relay = RelayConfig {
        stream_max_age: max_age,
        ..RelayConfig::default()
    };
    let config = NodeConfig {
        relay,
        ..NodeConfig::default()
    };
    let relay = TestRelay::with_config(config).await.expect("a relay");
    let wire = Wire::of(&relay).await;
    let client = eager(&wire.url());
    let wakes = client.subscribe(listening("worker-1", &["acct/*"]));
    let mut reader = Reader::start(wakes.expect("options"));
    reader.welcomed_after(0).await;
    let publisher = relay.client().expect("a client").publisher("p");
    notify(&publisher, (0..QUEUES).map(name)).await;
    until("all queues", async || reader.count() == QUEUES + 1).await;
    (relay, wire, publisher, reader)
}

#[tokio::test]
async fn the_rotation_of_a_stream_of_many_queues_causes_no_wake_up() {
    let (relay, _wire, _publisher, mut reader) = start_and_catch_up(Duration::from_secs(5)).await;
    silence(&relay).await;
    reader.take();
    let streams = reader.link.borrow().welcomes;
    reader.welcomed_after(streams).await;
    silence(&relay).await;
    let told = reader.take();
    assert!(
        told.is_empty(),
        "woken for {} queues: {:?}",
        told.len(),
        told.first_key_value()
    );
}

#[tokio::test]
async fn after_a_break_exactly_the_changed_queues_cause_wake_ups() {
    let (relay, wire, publisher, mut reader) = start_and_catch_up(Duration::from_secs(3600)).await;
    silence(&relay).await;
    reader.take();
    let streams = reader.link.borrow().welcomes;
    wire.cut();
    until("it is cut", async || wire.open() == 0).await;
    let changed = [0, 1_000, QUEUES - 1, QUEUES];
    notify(&publisher, changed.into_iter().map(name)).await;
    wire.mend();
    reader.welcomed_after(streams).await;
    silence(&relay).await;
    let expected = [
        (name(0), vec![WakeReason::CatchUp]),
        (name(1_000), vec![WakeReason::CatchUp]),
        (name(QUEUES - 1), vec![WakeReason::CatchUp]),
        (name(QUEUES), vec![WakeReason::CatchUp]),
    ];
    assert_eq!(reader.take(), BTreeMap::from(expected));
}
