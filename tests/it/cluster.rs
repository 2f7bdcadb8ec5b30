//! Relays in a cluster over a real NATS server: nodes of this process, with clients of their own.

mod drain;
mod forged;
mod frozen;
mod isolated;
mod lists;
mod older;
mod parted;
mod processes;
mod secured;
mod settings;
mod silent;
mod stats;
mod stock;
mod timers;
mod why;
mod witness;

use std::time::Duration;

use reveille::{
    Client, ClusterConfig, FlagName, FlagWatch, GroupName, ListenerId, NatsConfig, Node,
    NodeConfig, Notification, RelayConfig, Report, ReportState, SubscribeOptions, Subscription,
    UnleashOptions, WakeReason, WakeStream, WorkDetected,
};
use tempfile::TempDir;

use crate::support::{listening, nats::NatsServer, queue, told, until, within, woken};

/// Relays that share a store and a broker.
struct Cluster {
    home: TempDir,
    broker: NatsServer,
    nodes: Vec<Node>,
}

impl Cluster {
    async fn start(count: usize) -> Self {
        let mut cluster = Self {
            home: tempfile::tempdir().expect("a directory"),
            broker: NatsServer::start(),
            nodes: Vec::new(),
        };
        for _ in 0..count {
            cluster.add().await;
        }
        cluster
    }

    /// Starts one more relay, and waits until it is ready.
    async fn add(&mut self) {
        let number = self.nodes.len();
        let node = Node::start(NodeConfig {
            relay: RelayConfig {
                relay_id: format!("relay-{number}"),
                ..RelayConfig::default()
            },
            listen: ([127, 0, 0, 1], 0).into(),
            admin_listen: Some(([127, 0, 0, 1], 0).into()),
            store: format!("sqlite:{}", self.home.path().join("flags.db").display()),
            cluster: Some(ClusterConfig {
                nats: NatsConfig {
                    servers: vec![self.broker.url()],
                    ..NatsConfig::default()
                },
                ..ClusterConfig::default()
            }),
            // Only another relay's word can bring a flag to a watcher.
            flag_refresh: Duration::ZERO,
            ..NodeConfig::default()
        });
        let node = within("a relay", node).await.expect("started");
        let admin = node.admin_address().expect("it has one");
        until("the relay is ready", async || {
            crate::support::get(admin, "/readyz").await.0 == 200
        })
        .await;
        self.nodes.push(node);
    }

    fn client(&self, relay: usize) -> Client {
        Client::new(&self.nodes[relay].url()).expect("a URL")
    }
}

/// Reports that the queue was read until empty after this wake-up.
async fn drained(wakes: &mut Subscription, after: &WorkDetected) {
    let report = Report {
        state: ReportState::Drained,
        sequence: after.sequence,
        ..Report::new(after.queue.as_address().expect("no pattern"))
    };
    let reported = within("an answer", wakes.report(report)).await;
    reported.expect("taken");
}

