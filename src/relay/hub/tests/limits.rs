//! Refused requests, and that no part of them is applied.

use std::collections::HashSet;

use super::*;
use crate::{error::ErrorKind, types::GroupName};

fn small_hub(max_queues: usize) -> Arc<Hub> {
    hub_with(HubConfig {
        max_queues,
        ..HubConfig::default()
    })
}

#[test]
fn a_batch_with_one_bad_event_makes_no_queue() {
    let hub = hub();
    let bad = Notification {
        delay: Duration::from_secs(15 * 24 * 3600),
        ..notification("bad")
    };
    let refused = hub.notify(
        &Arc::from("tests"),
        &[notification("good"), bad],
        Tick::default(),
    );
    assert_eq!(refused.expect_err("too long").kind(), ErrorKind::Invalid);
    assert_eq!(hub.stats().queues, 0);
}

#[test]
fn a_publishers_name_that_would_not_fit_into_a_wake_is_refused() {
    let hub = hub();
    let long: Arc<str> = "x".repeat(40_000).into();
    let refused = hub.notify(&long, &[notification("orders")], Tick::default());
    assert_eq!(refused.expect_err("too long").kind(), ErrorKind::Invalid);
}

#[test]
fn a_subscription_that_would_make_one_queue_too_many_is_refused() {
    let hub = small_hub(2);
    let mut rng = fastrand::Rng::with_seed(1);
    let options = options(&["a", "b", "c"]);
    let refused = hub.subscribe(SubscriptionId(1), &options, Tick::default(), &mut rng);
    assert_eq!(refused.expect_err("full").kind(), ErrorKind::Exhausted);
    assert_eq!((hub.stats().queues, hub.stats().subscriptions), (0, 0));
}

#[test]
fn positions_make_no_more_queues_than_there_is_room_for() {
    let hub = small_hub(2);
    let token = Token::default();
    let positions = [("a", &token), ("b", &token), ("c", &token)];
    let subscription = subscribe_with(&hub, &resuming(&["*"], &positions), Tick::default());
    assert_eq!(hub.stats().queues, 2);
    let told = entries(&drain(&subscription, Tick::default()));
    let expected = ["*", "a", "b"].map(|name| entry(name, WakeReason::CatchUp, 0));
    assert_eq!(told, expected, "the pattern's own covers the rest");
}

#[test]
fn a_batch_with_one_queue_too_many_counts_nothing() {
    let hub = small_hub(2);
    let subscription = settled(&hub, &["a"]);
    let batch = ["a", "b", "c"].map(notification);
    let refused = hub.notify(&Arc::from("tests"), &batch, Tick::default());
    let error = refused.expect_err("full");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.message().contains("limit of 2 queues"), "{error}");
    assert_eq!(drain(&subscription, Tick::default()), []);
    assert_eq!(hub.stats().notified, 0);
    assert_eq!(notify(&hub, "b").sequence, 1, "the known ones go on");
}

#[test]
fn no_selector_and_too_many_of_them_are_refused() {
    let hub = hub();
    let mut rng = fastrand::Rng::with_seed(1);
    let many = vec!["a"; crate::types::Limits::SELECTORS + 1];
    for (selectors, kind) in [(vec![], ErrorKind::Invalid), (many, ErrorKind::Exhausted)] {
        let options = options(&selectors);
        let refused = hub.subscribe(SubscriptionId(1), &options, Tick::default(), &mut rng);
        assert_eq!(refused.expect_err("refused").kind(), kind);
    }
    assert_eq!(hub.stats(), super::super::HubStats::default());
}

#[test]
fn a_refused_request_leaves_no_queue_behind() {
    let hub = small_hub(3);
    let _known = settled(&hub, &["known"]);
    let batch = ["known", "a", "b", "c"].map(notification);
    let refused = hub.notify(&Arc::from("tests"), &batch, Tick::default());
    assert_eq!(refused.expect_err("full").kind(), ErrorKind::Exhausted);
    assert_eq!(hub.stats().queues, 1);
}

