//! What the lists state of queues and listeners: depths, silent listeners, lost ones.

use super::*;

fn depth(hub: &Hub, now: Tick) -> Option<(u64, Duration)> {
    let listed = hub.queues("", 1, now);
    listed.first().and_then(|queue| queue.depth)
}

#[test]
fn a_depth_has_the_age_of_its_reading_and_none_replaces_a_newer_one() {
    let hub = hub();
    let (one, two) = (settled(&hub, &["orders"]), settled(&hub, &["orders"]));
    let read = |depth, age: Option<u64>| Report {
        current_queue_depth: depth,
        depth_age: age.map(Duration::from_secs),
        ..report("orders", ReportState::Busy, 0, number())
    };
    let at = |second: u64| after(Duration::from_secs(second));
    say(&hub, &one, &read(7, None), at(10));
    assert_eq!(depth(&hub, at(10)), None, "it is not known");
    say(&hub, &one, &read(20, Some(4)), at(10));
    assert_eq!(depth(&hub, at(11)), Some((20, 5 * SECOND)));
    say(&hub, &two, &read(99, Some(8)), at(12));
    assert_eq!(depth(&hub, at(12)), Some((20, 6 * SECOND)));
    say(&hub, &two, &read(110, Some(1)), at(12));
    assert_eq!(depth(&hub, at(12)), Some((110, SECOND)));
    // Its last query was long ago, but its last get found nothing.
    let drained = Report {
        state: ReportState::Drained,
        ..read(110, Some(90))
    };
    say(&hub, &two, &drained, at(20));
    assert_eq!(depth(&hub, at(23)), Some((0, 3 * SECOND)));
}

/// Returns the silence that the list shows.
fn silence(hub: &Hub, now: Tick) -> Option<Duration> {
    hub.listeners(None, 10, now)[0].silent_for
}

#[test]
fn a_listener_that_was_woken_and_does_not_report_is_silent() {
    for options in [options(&["orders"]), in_group("workers", &["orders"])] {
        is_silent(&options);
    }
}

fn is_silent(options: &SubscribeOptions) {
    let hub = hub();
    let listener = subscribe_with(&hub, options, START);
    take_sent(&hub, &listener, START);
    let at = |second: u64| after(Duration::from_secs(second));
    assert_eq!(silence(&hub, at(60)), None, "it never reports");
    let drained = |sequence| report("orders", ReportState::Drained, sequence, number());
    say(&hub, &listener, &drained(0), at(60));
    assert_eq!(silence(&hub, at(600)), None, "it was not woken");
    let accepted = notify_with(&hub, notification("orders"), at(600));
    take_sent(&hub, &listener, at(600));
    assert_eq!(silence(&hub, at(602)), None, "it is reading");
    assert_eq!(silence(&hub, at(605)), Some(5 * SECOND));
    // Further wake-ups do not make it younger.
    notify_with(&hub, notification("orders"), at(606));
    take_sent(&hub, &listener, at(606));
    assert_eq!(silence(&hub, at(612)), Some(12 * SECOND));
    say(&hub, &listener, &drained(accepted.sequence + 1), at(621));
    assert_eq!(silence(&hub, at(700)), None);
}

#[test]
fn a_busy_listener_is_not_silent_and_its_oldest_message_has_an_age() {
    let hub = hub();
    let listener = settled(&hub, &["mails", "orders"]);
    let at = |second: u64| after(Duration::from_secs(second));
    let busy = |name, age: u64| Report {
        busy_for: Some(Duration::from_secs(age)),
        ..report(name, ReportState::Busy, 0, number())
    };
    let busy_for = |now| hub.listeners(None, 1, now)[0].busy_for;
    say(&hub, &listener, &busy("orders", 2), at(10));
    say(&hub, &listener, &busy("mails", 0), at(20));
    notify_with(&hub, notification("orders"), at(20));
    drain(&listener, at(20));
    assert_eq!(silence(&hub, at(90)), None);
    assert_eq!(busy_for(at(90)), Some(82 * SECOND), "of the older one");
    say(
        &hub,
        &listener,
        &report("mails", ReportState::Drained, 0, number()),
        at(91),
    );
    assert_eq!(busy_for(at(92)), Some(84 * SECOND));
    say(
        &hub,
        &listener,
        &report("orders", ReportState::Drained, 1, number()),
        at(93),
    );
    assert_eq!(busy_for(at(94)), None);
}

#[test]
fn lost_listeners_are_listed_for_an_hour_or_until_they_come_back() {
    let hub = hub();
    let named = |number: usize| SubscribeOptions {
        listener_id: ListenerId::new(&format!("worker-{number}")).expect("a name"),
        ..options(&["orders"])
    };
    let lose = |number, now| {
        let listener = subscribe_with(&hub, &named(number), now);
        hub.note_lost(&listener, now);
        hub.unsubscribe(&listener, now);
    };
    let lost = |now| hub.lost_listeners(None, 1000, now);
    for number in 0..300 {
        lose(number, START);
    }
    assert_eq!(lost(START).len(), 256, "the newest ones");
    let logged = hub.take_lost();
    assert_eq!(logged.len(), 256);
    assert!(hub.take_lost().is_empty());
    let back = subscribe_with(&hub, &named(299), START);
    assert_eq!(lost(START).len(), 255);
    assert_eq!(lost(START)[0].lost_for, Some(Duration::ZERO));
    assert!(lost(after(HOUR)).is_empty());
    hub.note_lost(&back, after(HOUR));
    assert_eq!(lost(after(HOUR + SECOND))[0].lost_for, Some(SECOND));
}

#[test]
fn a_listener_that_subscribed_again_before_its_old_connection_ended_is_not_lost() {
    let hub = hub();
    let named = |name| SubscribeOptions {
        listener_id: ListenerId::new(name).expect("a name"),
        ..options(&["orders"])
    };
    let [old, gone] = ["worker", "other"].map(|name| subscribe_with(&hub, &named(name), START));
    let _back = subscribe_with(&hub, &named("worker"), after(SECOND));
    for lost in [&old, &gone] {
        hub.note_lost(lost, after(SECOND));
        hub.unsubscribe(lost, after(SECOND));
    }
    let logged = hub.take_lost();
    assert_eq!(logged.len(), 1, "{logged:?}");
    assert_eq!(logged[0].listener_id, gone.listener_id);
    let listed = hub.lost_listeners(None, 1000, after(SECOND));
    assert_eq!(listed.len(), 1, "{listed:?}");
}

#[test]
fn a_listener_that_came_back_before_its_connection_was_lost_is_not_listed_whatever_its_new_id() {
    for (old, new) in [(1, 2), (2, 1)] {
        let hub = hub();
        let gone = open(&hub, old, &options(&["orders"])).expect("room");
        open(&hub, new, &options(&["orders"])).expect("room");
        hub.note_lost(&gone, START);
        hub.unsubscribe(&gone, START);
        assert!(hub.take_lost().is_empty(), "{old} to {new}");
        assert!(hub.lost_listeners(None, 10, START).is_empty());
    }
}