/// A listener that is a member of the group of its queue.
fn member(id: &str, name: &str) -> SubscribeOptions {
    SubscribeOptions {
        group: Some(GroupName::new("workers").expect("a name")),
        ..listening(id, &[name])
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notification_at_one_relay_wakes_the_subscribers_of_all() {
    let cluster = Cluster::start(3).await;
    let mut streams = Vec::new();
    for relay in 0..3 {
        let client = cluster.client(relay);
        let mut wakes = client
            .subscribe(listening("worker", &["acct/orders"]))
            .expect("options");
        assert_eq!(woken(&mut wakes).await.reason, WakeReason::CatchUp);
        streams.push(wakes);
    }
    for relay in 0..3 {
        let publisher = cluster.client(relay).publisher("tests");
        let notification = Notification {
            payload_size: 7,
            ..Notification::new(queue("acct/orders"))
        };
        let accepted = within("an answer", publisher.notify(notification)).await;
        accepted.expect("confirmed");
        for wakes in &mut streams {
            let work = told(wakes, 1).await;
            assert_eq!(
                (work.payload_size, &*work.last_event.publisher),
                (7, "tests")
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pattern_is_told_the_name_of_another_relays_queue() {
    let cluster = Cluster::start(2).await;
    let client = cluster.client(1);
    let mut wakes = client
        .subscribe(listening("worker", &["acct/ord*"]))
        .expect("options");
    assert_eq!(woken(&mut wakes).await.reason, WakeReason::CatchUp);
    let publisher = cluster.client(0).publisher("tests");
    let notified = publisher.notify(Notification::new(queue("acct/orders")));
    within("an answer", notified).await.expect("confirmed");
    assert_eq!(told(&mut wakes, 1).await.queue.queue_name(), "orders");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_idle_member_of_all_relays_gets_a_message() {
    let cluster = Cluster::start(2).await;
    let mut members = Vec::new();
    for relay in 0..2 {
        let client = cluster.client(relay);
        let mut wakes = client
            .subscribe(member(&format!("worker-{relay}"), "acct/orders"))
            .expect("options");
        let first = woken(&mut wakes).await;
        drained(&mut wakes, &first).await;
        members.push(wakes);
    }
    let publisher = cluster.client(0).publisher("tests");
    for _ in 0..10 {
        let notified = publisher.notify(Notification::new(queue("acct/orders")));
        within("an answer", notified).await.expect("confirmed");
        let work = told(&mut members[0], 1).await;
        drained(&mut members[0], &work).await;
        // A member whose stream has not ended its last send counts as busy, and then both relays wake
        // one.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut woken = 0;
    while tokio::time::timeout(Duration::from_secs(2), members[1].next())
        .await
        .is_ok()
    {
        woken += 1;
    }
    assert!(woken < 5, "the other relay woke its member {woken} times");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_notified_while_a_relay_is_cut_off_wakes_its_subscribers_afterwards() {
    let mut cluster = Cluster::start(2).await;
    let mut streams = Vec::new();
    for relay in 0..2 {
        let client = cluster.client(relay);
        let mut wakes = client
            .subscribe(listening("worker", &["acct/orders"]))
            .expect("options");
        woken(&mut wakes).await;
        streams.push(wakes);
    }
    cluster.broker.kill();
    let publisher = cluster.client(0).publisher("tests");
    let notified = publisher.notify(Notification::new(queue("acct/orders")));
    let answer = tokio::time::timeout(Duration::from_secs(3), notified).await;
    assert!(
        !matches!(answer, Ok(Ok(_))),
        "no relay could confirm it: {answer:?}"
    );
    assert_eq!(woken(&mut streams[0]).await.reason, WakeReason::Notified);
    // Both relays tell their listeners to poll.
    for node in &cluster.nodes {
        let admin = node.admin_address().expect("it has one");
        until("the relay is degraded", async || {
            crate::support::get(admin, "/readyz").await.0 == 503
        })
        .await;
    }
    cluster.broker.restart();
    let work = woken(&mut streams[1]).await;
    assert!(
        matches!(work.reason, WakeReason::Notified | WakeReason::CatchUp),
        "{work:?}"
    );
    let publisher = cluster.client(1).publisher("tests");
    until("publishers are answered again", async || {
        let notified = publisher.notify(Notification::new(queue("acct/orders")));
        within("an answer", notified).await.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flag_that_is_set_through_one_relay_releases_the_watchers_of_all() {
    let cluster = Cluster::start(2).await;
    let flag = FlagName::new("go").expect("a name");
    let listener = ListenerId::new("parked").expect("a name");
    let mut watch = cluster.client(1).watch_flag(flag.clone(), listener);
    let first = within("the state", watch.next()).await.expect("not ended");
    assert!(!first.expect("read").set);
    let admin = cluster.client(0).flags();
    let set = admin.unleash(&flag, &UnleashOptions::default()).await;
    let set = set.expect("stored");
    let told = within("the set", watch.next()).await.expect("not ended");
    let told = told.expect("read");
    assert_eq!((told.set, told.generation), (true, set.flag.generation));
    // A set is told also where it is over at once (R21).
    admin.leash(&flag).await.expect("cleared");
    admin
        .unleash(&flag, &UnleashOptions::default())
        .await
        .expect("stored");
    admin.leash(&flag).await.expect("cleared");
    let mut sets = Vec::new();
    let released = async {
        loop {
            let state = watch.next().await.expect("not ended").expect("read");
            sets.push(state.set);
            if sets.contains(&true) && !state.set {
                break;
            }
        }
    };
    within("the second set, and its end", released).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_in_the_relays_process_is_told_that_the_relay_is_cut_off() {
    let mut cluster = Cluster::start(1).await;
    let options = listening("worker", &["acct/orders"]);
    let mut wakes = cluster.nodes[0]
        .relay()
        .subscribe(options)
        .expect("options");
    assert_eq!(woken(&mut wakes).await.reason, WakeReason::CatchUp);
    let link = wakes.link();
    assert!(link.borrow().is_pushed());
    let reader = tokio::spawn(async move { while wakes.next().await.is_some() {} });
    cluster.broker.kill();
    until("it polls", async || !link.borrow().is_pushed()).await;
    cluster.broker.restart();
    until("it trusts the relay again", async || {
        link.borrow().is_pushed()
    })
    .await;
    reader.abort();
}
