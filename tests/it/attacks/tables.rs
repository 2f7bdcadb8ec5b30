//! Valid calls whose costs multiply: many names with many selectors, wide patterns with many
//! queues, and full tables.

use reveille::{
    Client, ErrorKind, ListenerId, Notification, Publisher, Selector, SubscribeOptions,
    Subscription, WakeReason,
};

use super::{harness::Trial, target::Scheme};
use crate::{
    binary::Binary,
    support::{figure, listening, queue, until, woken},
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

fn subscribe(client: &Client, id: &str, selectors: Vec<Selector>) -> Subscription {
    let id = ListenerId::new(id).expect("a name");
    let options = SubscribeOptions::new(id, selectors);
    client.subscribe(options).expect("options")
}

/// Reads wake-ups until they have covered this many queues.
async fn read(wakes: &mut Subscription, count: usize) {
    for _ in 0..count {
        woken(wakes).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_without_listeners_do_not_slow_notifications_down() {
    let mut trial = Trial::start(Scheme::Plain, &[]).await;
    let target = trial.target();
    let attack = async move {
        let client = target.client();
        // An ordinary fleet: 16,000 selectors in all.
        let mut held = Vec::new();
        for listener in 0..160 {
            let name = |at| {
                format!("fleet/q{listener:04}{at:02}")
                    .parse()
                    .expect("a name")
            };
            let mut wakes = subscribe(
                &client,
                &format!("l{listener}"),
                (0..100).map(name).collect(),
            );
            woken(&mut wakes).await;
            held.push(wakes);
        }
        fill(&client.publisher("typo"), "fleat", 0..20_000).await;
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(96 * 1024);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribing_wide_patterns_to_many_queues_disturbs_no_listener() {
    let mut trial = Trial::start(Scheme::Plain, &[]).await;
    let target = trial.target();
    let attack = async move {
        let client = target.client();
        fill(&client.publisher("p"), "wide", 0..30_000).await;
        for round in 0..2 {
            let pattern = |at: usize| format!("wide/q{at:03}*").parse().expect("a pattern");
            let narrow = subscribe(&client, "narrow", (0..256).map(pattern).collect());
            let all = vec!["*/*".parse().expect("a pattern")];
            let mut wide = subscribe(&client, &format!("wide-{round}"), all);
            read(&mut wide, 30_000).await;
            drop((wide, narrow));
        }
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(160 * 1024);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_the_limit_of_cursors_wake_ups_have_the_patterns_name() {
    let mut trial = Trial::start(Scheme::Plain, &["--max-cursors", "50000"]).await;
    let (target, admin) = (trial.target(), trial.admin());
    let attack = async move {
        let client = target.client();
        let publisher = client.publisher("p");
        fill(&publisher, "many", 0..10_000).await;
        let mut held = Vec::new();
        for number in 0..40 {
            let all = vec!["*/*".parse().expect("a pattern")];
            let mut wakes = subscribe(&client, &format!("w{number}"), all);
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
    let mut trial = Trial::start(Scheme::Plain, &["--max-queues", "20000"]).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_table_refuses_quickly() {
    // All are in use: 4,000 here, one of the good pair, 500 of the late subscriber while it runs.
    let mut trial = Trial::start(Scheme::Plain, &["--max-queues", "4501"]).await;
    let target = trial.target();
    let attack = async move {
        let client = target.client();
        let name = |at| format!("needed/q{at}").parse().expect("a name");
        let mut held = subscribe(&client, "all", (0..4_000).map(name).collect());
        read(&mut held, 4_000).await;
        let publisher = client.publisher("attacker");
        let mut refused = 0;
        for round in 0..40 {
            let new = |at| Notification::new(queue(&format!("junk/q{round}-{at}")));
            let all = publisher.notify_all((0..1_000).map(new).collect()).await;
            refused += usize::from(all.is_err_and(|error| error.kind() == ErrorKind::Exhausted));
        }
        refused
    };
    let (refused, damage) = trial.under(attack).await;
    assert!(refused > 20, "{refused} of 40 requests were refused");
    damage.is_within(24 * 1024);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_patterns_cost_no_processor_time() {
    let relay = Binary::serve_with(&["--sentinel", "2s"], &[]).await;
    let client = Client::new(&relay.url()).expect("a URL");
    let publisher = client.publisher("p");
    fill(&publisher, "idle", 0..1_000).await;
    let mut held = Vec::new();
    for listener in 0..12 {
        let pattern = |at: usize| format!("idle/q{at:03}*").parse().expect("a pattern");
        let mut wakes = subscribe(
            &client,
            &format!("l{listener}"),
            (0..256).map(pattern).collect(),
        );
        read(&mut wakes, 1_000).await;
        held.push(wakes);
    }
    let (start, before) = (std::time::Instant::now(), relay.processor());
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    let (took, used) = (start.elapsed(), relay.processor() - before);
    println!("{used:?} of {took:?}");
    assert!(used < took / 10, "{used:?} of {took:?}");
    drop(held);
}

#[tokio::test]
async fn a_table_of_queues_in_use_refuses_more_and_the_probe_reports_it() {
    let relay = Binary::serve_with(&["--max-queues", "10"], &[]).await;
    let client = Client::new(&relay.url()).expect("a URL");
    let names: Vec<_> = (0..10).map(|number| format!("needed/q{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut wakes = client.subscribe(listening("all", &names)).expect("options");
    read(&mut wakes, 10).await;
    let publisher = client.publisher("p");
    let refused = publisher.notify(Notification::new(queue("one/more"))).await;
    let error = refused.expect_err("full");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.message().contains("limit of 10 queues"), "{error}");
    until("the probe reports it", async || {
        let (status, text) = crate::support::get(relay.admin(), "/readyz").await;
        status == 503 && text.contains("full: the limit of 10 queues")
    })
    .await;
    let (live, _) = crate::support::get(relay.admin(), "/livez").await;
    assert_eq!(live, 200);
    // The existing queues go on.
    let known = publisher.notify(Notification::new(queue("needed/q3")));
    known.await.expect("counted");
}
