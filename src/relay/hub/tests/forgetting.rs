//! Queues that are forgotten (R3: sequences never start again in one epoch).

use super::*;
#[test]
fn a_queue_is_forgotten_an_hour_after_its_last_listener_left_and_not_sooner() {
    let hub = hub();
    let subscription = settled(&hub, &["orders"]);
    notify(&hub, "orders");
    let resume = resume_number(&hub, &subscription, Tick::default());
    hub.unsubscribe(&subscription, after(5 * HOUR));
    hub.fire(after(6 * HOUR - SECOND));
    hub.forget(after(6 * HOUR - SECOND));
    let options = SubscribeOptions {
        resume,
        ..options(&["orders"])
    };
    let back = subscribe_with(&hub, &options, after(6 * HOUR));
    assert_eq!(entries(&drain(&back, after(6 * HOUR))), []);
}

/// Forgets queues that are idle since an hour before `now`.
fn forgotten(hub: &Hub, now: Tick) -> u64 {
    let before = hub.stats().forgotten;
    hub.forget(now);
    hub.stats().forgotten - before
}

#[test]
fn an_unused_queue_is_forgotten_after_an_hour() {
    let hub = hub();
    notify(&hub, "orders");
    assert_eq!(forgotten(&hub, after(HOUR - SECOND)), 0);
    assert_eq!(forgotten(&hub, after(HOUR)), 1);
    assert_eq!(hub.stats().queues, 0);
}

#[test]
fn a_queue_with_a_subscriber_or_a_timer_is_not_forgotten() {
    let hub = hub();
    let subscription = settled(&hub, &["listened"]);
    notify(&hub, "listened");
    let delayed = Notification {
        delay: 30 * HOUR,
        ..notification("delayed")
    };
    notify_with(&hub, delayed, Tick::default());
    assert_eq!(forgotten(&hub, after(20 * HOUR)), 0);
    hub.unsubscribe(&subscription, after(20 * HOUR));
    assert_eq!(forgotten(&hub, after(29 * HOUR)), 1);
    hub.fire(after(40 * HOUR));
    assert_eq!(forgotten(&hub, after(41 * HOUR)), 1);
}

#[test]
fn a_new_record_starts_above_everything_that_was_ever_forgotten() {
    let hub = hub();
    (0..7).for_each(|_| _ = notify(&hub, "orders"));
    notify(&hub, "other");
    assert_eq!(forgotten(&hub, after(HOUR)), 2);
    assert_eq!(notify(&hub, "other").sequence, 9);
    assert_eq!(notify(&hub, "orders").sequence, 9);
    assert_eq!(notify(&hub, "new").sequence, 9);
}

#[test]
fn a_subscriber_of_an_entry_that_starts_above_zero_gets_exact_sums() {
    let hub = hub();
    let pattern = settled(&hub, &["ord*"]);
    hub.unsubscribe(&pattern, Tick::default());
    (0..7).for_each(|_| _ = notify(&hub, "other"));
    assert_eq!(forgotten(&hub, after(HOUR)), 1);
    let pattern = settled(&hub, &["ord*"]);
    (0..3).for_each(|_| _ = notify(&hub, "orders"));
    let told = drain(&pattern, Tick::default()).remove(0);
    assert_eq!((told.sequence, told.notifications), (11, 3));
}

#[test]
fn a_caller_with_a_dead_entry_counts_in_the_new_one() {
    let hub = hub();
    notify(&hub, "orders");
    let dead = hub.entries.get(&queue("orders")).expect("known");
    assert_eq!(forgotten(&hub, after(HOUR)), 1);
    let subscription = settled(&hub, &["orders"]);
    hub.wake_after(
        dead,
        Duration::ZERO,
        super::super::timers::Timer::default(),
        after(HOUR),
    );
    let told = entries(&drain(&subscription, after(HOUR)));
    assert_eq!(told, [entry("orders", WakeReason::Timed, 0)]);
    assert_eq!(hub.stats().queues, 1);
}

