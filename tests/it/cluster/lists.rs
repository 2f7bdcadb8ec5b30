//! Requests between the relays of a cluster: lists, forwarded reports and acknowledgements.

use std::time::{Duration, Instant};

use reveille::{
    FlagEvent, FlagName, FlagWatch, ListenerId, Notification, RelayState, UnleashOptions,
};
use tonic::{
    Code, Request, Status, client::Grpc, codegen::http::uri::PathAndQuery, transport::Endpoint,
};
use tonic_prost::ProstCodec;

use super::Cluster;
use crate::{
    binary::{Binary, stderr, stdout},
    support::{listening, nats::NatsServer, queue, until, within, woken},
};

/// The fields of a report that these tests state.
#[derive(Clone, PartialEq, prost::Message)]
struct ReportRequest {
    #[prost(string, tag = "1")]
    subscription_id: String,
    #[prost(string, tag = "2")]
    storage_account: String,
    #[prost(string, tag = "3")]
    queue_name: String,
    #[prost(uint64, tag = "6")]
    number: u64,
    #[prost(uint32, tag = "9")]
    active_dequeue_tasks: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReportResponse {}

/// Sends a report to this relay, as any client may.
async fn report(url: &str, subscription_id: &str, tasks: u32) -> Result<(), Status> {
    let channel = Endpoint::from_shared(url.to_owned()).expect("a URL");
    let mut relay = Grpc::new(channel.connect().await.expect("it serves"));
    relay.ready().await.expect("connected");
    let request = Request::new(ReportRequest {
        subscription_id: subscription_id.to_owned(),
        storage_account: "acct".to_owned(),
        queue_name: "orders".to_owned(),
        number: 1,
        active_dequeue_tasks: tasks,
    });
    let codec: ProstCodec<ReportRequest, ReportResponse> = ProstCodec::default();
    let method = PathAndQuery::from_static("/reveille.v1.Relay/Report");
    relay.unary(request, method, codec).await.map(|_| ())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_relay_lists_the_queues_and_listeners_of_all() {
    let cluster = Cluster::start(3).await;
    let mut streams = Vec::new();
    for relay in 0..3 {
        // More than two pages over all, and more than one reply of 56 KiB.
        for number in 0..75 {
            let id = format!("worker-{relay}-{number:03}-{}", "x".repeat(90));
            let own = format!("acct/{}-{relay}-{number}", "long".repeat(10));
            let options = listening(&id, &["acct/orders", &own]);
            let mut wakes = cluster.client(relay).subscribe(options).expect("options");
            woken(&mut wakes).await;
            streams.push(wakes);
        }
    }
    let publisher = cluster.client(0).publisher("tests");
    let notified = publisher.notify(Notification::new(queue("acct/orders")));
    within("an answer", notified).await.expect("confirmed");
    for relay in 0..3 {
        let client = cluster.client(relay);
        let listeners = within("a list", client.listeners()).await.expect("listed");
        assert_eq!(listeners.unanswered, [""; 0]);
        let mut ids: Vec<_> = listeners.iter().map(|one| &*one.listener_id).collect();
        assert_eq!(ids.len(), 3 * 75);
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 3 * 75);
        let queues = within("a list", client.queues()).await.expect("listed");
        assert_eq!(queues.len(), 3 * 75 + 1);
        let orders = queues.iter().find(|one| one.queue_name == "orders");
        let orders = orders.expect("listed");
        assert_eq!((orders.listeners, orders.notifications), (3 * 75, 1));
        let own = queues.iter().filter(|one| one.queue_name != "orders");
        assert!(own.into_iter().all(|one| one.listeners == 1), "{queues:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_that_do_not_answer_are_named() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client(0);
    let mut wakes = client
        .subscribe(listening("worker", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    let states = async || -> Vec<(String, RelayState)> {
        let relays = within("a list", client.relays()).await.expect("listed");
        relays
            .iter()
            .map(|one| (one.relay_id.clone(), one.state()))
            .collect()
    };
    let named = |all: &[(&str, RelayState)]| -> Vec<(String, RelayState)> {
        all.iter()
            .map(|(id, state)| ((*id).to_owned(), *state))
            .collect()
    };
    use RelayState::{Left, Missing, Present, Self_ as Answering};
    let all = [
        ("relay-0", Answering),
        ("relay-1", Present),
        ("relay-2", Present),
    ];
    assert_eq!(states().await, named(&all));
    // It dies and does not say that it leaves.
    drop(cluster.nodes.pop());
    for _ in 0..2 {
        let began = Instant::now();
        let listed = within("a list", client.listeners()).await.expect("listed");
        assert!(began.elapsed() < Duration::from_secs(3));
        assert_eq!(
            (listed.len(), &*listed.unanswered),
            (1, &["relay-2".to_owned()][..])
        );
        let all = [
            ("relay-0", Answering),
            ("relay-1", Present),
            ("relay-2", Missing),
        ];
        until("it is missing", async || states().await == named(&all)).await;
    }
    let second = cluster.nodes.pop().expect("three were started");
    second.shutdown(Duration::ZERO).await;
    let all = [
        ("relay-0", Answering),
        ("relay-1", Left),
        ("relay-2", Missing),
    ];
    until("it has left", async || states().await == named(&all)).await;
    let listed = within("a list", client.queues()).await.expect("listed");
    assert_eq!(listed.unanswered, ["relay-2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_reaches_its_stream_through_another_relay() {
    let cluster = Cluster::start(2).await;
    let mut wakes = cluster
        .client(1)
        .subscribe(listening("worker", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    let client = cluster.client(0);
    let listed = within("a list", client.listeners()).await.expect("listed");
    let id = listed[0].subscription_id.clone();
    assert!(id.starts_with("relay-1/"), "{id}");
    let url = cluster.nodes[0].url();
    let reported = within("an answer", report(&url, &id, 7)).await;
    reported.expect("taken");
    let listed = within("a list", client.listeners()).await.expect("listed");
    assert_eq!(listed[0].active_dequeue_tasks, 7);
    let unknown = format!("relay-1/{:032x}", 7);
    let refused = within("an answer", report(&url, &unknown, 1)).await;
    assert_eq!(refused.expect_err("no such stream").code(), Code::NotFound);
    let nowhere = format!("relay-9/{:032x}", 7);
    let refused = within("an answer", report(&url, &nowhere, 1)).await;
    assert_eq!(
        refused.expect_err("no such relay").code(),
        Code::Unavailable
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledgements_are_counted_over_all_relays() {
    let cluster = Cluster::start(3).await;
    let flag = FlagName::new("go").expect("a name");
    let id = |name: &str| ListenerId::new(name).expect("a name");
    let mut watches = Vec::new();
    for (relay, name) in [(1, "one"), (2, "two"), (0, "three")] {
        let mut watch = cluster.client(relay).watch_flag(flag.clone(), id(name));
        let state = within("the state", watch.next()).await;
        assert!(!state.expect("a state").expect("read").set);
        watches.push(watch);
    }
    let client = cluster.client(0);
    let mut counting = client.watch_flag(flag.clone(), id("counts")).with_acks();
    let unset = within("the state", futures_util::StreamExt::next(&mut counting)).await;
    assert!(matches!(unset, Some(Ok(FlagEvent::State(_)))), "{unset:?}");
    let (flags, options) = (client.flags(), UnleashOptions::default());
    let unleashed = flags.unleash(&flag, &options);
    let unleashed = within("an answer", unleashed).await.expect("set");
    assert_eq!(unleashed.watchers, 3);
    for watch in &mut watches {
        let state = within("the state", watch.next()).await;
        let state = state.expect("a state").expect("read");
        assert!(state.set);
        watch.ack(state.generation).await.expect("taken");
    }
    // A listener that goes to another relay counts once.
    let mut moved = cluster.client(1).watch_flag(flag.clone(), id("two"));
    within("the state", moved.next())
        .await
        .expect("a state")
        .expect("read");
    moved.ack(unleashed.flag.generation).await.expect("taken");
    let all = async {
        loop {
            let event = futures_util::StreamExt::next(&mut counting).await;
            if let FlagEvent::Acks {
                acknowledged,
                watchers,
                ..
            } = event.expect("open").expect("read")
                && (acknowledged, watchers) == (3, 4)
            {
                return;
            }
        }
    };
    within("all are counted", all).await;
    let listed = flags.watchers(&flag);
    let listed = within("a list", listed).await.expect("listed");
    let listed: Vec<_> = listed
        .iter()
        .map(|one| (&*one.listener_id, one.streams, one.acknowledged))
        .filter(|one| one.0 != "counts")
        .collect();
    assert_eq!(
        listed,
        [("one", 1, true), ("three", 1, true), ("two", 2, true)]
    );
}

#[tokio::test]
async fn a_relay_has_a_row_once_it_has_a_name_and_is_missing_after_its_silence() {
    let home = tempfile::tempdir().expect("a directory");
    let store = format!("sqlite:{}", home.path().join("flags.db").display());
    let mut broker = NatsServer::start();
    let url = broker.url();
    let arguments = ["--store", &store, "--cluster", &url];
    let one = Binary::serve_with(&arguments, &[]).await;
    let listed = async || {
        let relays = one.run(&["relays", "-o", "json"]).await;
        assert!(relays.status.success(), "{}", stderr(&relays));
        let relays: serde_json::Value = serde_json::from_str(&stdout(&relays)).expect("JSON");
        let relays = relays.as_array().expect("a list").clone();
        for relay in &relays {
            assert_ne!(relay["relay_id"], "", "{relays:?}");
        }
        relays
    };
    let two = Binary::serve_with(&arguments, &[]);
    let watched = until("two relays", async || listed().await.len() == 2);
    let (_two, ()) = tokio::join!(two, watched);
    // Each is cut off from the other, which it cannot tell from its end.
    broker.kill();
    until("the other one is missing", async || {
        listed().await[1]["state"] == "missing"
    })
    .await;
}
