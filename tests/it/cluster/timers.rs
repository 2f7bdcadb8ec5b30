//! The timers of a relay that ends go to another one (C15).

use std::time::Duration;

use reveille::{
    Notification, Report, ReportState, Subscription, WakeReason, WakeStream, WorkDetected,
};

use super::Cluster;
use crate::support::{listening, queue, within, woken};

/// Returns the next timed wake-up. On a busy machine the relay may have been cut off, and its queues
/// resynchronized.
async fn timed(wakes: &mut Subscription) -> WorkDetected {
    loop {
        let work = woken(wakes).await;
        if work.reason != WakeReason::CatchUp {
            return work;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_timers_of_a_relay_that_ends_fire_at_another_one() {
    let mut cluster = Cluster::start(2).await;
    let ending = cluster.client(0);
    let publisher = ending.publisher("tests");
    for payload_size in [7, 8] {
        let delayed = Notification {
            delay: Duration::from_secs(4),
            payload_size,
            ..Notification::new(queue("acct/delayed"))
        };
        let notified = within("an answer", publisher.notify(delayed)).await;
        notified.expect("taken");
    }
    let mut listener = ending
        .subscribe(listening("worker", &["acct/reported"]))
        .expect("options");
    let work = woken(&mut listener).await;
    let report = Report {
        state: ReportState::Drained,
        sequence: work.sequence,
        visible_in: Some(Duration::from_secs(4)),
        ..Report::new(work.queue.as_address().expect("no pattern"))
    };
    let reported = within("an answer", listener.report(report)).await;
    reported.expect("taken");

    let mut wakes = cluster
        .client(1)
        .subscribe(listening("other", &["acct/delayed", "acct/reported"]))
        .expect("options");
    for _ in 0..2 {
        assert_eq!(woken(&mut wakes).await.reason, WakeReason::CatchUp);
    }
    drop((listener, publisher));
    let first = cluster.nodes.remove(0);
    within("its end", first.shutdown(Duration::from_secs(1))).await;
    let mut all = [timed(&mut wakes).await, timed(&mut wakes).await];
    all.sort_by(|one, two| one.queue.queue_name().cmp(two.queue.queue_name()));
    let [delayed, reported] = &all;
    assert_eq!(delayed.queue.queue_name(), "delayed");
    assert_eq!((delayed.notifications, delayed.payload_size), (2, 15));
    assert_eq!(
        (delayed.reason, &*delayed.last_event.publisher),
        (WakeReason::Timed, "tests")
    );
    assert_eq!(reported.queue.queue_name(), "reported");
    assert_eq!(
        (reported.notifications, reported.reason),
        (0, WakeReason::Timed)
    );
}
