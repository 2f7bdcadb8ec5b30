//! The fan-out: walks over many subscribers, and queues that are attached in steps.

use super::{streams::Polled, *};
use crate::base::sync::work;
use WakeReason::Notified;

fn two_hundred(hub: &Arc<Hub>) -> Vec<Arc<Subscription>> {
    (0..200).map(|_| settled(hub, &["orders"])).collect()
}

#[test]
fn many_subscribers_are_left_to_the_fan_out_once() {
    let (hub, (alarm, waker)) = (hub(), Alarm::new());
    hub.fanout.waker.register(&waker);
    let subscriptions = two_hundred(&hub);
    (0..10).for_each(|_| _ = notify(&hub, "orders"));
    assert_eq!((alarm.rung(), hub.stats().fanned_out), (1, 1));
    let mut all = subscriptions.iter();
    assert!(all.all(|one| take(one, START).is_none()));
    let mut walk = hub.fanout.pop().expect("marked");
    let mut batch = WakeBatch::default();
    assert!(walk.step(&mut batch), "in steps");
    notify(&hub, "orders");
    while walk.step(&mut batch) {}
    assert!(hub.fanout.pop().is_some(), "notified during the walk");
    for subscription in &subscriptions {
        assert_eq!(told(subscription), [entry("orders", Notified, 11)]);
    }
}

#[test]
fn a_wake_up_of_the_fan_out_has_waited_since_its_first_notification() {
    let hub = hub();
    let subscriptions = two_hundred(&hub);
    for seconds in [1, 2, 3] {
        notify_with(&hub, notification("orders"), after(SECOND * seconds));
    }
    walk_all(&hub);
    for subscription in &subscriptions {
        let mut sink = WakeBuilder::default();
        let filled = subscription.fill(after(SECOND * 9), None, &mut sink);
        assert_eq!(filled.accepted_at, Some(after(SECOND)));
    }
}

#[test]
fn a_subscriber_that_joins_or_leaves_during_a_walk_disturbs_no_other() {
    let hub = hub();
    let mut subscriptions = two_hundred(&hub);
    notify(&hub, "orders");
    let (mut walk, mut batch) = (hub.fanout.pop().expect("marked"), WakeBatch::default());
    walk.step(&mut batch);
    for gone in subscriptions.drain(10..60) {
        hub.unsubscribe(&gone, START);
    }
    let new = settled(&hub, &["orders"]);
    while walk.step(&mut batch) {}
    for subscription in &subscriptions {
        assert_eq!(told(subscription).len(), 1);
    }
    assert_eq!(told(&new), []);
    notify(&hub, "orders");
    walk_all(&hub);
    assert_eq!(told(&new).len(), 1);
}

#[test]
fn a_request_for_many_queues_wakes_each_stream_once_for_one_wake() {
    for inline in [64, 0] {
        let hub = hub_where(|config| config.inline = inline);
        let names = numbered("q", 100);
        let mut streams = [(); 3].map(|()| Polled::on(&hub, &options(&names)));
        let batch: Vec<_> = names.iter().map(|name| notification(name)).collect();
        for round in 1..=3 {
            let accepted = notify_all(&hub, &batch, START);
            assert_eq!(accepted.expect("accepted")[0].listeners, 3);
            let mut walks = WakeBatch::default();
            while let Some(mut walk) = hub.fanout.pop() {
                while walk.step(&mut walks) {}
            }
            walks.wake();
            for stream in &mut streams {
                assert_eq!(stream.rung(), round);
                let (events, _) = stream.sent(START);
                let [SubscribeEvent::Wake(work)] = &events[..] else {
                    panic!("{events:?}");
                };
                assert_eq!(work.len(), 100);
            }
        }
    }
}

#[test]
fn a_batch_that_is_dropped_wakes_its_streams() {
    let hub = hub_where(|config| config.inline = 0);
    let stream = Polled::on(&hub, &options(&["orders"]));
    notify(&hub, "orders");
    let mut batch = WakeBatch::default();
    hub.fanout.pop().expect("marked").step(&mut batch);
    assert_eq!(stream.rung(), 0);
    drop(batch);
    assert_eq!(stream.rung(), 1);
}

#[test]
fn walks_of_a_batch_that_ends_in_a_panic_are_left_to_the_fan_out() {
    let hub = hub_where(|config| config.inline = 0);
    let subscription = settled(&hub, &["orders", "bad"]);
    let count = |name: &str, batch: &mut WakeBatch| {
        let queue_entry = hub.entries.get(&queue(name)).expect("subscribed");
        hub.update(queue_entry, false, START, batch, |_, state| {
            assert_eq!(name, "orders", "a panic between two queues of a request");
            state.count(&Arc::from("tests"), &notification(name), START);
        });
    };
    let request = std::panic::AssertUnwindSafe(|| {
        let mut batch = WakeBatch::default();
        for name in ["orders", "bad"] {
            count(name, &mut batch);
        }
    });
    std::panic::catch_unwind(request).expect_err("it panics");
    for _ in 0..2 {
        walk_all(&hub);
        assert_eq!(told(&subscription), [entry("orders", Notified, 1)]);
        notify(&hub, "orders");
    }
}

