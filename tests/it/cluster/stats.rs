//! The figures of several relays, and lists in orders that need all of them.

use std::time::Duration;

use reveille::{Notification, QueueInfo, QueueOrder, QueueQuery, WakeReason};

use super::{Cluster, drained};
use crate::{
    stats::{next, watch_stats},
    support::{listening, queue, until, within, woken},
};

async fn ordered(client: &reveille::Client, order: QueueOrder) -> Vec<QueueInfo> {
    let query = QueueQuery {
        order_by: order.into(),
        ..QueueQuery::default()
    };
    let listed = within("a list", client.queues_where(&query)).await;
    listed.expect("listed").entries
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_figures_are_those_of_all_relays_and_the_silent_one_is_named() {
    let mut cluster = Cluster::start(2).await;
    let mut streams = Vec::new();
    for relay in 0..2 {
        let client = cluster.client(relay);
        let id = format!("worker-{relay}");
        let mut wakes = client
            .subscribe(listening(&id, &["acct/orders"]))
            .expect("options");
        assert_eq!(woken(&mut wakes).await.reason, WakeReason::CatchUp);
        streams.push(wakes);
    }
    let client = cluster.client(0);
    let interval = Duration::from_millis(250);
    let opened = watch_stats(client.url(), interval).await;
    let mut watch = opened.expect("opened");
    assert_eq!(next(&mut watch).await.relays.len(), 2);
    for relay in 0..2 {
        let publisher = cluster.client(relay).publisher("tests");
        let notified = publisher.notify(Notification::new(queue("acct/orders")));
        within("an answer", notified).await.expect("confirmed");
    }
    let stats = loop {
        let stats = next(&mut watch).await;
        if stats
            .totals
            .as_ref()
            .is_some_and(|totals| totals.notifications == 2)
        {
            break stats;
        }
    };
    let ids = stats.relays.iter().map(|one| &*one.relay_id);
    assert_eq!(ids.collect::<Vec<_>>(), ["relay-0", "relay-1"]);
    let own = stats.relays.iter().flat_map(|one| &one.totals);
    let own = own.map(|totals| totals.notifications);
    assert_eq!(own.collect::<Vec<_>>(), [1, 1]);
    let (totals, levels) = (stats.totals.expect("sums"), stats.levels.expect("sums"));
    assert_eq!((totals.notifications, totals.messages), (2, 2));
    assert_eq!(
        (levels.subscriptions, levels.asleep, levels.queues),
        (2, 2, 1)
    );
    assert_eq!(stats.unanswered_relays, [""; 0]);
    drop(cluster.nodes.pop());
    until("it is named", async || {
        let stats = within("figures", client.stats()).await.expect("read");
        stats.unanswered_relays == ["relay-1"] && stats.relays.len() == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_is_that_of_the_sums_over_all_relays() {
    let cluster = Cluster::start(2).await;
    // Relay 0 has a listener on neither of them.
    let mut wakes = cluster
        .client(1)
        .subscribe(listening("worker", &["acct/handled"]))
        .expect("options");
    woken(&mut wakes).await;
    let publisher = cluster.client(0).publisher("tests");
    for (name, messages) in [("acct/handled", 100), ("acct/waiting", 3)] {
        let notification = Notification {
            messages,
            ..Notification::new(queue(name))
        };
        let notified = publisher.notify(notification);
        within("an answer", notified).await.expect("confirmed");
    }
    let work = woken(&mut wakes).await;
    drained(&mut wakes, &work).await;
    let first = cluster.client(0);
    Box::pin(until("it is known to be handled", async || {
        // A relay that has just met the other one may ask for one more look.
        let soon = Duration::from_millis(100);
        if let Ok(work) = tokio::time::timeout(soon, woken(&mut wakes)).await {
            drained(&mut wakes, &work).await;
        }
        let all = ordered(&first, QueueOrder::Backlog).await;
        all.iter()
            .any(|one| one.queue_name == "handled" && one.backlog == 0)
    }))
    .await;
    for relay in 0..2 {
        let client = cluster.client(relay);
        let all = ordered(&client, QueueOrder::Listeners).await;
        let seen = all.iter().map(|one| (&*one.queue_name, one.listeners));
        let seen: Vec<_> = seen.collect();
        assert_eq!(seen, [("waiting", 0), ("handled", 1)], "{relay}");
        let all = ordered(&client, QueueOrder::Backlog).await;
        let seen = all
            .iter()
            .map(|one| (&*one.queue_name, one.backlog, one.in_doubt));
        let seen: Vec<_> = seen.collect();
        let expected = [("waiting", 3, true), ("handled", 0, false)];
        assert_eq!(seen, expected, "{relay}");
    }
}