#[test]
fn the_longest_idle_queue_without_listeners_gives_way_to_a_new_one() {
    let hub = small_hub(4);
    let _listened = settled(&hub, &["listened"]);
    let delayed = Notification {
        delay: HOUR,
        ..notification("delayed")
    };
    notify_with(&hub, delayed, Tick::default());
    for (second, name) in (1..).zip(["idle", "newer"]) {
        notify_with(&hub, notification(name), after(second * SECOND));
    }
    let accepted = notify_with(&hub, notification("new"), after(9 * SECOND));
    assert_eq!(accepted.sequence, 3, "above the forgotten counters");
    let views = hub.queues(None, 9, after(9 * SECOND));
    let names: Vec<_> = views.iter().map(|view| view.address.queue_name()).collect();
    assert_eq!(names, ["delayed", "listened", "new", "newer"]);
}

#[test]
fn an_idle_queue_gives_way_however_often_its_patterns_streams_come_back() {
    let hub = small_hub(2);
    notify(&hub, "a");
    notify(&hub, "b");
    let told = drain(&subscribe(&hub, &["*"]), Tick::default());
    let tokens: Vec<_> = told.iter().skip(1).map(|work| &work.token).collect();
    let options = resuming(&["*"], &[("a", tokens[0]), ("b", tokens[1])]);
    // Streams of many dashboards, each of which is renewed every half hour.
    for second in (0..=120).step_by(10) {
        let now = after(second * SECOND);
        let stream = subscribe_with(&hub, &options, now);
        assert_eq!(entries(&drain(&stream, now)).len(), 1, "the pattern's own");
        hub.unsubscribe(&stream, now);
    }
    let now = after(121 * SECOND);
    let _stream = subscribe_with(&hub, &options, now);
    notify_with(&hub, notification("c"), now);
}

#[test]
fn an_idle_queue_gives_way_however_often_its_groups_streams_come_back() {
    let hub = small_hub(2);
    notify(&hub, "a");
    notify(&hub, "b");
    let options = SubscribeOptions {
        group: Some(GroupName::new("g").expect("a name")),
        ..options(&["*"])
    };
    for second in (0..=120).step_by(10) {
        let now = after(second * SECOND);
        let member = subscribe_with(&hub, &options, now);
        while !drain(&member, now).is_empty() {
            hub.end_send(&member, now);
        }
        // The others have no new reports.
        for (name, number) in [("a", 1), ("b", 2)].into_iter().filter(|_| second == 0) {
            let said = report(name, ReportState::Drained, 1, number);
            hub.report(member.id, &said, now).expect("it listens on it");
        }
        hub.unsubscribe(&member, now);
    }
    let now = after(121 * SECOND);
    let member = subscribe_with(&hub, &options, now);
    while !drain(&member, now).is_empty() {
        hub.end_send(&member, now);
    }
    notify_with(&hub, notification("c"), now);
}

#[test]
fn a_request_takes_the_place_of_none_of_its_own_queues() {
    let request = ["a", "b"].map(notification);
    let hub = small_hub(1);
    notify(&hub, "a");
    let refused = hub.notify(&Arc::from("tests"), &request, Tick::default());
    assert_eq!(refused.expect_err("full").kind(), ErrorKind::Exhausted);
    let hub = small_hub(2);
    notify(&hub, "a");
    notify(&hub, "idle");
    hub.notify(&Arc::from("tests"), &request, Tick::default())
        .expect("the other one gives way");
    assert_eq!(hub.stats().queues, 2);
    notify(&hub, "idle");
    let _both = subscribe(&hub, &["idle", "new"]);
    assert_eq!(hub.stats().queues, 2);
}

#[test]
fn a_full_table_of_queues_that_are_needed_refuses_and_is_not_searched_each_time() {
    let hub = small_hub(2);
    let _listened = settled(&hub, &["a", "b"]);
    for _ in 0..2 {
        let refused = hub.notify(&Arc::from("tests"), &[notification("c")], Tick::default());
        assert_eq!(refused.expect_err("full").kind(), ErrorKind::Exhausted);
    }
    assert_eq!(hub.stats().queues, 2);
}

