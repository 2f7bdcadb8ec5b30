//! Registration (R4: register first, then take the snapshot), marks and wakers (R5: clear the mark,
//! then read), heartbeats (R6: a heartbeat proves that nothing is pending).

use super::*;

/// Two subscribers of `slow`: with `inline: 1` it is left to a fan-out that never runs. `busy` has
/// one, which is woken at once.
fn with_a_dead_fanout() -> Arc<Hub> {
    let hub = hub_with(HubConfig {
        inline: 1,
        ..HubConfig::default()
    });
    settled(&hub, &["slow"]);
    hub
}

#[test]
fn a_parked_pattern_subscriber_is_woken_for_a_queue_that_comes_later() {
    let (hub, (alarm, waker)) = (hub(), Alarm::new());
    let mut feed = feed(&hub, &options(&["ord*"]));
    sent(&mut feed, Tick::default(), &waker);
    notify(&hub, "orders");
    assert_eq!(alarm.rung(), 1);
    let (events, _) = sent(&mut feed, Tick::default(), &waker);
    assert_eq!(woken(&events), [entry("orders", WakeReason::Notified, 1)]);
}

#[test]
fn catch_ups_that_are_spread_come_at_their_time_and_not_with_the_heartbeat() {
    let (hub, (_, waker)) = (hub(), Alarm::new());
    let foreign = super::super::counters::Counters::starting_at(1).token(Epoch(8));
    let mut feed = feed(&hub, &resuming(&["a", "b"], &[("a", &foreign)]));
    let (events, until) = sent(&mut feed, Tick::default(), &waker);
    assert_eq!(woken(&events), []);
    assert!(until > Tick::default() && until <= after(2 * SECOND));
    let (events, _) = sent(&mut feed, until, &waker);
    let both = [("a", 0), ("b", 0)].map(|(name, count)| entry(name, WakeReason::CatchUp, count));
    assert_eq!(woken(&events), both);
}

#[test]
fn a_lost_mark_heals_within_a_heartbeat_however_busy_the_stream_is() {
    let (hub, (_, waker)) = (with_a_dead_fanout(), Alarm::new());
    let mut feed = feed(&hub, &options(&["slow", "busy"]));
    sent(&mut feed, Tick::default(), &waker);
    notify(&hub, "slow");
    let mut healed = None;
    for second in 1..=20 {
        let now = after(second * SECOND);
        notify_with(&hub, notification("busy"), now);
        let (events, _) = sent(&mut feed, now, &waker);
        if woken(&events).contains(&entry("slow", WakeReason::Notified, 1)) {
            healed.get_or_insert(second);
        }
    }
    assert_eq!(healed, Some(10));
}

#[test]
fn heartbeats_are_sent_only_where_the_stream_was_silent() {
    let (hub, (_, waker)) = (hub(), Alarm::new());
    let mut feed = feed(&hub, &options(&["busy"]));
    sent(&mut feed, Tick::default(), &waker);
    let is_heartbeat = |event: &&_| matches!(event, SubscribeEvent::Heartbeat { .. });
    let mut heartbeats = Vec::new();
    for second in 1..=60 {
        let now = after(second * SECOND);
        if second <= 33 {
            notify_with(&hub, notification("busy"), now);
        }
        let (events, wait) = sent(&mut feed, now, &waker);
        assert!(wait > now, "it sleeps");
        if events.iter().any(|event| is_heartbeat(&event)) {
            heartbeats.push(second);
        }
    }
    assert_eq!(
        heartbeats,
        [43, 53],
        "ten seconds after the last wake-up, and then every ten"
    );
}

#[test]
fn a_stream_is_woken_once_until_it_takes() {
    let (hub, (alarm, waker)) = (hub(), Alarm::new());
    let mut feed = feed(&hub, &options(&["orders"]));
    sent(&mut feed, Tick::default(), &waker);
    (0..100).for_each(|_| _ = notify(&hub, "orders"));
    assert_eq!(alarm.rung(), 1);
    sent(&mut feed, Tick::default(), &waker);
    notify(&hub, "orders");
    assert_eq!(alarm.rung(), 2);
}

