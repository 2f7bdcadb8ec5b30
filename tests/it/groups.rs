//! Groups and the sentinel over real sockets.

use std::time::Duration;

use futures_util::future::join_all;
use reveille::{
    Client, GroupName, NodeConfig, RelayConfig, Report, ReportState, SubscribeOptions,
    Subscription, WakeReason, WakeStream, testing::TestRelay,
};

use crate::support::{figure, listening, queue, until, within, woken};

const FLEET: usize = 1000;
/// Streams on one connection: below what the relay allows.
const PER_CLIENT: usize = 250;

fn member(number: usize, group: Option<&str>) -> SubscribeOptions {
    SubscribeOptions {
        group: group.map(|name| GroupName::new(name).expect("a name")),
        heartbeat: Duration::from_secs(60),
        ..listening(&format!("worker-{number}"), &["acct/orders"])
    }
}

/// A relay whose members have long enough to report on a machine that does other things as well.
async fn patient() -> TestRelay {
    let config = NodeConfig {
        relay: RelayConfig {
            claim_timeout: Duration::from_secs(60),
            ..RelayConfig::default()
        },
        ..NodeConfig::default()
    };
    TestRelay::with_config(config).await.expect("a relay")
}

/// Opens the fleet's streams, and waits until each has been welcomed.
async fn fleet(relay: &TestRelay, group: Option<&str>) -> Vec<Subscription> {
    let mut all = Vec::new();
    for first in (0..FLEET).step_by(PER_CLIENT) {
        let client: Client = relay.client().expect("a client");
        for number in first..first + PER_CLIENT {
            all.push(client.subscribe(member(number, group)).expect("options"));
        }
    }
    let welcomed = |wakes: &Subscription| wakes.welcome().is_some();
    let mut opening: Vec<_> = all.iter_mut().collect();
    within("all welcomed", async {
        while !opening.is_empty() {
            join_all(opening.iter_mut().map(|wakes| async {
                let soon = Duration::from_millis(50);
                tokio::time::timeout(soon, wakes.next()).await.is_ok()
            }))
            .await;
            opening.retain(|wakes| !welcomed(wakes));
        }
    })
    .await;
    all
}

/// Returns how many of them are woken within a while.
async fn count_woken(all: &mut [Subscription]) -> usize {
    let soon = Duration::from_millis(500);
    let woken = join_all(all.iter_mut().map(|wakes| async move {
        let work = tokio::time::timeout(soon, wakes.next()).await.ok()?;
        work.expect("not ended").ok()
    }));
    let told = woken.await.into_iter().flatten();
    told.filter(|work| work.reason == WakeReason::Notified)
        .count()
}

#[tokio::test]
async fn one_message_wakes_one_of_a_thousand_members() {
    let relay = patient().await;
    let mut all = fleet(&relay, Some("workers")).await;
    let accepted = relay.wake(&queue("acct/orders")).await.expect("counted");
    assert_eq!(accepted.listeners, 1000);
    assert_eq!(count_woken(&mut all).await, 1);
}

#[tokio::test]
async fn one_message_wakes_each_of_a_thousand_without_a_group() {
    let relay = patient().await;
    let mut all = fleet(&relay, None).await;
    relay.wake(&queue("acct/orders")).await.expect("counted");
    assert_eq!(count_woken(&mut all).await, 1000);
}

#[tokio::test]
async fn what_a_member_does_not_take_is_handed_to_another() {
    let relay = TestRelay::start().await.expect("a relay");
    let client = relay.client().expect("a client");
    let mut first = client
        .subscribe(member(1, Some("workers")))
        .expect("options");
    let look = woken(&mut first).await;
    assert_eq!(look.reason, WakeReason::CatchUp);
    let drained = Report {
        state: ReportState::Drained,
        sequence: look.sequence,
        ..Report::new(queue("acct/orders"))
    };
    first.report(drained).await.expect("taken");
    relay.wake(&queue("acct/orders")).await.expect("counted");
    let work = woken(&mut first).await;
    assert_eq!((work.reason, work.notifications), (WakeReason::Notified, 1));
    // It hangs; the second comes, and is asked as nobody covers it.
    let mut second = client
        .subscribe(member(2, Some("workers")))
        .expect("options");
    let again = woken(&mut second).await;
    assert_eq!((again.reason, again.sequence), (WakeReason::Reassigned, 1));
}

#[tokio::test]
async fn the_sentinel_asks_one_of_those_who_report() {
    let config = NodeConfig {
        relay: RelayConfig {
            sentinel_interval: Duration::from_millis(500),
            ..RelayConfig::default()
        },
        ..NodeConfig::default()
    };
    let relay = TestRelay::with_config(config).await.expect("a relay");
    let client = relay.client().expect("a client");
    let mut reports = client.subscribe(member(1, None)).expect("options");
    woken(&mut reports).await;
    let drained = || Report {
        state: ReportState::Drained,
        ..Report::new(queue("acct/orders"))
    };
    reports.report(drained()).await.expect("taken");
    let mut mute = client.subscribe(member(2, None)).expect("options");
    woken(&mut mute).await;
    for _ in 0..3 {
        assert_eq!(woken(&mut reports).await.reason, WakeReason::Sentinel);
        reports.report(drained()).await.expect("taken");
    }
    let silent = tokio::time::timeout(Duration::from_millis(50), mute.next()).await;
    assert!(silent.is_err(), "{silent:?}");
}

#[tokio::test]
async fn operators_see_groups_and_who_polls() {
    let relay = TestRelay::start().await.expect("a relay");
    let admin = relay.admin_address().expect("an admin port");
    let client = relay.client().expect("a client");
    let mut wakes = client
        .subscribe(member(1, Some("workers")))
        .expect("options");
    woken(&mut wakes).await;
    let polls = Report {
        state: ReportState::Drained,
        active_dequeue_tasks: 1,
        ..Report::new(queue("acct/orders"))
    };
    wakes.report(polls).await.expect("taken");
    let listed = client.listeners().await.expect("listed");
    assert_eq!(listed[0].group, "workers");
    assert!(listed[0].polling);
    until("it is counted", async || {
        figure(admin, "reveille_subscriptions").await == 1
    })
    .await;
}