#[test]
fn a_pattern_over_its_cursors_gets_the_rest_under_its_own_name() {
    for (per_stream, all) in [(2, 100), (100, 2)] {
        let hub = hub_with(HubConfig {
            max_cursors_per_stream: per_stream,
            max_cursors: all,
            ..HubConfig::default()
        });
        for name in ["a", "b", "c", "d"] {
            notify(&hub, name);
        }
        let subscription = settled(&hub, &["*"]);
        assert_eq!(hub.stats().cursors, 2);
        let told = |name| {
            notify(&hub, name);
            walk_all(&hub);
            entries(&drain(&subscription, Tick::default()))
        };
        assert_eq!(told("a"), [entry("a", WakeReason::Notified, 1)]);
        assert_eq!(told("d"), [entry("*", WakeReason::CatchUp, 0)]);
        assert_eq!(told("new"), [entry("*", WakeReason::CatchUp, 0)]);
        notify(&hub, "d");
        drop(hub.next_walk().expect("marked"));
        let lost = entries(&drain(&subscription, Tick::default()));
        assert_eq!(
            lost,
            [entry("*", WakeReason::CatchUp, 0)],
            "a walk that is lost"
        );
        // R8: a BUSY listener has a cursor beyond the limits, and its end sets a timer.
        let busy = report("d", ReportState::Busy, 0, 1);
        hub.report(subscription.id, &busy, Tick::default())
            .expect("known");
        assert_eq!(hub.stats().cursors, 3);
        hub.unsubscribe(&subscription, Tick::default());
        assert!(hub.stats().timers > 0);
        assert_eq!(hub.stats().cursors, 0);
        assert!(hub.fanout.overflow.is_empty());
    }
}

#[test]
fn a_queue_without_a_pattern_over_its_cursors_needs_no_fan_out() {
    let hub = hub_with(HubConfig {
        max_cursors_per_stream: 1,
        ..HubConfig::default()
    });
    for name in ["p1", "p2", "q"] {
        notify(&hub, name);
    }
    let pattern = settled(&hub, &["p*"]);
    let other = settled(&hub, &["q"]);
    assert!(!hub.fanout.overflow.is_empty());
    notify(&hub, "q");
    assert_eq!(hub.stats().fanned_out, 0);
    let told = entries(&drain(&other, Tick::default()));
    assert_eq!(told, [entry("q", WakeReason::Notified, 1)]);
    notify(&hub, "p2");
    assert_eq!(hub.stats().fanned_out, 1);
    walk_all(&hub);
    let told = entries(&drain(&pattern, Tick::default()));
    assert_eq!(told, [entry("p*", WakeReason::CatchUp, 0)]);
}

#[test]
fn many_patterns_over_their_cursors_are_marked_in_steps_also_where_a_walk_is_lost() {
    let hub = hub_with(HubConfig {
        max_cursors_per_stream: 1,
        ..HubConfig::default()
    });
    notify(&hub, "a");
    notify(&hub, "b");
    let all: Vec<_> = (0..200).map(|_| settled(&hub, &["*"])).collect();
    for is_lost in [false, true] {
        notify(&hub, "b");
        let (mut walk, mut batch) = (hub.next_walk().expect("marked"), WakeBatch::default());
        assert!(walk.step(&mut batch), "there are more");
        assert!(batch.work() <= 200, "{} for one step", batch.work());
        while !is_lost && walk.step(&mut batch) {}
        drop(walk);
        for stream in &all {
            let told = entries(&drain(stream, Tick::default()));
            assert_eq!(told, [entry("*", WakeReason::CatchUp, 0)]);
        }
    }
}

#[test]
fn a_subscription_that_names_more_queues_than_there_are_cursors_is_refused() {
    for (per_stream, all) in [(2, 100), (100, 2)] {
        let hub = hub_with(HubConfig {
            max_cursors_per_stream: per_stream,
            max_cursors: all,
            ..HubConfig::default()
        });
        let mut rng = fastrand::Rng::with_seed(1);
        let options = options(&["a", "b", "c"]);
        let refused = hub.subscribe(SubscriptionId(1), &options, Tick::default(), &mut rng);
        let error = refused.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        assert!(error.message().contains("limit of 2 subscribed"), "{error}");
        assert_eq!((hub.stats().queues, hub.stats().subscriptions), (0, 0));
    }
}

#[test]
fn more_patterns_than_a_subscription_may_have_are_refused() {
    let patterns: Vec<_> = (0..=crate::types::Limits::PATTERNS)
        .map(|number| format!("p{number}*"))
        .collect();
    let patterns: Vec<_> = patterns.iter().map(String::as_str).collect();
    let error = options(&patterns).check().expect_err("too many");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(options(&patterns[1..]).check().is_ok());
}

