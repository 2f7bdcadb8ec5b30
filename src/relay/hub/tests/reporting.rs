//! Reports: which listeners count as busy (R8), which sequences count (R9), and which messages
//! become visible again (R10).

use super::*;
use crate::error::ErrorKind;

/// Ends a subscription and returns when its queues are woken again.
fn ended(hub: &Hub, subscription: &Arc<Subscription>, now: Tick) -> Option<Tick> {
    hub.unsubscribe(subscription, now);
    hub.fire(now)
}

#[test]
fn a_report_that_comes_after_its_streams_end_is_refused_and_not_swallowed() {
    let hub = hub();
    let subscription = settled(&hub, &["orders"]);
    let busy = report("orders", ReportState::Busy, 0, 1);
    // The stream ended between the report's look-up of the subscription and its lock.
    subscription.mailbox.close();
    let late = hub.report(subscription.id, &busy, Tick::default());
    assert_eq!(late.expect_err("ended").kind(), ErrorKind::NotFound);
    hub.unsubscribe(&subscription, Tick::default());
    let late = hub.report(subscription.id, &busy, Tick::default());
    assert_eq!(late.expect_err("ended").kind(), ErrorKind::NotFound);
}

const VISIBILITY: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_secs(32);

fn tell(hub: &Hub, subscription: &Subscription, report: &Report) {
    let told = hub.report(subscription.id, report, Tick::default());
    told.expect("it subscribes to the queue");
}

/// Returns whether `due` is the time of the grid for a wait from `now`.
fn is_again(due: Option<Tick>, now: Tick) -> bool {
    let earliest = now + AGAIN;
    due.is_some_and(|due| due >= earliest && due <= earliest + AGAIN / 16)
}

#[test]
fn the_queue_of_a_busy_listener_that_ends_is_woken_when_its_messages_are_visible_again() {
    let hub = hub();
    let other = settled(&hub, &["orders"]);
    let busy = settled(&hub, &["orders"]);
    tell(&hub, &busy, &report("orders", ReportState::Busy, 0, 1));
    let now = after(HOUR);
    let due = ended(&hub, &busy, now);
    assert!(is_again(due, now), "{due:?}");
    hub.fire(due.expect("set"));
    let told = entries(&drain(&other, due.expect("set")));
    assert_eq!(told, [entry("orders", WakeReason::Timed, 0)]);
}

#[test]
fn a_woken_listener_is_busy_until_it_drained_that_far() {
    for (state, sequence, is_busy) in [
        (ReportState::Drained, 2, false),
        (ReportState::Drained, 1, true),
        (ReportState::Busy, 2, true),
        (ReportState::Unspecified, 2, true),
        (ReportState::Drained, 3, true), // R9: above the head, counts as 0
    ] {
        let hub = hub();
        let subscription = settled(&hub, &["orders"]);
        (0..2).for_each(|_| _ = notify(&hub, "orders"));
        drain(&subscription, Tick::default());
        tell(&hub, &subscription, &report("orders", state, sequence, 1));
        let due = ended(&hub, &subscription, after(HOUR));
        assert_eq!(due.is_some(), is_busy, "{state:?} {sequence}");
    }
}

#[test]
fn a_listener_without_reports_is_busy_for_one_visibility_time_out() {
    for (now, is_busy) in [
        (after(VISIBILITY - SECOND), true),
        (after(VISIBILITY), false),
    ] {
        let hub = hub();
        let mute = settled(&hub, &["orders"]);
        let due = ended(&hub, &mute, now);
        assert_eq!(is_again(due, now), is_busy, "{due:?}");
        assert_eq!(due.is_some(), is_busy);
    }
}

#[test]
fn a_listener_that_was_not_woken_leaves_no_timer() {
    let hub = hub();
    let subscription = subscribe(&hub, &["orders"]);
    assert_eq!(ended(&hub, &subscription, Tick::default()), None);
}

#[test]
fn work_found_unasked_and_drained_leaves_no_timer() {
    let hub = hub();
    let subscription = settled(&hub, &["orders"]);
    tell(
        &hub,
        &subscription,
        &report("orders", ReportState::Drained, 0, 1),
    );
    tell(
        &hub,
        &subscription,
        &report("orders", ReportState::Busy, 0, 2),
    );
    tell(
        &hub,
        &subscription,
        &report("orders", ReportState::Drained, 0, 3),
    );
    assert_eq!(ended(&hub, &subscription, Tick::default()), None);
}

#[test]
fn an_older_reports_state_is_ignored_but_not_its_timer() {
    let hub = hub();
    let subscription = settled(&hub, &["orders"]);
    tell(
        &hub,
        &subscription,
        &report("orders", ReportState::Busy, 0, 5),
    );
    let stale = Report {
        visible_in: Some(2 * HOUR),
        ..report("orders", ReportState::Drained, 0, 4)
    };
    tell(&hub, &subscription, &stale);
    assert!(
        hub.fire(Tick::default())
            .is_some_and(|due| due >= after(2 * HOUR))
    );
    let now = after(HOUR);
    assert!(is_again(ended(&hub, &subscription, now), now));
}

#[test]
fn a_report_of_what_becomes_visible_wakes_then_and_zero_wakes_now() {
    let hub = hub();
    let subscription = settled(&hub, &["orders"]);
    let visible_in = |span| Report {
        visible_in: Some(span),
        ..Report::new(queue("orders"))
    };
    let timed = [entry("orders", WakeReason::Timed, 0)];
    tell(&hub, &subscription, &visible_in(Duration::ZERO));
    assert_eq!(entries(&drain(&subscription, Tick::default())), timed);
    tell(&hub, &subscription, &visible_in(SECOND));
    assert_eq!(drain(&subscription, Tick::default()), []);
    hub.fire(after(2 * SECOND));
    assert_eq!(entries(&drain(&subscription, Tick::default())), timed);
}

#[test]
fn reports_of_strangers_and_of_queues_that_are_not_matched_are_refused() {
    let hub = hub();
    let subscription = settled(&hub, &["ord*"]);
    let busy = report("orders", ReportState::Busy, 0, 1);
    let unknown = hub.report(SubscriptionId(0), &busy, Tick::default());
    assert_eq!(unknown.expect_err("unknown").kind(), ErrorKind::NotFound);
    let elsewhere = report("invoices", ReportState::Busy, 0, 1);
    let refused = hub.report(subscription.id, &elsewhere, Tick::default());
    assert_eq!(refused.expect_err("not matched").kind(), ErrorKind::Invalid);
    assert_eq!(hub.stats().queues, 0);
}

#[test]
fn a_patterns_listener_may_report_a_queue_before_its_first_notification() {
    let hub = hub();
    let subscription = settled(&hub, &["ord*"]);
    tell(
        &hub,
        &subscription,
        &report("orders", ReportState::Busy, 0, 1),
    );
    assert_eq!(drain(&subscription, Tick::default()), []);
    notify(&hub, "orders");
    let told = entries(&drain(&subscription, Tick::default()));
    assert_eq!(told, [entry("orders", WakeReason::Notified, 1)]);
    assert!(ended(&hub, &subscription, after(HOUR)).is_some());
}