#[test]
fn a_pattern_of_many_queues_is_introduced_in_steps_and_misses_nothing_meanwhile() {
    let (hub, (_, waker)) = (hub(), Alarm::new());
    let name = |number: usize| format!("q{number:05}");
    for number in 0..900 {
        notify(&hub, &name(number));
    }
    let opened = open(&hub, 1 << 70, &options(&["*"]));
    let subscription = opened.expect("accepted");
    assert!(hub.stats().cursors < 600, "not all at once");
    let mut told = std::collections::HashMap::new();
    let mut number = 0;
    loop {
        // Some of these are introduced by then, some are not, and some are new.
        number += 1_009;
        notify(&hub, &name(number % 1_200));
        subscription.mailbox.waker.register(&waker);
        let introduced = hub.introduce_some(&subscription, START);
        for entry in drain(&subscription, START) {
            told.insert(entry.queue.queue_name().to_owned(), entry.sequence);
        }
        if introduced {
            break;
        }
    }
    for view in hub.queues("", usize::MAX, START) {
        let sequence = told.get(view.address.queue_name());
        assert_eq!(sequence, Some(&view.sequence), "{}", view.address);
    }
    hub.unsubscribe(&subscription, START);
    assert!(hub.stats().cursors > 0, "detached in steps as well");
    while hub.detach_some(START) {}
    assert_eq!(hub.stats().cursors, 0);
}

#[test]
fn a_new_queue_of_a_pattern_with_many_subscribers_costs_its_notification_no_visit_of_them() {
    let hub = hub();
    let subscriptions: Vec<_> = (0..10_000).map(|_| settled(&hub, &["job-*"])).collect();
    let before = work::done();
    assert_eq!(notify(&hub, "job-1").listeners, 10_000);
    assert!(work::done() - before < 20, "locks");
    assert_eq!(hub.stats().cursors, 0, "they are left to the fan-out");
    walk_all(&hub);
    assert_eq!(hub.stats().cursors, 10_000);
    for subscription in &subscriptions {
        assert_eq!(told(subscription), [entry("job-1", Notified, 1)]);
    }
}

#[test]
fn a_new_queue_of_a_groups_pattern_visits_one_of_its_many_members() {
    let hub = hub();
    let members = (0..10_000).map(|_| subscribe_with(&hub, &in_group("g", &["job-*"]), START));
    let members: Vec<_> = members.collect();
    members
        .iter()
        .for_each(|one| _ = take_sent(&hub, one, START));
    let before = work::done();
    notify(&hub, "job-1");
    assert!(work::done() - before < 20, "locks");
    assert_eq!(hub.stats().cursors, 1);
    let told = members.iter().map(|one| take_sent(&hub, one, START));
    assert_eq!(told.filter(|wakes| !wakes.is_empty()).count(), 1);
}

/// `*` over very many queues: the work and the state do not depend on their number.
#[test]
fn to_subscribe_to_a_pattern_of_very_many_queues_costs_little() {
    let hub = hub();
    numbered("q", 50_000)
        .iter()
        .for_each(|name| _ = notify(&hub, name));
    for options in [options(&["*"]), in_group("g", &["*"])] {
        let before = work::done();
        let one = subscribe_with(&hub, &options, START);
        while !hub.introduce_some(&one, START) {}
        let locks = work::done() - before;
        assert!(locks < 20_000, "{locks} locks");
        assert!(hub.stats().cursors <= 1_024, "{}", hub.stats().cursors);
        hub.unsubscribe(&one, START);
        while hub.detach_some(START) {}
        assert_eq!(hub.stats().cursors, 0);
    }
}

#[test]
fn a_subscriber_that_is_owed_nothing_has_no_state() {
    let hub = hub();
    let names = numbered("q", 200);
    names.iter().for_each(|name| _ = notify(&hub, name));
    let pattern = settled(&hub, &["*"]);
    let late = after(200 * SECOND);
    hub.sweep(&pattern, usize::MAX, late);
    assert_eq!(hub.stats().cursors, 0);
    notify_with(&hub, notification("q7"), late);
    assert_eq!(hub.stats().cursors, 1);
    assert_eq!(entries(&drain(&pattern, late)), [entry("q7", Notified, 1)]);
}

#[test]
fn a_burst_owes_each_subscriber_once() {
    let hub = hub();
    let (_pattern, named) = (settled(&hub, &["*"]), settled(&hub, &["orders"]));
    notify(&hub, "orders");
    let told_of = |hub: &Hub| {
        let entry = hub.entries.get(&queue("orders")).expect("known");
        entry.lock().told
    };
    assert!(
        told_of(&hub) > 0,
        "both are owed: the next one has nothing to do"
    );
    notify(&hub, "orders");
    drain(&named, START);
    assert_eq!(told_of(&hub), 0, "one is not owed any more");
}
