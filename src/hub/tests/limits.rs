//! What is refused, and that nothing of it is applied.

use super::*;
use crate::error::ErrorKind;

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
    let many = vec!["a"; crate::words::Limits::SELECTORS + 1];
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
    assert_eq!(accepted.sequence, 3, "above what was forgotten");
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
fn a_pattern_over_its_cursors_is_told_of_the_rest_under_its_own_name() {
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
        // What it finds by itself counts as held by it, and is woken for again when it ends (R8).
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
fn a_queue_that_no_pattern_over_its_cursors_matches_is_told_of_without_the_fan_out() {
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
fn many_patterns_over_their_cursors_are_told_in_steps_also_where_a_walk_is_lost() {
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
    let patterns: Vec<_> = (0..=crate::words::Limits::PATTERNS)
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
        pace: super::super::Pace {
            max_groups: 2,
            ..super::super::Pace::default()
        },
        ..HubConfig::default()
    });
    let of_group = |name: &str| SubscribeOptions {
        group: Some(crate::words::GroupName::new(name).expect("a name")),
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
