//! The explanation of a queue whose listener is at another relay.

use reveille::{DecisionKind, FindingKind, Notification};

use super::{Cluster, drained};
use crate::support::{listening, queue, told, until, within, woken};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_is_explained_with_what_all_relays_know() {
    let mut cluster = Cluster::start(2).await;
    let (client, orders) = (cluster.client(0), queue("acct/orders"));
    let explain = async || {
        let explained = within("an answer", client.explain(&orders)).await;
        explained.expect("explained")
    };
    assert_eq!(explain().await.findings[0].kind(), FindingKind::NoListener);
    let mut wakes = cluster
        .client(1)
        .subscribe(listening("worker-1", &["acct/orders"]))
        .expect("options");
    let first = woken(&mut wakes).await;
    drained(&mut wakes, &first).await;
    let asleep = explain().await;
    assert_eq!(
        asleep.findings[0].text,
        "1 listener sleeps on acct/orders; it has not been notified yet"
    );
    let publisher = client.publisher("tests");
    let mut handled = explain().await;
    // Relay 0 knows the queue from the first notification on, and then notes its decisions.
    for _ in 0..2 {
        let notified = publisher.notify(Notification::new(orders.clone())).await;
        notified.expect("confirmed");
        let work = told(&mut wakes, 1).await;
        drained(&mut wakes, &work).await;
        until("the report is known", async || {
            handled = explain().await;
            handled.findings[0].text.contains("has been handled")
        })
        .await;
    }
    assert_eq!(handled.findings.len(), 1, "{handled:?}");
    assert!(handled.unanswered_relays.is_empty(), "{handled:?}");
    let decided = |relay: &str| {
        let of_relay = handled.decisions.iter().filter(|one| one.relay_id == relay);
        of_relay
            .map(|one| (one.kind(), one.reason().as_str_name()))
            .collect::<Vec<_>>()
    };
    use DecisionKind::{Empty, Notified, Woken};
    let unspecified = "WAKE_REASON_UNSPECIFIED";
    assert_eq!(decided("relay-0"), [(Notified, unspecified)]);
    // Relay 1 knows the queue from the listener's subscription on: that was not noted. Relays that have just
    // met resync (C6), maybe after it: a CATCH_UP.
    let checked = (Woken, "WAKE_REASON_CATCH_UP");
    let (checks, others): (Vec<_>, Vec<_>) = decided("relay-1")
        .into_iter()
        .partition(|one| *one == checked);
    assert!(checks.len() <= 1, "{handled:?}");
    assert_eq!(
        others,
        [
            (Woken, "WAKE_REASON_NOTIFIED"),
            (Empty, unspecified),
            (Woken, "WAKE_REASON_NOTIFIED"),
            (Empty, unspecified),
        ]
    );
    let ages: Vec<_> = handled.decisions.iter().map(|one| one.ago).collect();
    let age = |ago: &Option<prost_types::Duration>| ago.map(|ago| (ago.seconds, ago.nanos));
    assert!(
        ages.is_sorted_by(|one, two| age(one) >= age(two)),
        "{ages:?}"
    );
    // It dies and does not say that it leaves.
    drop(cluster.nodes.pop());
    until("its relay is missing", async || {
        let alone = explain().await;
        alone.unanswered_relays == ["relay-1"]
            && alone.findings[0].kind() == FindingKind::NoListener
            && alone
                .findings
                .iter()
                .any(|one| one.kind() == FindingKind::RelayMissing)
    })
    .await;
}
