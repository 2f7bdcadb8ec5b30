//! Levels of streams and tasks, and the reads that sleeping saves.

use super::*;

fn at(second: u64) -> Tick {
    after(Duration::from_secs(second))
}

fn with_tasks(name: &str, state: ReportState, tasks: u32) -> Report {
    Report {
        active_dequeue_tasks: tasks,
        ..report(name, state, 0, number())
    }
}

/// Awake streams, polling ones, and tasks.
fn levels(hub: &Hub) -> (u64, u64, u64) {
    let stats = hub.stats();
    (stats.awake, stats.polling, stats.tasks)
}

#[test]
fn streams_are_awake_while_their_newest_reports_state_tasks() {
    let hub = hub();
    let both = settled(&hub, &["mails", "orders"]);
    let one = settled(&hub, &["orders"]);
    assert_eq!(levels(&hub), (0, 0, 0));
    let (busy, empty) = (ReportState::Busy, ReportState::Drained);
    say(&hub, &both, &with_tasks("mails", busy, 3), START);
    say(&hub, &both, &with_tasks("orders", busy, 2), START);
    say(&hub, &one, &with_tasks("orders", busy, 1), START);
    assert_eq!(levels(&hub), (2, 0, 6));
    say(&hub, &both, &with_tasks("mails", empty, 0), START);
    assert_eq!(levels(&hub), (2, 0, 3));
    say(&hub, &both, &with_tasks("orders", empty, 0), START);
    assert_eq!(levels(&hub), (1, 0, 1));
    // It has read until empty and keeps a task: it polls.
    say(&hub, &one, &with_tasks("orders", empty, 1), START);
    assert_eq!(levels(&hub), (0, 1, 1));
    say(&hub, &one, &with_tasks("orders", busy, 4), START);
    assert_eq!(levels(&hub), (1, 0, 4));
    hub.unsubscribe(&one, START);
    hub.unsubscribe(&one, START);
    assert_eq!(levels(&hub), (0, 0, 0));
}

#[test]
fn each_sleeping_pair_avoids_a_poll_in_each_assumed_poll() {
    let hub = hub_where(|config| config.assumed_poll = 2 * SECOND);
    let avoided = |second| hub.polls_avoided(at(second));
    let both = subscribe_with(&hub, &options(&["mails", "orders"]), START);
    assert_eq!((avoided(0), avoided(10)), (0, 10));
    // It works on one of them for 10 s.
    let (busy, empty) = (ReportState::Busy, ReportState::Drained);
    say(&hub, &both, &with_tasks("orders", busy, 1), at(10));
    say(&hub, &both, &with_tasks("orders", busy, 7), at(15));
    assert_eq!(avoided(20), 10 + 5);
    say(&hub, &both, &with_tasks("orders", empty, 0), at(20));
    // Cut off from the other relays, its listener polls.
    hub.set_degraded_from(at(30));
    assert_eq!(avoided(40), 15 + 10);
    assert_eq!(avoided(50), 25);
    hub.set_degraded_from(Tick::NEVER);
    assert_eq!(avoided(60), 25 + 10);
    hub.unsubscribe(&both, at(60));
    assert_eq!(avoided(1_000), 35);
}

#[test]
fn reads_that_the_relay_asks_for_are_not_avoided_and_the_sum_never_falls() {
    let hub = hub();
    let (_, waker) = Alarm::new();
    let mut stream = feed(&hub, &options(&["mails", "orders"]));
    assert_eq!(hub.polls_avoided(at(1)), 2);
    // Two CATCH_UPs.
    let (events, _) = sent(&mut stream, at(1), &waker);
    assert_eq!(woken(&events).len(), 2);
    assert_eq!(hub.stats().catch_ups, 2);
    assert_eq!(hub.polls_avoided(at(1)), 2, "it does not fall");
    assert_eq!(hub.polls_avoided(at(2)), 2);
    assert_eq!(hub.polls_avoided(at(3)), 4);
    // A notification's wake-up is not counted among them.
    notify_with(&hub, notification("orders"), at(4));
    sent(&mut stream, at(4), &waker);
    assert_eq!(hub.polls_avoided(at(4)), 6);
    stream.close(at(4));
}

#[test]
fn a_pattern_is_one_pair_whatever_the_number_of_its_queues() {
    let hub = hub_where(|config| config.forget_after = SECOND);
    let pattern = settled(&hub, &["ord*"]);
    notify(&hub, "orders");
    drain(&pattern, START);
    let sequence = hub.queues("", 1, START)[0].sequence;
    let drained = report("orders", ReportState::Drained, sequence, number());
    say(&hub, &pattern, &drained, START);
    hub.forget(at(20_000));
    assert_eq!(hub.stats().queues, 0);
    let avoided = hub.polls_avoided(at(20_000));
    assert_eq!(hub.polls_avoided(at(30_000)), avoided + 10_000);
}

#[test]
fn messages_without_a_ready_member_are_unassigned() {
    let hub = hub();
    let options = in_group("workers", &["orders"]);
    let [reads, waits] = [0; 2].map(|_| subscribe_with(&hub, &options, START));
    for member in [&reads, &waits] {
        take_sent(&hub, member, START);
    }
    let unassigned = || hub.stats().unassigned;
    let put = || {
        let many = Notification {
            messages: 9,
            ..notification("orders")
        };
        notify_with(&hub, many, START);
    };
    waits.mailbox.begin_send();
    put();
    assert_eq!(unassigned(), 1, "of the capacity for 2 messages");
    hub.end_send(&waits, START);
    assert_eq!(unassigned(), 0, "it was taken");
    waits.mailbox.begin_send();
    take_sent(&hub, &reads, START);
    put();
    assert!(unassigned() > 0);
    for member in [&reads, &waits] {
        hub.unsubscribe(member, START);
    }
    assert!(unassigned() > 0, "the group is kept");
    hub.forget(after(HOUR));
    assert_eq!(unassigned(), 0, "the group is forgotten");
}
