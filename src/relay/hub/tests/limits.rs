//! Refused requests, and that no part of them is applied.

mod cursors;
mod timers;

use std::fmt::Debug;

use super::*;
use crate::{
    error::{Error, ErrorKind},
    types::Limits,
};
use WakeReason::{CatchUp, Notified};

fn small_hub(max_queues: usize) -> Arc<Hub> {
    hub_where(|config| config.max_queues = max_queues)
}

/// Returns the error of a request that exceeds a limit.
fn exhausted<T: Debug>(result: crate::Result<T>) -> Error {
    let error = result.expect_err("a limit is exceeded");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    error
}

fn send(hub: &Hub, names: &[&str]) -> crate::Result<Vec<Accepted>> {
    let batch: Vec<_> = names.iter().map(|name| notification(name)).collect();
    notify_all(hub, &batch, START)
}

/// Attaches all queues of these subscriptions.
fn attach(hub: &Arc<Hub>, subscriptions: &[Arc<Subscription>]) {
    for one in subscriptions {
        while !hub.introduce_some(one, START) {}
    }
}

#[test]
fn a_bad_event_makes_no_queue_and_the_others_are_counted() {
    let hub = hub();
    let bad = delayed("bad", Duration::from_secs(15 * 24 * 3600));
    let batch = [notification("good"), bad, notification("good")];
    let results = hub.notify(&Arc::from("tests"), &batch, START);
    let sequences: Vec<_> = results.iter().map(sequence_or_kind).collect();
    assert_eq!(sequences, [Ok(1), Err(ErrorKind::Invalid), Ok(2)]);
    assert_eq!((hub.stats().queues, hub.stats().notified), (1, 2));
}

fn sequence_or_kind(result: &crate::Result<Accepted>) -> Result<u64, ErrorKind> {
    result.as_ref().map(|one| one.sequence).map_err(Error::kind)
}

#[test]
fn a_subscription_that_would_make_one_queue_too_many_is_refused() {
    let hub = small_hub(2);
    exhausted(open(&hub, 1, &options(&["a", "b", "c"])));
    assert_eq!((hub.stats().queues, hub.stats().subscriptions), (0, 0));
}

#[test]
fn of_a_batch_with_too_many_queues_those_with_room_are_counted() {
    let hub = small_hub(2);
    let subscription = settled(&hub, &["a"]);
    let batch = ["c", "a", "b", "c", "a"].map(notification);
    let results = hub.notify(&Arc::from("tests"), &batch, START);
    let sequences: Vec<_> = results.iter().map(sequence_or_kind).collect();
    let refused = Err(ErrorKind::Exhausted);
    assert_eq!(sequences, [Ok(1), Ok(1), refused, Ok(2), Ok(2)]);
    let error = results[2].as_ref().expect_err("one too many");
    let expected = "the limit of 2 queues is reached, `acct/b` is one more";
    assert_eq!(error.message(), expected);
    assert_eq!(told(&subscription), [entry("a", Notified, 2)]);
    assert_eq!((hub.stats().notified, hub.stats().queues), (4, 2));
}

#[test]
fn no_selector_and_too_many_of_them_are_refused() {
    let hub = hub();
    let many = vec!["a"; Limits::SELECTORS + 1];
    for (selectors, kind) in [(vec![], ErrorKind::Invalid), (many, ErrorKind::Exhausted)] {
        let refused = open(&hub, 1, &options(&selectors));
        assert_eq!(refused.expect_err("refused").kind(), kind);
    }
    assert_eq!(hub.stats(), super::super::HubStats::default());
}

#[test]
fn a_refused_notification_leaves_no_queue_behind() {
    let hub = small_hub(3);
    let _known = settled(&hub, &["known"]);
    exhausted(send(&hub, &["known", "a", "b", "c"]));
    assert_eq!(hub.stats().queues, 3);
    let views = hub.queues("", 9, START);
    assert!(views.iter().all(|view| view.address.queue_name() != "c"));
}

#[test]
fn the_longest_idle_queue_without_listeners_gives_way_to_a_new_one() {
    let hub = small_hub(4);
    let _listened = settled(&hub, &["listened"]);
    notify_with(&hub, delayed("delayed", HOUR), START);
    for (second, name) in (1..).zip(["idle", "newer"]) {
        notify_with(&hub, notification(name), after(second * SECOND));
    }
    let accepted = notify_with(&hub, notification("new"), after(9 * SECOND));
    assert_eq!(accepted.sequence, 3, "above the forgotten counters");
    let views = hub.queues("", 9, after(9 * SECOND));
    let names: Vec<_> = views.iter().map(|view| view.address.queue_name()).collect();
    assert_eq!(names, ["delayed", "listened", "new", "newer"]);
}