#[test]
fn more_delayed_wake_ups_than_the_hub_holds_are_refused_and_those_it_has_go_on() {
    let hub = hub_with(HubConfig {
        max_timers: 2,
        ..HubConfig::default()
    });
    let delayed = |name: &str, delay: Duration| Notification {
        delay,
        ..notification(name)
    };
    notify_with(&hub, delayed("a", HOUR), Tick::default());
    notify_with(&hub, delayed("a", 3 * HOUR), Tick::default());
    let batch = [notification("b"), delayed("c", HOUR)];
    let refused = hub.notify(&Arc::from("tests"), &batch, Tick::default());
    assert_eq!(refused.expect_err("full").kind(), ErrorKind::Exhausted);
    assert_eq!((hub.stats().queues, hub.stats().timers), (1, 2));
    hub.fire(after(2 * HOUR));
    assert_eq!(hub.stats().timers, 1);
    notify_with(&hub, delayed("c", HOUR), after(2 * HOUR));
}

#[test]
fn more_groups_than_a_queue_may_have_are_refused_and_those_without_members_give_way() {
    let hub = hub_with(HubConfig {
        coordinator: super::super::CoordinatorConfig {
            max_groups: 2,
            ..super::super::CoordinatorConfig::default()
        },
        ..HubConfig::default()
    });
    let of_group = |name: &str| SubscribeOptions {
        group: Some(GroupName::new(name).expect("a name")),
        ..options(&["orders"])
    };
    let first = subscribe_with(&hub, &of_group("a"), Tick::default());
    drain(&first, Tick::default());
    let _second = subscribe_with(&hub, &of_group("b"), Tick::default());
    let mut rng = fastrand::Rng::with_seed(1);
    let third = hub.subscribe(SubscriptionId(9), &of_group("c"), Tick::default(), &mut rng);
    let error = third.expect_err("too many");
    assert!(error.message().contains("limit of 2 groups"), "{error}");
    hub.unsubscribe(&first, Tick::default());
    let third = subscribe_with(&hub, &of_group("c"), Tick::default());
    assert_eq!(drain(&third, Tick::default()).len(), 1);
}

#[test]
fn a_full_table_takes_a_queue_that_was_made_before_its_turn_came() {
    let hub = small_hub(1);
    let _listened = settled(&hub, &["listened"]);
    // Over its limit, as after a race; another request has made the queue.
    let made = hub.make_entry(&queue("made"), Tick::default());
    let missing = [made.address()];
    hub.make_missing(&missing, HashSet::new, Tick::default())
        .expect("no new queue is needed");
    assert_eq!(hub.stats().queues, 2);
}