#[test]
fn the_first_message_is_the_welcome_and_the_last_the_goodbye() {
    let (hub, (_, waker)) = (hub(), Alarm::new());
    let mut feed = feed(&hub, &options(&["orders"]));
    let (events, _) = sent(&mut feed, Tick::default(), &waker);
    assert!(matches!(events[0], SubscribeEvent::Welcome(_)));
    assert_eq!(woken(&events), [entry("orders", WakeReason::CatchUp, 0)]);
    let last = feed.next(Tick::default(), true, &waker);
    assert!(matches!(
        last,
        StreamAction::Send(SubscribeEvent::Goodbye(_))
    ));
    assert_eq!(feed.next(Tick::default(), true, &waker), StreamAction::End);
}

#[test]
fn a_stream_ends_by_itself_at_its_age_and_the_next_gets_its_wake_ups() {
    let (hub, (_, waker)) = (hub(), Alarm::new());
    let mut feed = feed(&hub, &options(&["orders"]));
    let (events, _) = sent(&mut feed, Tick::default(), &waker);
    let SubscribeEvent::Wake(work) = &events[1] else {
        panic!("{events:?}");
    };
    notify(&hub, "orders");
    let last = feed.next(after(2 * HOUR), false, &waker);
    let StreamAction::Send(SubscribeEvent::Goodbye(goodbye)) = last else {
        panic!("{last:?}");
    };
    assert_eq!(goodbye.reason, crate::types::GoodbyeReason::Rotation);
    feed.close(after(2 * HOUR));
    let options = resuming(&["orders"], &[("orders", &work[0].token)]);
    let back = subscribe_with(&hub, &options, after(2 * HOUR));
    let told = entries(&drain(&back, after(2 * HOUR)));
    assert_eq!(told, [entry("orders", WakeReason::Notified, 1)]);
}

#[test]
fn a_heartbeat_is_sent_only_when_nothing_is_owed_and_a_lost_mark_heals_instead() {
    let (hub, (alarm, waker)) = (with_a_dead_fanout(), Alarm::new());
    let mut feed = feed(&hub, &options(&["slow"]));
    let (_, until) = sent(&mut feed, Tick::default(), &waker);
    assert_eq!(until, after(10 * SECOND));
    let (events, _) = sent(&mut feed, until, &waker);
    assert!(
        matches!(events[..], [SubscribeEvent::Heartbeat { .. }]),
        "{events:?}"
    );
    notify(&hub, "slow");
    assert_eq!(alarm.rung(), 0, "its mark is lost");
    let (events, until) = sent(&mut feed, after(20 * SECOND), &waker);
    assert_eq!(woken(&events), [entry("slow", WakeReason::Notified, 1)]);
    assert_eq!(events.len(), 1, "the stream was not silent");
    assert_eq!(until, after(30 * SECOND));
}

#[test]
fn many_subscribers_are_left_to_the_fan_out_once() {
    let (hub, (alarm, waker)) = (hub(), Alarm::new());
    hub.fanout_waker().register(&waker);
    let subscriptions: Vec<_> = (0..200).map(|_| settled(&hub, &["orders"])).collect();
    (0..10).for_each(|_| _ = notify(&hub, "orders"));
    assert_eq!((alarm.rung(), hub.stats().fanned_out), (1, 1));
    assert!(
        subscriptions
            .iter()
            .all(|one| take(one, Tick::default()).is_none())
    );
    let mut walk = hub.next_walk().expect("marked");
    let mut batch = WakeBatch::default();
    assert!(walk.step(&mut batch), "in steps");
    notify(&hub, "orders");
    while walk.step(&mut batch) {}
    assert!(hub.next_walk().is_some(), "notified during the walk");
    for subscription in &subscriptions {
        let told = entries(&drain(subscription, Tick::default()));
        assert_eq!(told, [entry("orders", WakeReason::Notified, 11)]);
    }
}

#[test]
fn a_wake_up_of_the_fan_out_has_waited_since_its_first_notification() {
    let hub = hub();
    let subscriptions: Vec<_> = (0..200).map(|_| settled(&hub, &["orders"])).collect();
    for seconds in [1, 2, 3] {
        notify_with(&hub, notification("orders"), after(SECOND * seconds));
    }
    walk_all(&hub);
    for subscription in &subscriptions {
        let mut sink = WakeBuilder::new(subscription.fault);
        let filled = subscription.fill(after(SECOND * 9), &mut sink);
        assert_eq!(filled.accepted_at, Some(after(SECOND)));
    }
}

