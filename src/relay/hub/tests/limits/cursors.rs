//! Limits of cursors: patterns over them, and the cursors of busy listeners.

use super::{super::super::cursor::Cursors, *};

/// A hub with limits of the cursors of a stream, and of all cursors.
fn with_cursors(per_stream: usize, all: usize) -> Arc<Hub> {
    hub_where(|config| {
        config.max_cursors_per_stream = per_stream;
        config.max_cursors = all;
    })
}

#[test]
fn a_pattern_over_its_cursors_gets_the_rest_under_its_own_name() {
    for (per_stream, all) in [(2, 100), (100, 2)] {
        let hub = with_cursors(per_stream, all);
        send(&hub, &["a", "b", "c", "d"]).expect("room");
        let subscription = settled(&hub, &["*"]);
        assert_eq!(hub.stats().cursors, 2);
        let own = entry("*", CatchUp, 0);
        for (name, expected) in [
            ("a", entry("a", Notified, 1)),
            ("d", own.clone()),
            ("new", own.clone()),
        ] {
            notify(&hub, name);
            walk_all(&hub);
            assert_eq!(told(&subscription), [expected], "{name}");
        }
        // R8: a BUSY listener has a cursor beyond the limits, and its end sets a timer.
        let busy = report("d", ReportState::Busy, 0, 1);
        say(&hub, &subscription, &busy, START);
        assert_eq!(hub.stats().cursors, 3);
        hub.unsubscribe(&subscription, START);
        assert!(hub.stats().timers > 0);
        assert_eq!(hub.stats().cursors, 0);
    }
}

#[test]
fn many_patterns_over_their_cursors_are_marked_in_steps_also_where_a_walk_is_lost() {
    let hub = hub_where(|config| config.max_cursors_per_stream = 1);
    send(&hub, &["a", "b"]).expect("room");
    let all: Vec<_> = (0..200).map(|_| settled(&hub, &["*"])).collect();
    for is_lost in [false, true] {
        notify(&hub, "b");
        let (mut walk, mut batch) = (hub.fanout.pop().expect("marked"), WakeBatch::default());
        assert!(walk.step(&mut batch), "there are more");
        assert!(batch.work <= 200, "{} for one step", batch.work);
        while !is_lost && walk.step(&mut batch) {}
        drop(walk);
        for stream in &all {
            assert_eq!(told(stream), [entry("*", CatchUp, 0)]);
        }
    }
}

#[test]
fn a_subscription_that_names_more_queues_than_there_are_cursors_is_refused() {
    for (per_stream, all) in [(2, 100), (100, 2)] {
        let hub = with_cursors(per_stream, all);
        let error = exhausted(open(&hub, 1, &options(&["a", "b", "c"])));
        assert!(error.message().contains("limit of 2 subscribed"), "{error}");
        assert_eq!((hub.stats().queues, hub.stats().subscriptions), (0, 0));
    }
}

#[test]
fn busy_listeners_have_a_bounded_number_of_cursors_on_queues_that_no_publisher_notified() {
    let hub = hub_where(|config| config.max_cursors = 2);
    let listener = settled(&hub, &["*"]);
    notify(&hub, "orders");
    let busy = |name: &str| {
        let report = report(name, ReportState::Busy, 0, 1);
        hub.report(listener.id, &report, START)
    };
    let refused = (0..10).filter(|n| busy(&format!("q{n}")).is_err()).count();
    assert_eq!((refused, hub.stats().cursors), (7, 4));
    let error = exhausted(busy("q9"));
    assert!(error.message().starts_with("state: "), "{error}");
    busy("q0").expect("it has a cursor");
    assert_eq!(hub.stats().queues, 4, "a refused report makes no entry");
    notify(&hub, "q9");
    busy("q9").expect("it was notified");
    hub.unsubscribe(&listener, START);
    assert_eq!((hub.stats().cursors, hub.stats().timers), (0, 4));
}

#[test]
fn a_stream_that_ends_before_all_its_queues_are_attached_gives_their_places_back() {
    let hub = hub_where(|config| (config.max_queues, config.max_cursors) = (1_000, 1_000));
    let options = options(&numbered("q", 1_000));
    let first = open(&hub, 900, &options).expect("room");
    assert_eq!((hub.stats().queues, hub.stats().cursors), (1_000, 1_000));
    hub.forget(after(2 * HOUR));
    assert_eq!(hub.stats().queues, 1_000, "all are kept for their cursors");
    exhausted(open(&hub, 901, &options));
    hub.unsubscribe(&first, after(2 * HOUR));
    while hub.detach_some(after(2 * HOUR)) {}
    assert_eq!(hub.stats().cursors, 0);
    hub.forget(after(4 * HOUR));
    assert_eq!(hub.stats().queues, 0);
    attach(&hub, &[open(&hub, 902, &options).expect("room")]);
    assert_eq!((hub.stats().queues, hub.stats().cursors), (1_000, 1_000));
}