#[test]
fn an_idle_queue_gives_way_however_often_its_patterns_streams_come_back() {
    let hub = small_hub(2);
    send(&hub, &["a", "b"]).expect("room");
    let first = subscribe(&hub, &["*"]);
    let options = SubscribeOptions {
        resume: resume_number(&hub, &first, START),
        ..options(&["*"])
    };
    // Streams of many dashboards, each of which is renewed every half hour.
    for second in (0..=120).step_by(10) {
        let now = after(second * SECOND);
        let stream = subscribe_with(&hub, &options, now);
        assert_eq!(drain(&stream, now), []);
        hub.unsubscribe(&stream, now);
    }
    let now = after(121 * SECOND);
    hub.sweep(&first, usize::MAX, now);
    let _stream = subscribe_with(&hub, &options, now);
    notify_with(&hub, notification("c"), now);
}

#[test]
fn an_idle_queue_gives_way_however_often_its_groups_streams_come_back() {
    let hub = small_hub(2);
    send(&hub, &["a", "b"]).expect("room");
    let join = |now| {
        let member = subscribe_with(&hub, &in_group("g", &["*"]), now);
        while !take_sent(&hub, &member, now).is_empty() {}
        member
    };
    for second in (0..=120).step_by(10) {
        let now = after(second * SECOND);
        let member = join(now);
        // The others have no new reports.
        for (name, number) in [("a", 1), ("b", 2)].into_iter().filter(|_| second == 0) {
            let drained = report(name, ReportState::Drained, 1, number);
            say(&hub, &member, &drained, now);
        }
        hub.unsubscribe(&member, now);
    }
    let now = after(121 * SECOND);
    join(now);
    notify_with(&hub, notification("c"), now);
}

#[test]
fn a_queue_gives_way_once_its_group_is_kept_no_longer() {
    let hub = small_hub(1);
    send(&hub, &["a"]).expect("room");
    let member = subscribe_with(&hub, &in_group("g", &["a*"]), START);
    take_sent(&hub, &member, START);
    let drained = report("a", ReportState::Drained, 1, 1);
    say(&hub, &member, &drained, START);
    notify_with(&hub, notification("a"), START);
    take_sent(&hub, &member, START);
    let drained = report("a", ReportState::Drained, 2, 2);
    say(&hub, &member, &drained, START);
    hub.unsubscribe(&member, START);
    let keep = HubConfig::default().group_keep;
    let new = [notification("new")];
    exhausted(notify_all(&hub, &new, after(keep - SECOND)));
    notify_all(&hub, &new, after(keep)).expect("it gave way");
}

#[test]
fn a_request_takes_the_place_of_none_of_its_own_queues() {
    let hub = small_hub(1);
    notify(&hub, "a");
    exhausted(send(&hub, &["a", "b"]));
    let hub = small_hub(2);
    send(&hub, &["a", "idle"]).expect("room");
    send(&hub, &["a", "b"]).expect("the other one gives way");
    assert_eq!(hub.stats().queues, 2);
    notify(&hub, "idle");
    let _both = subscribe(&hub, &["idle", "new"]);
    assert_eq!(hub.stats().queues, 2);
}

#[test]
fn a_full_table_of_queues_that_are_needed_refuses_and_is_not_searched_each_time() {
    let hub = small_hub(2);
    let _listened = settled(&hub, &["a", "b"]);
    (0..2).for_each(|_| _ = exhausted(send(&hub, &["c"])));
    assert_eq!(hub.stats().queues, 2);
}

#[test]
fn more_patterns_than_a_subscription_may_have_are_refused() {
    let names = numbered("p", Limits::PATTERNS + 1);
    let mut patterns: Vec<_> = names.iter().map(|name| format!("{name}*")).collect();
    exhausted(options(&patterns).check());
    patterns.pop();
    assert!(options(&patterns).check().is_ok());
}

#[test]
fn members_of_more_groups_than_a_queue_may_have_are_told_as_those_outside_of_groups() {
    let hub = hub_where(|config| config.max_groups_per_queue = 2);
    let join = |group| {
        let member = subscribe_with(&hub, &in_group(group, &["orders"]), START);
        (drain(&member, START), member)
    };
    let (_, first) = join("a");
    let (_, _second) = join("b");
    let third = [join("c"), join("c")];
    notify(&hub, "orders");
    for (_, member) in &third {
        assert_eq!(told(member), [entry("orders", Notified, 1)]);
    }
    // A group without members gives way.
    hub.unsubscribe(&first, START);
    assert_eq!(join("d").0.len(), 1);
    let orders = hub.entries.get(&queue("orders")).expect("known");
    let orders = orders.lock();
    let groups = orders.coordinator.iter().flat_map(|all| all.groups());
    assert_eq!(groups.count(), 2);
}