#[test]
fn a_pattern_keeps_no_idle_queue_and_is_woken_when_it_comes_back() {
    for group in [None, Some("g")] {
        let hub = hub();
        let options = SubscribeOptions {
            group: group.map(|name| GroupName::new(name).expect("a name")),
            ..options(&["*"])
        };
        let pattern = subscribe_with(&hub, &options, Tick::default());
        let take = |now| {
            let mut told = Vec::new();
            // A member gets the queues' wake-ups one after the other.
            loop {
                let more = drain(&pattern, now);
                hub.end_send(&pattern, now);
                if more.is_empty() {
                    break entries(&told);
                }
                told.extend(more);
            }
        };
        take(Tick::default());
        for name in ["job-1", "job-2"] {
            notify(&hub, name);
        }
        assert_eq!(take(Tick::default()).len(), 2);
        for (name, number) in [("job-1", 1), ("job-2", 2)] {
            let drained = report(name, ReportState::Drained, 1, number);
            hub.report(pattern.id, &drained, Tick::default())
                .expect("known");
        }
        assert_eq!(forgotten(&hub, after(HOUR - SECOND)), 0);
        assert_eq!(forgotten(&hub, after(HOUR)), 2, "{group:?}");
        hub.sweep(&pattern, usize::MAX, after(HOUR));
        assert_eq!((hub.stats().queues, hub.stats().cursors), (0, 0));
        notify_with(&hub, notification("job-1"), after(HOUR));
        assert_eq!(take(after(HOUR)), [entry("job-1", WakeReason::Notified, 1)]);
    }
}

#[test]
fn a_pattern_with_something_pending_or_a_busy_listener_keeps_its_queue() {
    let hub = hub();
    let pattern = settled(&hub, &["*"]);
    notify(&hub, "untaken");
    assert_eq!(forgotten(&hub, after(2 * HOUR)), 0);
    drain(&pattern, after(2 * HOUR));
    let busy = report("untaken", ReportState::Busy, 1, 1);
    hub.report(pattern.id, &busy, after(2 * HOUR))
        .expect("known");
    assert_eq!(forgotten(&hub, after(9 * HOUR)), 0);
    let drained = report("untaken", ReportState::Drained, 1, 2);
    hub.report(pattern.id, &drained, after(9 * HOUR))
        .expect("known");
    assert_eq!(forgotten(&hub, after(9 * HOUR)), 1);
}

#[test]
fn a_queue_name_for_each_job_fills_no_table() {
    let hub = hub_with(HubConfig {
        max_queues: 100,
        ..HubConfig::default()
    });
    let pattern = settled(&hub, &["*"]);
    let mut told = 0;
    for second in 0..1000 {
        let now = after(second * SECOND);
        notify_with(&hub, notification(&format!("job-{second}")), now);
        told += drain(&pattern, now).len();
        hub.sweep(&pattern, usize::MAX, now);
    }
    assert_eq!(told, 1000);
    assert!(hub.stats().queues <= 100);
}

#[test]
fn a_queue_is_not_forgotten_while_a_pattern_is_owed_something() {
    let (hub, now) = (hub(), after(2 * HOUR));
    let subscription = settled(&hub, &["*"]);
    notify(&hub, "orders");
    assert_eq!(forgotten(&hub, now), 0);
    let told = entries(&drain(&subscription, now));
    assert_eq!(told, [entry("orders", WakeReason::Notified, 1)]);
    // It may handle messages for its visibility time-out.
    hub.sweep(&subscription, usize::MAX, now + 29 * SECOND);
    assert_eq!(forgotten(&hub, now + 29 * SECOND), 0);
    hub.sweep(&subscription, usize::MAX, now + 30 * SECOND);
    assert_eq!(forgotten(&hub, now + 30 * SECOND), 1);
    notify_with(&hub, notification("orders"), now);
    let told = entries(&drain(&subscription, now));
    assert_eq!(told, [entry("orders", WakeReason::Notified, 1)]);
}
