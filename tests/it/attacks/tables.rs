//! Tables that clients fill with names and patterns.

use reveille::{ListenerId, Notification, Publisher, Selector, SubscribeOptions, WakeReason};

use super::{harness::Trial, target::Scheme};
use crate::{
    binary::limits,
    support::{figure, listening, queue, woken},
};

/// Notifies of this many new queues without listeners.
async fn fill(publisher: &Publisher, account: &str, names: std::ops::Range<usize>) {
    let events: Vec<_> = names
        .map(|number| Notification::new(queue(&format!("{account}/q{number:06}"))))
        .collect();
    for events in events.chunks(1_000) {
        publisher
            .notify_all(events.to_vec())
            .await
            .expect("room is made");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_the_limit_of_cursors_wake_ups_have_the_patterns_name() {
    let mut trial =
        Trial::start(Scheme::Plain, &["--config", &limits("max_cursors = 50000")]).await;
    let (target, admin) = (trial.target(), trial.admin());
    let attack = async move {
        let client = target.client();
        let publisher = client.publisher("p");
        fill(&publisher, "many", 0..10_000).await;
        let mut held = Vec::new();
        for number in 0..40 {
            let id = ListenerId::new(&format!("w{number}")).expect("a name");
            let all: Selector = "*/*".parse().expect("a pattern");
            let options = SubscribeOptions::new(id, [all]);
            let mut wakes = client.subscribe(options).expect("options");
            woken(&mut wakes).await;
            held.push(wakes);
        }
        assert!(figure(admin, "reveille_cursors").await <= 50_000);
        // The last subscriber has no cursor for this queue, and is woken nevertheless.
        let last = held.last_mut().expect("opened");
        let told = async {
            loop {
                let work = woken(last).await;
                if work.queue.is_pattern() && work.reason == WakeReason::CatchUp {
                    break;
                }
            }
        };
        told.await;
        let notified = publisher.notify(Notification::new(queue("many/q009999")));
        notified.await.expect("counted");
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(128 * 1024);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_was_filled_with_names_has_room_for_a_regular_queue() {
    let mut trial = Trial::start(Scheme::Plain, &["--config", &limits("max_queues = 20000")]).await;
    let (target, admin) = (trial.target(), trial.admin());
    let attack = async move {
        let client = target.client();
        let publisher = client.publisher("attacker");
        fill(&publisher, "junk", 0..60_000).await;
        assert!(figure(admin, "reveille_queues").await <= 20_000);
        let honest = target.client();
        let mut wakes = honest
            .subscribe(listening("honest", &["honest/new"]))
            .expect("options");
        assert_eq!(woken(&mut wakes).await.reason, WakeReason::CatchUp);
        let publisher = honest.publisher("h");
        let notified = publisher.notify(Notification::new(queue("honest/new")));
        assert_eq!(notified.await.expect("counted").listeners, 1);
        assert_eq!(woken(&mut wakes).await.reason, WakeReason::Notified);
        drop(wakes);
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(48 * 1024);
}
