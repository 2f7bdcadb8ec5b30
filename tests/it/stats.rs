//! The relay's figures through a real relay: the stream of figures, the history, and ordered lists.

use std::time::Duration;

use reveille::{
    ErrorKind, Listed, ListenerQuery, Notification, QueueInfo, QueueOrder, QueueQuery, Report,
    ReportState, Stats, WakeStream, testing::TestRelay,
};
use tonic::{
    Code, Request, Response, Status, Streaming, client::Grpc, codegen::http::uri::PathAndQuery,
    transport::Endpoint,
};
use tonic_prost::ProstCodec;

use crate::support::{figure, listening, queue, until, within, woken};

async fn relay() -> TestRelay {
    TestRelay::start().await.expect("a relay")
}

#[derive(Clone, PartialEq, prost::Message)]
struct WatchStatsRequest {
    #[prost(message, optional, tag = "1")]
    interval: Option<prost_types::Duration>,
}

/// Opens a stream of figures, as the console does.
pub(crate) async fn watch_stats(url: &str, interval: Duration) -> Result<Streaming<Stats>, Status> {
    let channel = Endpoint::from_shared(url.to_owned()).expect("a URL");
    let mut relay = Grpc::new(channel.connect().await.expect("it serves"));
    relay.ready().await.expect("connected");
    let interval = interval.try_into().expect("a short one");
    let request = Request::new(WatchStatsRequest {
        interval: Some(interval),
    });
    let codec: ProstCodec<WatchStatsRequest, Stats> = ProstCodec::default();
    let method = PathAndQuery::from_static("/reveille.v1.Admin/WatchStats");
    let opened = relay.server_streaming(request, method, codec).await;
    opened.map(Response::into_inner)
}

pub(crate) async fn next(watch: &mut Streaming<Stats>) -> Stats {
    let next = within("figures", watch.message()).await;
    next.expect("read").expect("open")
}

/// Puts this many messages into a queue.
async fn notify(relay: &TestRelay, name: &str, messages: u64) {
    let publisher = relay.client().expect("a client").publisher("tests");
    let notification = Notification {
        messages,
        ..Notification::new(queue(name))
    };
    publisher.notify(notification).await.expect("counted");
}