#[test]
fn patterns_leave_a_quarter_of_all_cursors_to_queues_that_are_named() {
    let hub = hub_where(|config| config.max_cursors = 8);
    for name in numbered("q", 20) {
        notify(&hub, &name);
    }
    let _wide = [settled(&hub, &["*"]), settled(&hub, &["q*"])];
    assert_eq!(hub.stats().cursors, 6);
    assert!(
        hub.limits(START).iter().all(|one| !one.is_full),
        "named queues have room"
    );
    let named = settled(&hub, &["q19", "new"]);
    assert_eq!(
        hub.limits(START).iter().filter(|one| one.is_full).count(),
        1
    );
    notify(&hub, "q19");
    walk_all(&hub);
    assert_eq!(told(&named), [entry("q19", Notified, 1)]);
}

#[test]
fn queues_that_a_pattern_matches_leave_named_queues_their_cursors() {
    for (per_stream, all) in [(3, 100), (100, 3)] {
        let hub = with_cursors(per_stream, all);
        ["p1", "p2"].iter().for_each(|name| _ = notify(&hub, name));
        let listener = subscribe(&hub, &["p*", "n1", "n2"]);
        assert_eq!((hub.stats().queues, hub.stats().cursors), (4, 3));
        let expected = ["n1", "n2", "p*", "p1"].map(|name| entry(name, CatchUp, 0));
        assert_eq!(told(&listener), expected);
    }
}

/// Subscriptions of one pool share its limit, also while the hub has room.
#[test]
fn a_pool_limits_the_cursors_of_its_subscriptions() {
    let hub = with_cursors(100, 100);
    let pool = Arc::new(CursorPool::new(3));
    let subscribe = |id, names: &[&str]| {
        let options = options(names);
        hub.subscribe_in(Some(Arc::clone(&pool)), SubscriptionId(id), &options, START)
    };
    let first = subscribe(1, &["a", "b"]).expect("room");
    let Err(error) = subscribe(2, &["c", "d"]) else {
        panic!("four of three");
    };
    assert!(
        error
            .message()
            .contains("the limit of 3 subscribed queues of a principal"),
        "{error}"
    );
    assert_eq!(
        (pool.taken(), hub.stats().cursors),
        (2, 2),
        "nothing was taken"
    );
    // A pattern has the rest, and is told of others under its own name.
    let pattern = subscribe(3, &["*"]).expect("a pattern needs none");
    send(&hub, &["x", "y"]).expect("room");
    assert_eq!(pool.taken(), 3);
    hub.unsubscribe(&pattern, START);
    hub.unsubscribe(&first, START);
    assert_eq!((pool.taken(), hub.stats().cursors), (0, 0));
    // The hub's own limit gives the pool its cursors back.
    let small = with_cursors(100, 1);
    let options = options(&["a", "b"]);
    let refused = small.subscribe_in(Some(Arc::clone(&pool)), SubscriptionId(4), &options, START);
    assert!(refused.is_err());
    assert_eq!(pool.taken(), 0);
}

/// Short of memory the hub takes on nothing new, and what it knows goes on.
#[test]
fn a_hub_short_of_memory_counts_known_queues_only() {
    let hub = with_cursors(100, 100);
    send(&hub, &["a"]).expect("room");
    let named = settled(&hub, &["a"]);
    let pattern = settled(&hub, &["*"]);
    hub.set_short_of_memory(true);
    assert!(send(&hub, &["new"]).is_err(), "no idle queue gives way");
    send(&hub, &["a"]).expect("known");
    assert_eq!(told(&named), [entry("a", Notified, 1)]);
    assert_eq!(told(&pattern), [entry("a", Notified, 1)]);
    hub.set_short_of_memory(false);
    send(&hub, &["new"]).expect("room again");
    assert_eq!(told(&pattern), [entry("new", Notified, 1)]);
}

#[test]
fn a_cursor_is_found_after_others_were_removed() {
    let hub = hub();
    let names = numbered("q", 6);
    let entry_of = |name: &String| hub.entry(&queue(name), START).expect("room");
    let entries: Vec<_> = names.iter().map(entry_of).collect();
    let mut cursors = Cursors::default();
    entries.iter().for_each(|entry| _ = cursors.push(entry));
    for removed in [5, 1, 0] {
        let number = entries[removed].number();
        assert!(cursors.remove(number).is_some());
        assert!(cursors.remove(number).is_none() && cursors.get(number).is_none());
    }
    // Twice in their order, then in the opposite one.
    for kept in [2, 3, 4, 2, 3, 4, 4, 3, 2] {
        let number = entries[kept].number();
        let (found, _) = cursors.get_mut(number).expect("it was kept");
        assert!(Arc::ptr_eq(found, &entries[kept]));
        assert!(cursors.get(number).is_some());
    }
    assert_eq!(cursors.all().len(), 3);
    let left = std::iter::from_fn(|| cursors.pop()).count();
    assert_eq!((left, cursors.len()), (3, 0));
    assert!(
        entries
            .iter()
            .all(|entry| cursors.get(entry.number()).is_none())
    );
}