#[test]
fn a_subscriber_that_joins_or_leaves_during_a_walk_disturbs_no_other() {
    let hub = hub();
    let mut subscriptions: Vec<_> = (0..200).map(|_| settled(&hub, &["orders"])).collect();
    notify(&hub, "orders");
    let (mut walk, mut batch) = (hub.next_walk().expect("marked"), WakeBatch::default());
    walk.step(&mut batch);
    for gone in subscriptions.drain(10..60) {
        hub.unsubscribe(&gone, Tick::default());
    }
    let new = settled(&hub, &["orders"]);
    while walk.step(&mut batch) {}
    for subscription in &subscriptions {
        assert_eq!(drain(subscription, Tick::default()).len(), 1);
    }
    assert_eq!(drain(&new, Tick::default()), []);
    notify(&hub, "orders");
    walk_all(&hub);
    assert_eq!(drain(&new, Tick::default()).len(), 1);
}

#[test]
fn a_stream_is_throttled_after_a_large_wake_and_gets_the_rest_after_it() {
    let (hub, (alarm, waker)) = (hub(), Alarm::new());
    let mut feed = feed(&hub, &options(&["hot"]));
    sent(&mut feed, Tick::default(), &waker);
    (0..16).for_each(|_| _ = notify(&hub, "hot"));
    let (events, _) = sent(&mut feed, Tick::default(), &waker);
    assert_eq!(woken(&events), [entry("hot", WakeReason::Notified, 16)]);
    notify(&hub, "hot");
    assert_eq!(alarm.rung(), 2);
    let (events, until) = sent(&mut feed, after(Duration::from_millis(4)), &waker);
    assert_eq!(
        (woken(&events), until),
        (vec![], after(Duration::from_millis(5)))
    );
    notify(&hub, "hot");
    assert_eq!(alarm.rung(), 2, "it knows already");
    let (events, _) = sent(&mut feed, until, &waker);
    assert_eq!(woken(&events), [entry("hot", WakeReason::Notified, 2)]);
    notify(&hub, "hot");
    let (events, _) = sent(&mut feed, until, &waker);
    assert_eq!(
        woken(&events),
        [entry("hot", WakeReason::Notified, 1)],
        "few, and at once"
    );
}

#[test]
fn a_wake_with_little_for_one_of_its_queues_does_not_throttle() {
    let (hub, (_, waker)) = (hub(), Alarm::new());
    let mut feed = feed(&hub, &options(&["hot", "calm"]));
    sent(&mut feed, Tick::default(), &waker);
    (0..100).for_each(|_| _ = notify(&hub, "hot"));
    notify(&hub, "calm");
    sent(&mut feed, Tick::default(), &waker);
    notify(&hub, "calm");
    let (events, _) = sent(&mut feed, Tick::default(), &waker);
    assert_eq!(woken(&events), [entry("calm", WakeReason::Notified, 1)]);
}