#[tokio::test]
async fn the_figures_are_those_of_the_metrics_page() {
    let relay = relay().await;
    let client = relay.client().expect("a client");
    let mut wakes = client
        .subscribe(listening("worker-1", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    for _ in 0..3 {
        notify(&relay, "acct/orders", 5).await;
        woken(&mut wakes).await;
    }
    let report = Report {
        state: ReportState::Busy,
        active_dequeue_tasks: 2,
        mean_wake_latency: Duration::from_millis(30),
        ..Report::new(queue("acct/orders"))
    };
    wakes.report(report).await.expect("taken");
    let stats = within("figures", client.stats()).await.expect("read");
    let (totals, levels) = (stats.totals.expect("sums"), stats.levels.expect("sums"));
    assert_eq!((totals.notifications, totals.messages), (3, 15));
    assert_eq!((totals.wakes, totals.catch_ups), (4, 1));
    let woken_after = totals.wake_latency.as_ref().expect("latencies");
    assert_eq!(woken_after.counts.iter().sum::<u64>(), 3);
    let handled_after = totals.handler_latency.as_ref().expect("latencies");
    assert_eq!(
        handled_after.percentile(50),
        Some(Duration::from_millis(50))
    );
    assert_eq!(
        (levels.subscriptions, levels.awake, levels.asleep),
        (1, 1, 0)
    );
    assert_eq!(levels.active_dequeue_tasks, 2);
    assert!(levels.connections >= 1);
    assert_eq!(stats.relays.len(), 1);
    assert_eq!(stats.relays[0].totals.as_ref(), Some(&totals));
    let savings = stats.savings.expect("savings");
    assert_eq!(savings.assumed_poll, Duration::from_secs(1).try_into().ok());
    assert_eq!(
        (savings.price_per_million, &*savings.currency),
        (0.04, "USD")
    );
    let admin = relay.admin_address().expect("an admin port");
    for (name, value) in [
        ("reveille_notifications_total", totals.notifications),
        ("reveille_messages_total", totals.messages),
        ("reveille_wake_entries_total", totals.wake_entries),
        ("reveille_catch_ups_total", totals.catch_ups),
        ("reveille_sentinel_checks_total", totals.sentinels),
        ("reveille_reassigned_wakeups_total", totals.reassigned),
        ("reveille_subscriptions_asleep", levels.asleep),
        ("reveille_subscriptions_awake", levels.awake),
        ("reveille_subscriptions_polling", levels.polling),
        ("reveille_active_dequeue_tasks", levels.active_dequeue_tasks),
        ("reveille_unassigned_messages", levels.unassigned),
        ("reveille_handler_latency_seconds_count", 1),
    ] {
        assert_eq!(figure(admin, name).await, value, "{name}");
    }
    let drained = Report {
        state: ReportState::Drained,
        ..Report::new(queue("acct/orders"))
    };
    wakes.report(drained).await.expect("taken");
    until("it has slept", async || {
        figure(admin, "reveille_polls_avoided_total").await > 0
    })
    .await;
    let stats = within("figures", client.stats()).await.expect("read");
    let levels = stats.levels.expect("sums");
    assert_eq!((levels.asleep, levels.awake), (1, 0));
    assert!(stats.savings.expect("savings").polls_avoided > 0);
}

#[tokio::test]
async fn an_interval_out_of_its_limits_is_the_next_one_within() {
    let relay = relay().await;
    for interval in [Duration::from_millis(1), Duration::ZERO] {
        let mut watch = watch_stats(&relay.url(), interval).await.expect("opened");
        next(&mut watch).await;
    }
}

#[tokio::test]
async fn a_stream_of_figures_ends_with_the_drain() {
    let relay = relay().await;
    let interval = Duration::from_secs(60);
    let mut watch = watch_stats(&relay.url(), interval).await.expect("opened");
    assert!(!next(&mut watch).await.relays[0].draining);
    relay.node().expect("it runs").relay().drain();
    assert!(next(&mut watch).await.relays[0].draining);
    let end = within("the end", watch.message()).await;
    assert!(matches!(end, Ok(None)), "{end:?}");
    let refused = watch_stats(&relay.url(), interval).await;
    assert_eq!(refused.expect_err("it drains").code(), Code::Unavailable);
}

#[tokio::test]
async fn the_history_has_a_sample_for_each_second() {
    let relay = relay().await;
    let client = relay.client().expect("a client");
    let mut wakes = client
        .subscribe(listening("worker-1", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    for _ in 0..4 {
        notify(&relay, "acct/orders", 1).await;
        woken(&mut wakes).await;
    }
    let history = async |day| {
        let history = within("the history", client.history(day)).await;
        history.expect("read")
    };
    until("the samples", async || {
        let samples = history(false).await.samples;
        let sum: u64 = samples.iter().map(|one| one.notifications).sum();
        sum == 4 && samples.len() >= 3 && samples.iter().any(|one| one.polls_avoided > 0)
    })
    .await;
    let seconds = history(false).await;
    assert_eq!(
        (&*seconds.relay_id, seconds.interval),
        ("relay", Duration::from_secs(1).try_into().ok())
    );
    assert!(seconds.newest_at.is_some());
    let latency = seconds.samples.iter().map(|one| one.wake_p99_us).max();
    assert!(latency > Some(0));
    assert_eq!(seconds.samples.last().map(|one| one.asleep), Some(1));
    let minutes = history(true).await;
    assert_eq!(
        (minutes.interval, minutes.samples.len()),
        (Duration::from_secs(60).try_into().ok(), 0)
    );
}

fn names(listed: &Listed<QueueInfo>) -> Vec<&str> {
    listed.iter().map(|queue| &*queue.queue_name).collect()
}

#[tokio::test]
async fn queues_are_listed_by_filter_and_in_orders() {
    let relay = relay().await;
    let client = relay.client().expect("a client");
    for (name, messages) in [("acct/large", 9), ("acct/small", 1), ("other/middle", 5)] {
        notify(&relay, name, messages).await;
    }
    let mut wakes = client
        .subscribe(listening("worker-1", &["acct/small"]))
        .expect("options");
    let work = woken(&mut wakes).await;
    let list = async |filter: &str, order: QueueOrder, page_size| {
        let query = QueueQuery {
            filter: filter.to_owned(),
            order_by: order.into(),
            page_size,
            ..QueueQuery::default()
        };
        within("a list", client.queues_where(&query)).await
    };
    let listed = list("", QueueOrder::Backlog, 0).await.expect("listed");
    assert_eq!(names(&listed), ["large", "middle", "small"]);
    assert!(listed.iter().all(|one| one.in_doubt), "{listed:?}");
    let listed = list("", QueueOrder::Backlog, 1).await.expect("listed");
    assert_eq!(names(&listed), ["large"]);
    let listed = list("", QueueOrder::Listeners, 0).await.expect("listed");
    assert_eq!(names(&listed).last(), Some(&"small"));
    let listed = list("acct/", QueueOrder::Idle, 0).await.expect("listed");
    assert_eq!(names(&listed).len(), 2);
    for order in [QueueOrder::Unspecified, QueueOrder::Rate] {
        let listed = list("t/l", order, 0).await.expect("listed");
        assert_eq!(names(&listed), ["large"], "{order:?}");
    }
    for (filter, count) in [("x".repeat(129), 0), (String::new(), 1_001)] {
        let refused = list(&filter, QueueOrder::Idle, count).await;
        assert_eq!(refused.expect_err("a limit").kind(), ErrorKind::Invalid);
    }
    let drained = Report {
        state: ReportState::Drained,
        sequence: work.sequence,
        ..Report::new(queue("acct/small"))
    };
    wakes.report(drained).await.expect("taken");
    let listed = list("small", QueueOrder::Unspecified, 0)
        .await
        .expect("listed");
    assert_eq!((listed[0].backlog, listed[0].in_doubt), (0, false));
}

#[tokio::test]
async fn listeners_are_listed_by_a_part_of_their_id_or_of_a_selector() {
    let relay = relay().await;
    let client = relay.client().expect("a client");
    let mut streams = Vec::new();
    for (id, name) in [("worker-1", "acct/orders"), ("other", "acct/mails-*")] {
        let mut wakes = client.subscribe(listening(id, &[name])).expect("options");
        woken(&mut wakes).await;
        streams.push(wakes);
    }
    for (filter, expected) in [
        ("ork", &["worker-1"][..]),
        ("mails-", &["other"]),
        ("acct/", &["other", "worker-1"]),
        ("nothing", &[]),
    ] {
        let query = ListenerQuery {
            filter: filter.to_owned(),
            ..ListenerQuery::default()
        };
        let listed = within("a list", client.listeners_where(&query)).await;
        let listed = listed.expect("listed");
        let mut ids: Vec<_> = listed.iter().map(|one| &*one.listener_id).collect();
        ids.sort_unstable();
        assert_eq!(ids, expected, "{filter}");
    }
}
