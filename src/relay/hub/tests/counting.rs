//! Sums: exact, conflated, saturating only in wake-ups (section 2).

use super::*;

fn sized(name: &str, payload_size: u64, messages: u64, notifications: u64) -> Notification {
    Notification {
        payload_size,
        messages,
        notifications,
        ..notification(name)
    }
}

#[test]
fn one_notification_is_sent_once_with_all_its_values() {
    let hub = hub();
    let subscription = settled(&hub, &["orders"]);
    let at = std::time::SystemTime::UNIX_EPOCH + SECOND;
    let stated = Notification {
        published_at: Some(at),
        traceparent: "00-trace".into(),
        ..sized("orders", 100, 20, 3)
    };
    let accepted = notify_with(&hub, stated, Tick::default());
    assert_eq!((accepted.sequence, accepted.listeners), (1, 1));
    let told = drain(&subscription, Tick::default()).remove(0);
    assert_eq!((told.sequence, told.notifications), (1, 3));
    assert_eq!((told.payload_size, told.messages), (100, 20));
    assert_eq!(
        (&*told.last_event.publisher, &*told.last_event.traceparent),
        ("tests", "00-trace")
    );
    assert_eq!(told.last_event.published_at, Some(at));
    assert_eq!(drain(&subscription, Tick::default()), []);
}

#[test]
fn what_a_slow_reader_missed_is_one_entry_with_the_exact_sums() {
    let hub = hub();
    let subscription = settled(&hub, &["orders"]);
    for size in 1..=1000 {
        notify_with(&hub, sized("orders", size, 2, 1), Tick::default());
    }
    let told = drain(&subscription, Tick::default());
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].sequence, told[0].notifications), (1000, 1000));
    assert_eq!((told[0].payload_size, told[0].messages), (500_500, 2000));
}

#[test]
fn an_unknown_count_is_one() {
    let hub = hub();
    let subscription = settled(&hub, &["orders"]);
    notify_with(&hub, sized("orders", 0, 0, 0), Tick::default());
    let told = drain(&subscription, Tick::default()).remove(0);
    assert_eq!((told.notifications, told.messages), (1, 1));
}

#[test]
fn a_batch_is_answered_in_its_order_and_each_queue_is_sent_once() {
    let hub = hub();
    let subscription = settled(&hub, &["a", "b"]);
    let batch = ["a", "b", "b", "a", "a"].map(notification);
    let accepted = hub.notify_all(&Arc::from("tests"), &batch, Tick::default());
    let sequences = accepted.expect("accepted");
    let sequences: Vec<_> = sequences.iter().map(|one| one.sequence).collect();
    assert_eq!(sequences, [1, 1, 2, 2, 3]);
    let told = entries(&drain(&subscription, Tick::default()));
    let expected = [("a", 3), ("b", 2)];
    assert_eq!(
        told,
        expected.map(|(name, count)| entry(name, WakeReason::Notified, count))
    );
}

#[test]
fn sums_saturate_in_a_wake_up_and_are_exact_again_after() {
    let hub = hub();
    let subscription = settled(&hub, &["orders"]);
    for _ in 0..3 {
        let greatest = sized("orders", u64::MAX, u64::MAX, u64::MAX);
        notify_with(&hub, greatest, Tick::default());
    }
    let told = drain(&subscription, Tick::default()).remove(0);
    assert_eq!((told.sequence, told.notifications), (3, u64::MAX));
    assert_eq!((told.payload_size, told.messages), (u64::MAX, u64::MAX));
    notify_with(&hub, sized("orders", 5, 6, 7), Tick::default());
    let told = drain(&subscription, Tick::default()).remove(0);
    assert_eq!((told.notifications, told.payload_size), (7, 5));
    assert_eq!(told.messages, 6);
}

#[test]
fn of_reasons_owed_together_the_strongest_is_named() {
    let hub = hub();
    let subscription = subscribe(&hub, &["orders"]);
    let timed = Notification {
        delay: SECOND,
        ..notification("orders")
    };
    let told = |now| entries(&drain(&subscription, now));
    notify_with(&hub, timed.clone(), Tick::default());
    hub.fire(after(2 * SECOND));
    let timed_over_catch_up = [entry("orders", WakeReason::Timed, 1)];
    assert_eq!(told(after(2 * SECOND)), timed_over_catch_up);
    notify_with(&hub, timed, after(2 * SECOND));
    notify(&hub, "orders");
    hub.fire(after(4 * SECOND));
    let notified_over_timed = [entry("orders", WakeReason::Notified, 2)];
    assert_eq!(told(after(4 * SECOND)), notified_over_timed);
}

#[test]
fn overlapping_selectors_give_one_wake_up_for_each_queue() {
    let hub = hub();
    let subscription = settled(&hub, &["ord*", "orders", "*", "orders"]);
    let other = settled(&hub, &["other"]);
    assert_eq!(notify(&hub, "orders").listeners, 3, "one for each selector");
    let told = entries(&drain(&subscription, Tick::default()));
    assert_eq!(told, [entry("orders", WakeReason::Notified, 1)]);
    assert_eq!(drain(&other, Tick::default()), []);
}

#[test]
fn the_details_are_those_of_the_newest_notification() {
    let hub = hub();
    let subscription = settled(&hub, &["orders"]);
    for (publisher, trace) in [("first", "t1"), ("second", "t2")] {
        let traced = Notification {
            traceparent: trace.into(),
            ..notification("orders")
        };
        let accepted = hub.notify_all(&Arc::from(publisher), &[traced], Tick::default());
        accepted.expect("accepted");
    }
    let told = drain(&subscription, Tick::default()).remove(0);
    assert_eq!(
        (&*told.last_event.publisher, &*told.last_event.traceparent),
        ("second", "t2")
    );
}