#[test]
fn a_stream_with_entries_left_is_not_throttled() {
    let (hub, (_, waker)) = (hub(), Alarm::new());
    let names: Vec<String> = (0..300).map(|number| format!("queue-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut feed = feed(&hub, &options(&names));
    sent(&mut feed, Tick::default(), &waker);
    for name in names {
        (0..16).for_each(|_| _ = notify(&hub, name));
    }
    let (events, until) = sent(&mut feed, Tick::default(), &waker);
    assert!(events.len() > 1, "one wake has no room for all");
    assert_eq!(woken(&events).len(), 300);
    assert_eq!(until, after(Duration::from_millis(5)), "now it rests");
}

#[test]
fn a_stream_without_a_pause_compares_its_cursors_once_a_heartbeat_all_the_same() {
    let (hub, (_, waker)) = (with_a_dead_fanout(), Alarm::new());
    let mut feed = feed(&hub, &options(&["slow", "hot"]));
    sent(&mut feed, Tick::default(), &waker);
    let mut compared = 0;
    // 35 seconds; an event in `slow` marks no stream, and only a comparison finds it.
    for step in 1..=7_000 {
        let now = after(step * Duration::from_millis(5));
        notify_with(&hub, notification("slow"), now);
        (0..16).for_each(|_| _ = notify_with(&hub, notification("hot"), now));
        let (events, _) = sent(&mut feed, now, &waker);
        compared += usize::from(woken(&events).iter().any(|(name, ..)| name == "slow"));
    }
    assert_eq!(compared, 3);
}

#[test]
fn a_request_for_many_queues_wakes_each_stream_once_for_one_wake() {
    for inline in [64, 0] {
        let hub = hub_with(HubConfig {
            inline,
            ..HubConfig::default()
        });
        let names: Vec<_> = (0..100).map(|number| format!("q{number}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let mut streams: Vec<_> = (0..3)
            .map(|_| {
                let (alarm, waker) = Alarm::new();
                let mut feed = feed(&hub, &options(&names));
                sent(&mut feed, Tick::default(), &waker);
                (alarm, waker, feed)
            })
            .collect();
        let batch: Vec<_> = names.iter().map(|name| notification(name)).collect();
        for round in 1..=3 {
            let accepted = hub.notify(&Arc::from("tests"), &batch, Tick::default());
            assert_eq!(accepted.expect("accepted")[0].listeners, 3);
            let mut walks = WakeBatch::default();
            while let Some(mut walk) = hub.next_walk() {
                while walk.step(&mut walks) {}
            }
            walks.wake();
            for (alarm, waker, feed) in &mut streams {
                assert_eq!(alarm.rung(), round);
                let (events, _) = sent(feed, Tick::default(), waker);
                let [SubscribeEvent::Wake(work)] = &events[..] else {
                    panic!("{events:?}");
                };
                assert_eq!(work.len(), 100);
            }
        }
    }
}

#[test]
fn a_batch_that_is_dropped_wakes_its_streams() {
    let hub = hub_with(HubConfig {
        inline: 0,
        ..HubConfig::default()
    });
    let (alarm, waker) = Alarm::new();
    let mut feed = feed(&hub, &options(&["orders"]));
    sent(&mut feed, Tick::default(), &waker);
    notify(&hub, "orders");
    let mut batch = WakeBatch::default();
    hub.next_walk().expect("marked").step(&mut batch);
    assert_eq!(alarm.rung(), 0);
    drop(batch);
    assert_eq!(alarm.rung(), 1);
}

#[test]
fn walks_of_a_batch_that_ends_in_a_panic_are_left_to_the_fan_out() {
    let hub = hub_with(HubConfig {
        inline: 0,
        ..HubConfig::default()
    });
    let subscription = settled(&hub, &["orders", "bad"]);
    let count = |name: &str, batch: &mut WakeBatch| {
        let queue_entry = hub.entries.get(&queue(name)).expect("subscribed");
        hub.update(queue_entry, Tick::default(), batch, |state| {
            assert_eq!(name, "orders", "a panic between two queues of a request");
            state.count(&Arc::from("tests"), &notification(name), Tick::default());
            true
        });
    };
    let request = std::panic::AssertUnwindSafe(|| {
        let mut batch = WakeBatch::default();
        ["orders", "bad"]
            .iter()
            .for_each(|name| count(name, &mut batch));
    });
    std::panic::catch_unwind(request).expect_err("it panics");
    for _ in 0..2 {
        walk_all(&hub);
        let told = entries(&drain(&subscription, Tick::default()));
        assert_eq!(told, [entry("orders", WakeReason::Notified, 1)]);
        notify(&hub, "orders");
    }
}

#[test]
fn a_pattern_of_many_queues_is_attached_in_steps_and_misses_nothing_meanwhile() {
    let (hub, (_, waker)) = (hub(), Alarm::new());
    let name = |number: usize| format!("q{number:05}");
    for number in 0..6_000 {
        notify(&hub, &name(number));
    }
    let mut rng = fastrand::Rng::with_seed(1);
    let options = options(&["*"]);
    let opened = hub.subscribe(SubscriptionId(1 << 70), &options, Tick::default(), &mut rng);
    let subscription = opened.expect("accepted");
    assert!(hub.stats().cursors < 1_000, "not all at once");
    let mut told = std::collections::HashMap::new();
    let mut number = 0;
    loop {
        // Some of these are attached by then, some are not, and some are new.
        number += 1_009;
        notify(&hub, &name(number % 8_000));
        subscription.register(&waker);
        let attached = hub.attach_some(&subscription, Tick::default());
        for entry in drain(&subscription, Tick::default()) {
            told.insert(entry.queue.queue_name().to_owned(), entry.sequence);
        }
        if attached {
            break;
        }
    }
    for view in hub.queues(None, usize::MAX, Tick::default()) {
        let sequence = told.get(view.address.queue_name());
        assert_eq!(sequence, Some(&view.sequence), "{}", view.address);
    }
    for view in hub.queues(None, usize::MAX, Tick::default()) {
        let cursors = subscription.lock();
        let cursor = cursors.list.find(&view.address);
        let cursor = cursor.and_then(|at| cursors.list.get(at));
        assert_eq!(cursor.expect("attached").entry.address(), &view.address);
    }
    hub.unsubscribe(&subscription, Tick::default());
    assert!(hub.stats().cursors > 0, "detached in steps as well");
    while hub.detach_some(Tick::default()) {}
    assert_eq!(hub.stats().cursors, 0);
}

#[test]
fn a_stream_with_very_much_to_send_pauses_between_its_wakes() {
    let (hub, (_, waker)) = (hub(), Alarm::new());
    let names: Vec<_> = (0..6_000).map(|number| format!("q{number:04}")).collect();
    names.iter().for_each(|name| _ = notify(&hub, name));
    let mut feed = feed(&hub, &options(&["*"]));
    let (mut now, mut told, mut pauses) = (Tick::default(), Vec::new(), 0);
    while told.len() <= names.len() {
        let mut sink = WakeBuilder::default();
        match feed.next_into(now, false, &waker, &mut sink) {
            StreamAction::Send(StreamMessage::Wake(_)) => told.extend(entries(&sink.work)),
            StreamAction::Wait(until) => {
                assert!(told.len() > 3_000 && until <= now + Duration::from_millis(1));
                (now, pauses) = (until, pauses + 1);
            }
            StreamAction::Yield
            | StreamAction::Send(StreamMessage::Event(SubscribeEvent::Welcome(_))) => {}
            next => panic!("{next:?}"),
        }
    }
    assert!(pauses > 5, "{pauses} pauses");
    // It is not behind any more: the next notification is sent at once.
    sent(&mut feed, now, &waker);
    notify(&hub, "q0007");
    let (events, _) = sent(&mut feed, now, &waker);
    assert_eq!(woken(&events), [entry("q0007", WakeReason::Notified, 1)]);
}

#[test]
fn the_comparison_of_many_cursors_goes_in_steps_and_a_heartbeat_comes_after_all_of_them() {
    let (hub, (_, waker)) = (with_a_dead_fanout(), Alarm::new());
    let names: Vec<_> = (0..3_000).map(|number| format!("q{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut feed = feed(&hub, &options(&[&names[..], &["slow"]].concat()));
    sent(&mut feed, Tick::default(), &waker);
    // Left to a fan-out that never runs: the last of all cursors is behind without a mark.
    notify(&hub, "slow");
    let now = after(10 * SECOND);
    let (mut turns, mut events) = (0, Vec::new());
    loop {
        let mut sink = WakeBuilder::default();
        match feed.next_into(now, false, &waker, &mut sink) {
            StreamAction::Yield => turns += 1,
            StreamAction::Send(StreamMessage::Wake(_)) => events.push(entries(&sink.work)),
            // A stream of so many queues gets its resume number also where it was not silent.
            StreamAction::Send(StreamMessage::Event(SubscribeEvent::Heartbeat {
                resume, ..
            })) => {
                assert!(events.len() == 1 && !resume.is_empty(), "{events:?}");
            }
            StreamAction::Send(StreamMessage::Event(event)) => panic!("{event:?}"),
            StreamAction::Wait(_) | StreamAction::End => break,
        }
    }
    assert_eq!(events, [[entry("slow", WakeReason::Notified, 1)]]);
    assert!(turns >= 2, "{turns}");
}
