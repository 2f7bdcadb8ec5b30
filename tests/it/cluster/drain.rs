//! C15, C16: relays as processes that end in order, under publishers and listeners.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use reveille::{Client, FlagWatch as _, ListenerId, Subscription, WakeReason, testing::TestRelay};
use tonic::{
    Code, Request, Status, client::Grpc, codegen::http::uri::PathAndQuery, transport::Channel,
    transport::Endpoint,
};
use tonic_prost::ProstCodec;

use super::processes::{Fleet, notify};
use crate::{
    binary::{Binary, stderr},
    support::{Wire, listening, until, within, woken},
};

/// The fields of a request that these tests state.
#[derive(Clone, PartialEq, prost::Message)]
struct NotifyRequest {
    #[prost(message, repeated, tag = "1")]
    events: Vec<Event>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Event {
    #[prost(string, tag = "1")]
    storage_account: String,
    #[prost(string, tag = "2")]
    queue_name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct NotifyResponse {}

/// The wake-ups of one listener: the queue's name, the reason and the time.
type Wakes = Arc<Mutex<Vec<(String, WakeReason, Instant)>>>;

const LISTENERS: usize = 60;
const QUEUES: usize = 30;
/// From the answer to a publisher until each listener is woken: reconnections within a second,
/// checks spread over two, and a busy machine.
const BOUND: Duration = Duration::from_secs(8);

/// Notifies once through this connection, without a repetition.
async fn notify_once(channel: &Channel, queue_name: &str) -> Result<(), Status> {
    let mut relay = Grpc::new(channel.clone());
    let ready = relay.ready().await;
    ready.map_err(|error| Status::unavailable(error.to_string()))?;
    let request = Request::new(NotifyRequest {
        events: vec![Event {
            storage_account: "acct".to_owned(),
            queue_name: queue_name.to_owned(),
        }],
    });
    let codec: ProstCodec<NotifyRequest, NotifyResponse> = ProstCodec::default();
    let method = PathAndQuery::from_static("/reveille.v1.Relay/Notify");
    relay.unary(request, method, codec).await.map(|_| ())
}

/// Opens a listener of all queues at any relay, and notes its wake-ups.
async fn listen(urls: &str, number: usize, names: &[String]) -> Wakes {
    let client = Client::new(urls).expect("URLs");
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let options = listening(&format!("worker-{number}"), &names);
    let mut stream = client.subscribe(options).expect("options");
    let wakes = Wakes::default();
    let noted = Arc::clone(&wakes);
    tokio::spawn(async move {
        while let Some(Ok(work)) = stream.next().await {
            let name = work.queue.to_string();
            let wake = (name, work.reason, Instant::now());
            noted.lock().expect("no panic").push(wake);
        }
    });
    let first = Arc::clone(&wakes);
    until("the first checks", async || {
        first.lock().expect("no panic").len() >= names.len()
    })
    .await;
    wakes
}

/// Checks that this listener was woken for each answered notification, and had few checks.
fn check(wakes: &Wakes, answered: &[(String, Instant, Instant)], restarts: usize) {
    let wakes = wakes.lock().expect("no panic");
    for (name, begun, answered) in answered {
        let of_queue = wakes.iter().filter(|(queue, ..)| queue == name);
        let mut since = of_queue.map(|(.., at)| *at).filter(|at| at >= begun);
        let first = since
            .next()
            .expect("a wake-up that was acknowledged is lost");
        let late = first.saturating_duration_since(*answered);
        assert!(late < BOUND, "{name}: {late:?}");
    }
    let mut checks = HashMap::<_, usize>::new();
    for (name, reason, _) in &*wakes {
        *checks.entry(name).or_default() += usize::from(*reason == WakeReason::CatchUp);
    }
    for (name, count) in checks {
        assert!(count <= 1 + 2 * restarts, "{name}: {count} checks");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_loses_no_wake_up_and_costs_few_checks() {
    let mut fleet = Fleet::start_with(&["--drain", "2s"]).await;
    let names: Vec<_> = (0..QUEUES).map(|n| format!("acct/orders-{n}")).collect();
    let mut listeners = Vec::new();
    for number in 0..LISTENERS {
        listeners.push(listen(&fleet.urls(), number, &names).await);
    }
    let (client, queues) = (fleet.client.clone(), names.clone());
    // Each queue is notified once, so that no later wake-up hides a lost one.
    let publisher = tokio::spawn(async move {
        let mut answered = Vec::new();
        for name in queues {
            let begun = Instant::now();
            notify(&client, &name).await;
            answered.push((name, begun, Instant::now()));
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
        answered
    });
    let restarts = fleet.relays.len();
    for relay in &mut fleet.relays {
        relay.restart().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let answered = within("all answers", publisher).await.expect("no panic");
    assert_eq!(answered.len(), QUEUES);
    for wakes in &listeners {
        until("the listener is woken for each", async || {
            let wakes = wakes.lock().expect("no panic");
            answered.iter().all(|(name, begun, _)| {
                let mut of_queue = wakes.iter().filter(|(queue, ..)| queue == name);
                of_queue.any(|(.., at)| at >= begun)
            })
        })
        .await;
    }
    // The checks are spread over two seconds.
    tokio::time::sleep(Duration::from_secs(2)).await;
    for wakes in &listeners {
        check(wakes, &answered, restarts);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_notification_that_a_draining_relay_acknowledges_is_told() {
    let mut fleet = Fleet::start_with(&["--drain", "1s"]).await;
    let mut streams = fleet.subscribe("acct/orders").await;
    let mut elsewhere = streams.remove(1);
    let url = fleet.relays[0].url();
    let channel = Endpoint::from_shared(url).expect("a URL");
    let channel = channel.connect().await.expect("it serves");
    // The span lasts until the last stream of the relay has its Goodbye.
    let client = Client::new(&fleet.relays[0].url()).expect("a URL");
    for number in 0..10 {
        let options = listening(&format!("further-{number}"), &["acct/orders"]);
        let mut wakes = client.subscribe(options).expect("options");
        woken(&mut wakes).await;
        streams.push(wakes);
    }
    fleet.relays[0].send_terminate().await;
    let (mut accepted, mut refused) = (0, 0);
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        match notify_once(&channel, "orders").await {
            Ok(()) => accepted += 1,
            Err(status) => {
                // A call that is sent while the connection ends has no answer of the relay.
                let text = format!("{status:?}");
                let is_unanswered = text.contains("GoAway") || text.contains("connection closed");
                let is_refused = status.code() == Code::Unavailable;
                assert!(is_refused || is_unanswered, "{status:?}");
                refused += 1;
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(accepted > 10 && refused > 0, "{accepted} and {refused}");
    assert!(fleet.relays[0].ended().await.success());
    let mut told = 0;
    while told < accepted {
        told += woken(&mut elsewhere).await.notifications;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_verb_drain_ends_a_relay_and_its_listeners_move() {
    let mut fleet = Fleet::start_with(&["--drain", "30s"]).await;
    let names = ["acct/orders".to_owned()];
    let mut listeners = Vec::new();
    for number in 0..6 {
        listeners.push(listen(&fleet.urls(), number, &names).await);
    }
    let relay = &fleet.relays[0];
    let several = relay.run(&["drain", "--relay", &fleet.urls()]).await;
    assert_eq!(several.status.code(), Some(2), "{}", stderr(&several));
    let drained = relay.run(&["drain", "--within", "1s", "-o", "json"]).await;
    assert!(drained.status.success(), "{}", stderr(&drained));
    let row: serde_json::Value = serde_json::from_slice(&drained.stdout).expect("JSON");
    assert_eq!(row["draining"], true, "{row}");
    let (status, why) = crate::support::get(relay.admin(), "/readyz").await;
    assert_eq!(status, 503, "{why}");
    assert!(fleet.relays[0].ended().await.success());
    let begun = Instant::now();
    notify(&fleet.client, "acct/orders").await;
    for wakes in &listeners {
        until("the listener is woken", async || {
            let wakes = wakes.lock().expect("no panic");
            wakes.iter().any(|(.., at)| *at >= begun)
        })
        .await;
    }
}

#[tokio::test]
async fn a_single_relay_ends_at_once_by_the_verb() {
    let mut relay = Binary::serve().await;
    let client = Client::new(&relay.url()).expect("a URL");
    let options = listening("worker", &["acct/orders"]);
    let mut wakes = client.subscribe(options).expect("options");
    woken(&mut wakes).await;
    let begun = Instant::now();
    assert!(relay.run(&["drain"]).await.status.success());
    assert!(relay.ended().await.success());
    let lasted = begun.elapsed();
    assert!(lasted < Duration::from_secs(8), "{lasted:?}");
}

/// Starts a relay whose drain takes a second, with streams of subscribers and watchers, and drains it
/// over ten minutes.
async fn draining_slowly() -> (Binary, Client, Vec<Subscription>) {
    // Connections that stay open after the streams' end show in the time that the end takes.
    let mut relay = Binary::serve_with(&["--drain", "1s", "--grace", "60s"], &[]).await;
    let client = Client::new(&relay.url()).expect("a URL");
    let mut streams = Vec::new();
    for number in 0..20 {
        let options = listening(&format!("worker-{number}"), &["acct/orders"]);
        let mut wakes = client.subscribe(options).expect("options");
        woken(&mut wakes).await;
        streams.push(wakes);
        let flag = "release".parse().expect("a name");
        let id = ListenerId::new(&format!("watcher-{number}")).expect("an id");
        let mut watch = client.watch_flag(flag, id);
        within("a state", watch.next()).await;
        tokio::spawn(async move { while watch.next().await.is_some() {} });
    }
    for span in ["10m", "20m"] {
        let drained = relay.run(&["drain", "--within", span]).await;
        assert!(drained.status.success(), "{}", stderr(&drained));
    }
    let ended = tokio::time::timeout(Duration::from_secs(2), relay.ended()).await;
    assert!(ended.is_err(), "the end was not in ten minutes");
    (relay, client, streams)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_further_drain_brings_the_end_forward() {
    let (mut relay, _client, _streams) = draining_slowly().await;
    let begun = Instant::now();
    assert!(
        relay
            .run(&["drain", "--within", "0"])
            .await
            .status
            .success()
    );
    assert!(relay.ended().await.success());
    let lasted = begun.elapsed();
    assert!(lasted < Duration::from_secs(10), "{lasted:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_signal_to_a_draining_relay_ends_it_in_order() {
    let (mut relay, _client, _streams) = draining_slowly().await;
    let begun = Instant::now();
    assert!(relay.terminate().await.success());
    let lasted = begun.elapsed();
    assert!(lasted < Duration::from_secs(10), "{lasted:?}");
    let log = relay.log();
    assert!(
        log.contains("stopped") && !log.contains("ended at once"),
        "{log}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_balancer_streams_leave_a_draining_relay_before_its_span_is_over() {
    let old = TestRelay::start().await.expect("a relay");
    let new = TestRelay::start().await.expect("a relay");
    let balancer = Wire::to(old.node().expect("it runs").address()).await;
    // All streams share one connection.
    let client = Client::new(&balancer.url()).expect("a URL");
    let mut streams = Vec::new();
    for number in 0..20 {
        let options = listening(&format!("worker-{number}"), &["acct/orders"]);
        let mut wakes = client.subscribe(options).expect("options");
        woken(&mut wakes).await;
        streams.push(tokio::spawn(async move {
            while wakes.next().await.is_some() {}
        }));
    }
    balancer.lead_to(new.node().expect("it runs").address());
    let operator = old.client().expect("a client");
    let begun = Instant::now();
    operator
        .drain(Some(Duration::from_secs(60)))
        .await
        .expect("it drains");
    let new_client = new.client().expect("a client");
    until("the first streams are at the new relay", async || {
        let listed = new_client.listeners().await.expect("a list");
        listed.entries.len() >= 3
    })
    .await;
    let lasted = begun.elapsed();
    assert!(lasted < Duration::from_secs(30), "{lasted:?}");
    streams.iter().for_each(tokio::task::JoinHandle::abort);
}