#[test]
fn queues_that_are_attached_in_steps_count_from_the_request_on() {
    let hub = small_hub(2_000);
    let (mut rng, mut all) = (fastrand::Rng::with_seed(1), Vec::new());
    for stream in 0..3_u128 {
        let names: Vec<_> = (0..1_400).map(|n| format!("s{stream}q{n}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let id = SubscriptionId(900 + stream);
        all.extend(hub.subscribe(id, &options(&names), Tick::default(), &mut rng));
    }
    for one in &all {
        while !hub.attach_some(one, Tick::default()) {}
    }
    assert_eq!(all.len(), 1);
    assert!(hub.stats().queues <= 2_000, "{}", hub.stats().queues);
}

#[test]
fn timers_of_reports_leave_publishers_their_room() {
    let hub = hub_with(HubConfig {
        max_timers: 2,
        ..HubConfig::default()
    });
    let listener = settled(&hub, &["*"]);
    for n in 0..100 {
        let far = Report {
            visible_in: Some(HOUR * 336),
            ..Report::new(queue(&format!("q{n}")))
        };
        _ = hub.report(listener.id, &far, Tick::default());
    }
    let delayed = Notification {
        delay: SECOND,
        ..notification("orders")
    };
    assert!(
        hub.notify(&Arc::from("tests"), &[delayed], Tick::default())
            .is_ok()
    );
}

#[test]
fn a_search_for_room_visits_a_bounded_number_of_listeners() {
    let names: Vec<_> = (0..400).map(|n| format!("a{n}")).collect();
    let hub = small_hub(names.len());
    let notify_all = || {
        for name in &names {
            notify_with(&hub, notification(name), after(HOUR));
        }
        walk_all(&hub);
    };
    notify_all();
    let streams: Vec<_> = (0..100).map(|_| settled(&hub, &["a*"])).collect();
    let new = |now| hub.notify(&Arc::from("tests"), &[notification("new")], now);
    let looked = || hub.metrics.holders.load(Ordering::Relaxed);
    new(after(HOUR + 59 * SECOND)).expect_err("none was idle for long enough");
    assert_eq!(looked(), 0, "their age is compared first");
    notify_all();
    new(after(HOUR + 100 * SECOND)).expect_err("all streams are owed something");
    assert!((1..=4096).contains(&looked()), "{}", looked());
    for stream in &streams {
        drain(stream, after(HOUR));
    }
    new(after(HOUR + 101 * SECOND)).expect("one gives way");
    assert!(looked() <= 2 * 4096, "{}", looked());
}

fn visible_in(name: &str, delay: Duration) -> Report {
    Report {
        visible_in: Some(delay),
        ..Report::new(queue(name))
    }
}

#[test]
fn above_their_limit_reported_times_are_kept_on_queues_that_publishers_notified() {
    let hub = hub_with(HubConfig {
        max_timers: 2,
        ..HubConfig::default()
    });
    let listener = settled(&hub, &["*"]);
    notify(&hub, "orders");
    let mut refused = 0;
    for n in 0..4 {
        let report = |delay| visible_in(&format!("q{n}"), delay);
        // A report without a time makes the queue's entry, but does not mark it as notified.
        for report in [report(Duration::ZERO), report(HOUR)] {
            match hub.report(listener.id, &report, Tick::default()) {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Exhausted);
                    assert!(error.message().starts_with("visible_in: "), "{error}");
                    refused += 1;
                }
            }
        }
    }
    assert_eq!((refused, hub.stats().timers), (2, 2));
    // Some hundred times on a notified queue: few timers, none early, none lost.
    let delays: Vec<_> = (0..20).map(|n| SECOND * (1 << n)).collect();
    for delay in &delays {
        hub.report(listener.id, &visible_in("orders", *delay), Tick::default())
            .expect("merged");
    }
    assert_eq!(hub.stats().timers, 2 + super::super::timers::FEW as u64);
    drain(&listener, Tick::default());
    let (mut now, mut waits) = (Tick::default(), delays.into_iter().peekable());
    while let Some(due) = hub.next_timer() {
        now = due;
        hub.fire(now);
        let told = entries(&drain(&listener, now));
        if told.iter().any(|(name, ..)| name == "orders") {
            let late = |delay: Duration| now.since(Tick::default()) > 8 * delay;
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
    let hub = hub_with(HubConfig {
        max_timers: 4,
        ..HubConfig::default()
    });
    let listener = settled(&hub, &["orders"]);
    let delayed = Notification {
        delay: 100 * SECOND,
        ..notification("orders")
    };
    notify_with(&hub, delayed, Tick::default());
    // Of all of them the publisher's is the closest to the next.
    for seconds in [1, 2, 4, 8, 16, 32, 64, 110, 220, 440, 880, 1760] {
        let report = visible_in("orders", SECOND * seconds);
        hub.report(listener.id, &report, Tick::default())
            .expect("it is named");
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

#[test]
fn busy_listeners_have_a_bounded_number_of_cursors_on_queues_that_no_publisher_notified() {
    let hub = hub_with(HubConfig {
        max_cursors: 2,
        ..HubConfig::default()
    });
    let listener = settled(&hub, &["*"]);
    notify(&hub, "orders");
    let busy = |name: &str| {
        let report = report(name, ReportState::Busy, 0, 1);
        hub.report(listener.id, &report, Tick::default())
    };
    let refused = (0..10).filter(|n| busy(&format!("q{n}")).is_err()).count();
    assert_eq!((refused, hub.stats().cursors), (7, 4));
    let error = busy("q9").expect_err("full");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.message().starts_with("state: "), "{error}");
    busy("q0").expect("it has a cursor");
    assert_eq!(hub.stats().queues, 4, "a refused report makes no entry");
    notify(&hub, "q9");
    busy("q9").expect("it was notified");
    hub.unsubscribe(&listener, Tick::default());
    assert_eq!((hub.stats().cursors, hub.stats().timers), (0, 4));
}

#[test]
fn a_stream_that_ends_before_all_its_queues_are_attached_gives_their_places_back() {
    let hub = hub_with(HubConfig {
        max_queues: 1_000,
        max_cursors: 1_000,
        ..HubConfig::default()
    });
    let names: Vec<_> = (0..1_000).map(|n| format!("q{n}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut open = |id| {
        hub.subscribe(
            SubscriptionId(id),
            &options(&names),
            Tick::default(),
            &mut rng,
        )
    };
    let first = open(900).expect("room");
    assert_eq!((hub.stats().queues, hub.stats().cursors), (1_000, 1_000));
    hub.forget(after(2 * HOUR));
    assert_eq!(hub.stats().queues, 1_000, "all are kept for their cursors");
    assert_eq!(open(901).expect_err("full").kind(), ErrorKind::Exhausted);
    hub.unsubscribe(&first, after(2 * HOUR));
    while hub.detach_some(after(2 * HOUR)) {}
    assert_eq!(hub.stats().cursors, 0);
    hub.forget(after(4 * HOUR));
    assert_eq!(hub.stats().queues, 0);
    let second = open(902).expect("room");
    while !hub.attach_some(&second, Tick::default()) {}
    assert_eq!((hub.stats().queues, hub.stats().cursors), (1_000, 1_000));
}

#[test]
fn patterns_leave_a_quarter_of_all_cursors_to_queues_that_are_named() {
    let hub = hub_with(HubConfig {
        max_cursors: 8,
        ..HubConfig::default()
    });
    for n in 0..20 {
        notify(&hub, &format!("q{n}"));
    }
    let _wide = [settled(&hub, &["*"]), settled(&hub, &["q*"])];
    assert_eq!(hub.stats().cursors, 6);
    assert!(
        hub.full(Tick::default()).is_empty(),
        "named queues have room"
    );
    let named = settled(&hub, &["q19", "new"]);
    assert_eq!(hub.full(Tick::default()).len(), 1);
    notify(&hub, "q19");
    walk_all(&hub);
    let told = entries(&drain(&named, Tick::default()));
    assert_eq!(told, [entry("q19", WakeReason::Notified, 1)]);
}

#[test]
fn positions_that_a_pattern_matches_leave_named_queues_their_cursors() {
    for (per_stream, all) in [(3, 100), (100, 3)] {
        let hub = hub_with(HubConfig {
            max_queues: 3,
            max_cursors_per_stream: per_stream,
            max_cursors: all,
            ..HubConfig::default()
        });
        let token = Token::default();
        let positions = [("p1", &token), ("p2", &token), ("n1", &token)];
        let options = resuming(&["p*", "n1", "n2"], &positions);
        let listener = subscribe_with(&hub, &options, Tick::default());
        assert_eq!((hub.stats().queues, hub.stats().cursors), (3, 3));
        let told = entries(&drain(&listener, Tick::default()));
        let expected = ["n1", "n2", "p*", "p1"];
        let expected = expected.map(|name| entry(name, WakeReason::CatchUp, 0));
        assert_eq!(told, expected);
    }
    let hub = hub_with(HubConfig {
        max_cursors_per_stream: 3,
        ..HubConfig::default()
    });
    let token = Token::default();
    let positions = [("p1", &token), ("p2", &token)];
    subscribe_with(
        &hub,
        &resuming(&["p*", "n1", "n2"], &positions),
        Tick::default(),
    );
    assert_eq!((hub.stats().queues, hub.stats().cursors), (4, 3));
}

#[test]
fn a_member_whose_group_finds_no_room_is_woken_as_a_subscriber() {
    let hub = hub_with(HubConfig {
        coordinator: super::super::CoordinatorConfig {
            max_groups: 2,
            ..super::super::CoordinatorConfig::default()
        },
        ..HubConfig::default()
    });
    let mut rng = fastrand::Rng::with_seed(1);
    let mut of_group = |id: u128| {
        let own = (0..599).map(|n| format!("q{id}-{n}"));
        let names: Vec<_> = own.chain(["shared".to_owned()]).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let options = SubscribeOptions {
            group: Some(GroupName::new(&format!("g{id}")).expect("a name")),
            ..options(&names)
        };
        hub.subscribe(SubscriptionId(id), &options, Tick::default(), &mut rng)
            .expect("the shared queue has no group yet")
    };
    let all: Vec<_> = (901..904).map(&mut of_group).collect();
    for one in &all {
        while !hub.attach_some(one, Tick::default()) {}
    }
    let shared = hub.entries.get(&queue("shared")).expect("known");
    let groups = shared.lock().coordinator.as_ref().map(|all| all.groups());
    assert_eq!(groups, Some(2));
    let told = |reason, count| {
        let told = entries(&drain(&all[2], Tick::default()));
        assert!(told.contains(&entry("shared", reason, count)), "{told:?}");
    };
    told(WakeReason::CatchUp, 0);
    notify(&hub, "shared");
    told(WakeReason::Notified, 1);
}
