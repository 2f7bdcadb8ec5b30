//! The backlog: only a report that is certain to have seen messages lowers it.

use super::*;

fn at(second: u64) -> Tick {
    after(Duration::from_secs(second))
}

/// Returns the backlog, whether it is in doubt, and the number of busy streams.
fn backlog(hub: &Hub) -> (u64, bool, u32) {
    let listed = hub.queues("", 1, START);
    (listed[0].backlog, listed[0].in_doubt, listed[0].busy)
}

fn put(hub: &Hub, messages: u64, now: Tick) -> u64 {
    let notification = Notification {
        messages,
        ..notification("orders")
    };
    notify_with(hub, notification, now).sequence
}

fn drained(sequence: u64) -> Report {
    report("orders", ReportState::Drained, sequence, number())
}

fn with_depth(depth: u64, age: u64, sequence: u64) -> Report {
    Report {
        current_queue_depth: depth,
        depth_age: Some(Duration::from_secs(age)),
        ..report("orders", ReportState::Busy, sequence, number())
    }
}

/// A subscriber without a group, and a member of one.
fn listeners() -> [(Arc<Hub>, Arc<Subscription>); 2] {
    [options(&["orders"]), in_group("workers", &["orders"])].map(|options| {
        let hub = hub_where(|config| config.sentinel_interval = HOUR);
        let listener = subscribe_with(&hub, &options, START);
        take_sent(&hub, &listener, START);
        (hub, listener)
    })
}

#[test]
fn messages_are_in_the_backlog_until_a_listener_has_read_until_empty_after_them() {
    for (hub, listener) in listeners() {
        let first = put(&hub, 3, at(1));
        assert_eq!(backlog(&hub), (3, true, 0), "no listener has reported");
        take_sent(&hub, &listener, at(1));
        let second = put(&hub, 2, at(2));
        say(&hub, &listener, &drained(first), at(2));
        let left = backlog(&hub).0;
        assert!(
            (2..=5).contains(&left),
            "the newest two are not seen: {left}"
        );
        take_sent(&hub, &listener, at(2));
        say(&hub, &listener, &drained(first), at(3));
        assert_eq!(backlog(&hub).0, left, "it has not seen the newest wake-up");
        say(&hub, &listener, &drained(second), at(3));
        assert_eq!(backlog(&hub), (0, false, 0));
    }
}

#[test]
fn a_report_of_an_earlier_stream_lowers_nothing() {
    for (hub, listener) in listeners() {
        let newest = put(&hub, 3, at(1));
        // The sequence is right, but this stream has not sent its wake-up.
        say(&hub, &listener, &drained(newest), at(1));
        assert_eq!(backlog(&hub), (3, false, 0));
        say(&hub, &listener, &drained(newest + 7), at(1));
        assert_eq!(backlog(&hub).0, 3, "R9: above the head");
    }
}

#[test]
fn a_depth_that_was_read_before_the_newest_notification_does_not_swallow_it() {
    for (hub, listener) in listeners() {
        let newest = put(&hub, 3, at(20));
        take_sent(&hub, &listener, at(20));
        // Read 1 s before, and 1 s after the notification by its age: its way here took longer.
        for (depth, age) in [(0, 2), (0, 0)] {
            say(&hub, &listener, &with_depth(depth, age, newest), at(21));
            assert_eq!(backlog(&hub).0, 3);
        }
        say(&hub, &listener, &with_depth(9, 0, newest), at(22));
        assert_eq!(backlog(&hub), (9, false, 1), "it may raise it");
        say(&hub, &listener, &with_depth(1, 0, newest), at(29));
        assert_eq!(backlog(&hub).0, 9);
        say(&hub, &listener, &with_depth(1, 0, newest), at(30));
        assert_eq!(backlog(&hub).0, 1, "10 s after the newest notification");
    }
}

#[test]
fn the_backlog_of_a_queue_that_never_pauses_does_not_grow_without_bound() {
    for (hub, listener) in listeners() {
        for second in 1..=600 {
            let newest = put(&hub, 10, at(second));
            take_sent(&hub, &listener, at(second));
            if second % 10 == 0 {
                // As many as were put in 5 s are left at each moment.
                say(&hub, &listener, &with_depth(50, 1, newest), at(second));
                let backlog = backlog(&hub).0;
                assert!(backlog >= 50, "{second}: {backlog}");
                // Up to 30 s of messages.
                assert!(backlog <= 350, "{second}: {backlog}");
            }
        }
    }
}

#[test]
fn delayed_messages_are_in_the_backlog_when_they_are_due() {
    let hub = hub();
    let delayed = Notification {
        messages: 4,
        ..delayed("orders", 10 * SECOND)
    };
    notify_with(&hub, delayed, START);
    assert_eq!(backlog(&hub).0, 0);
    hub.fire(at(11));
    assert_eq!(backlog(&hub).0, 4);
}

#[test]
fn totals_beyond_all_numbers_saturate() {
    let hub = hub();
    for _ in 0..3 {
        put(&hub, u64::MAX, START);
    }
    assert_eq!(backlog(&hub).0, u64::MAX);
}

#[test]
fn streams_are_busy_from_busy_to_drained_or_to_their_end() {
    let (hub, one) = (hub(), options(&["orders"]));
    let all = [0; 2].map(|_| subscribe_with(&hub, &one, START));
    let busy = || report("orders", ReportState::Busy, 0, number());
    for listener in &all {
        say(&hub, listener, &busy(), START);
        say(&hub, listener, &busy(), START);
    }
    assert_eq!(backlog(&hub).2, 2);
    say(&hub, &all[0], &Report::new(queue("orders")), START);
    assert_eq!(backlog(&hub).2, 2, "it states nothing");
    say(&hub, &all[0], &drained(0), START);
    assert_eq!(backlog(&hub).2, 1);
    hub.unsubscribe(&all[1], START);
    assert_eq!(backlog(&hub).2, 0);
}
