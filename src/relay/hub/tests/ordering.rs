//! Lists of queues with a filter, and in other orders than by name.

use std::cell::Cell;

use super::*;
use crate::relay::hub::{QueueOrder, Ranking};

fn at(second: u64) -> Tick {
    after(Duration::from_secs(second))
}

fn ranked(hub: &Hub, order: QueueOrder, (filter, count): (&str, usize), now: Tick) -> Vec<String> {
    let mut ranking = Ranking::new(order, filter, count);
    while hub.rank_some(&mut ranking, |_| true, now) > 0 {}
    let stats = ranking.into_stats(now).into_iter();
    stats
        .map(|(one, _)| one.address.queue_name().to_owned())
        .collect()
}

#[test]
fn queues_are_ordered_by_backlog_idle_time_and_listeners() {
    let hub = hub();
    for (second, name, messages) in [(3, "c", 5), (1, "a", 5), (2, "b", 90)] {
        let put = Notification {
            messages,
            ..notification(name)
        };
        notify_with(&hub, put, at(second));
    }
    // It was never notified, and has two listeners.
    let _all = [0; 2].map(|_| subscribe(&hub, &["d"]));
    let _one = subscribe(&hub, &["a"]);
    let first = |order, count| ranked(&hub, order, ("", count), at(9)).concat();
    assert_eq!(first(QueueOrder::Backlog, 9), "bacd", "equal ones by name");
    assert_eq!(first(QueueOrder::Backlog, 2), "ba");
    assert_eq!(first(QueueOrder::Idle, 9), "dabc");
    assert_eq!(first(QueueOrder::Listeners, 9), "bcad");
    assert_eq!(first(QueueOrder::Listeners, 1), "b");
    assert_eq!(ranked(&hub, QueueOrder::Idle, ("acct/b", 9), at(9)), ["b"]);
}

#[test]
fn a_list_by_rate_has_the_notifications_between_two_visits() {
    let hub = hub();
    let burst = |name: &str, count| (0..count).for_each(|_| _ = notify(&hub, name));
    let mut ranking = Ranking::new(QueueOrder::Rate, "", 9);
    let visit = |ranking: &mut Ranking| while hub.rank_some(ranking, |_| true, START) > 0 {};
    burst("a", 9);
    burst("b", 1);
    visit(&mut ranking);
    burst("b", 3);
    burst("a", 1);
    burst("c", 5);
    ranking.restart();
    visit(&mut ranking);
    let listed = ranking.into_stats(START).into_iter();
    let listed = listed.map(|(one, rate)| (one.address.queue_name().to_owned(), rate));
    let listed: Vec<_> = listed.collect();
    let row = |name: &str, rate| (name.to_owned(), rate);
    assert_eq!(
        listed,
        [row("b", 3), row("a", 1), row("c", 0)],
        "`c` is new"
    );
    let idle = ranked(&hub, QueueOrder::Rate, ("", 9), at(60));
    assert_eq!(idle.concat(), "abc", "by name");
}

#[test]
fn a_list_visits_some_queues_in_a_step_and_holds_no_lock_between_them() {
    let hub = hub();
    for name in numbered("queue-", 2_000) {
        notify(&hub, &name);
    }
    let mut ranking = Ranking::new(QueueOrder::Backlog, "", 10);
    let (visits, mut steps) = (Cell::new(0), Vec::new());
    let counted = |_: &QueueAddress| {
        visits.set(visits.get() + 1);
        true
    };
    loop {
        let visited = hub.rank_some(&mut ranking, counted, START);
        if visited == 0 {
            break;
        }
        steps.push(visited);
        // Between two steps the queues can be notified.
        notify(&hub, "queue-7");
    }
    assert_eq!(visits.get(), 2_000);
    assert!(steps.iter().all(|step| *step <= 512), "{steps:?}");
    let stats = ranking.into_stats(START);
    assert_eq!(stats.len(), 10);
    assert_eq!(stats[0].0.address, queue("queue-7"));
}

#[test]
fn a_filter_keeps_the_order_by_name_and_goes_in_steps() {
    let hub = hub();
    for name in numbered("queue-", 5_000) {
        notify(&hub, &name);
    }
    notify(&hub, "zebra");
    let (mut from, mut found, mut steps) = (String::new(), Vec::new(), 0);
    loop {
        let (some, last) = hub.find_queues(&from, "e-77", 4, START);
        found.extend(some.iter().map(|one| one.address.queue_name().to_owned()));
        steps += 1;
        let Some(last) = last else { break };
        from = format!("{last}\0");
    }
    let mut expected = numbered("queue-", 5_000);
    expected.retain(|name| name.contains("e-77"));
    expected.sort();
    assert_eq!(found, expected);
    assert!(steps > 3, "{steps}");
}