#[test]
fn groups_have_a_limit_in_all_and_half_of_it_without_members() {
    let hub = hub_where(|config| config.max_groups = 4);
    let join = |queue: &str| subscribe_with(&hub, &in_group("g", &[queue]), START);
    let of_queues = |queues: [&str; 3]| {
        let members = queues.map(|queue| {
            let member = join(queue);
            notify(&hub, queue);
            drain(&member, START);
            member
        });
        for member in members {
            hub.unsubscribe(&member, START);
        }
    };
    let groups = || hub.shared.groups.load(Ordering::Relaxed);
    of_queues(["a", "b", "c"]);
    assert_eq!(groups(), 2, "those without members");
    // The group that was not retained checks the queue when it comes back.
    let back = join("c");
    assert_eq!(told(&back).len(), 1);
    let fourth = join("d");
    let all = ["a", "b", "c", "d"].map(join);
    for queue in ["e", "d"] {
        let other = subscribe_with(&hub, &in_group("h", &[queue]), START);
        assert_eq!(groups(), 4, "it is told as one outside of groups");
        hub.unsubscribe(&other, START);
    }
    // So is a pattern.
    let pattern = subscribe_with(&hub, &in_group("h", &["*"]), START);
    drain(&pattern, START);
    notify(&hub, "d");
    walk_all(&hub);
    let told = told(&pattern);
    assert!(told.contains(&entry("d", Notified, 1)), "{told:?}");
    // They leave with their queues.
    for subscription in [back, fourth].into_iter().chain(all).chain([pattern]) {
        hub.unsubscribe(&subscription, START);
    }
    hub.fire(after(HOUR));
    hub.forget(after(24 * HOUR));
    assert_eq!(groups(), 0);
}

#[test]
fn a_pattern_over_notified_queues_and_a_long_request_keep_the_limit_of_groups() {
    let hub = hub_where(|config| config.max_groups = 4);
    let groups = || hub.shared.groups.load(Ordering::Relaxed);
    let names = numbered("q", 10);
    for queue in &names {
        notify(&hub, queue);
    }
    let pattern = subscribe_with(&hub, &in_group("g", &["*"]), START);
    drain(&pattern, START);
    walk_all(&hub);
    assert_eq!(groups(), 4);
    hub.unsubscribe(&pattern, START);
    hub.fire(after(HOUR));
    hub.forget(after(24 * HOUR));
    assert_eq!(groups(), 0);
    let mut five = numbered("new", 3);
    five.extend_from_slice(&names[..2]);
    for queue in &names[..2] {
        notify(&hub, queue);
    }
    let _five = subscribe_with(&hub, &in_group("g", &five), START);
    assert_eq!(groups(), 4, "of known and of new queues");
    // A member of known groups makes none.
    let _four = subscribe_with(&hub, &in_group("g", &five[1..]), START);
    assert_eq!(groups(), 4);
}

#[test]
fn a_member_by_pattern_whose_group_finds_no_room_is_told_as_one_outside_of_groups() {
    let hub = hub_where(|config| config.max_groups_per_queue = 2);
    let all = [1, 2, 3].map(|at| {
        let options = in_group(&format!("g{at}"), &["shar*"]);
        subscribe_with(&hub, &options, START)
    });
    all.iter().for_each(|one| _ = take_sent(&hub, one, START));
    for _ in 0..2 {
        notify(&hub, "shared");
        for one in &all {
            let told = entries(&take_sent(&hub, one, START));
            assert_eq!(told, [entry("shared", Notified, 1)]);
        }
    }
    let shared = hub.entries.get(&queue("shared")).expect("known");
    let groups = shared
        .lock()
        .coordinator
        .as_ref()
        .map(|all| all.groups().count());
    assert_eq!(groups, Some(2));
}

#[test]
fn a_full_table_takes_a_queue_that_was_made_before_its_turn_came() {
    let hub = small_hub(1);
    let _listened = settled(&hub, &["listened"]);
    // Over its limit, as after a race; another request has made the queue.
    let made = hub.make_entry(&queue("made"), START);
    let missing = [made.address()];
    let without_room = hub.make_missing(&missing, hub.most_queues(), false, START);
    assert!(without_room.is_empty(), "no new queue is needed");
    assert_eq!(hub.stats().queues, 2);
}

#[test]
fn queues_that_are_attached_in_steps_count_from_the_request_on() {
    let hub = small_hub(2_000);
    let of_stream = |at: u128| {
        let names = numbered(&format!("s{at}q"), 1_400);
        open(&hub, 900 + at, &options(&names)).ok()
    };
    let all: Vec<_> = (0..3).filter_map(of_stream).collect();
    attach(&hub, &all);
    assert_eq!(all.len(), 1);
    assert!(hub.stats().queues <= 2_000, "{}", hub.stats().queues);
}
