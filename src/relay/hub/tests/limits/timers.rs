//! Limits of timers: delayed notifications, and the times of reports.

use super::*;

fn visible_in(name: &str, delay: Duration) -> Report {
    Report {
        visible_in: Some(delay),
        ..Report::new(queue(name))
    }
}

#[test]
fn more_delayed_wake_ups_than_the_hub_holds_are_refused_and_those_it_has_go_on() {
    let hub = hub_where(|config| config.max_timers = 2);
    notify_with(&hub, delayed("a", HOUR), START);
    notify_with(&hub, delayed("a", 3 * HOUR), START);
    let batch = [notification("b"), delayed("c", HOUR)];
    exhausted(notify_all(&hub, &batch, START));
    assert_eq!((hub.stats().queues, hub.stats().timers), (2, 2));
    assert_eq!(hub.stats().notified, 3, "b has needed no timer");
    hub.fire(after(2 * HOUR));
    assert_eq!(hub.stats().timers, 1);
    notify_with(&hub, delayed("c", HOUR), after(2 * HOUR));
}

#[test]
fn timers_of_reports_leave_publishers_their_room() {
    let hub = hub_where(|config| config.max_timers = 2);
    let listener = settled(&hub, &["*"]);
    for name in numbered("q", 100) {
        _ = hub.report(listener.id, &visible_in(&name, HOUR * 336), START);
    }
    notify_with(&hub, delayed("orders", SECOND), START);
}

#[test]
fn above_their_limit_reported_times_are_kept_on_queues_that_publishers_notified() {
    let hub = hub_where(|config| config.max_timers = 2);
    let listener = settled(&hub, &["*"]);
    notify(&hub, "orders");
    let mut refused = 0;
    for name in numbered("q", 4) {
        // A report without a time makes the queue's entry, but does not mark it as notified.
        for delay in [Duration::ZERO, HOUR] {
            let reported = hub.report(listener.id, &visible_in(&name, delay), START);
            if reported.is_err() {
                let error = exhausted(reported);
                assert!(error.message().starts_with("visible_in: "), "{error}");
                refused += 1;
            }
        }
    }
    assert_eq!((refused, hub.stats().timers), (2, 2));
    // Some hundred times on a notified queue: few timers, none early, none lost.
    let delays: Vec<_> = (0..20).map(|n| SECOND * (1 << n)).collect();
    for delay in &delays {
        say(&hub, &listener, &visible_in("orders", *delay), START);
    }
    let few = super::super::super::timers::FEW as u64;
    assert_eq!(hub.stats().timers, 2 + few);
    drain(&listener, START);
    let (mut now, mut waits) = (START, delays.into_iter().peekable());
    while let Some(due) = hub.next_timer() {
        now = due;
        hub.fire(now);
        let told = entries(&drain(&listener, now));
        if told.iter().any(|(name, ..)| name == "orders") {
            let late = |delay: Duration| now.since(START) > 8 * delay;
            while let Some(delay) = waits.next_if(|delay| after(*delay) <= now) {
                assert!(!late(delay), "{delay:?} waits until {now:?}");
            }
        }
    }
    assert_eq!(waits.next(), None, "each is followed by a wake-up, {now:?}");
    assert_eq!(hub.stats().timers, 0);
}

#[test]
fn times_of_a_publisher_are_not_postponed_for_those_of_reports() {
    let hub = hub_where(|config| config.max_timers = 4);
    let listener = settled(&hub, &["orders"]);
    notify_with(&hub, delayed("orders", 100 * SECOND), START);
    // Of all of them the publisher's is the closest to the next.
    for seconds in [1, 2, 4, 8, 16, 32, 64, 110, 220, 440, 880, 1760] {
        let report = visible_in("orders", SECOND * seconds);
        say(&hub, &listener, &report, START);
    }
    let told = |due| {
        hub.fire(due);
        let told = drain(&listener, due);
        told.iter().any(|told| told.notifications > 0)
    };
    let next = || hub.next_timer().expect("the publisher's");
    let due = std::iter::repeat_with(next).find(|due| told(*due));
    assert!(due <= Some(after(107 * SECOND)), "{due:?}");
}
