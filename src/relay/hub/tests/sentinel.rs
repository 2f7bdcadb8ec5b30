//! The sentinel (R11: each queue is checked once per interval, and only a report counts).

use super::{super::CoordinatorConfig, *};
use crate::types::GroupName;
use ReportState::{Busy, Drained};
use WakeReason::{CatchUp, Notified, Sentinel};

const INTERVAL: Duration = Duration::from_secs(60);

/// A hub with a sentinel.
fn guarded() -> Arc<Hub> {
    hub_with(HubConfig {
        coordinator: CoordinatorConfig {
            sentinel_interval: INTERVAL,
            ..CoordinatorConfig::default()
        },
        ..HubConfig::default()
    })
}

/// Listeners on `orders` that have polled; the first `reporting` of them have reported.
fn listeners(hub: &Arc<Hub>, count: usize, reporting: usize) -> Vec<Arc<Subscription>> {
    let all: Vec<_> = (0..count).map(|_| settled(hub, &["orders"])).collect();
    for listener in &all[..reporting] {
        say(hub, listener, Drained, Tick::default());
    }
    all
}

fn say(hub: &Hub, listener: &Subscription, state: ReportState, now: Tick) {
    say_with(hub, listener, &report("orders", state, 0, number()), now);
}

fn say_with(hub: &Hub, listener: &Subscription, report: &Report, now: Tick) {
    let said = hub.report(listener.id, report, now);
    said.expect("it listens on the queue");
}

fn number() -> u64 {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// Fires the timers second by second; returns which listeners were asked at which second.
fn asked(
    hub: &Hub,
    listeners: &[Arc<Subscription>],
    from: u64,
    to: u64,
) -> Vec<(u64, usize, WakeReason)> {
    let mut all = Vec::new();
    for second in from..=to {
        let now = after(Duration::from_secs(second));
        hub.fire(now);
        for (at, listener) in listeners.iter().enumerate() {
            let work = drain(listener, now);
            hub.end_send(listener, now);
            all.extend(work.iter().map(|entry| (second, at, entry.reason)));
        }
    }
    all
}

/// Continues until a listener is asked; returns when, which one and why.
fn first_asked(hub: &Hub, all: &[Arc<Subscription>], from: u64) -> (u64, usize, WakeReason) {
    let mut told = (from..from + 70).flat_map(|second| asked(hub, all, second, second));
    told.next().expect("a listener is asked")
}

fn by(asked: &[(u64, usize, WakeReason)]) -> Vec<usize> {
    asked.iter().map(|(_, at, _)| *at).collect()
}

#[test]
fn one_of_those_that_report_is_asked_once_an_interval_give_or_take_a_tenth() {
    let hub = guarded();
    let all = listeners(&hub, 3, 3);
    let first = first_asked(&hub, &all, 1);
    assert!(matches!(first, (54..=66, 0, Sentinel)), "{first:?}");
}

#[test]
fn an_unreported_check_goes_to_each_other_listener_in_turn() {
    let hub = guarded();
    let all = listeners(&hub, 4, 3);
    let told = asked(&hub, &all, 1, 70);
    // A listener that never reports is asked last, where none of the others reported.
    assert_eq!(by(&told), [0, 1, 2, 3]);
    let gaps: Vec<_> = told.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert_eq!(gaps, [1, 1, 1]);
}

#[test]
fn a_report_ends_the_question_and_the_next_one_has_the_next_turn() {
    let hub = guarded();
    let all = listeners(&hub, 3, 3);
    let (mut order, mut at) = (Vec::new(), 0);
    for _ in 0..4 {
        let (second, who, _) = first_asked(&hub, &all, at + 1);
        at = second;
        order.push(who);
        say(&hub, &all[who], Drained, after(Duration::from_secs(at)));
    }
    assert_eq!(order, [0, 1, 2, 0]);
}

#[test]
fn an_unrequested_poll_puts_the_check_off() {
    for state in [Busy, Drained] {
        let hub = guarded();
        let all = listeners(&hub, 1, 1);
        assert_eq!(asked(&hub, &all, 1, 50), []);
        say(&hub, &all[0], state, after(Duration::from_secs(50)));
        assert_eq!(asked(&hub, &all, 51, 103), []);
        assert_eq!(by(&asked(&hub, &all, 104, 116)), [0]);
    }
}

#[test]
fn a_report_repeated_on_a_new_stream_is_no_look() {
    let hub = guarded();
    let head = super::super::counters::Counters::starting_at(0).token(EPOCH);
    let again = |now| {
        let resumed = resuming(&["orders"], &[("orders", &head)]);
        let listener = subscribe_with(&hub, &resumed, now);
        say(&hub, &listener, Drained, now);
        listener
    };
    let stays = listeners(&hub, 1, 1);
    let mut told = Vec::new();
    for second in 1..=66 {
        let now = after(Duration::from_secs(second));
        told.extend(asked(&hub, &stays, second, second));
        let listener = again(now);
        hub.unsubscribe(&listener, now);
    }
    assert!(
        told.iter().any(|(.., reason)| *reason == Sentinel),
        "{told:?}"
    );
}

#[test]
fn a_polling_listener_is_not_asked_until_it_reports_otherwise() {
    let hub = guarded();
    let all = listeners(&hub, 2, 2);
    let polls = |tasks| Report {
        active_dequeue_tasks: tasks,
        ..report("orders", Drained, 0, number())
    };
    say_with(&hub, &all[0], &polls(1), Tick::default());
    assert!(hub.listeners(None, 10, Tick::default())[0].polling);
    assert_eq!(by(&asked(&hub, &all, 1, 70)), [1]);
    say_with(&hub, &all[0], &polls(0), after(Duration::from_secs(70)));
    assert_eq!(by(&asked(&hub, &all, 71, 139)), [0, 1]);
}

#[test]
fn a_listener_counts_as_polling_for_two_intervals() {
    let hub = guarded();
    let all = listeners(&hub, 1, 1);
    let polls = Report {
        active_dequeue_tasks: 1,
        ..report("orders", Drained, 0, number())
    };
    say_with(&hub, &all[0], &polls, Tick::default());
    assert_eq!(asked(&hub, &all, 1, 119), []);
    assert_eq!(first_asked(&hub, &all, 120).2, Sentinel);
}

#[test]
fn a_stream_with_an_unsent_message_is_not_asked() {
    let hub = guarded();
    let all = listeners(&hub, 2, 2);
    all[0].begin_send();
    let now = after(Duration::from_secs(67));
    hub.fire(now);
    assert_eq!(drain(&all[0], now), []);
    assert_eq!(drain(&all[1], now).len(), 1);
}

#[test]
fn where_every_stream_is_sending_it_asks_again_soon() {
    let hub = guarded();
    let all = listeners(&hub, 1, 1);
    all[0].begin_send();
    hub.fire(after(Duration::from_secs(67)));
    assert_eq!(drain(&all[0], after(Duration::from_secs(67))), []);
    hub.end_send(&all[0], after(Duration::from_secs(67)));
    assert_eq!(by(&asked(&hub, &all, 68, 69)), [0]);
}

#[test]
fn the_end_of_the_asked_ones_stream_asks_the_next_at_once() {
    let hub = guarded();
    let all = listeners(&hub, 2, 2);
    let second = first_asked(&hub, &all, 1).0;
    let now = after(Duration::from_secs(second));
    hub.unsubscribe(&all[0], now);
    hub.fire(now);
    assert_eq!(
        entries(&drain(&all[1], now)),
        [entry("orders", Sentinel, 0)]
    );
}

#[test]
fn a_check_that_finds_more_than_its_listeners_capacity_wakes_as_many_more() {
    let hub = guarded();
    let all = listeners(&hub, 5, 5);
    let second = first_asked(&hub, &all, 1).0;
    let deep = Report {
        current_queue_depth: 3,
        ..report("orders", Busy, 0, number())
    };
    say_with(&hub, &all[0], &deep, after(Duration::from_secs(second)));
    assert_eq!(by(&asked(&hub, &all, second, second)), [1, 2, 3]);
}

#[test]
fn a_question_is_no_cause_and_moves_no_counter() {
    let hub = guarded();
    let all = listeners(&hub, 1, 1);
    notify(&hub, "orders");
    let before = drain(&all[0], Tick::default())[0].clone();
    hub.end_send(&all[0], Tick::default());
    let now = after(Duration::from_secs(67));
    hub.fire(now);
    let look = drain(&all[0], now)[0].clone();
    assert_eq!((look.reason, look.notifications), (Sentinel, 0));
    assert_eq!(
        (look.sequence, &look.token),
        (before.sequence, &before.token)
    );
    hub.end_send(&all[0], now);
    notify_with(&hub, notification("orders"), now);
    let next = drain(&all[0], now)[0].clone();
    assert_eq!(
        (next.reason, next.notifications, next.sequence),
        (Notified, 1, 2)
    );
}

#[test]
fn with_a_group_on_the_queue_a_member_is_asked_and_without_a_report_the_next() {
    let hub = guarded();
    let outside = settled(&hub, &["orders"]);
    say(&hub, &outside, Drained, Tick::default());
    let options = SubscribeOptions {
        group: Some(GroupName::new("g").expect("a name")),
        ..options(&["orders"])
    };
    let mut all: Vec<_> = (0..2)
        .map(|_| subscribe_with(&hub, &options, Tick::default()))
        .collect();
    assert_eq!(asked(&hub, &all, 0, 0), [(0, 0, CatchUp)]);
    say(&hub, &all[0], Drained, Tick::default());
    all.push(outside);
    let told = asked(&hub, &all, 1, 70);
    assert_eq!(
        by(&told),
        [0, 1, 2],
        "the reporting listener, then the other, then the listener outside of the group"
    );
    assert!(
        told.iter().all(|(.., reason)| *reason == Sentinel),
        "{told:?}"
    );
}

#[test]
fn a_members_check_that_finds_more_wakes_members_that_were_woken_before() {
    let hub = guarded();
    let options = SubscribeOptions {
        group: Some(GroupName::new("g").expect("a name")),
        ..options(&["orders"])
    };
    let all: Vec<_> = (0..4)
        .map(|_| subscribe_with(&hub, &options, Tick::default()))
        .collect();
    asked(&hub, &all, 0, 0);
    let batch = Notification {
        messages: 4,
        ..notification("orders")
    };
    notify_with(&hub, batch, Tick::default());
    assert_eq!(asked(&hub, &all, 0, 0).len(), 4);
    for member in &all {
        let drained = report("orders", Drained, 1, number());
        say_with(&hub, member, &drained, Tick::default());
    }
    let (second, looker, reason) = first_asked(&hub, &all, 1);
    assert_eq!(reason, Sentinel);
    let deep = Report {
        current_queue_depth: 2,
        ..report("orders", Busy, 1, number())
    };
    let now = after(Duration::from_secs(second));
    say_with(&hub, &all[looker], &deep, now);
    let more = by(&asked(&hub, &all, second, second));
    assert!(more.len() == 2 && !more.contains(&looker), "{more:?}");
}

#[test]
fn a_task_that_waits_on_one_queue_keeps_no_other_from_being_looked_at() {
    let hub = guarded();
    let all = [settled(&hub, &["orders", "bills"])];
    let waits = Report {
        active_dequeue_tasks: 1,
        ..report("orders", Drained, 0, number())
    };
    say_with(&hub, &all[0], &waits, Tick::default());
    let told = asked(&hub, &all, 1, 67);
    assert_eq!(told.len(), 2, "one look at each queue: {told:?}");
}

#[test]
fn a_pattern_without_a_known_queue_is_looked_at_under_its_own_name() {
    let hub = guarded();
    let all = [(); 2].map(|()| settled(&hub, &["ord*"]));
    let told = asked(&hub, &all, 1, 67);
    assert!(matches!(told[..], [(54..=66, _, Sentinel)]), "{told:?}");
    notify(&hub, "orders");
    asked(&hub, &all, 68, 68);
    say(&hub, &all[0], Drained, after(Duration::from_secs(68)));
    let told = asked(&hub, &all, 69, 140);
    let names: Vec<_> = told.iter().map(|(.., reason)| *reason).collect();
    assert_eq!(
        names,
        [Sentinel, Sentinel],
        "the queue's own, of each in turn"
    );
}

#[test]
fn a_pattern_that_lacks_cursors_is_looked_at_under_its_own_name() {
    for known_first in [true, false] {
        let hub = hub_with(HubConfig {
            max_cursors_per_stream: 0,
            ..guarded().config.clone()
        });
        if known_first {
            notify(&hub, "orders");
        }
        let all = [settled(&hub, &["ord*"])];
        notify(&hub, "orders");
        walk_all(&hub);
        drain(&all[0], Tick::default());
        let told = asked(&hub, &all, 1, 67);
        assert!(matches!(told[..], [(54..=66, _, Sentinel)]), "{told:?}");
    }
}

#[test]
fn a_pattern_that_comes_back_is_looked_at_within_an_interval() {
    let hub = guarded();
    let gone = settled(&hub, &["ord*"]);
    hub.unsubscribe(&gone, Tick::default());
    let back = [settled(&hub, &["ord*"])];
    let (second, ..) = first_asked(&hub, &back, 1);
    assert!(second <= 67, "{second}");
}

#[test]
fn an_interval_of_zero_is_none() {
    let hub = hub();
    let all = listeners(&hub, 1, 1);
    assert_eq!(hub.next_timer(), None);
    assert_eq!(asked(&hub, &all, 1, 200), []);
}

#[test]
fn a_queue_without_listeners_is_not_checked() {
    let hub = guarded();
    let all = listeners(&hub, 1, 1);
    hub.unsubscribe(&all[0], Tick::default());
    notify(&hub, "orders");
    hub.fire(after(HOUR));
    assert_eq!(hub.next_timer(), None);
}

#[test]
fn an_asked_listener_is_taken_to_be_busy() {
    let hub = guarded();
    let all = listeners(&hub, 1, 1);
    let second = asked(&hub, &all, 1, 66)[0].0;
    let now = after(Duration::from_secs(second));
    hub.unsubscribe(&all[0], now);
    let due = hub.next_timer().expect("set");
    assert!(due >= now + Duration::from_secs(32), "{due:?}");
}

#[test]
fn a_queue_that_a_pattern_reports_first_is_looked_at_as_well() {
    let hub = guarded();
    let all = [settled(&hub, &["ord*"])];
    say(&hub, &all[0], Busy, Tick::default());
    let (_, _, reason) = first_asked(&hub, &all, 1);
    assert_eq!(reason, Sentinel);
}

#[test]
fn a_queue_that_was_left_and_forgotten_comes_up_no_more() {
    let hub = hub_with(HubConfig {
        forget_after: SECOND,
        coordinator: CoordinatorConfig {
            sentinel_interval: INTERVAL,
            ..CoordinatorConfig::default()
        },
        ..HubConfig::default()
    });
    let all = listeners(&hub, 1, 1);
    hub.unsubscribe(&all[0], Tick::default());
    hub.forget(after(2 * SECOND));
    assert_eq!(hub.stats().queues, 0);
    assert_eq!(hub.fire(after(HOUR)), None);
    assert_eq!(hub.stats().queues, 0);
}

#[test]
fn streams_that_come_and_go_do_not_put_it_off() {
    let hub = guarded();
    let head = super::super::counters::Counters::starting_at(0).token(EPOCH);
    let mut told = Vec::new();
    for second in (0..90).step_by(10) {
        let now = after(Duration::from_secs(second));
        let resumed = resuming(&["orders"], &[("orders", &head)]);
        let listener = [subscribe_with(&hub, &resumed, now)];
        told.extend(asked(&hub, &listener, second, second + 5));
        hub.unsubscribe(&listener[0], after(Duration::from_secs(second + 5)));
        hub.fire(after(Duration::from_secs(second + 9)));
    }
    assert!(
        told.iter().any(|(.., reason)| *reason == Sentinel),
        "{told:?}"
    );
}

#[test]
fn streams_of_a_pattern_that_resume_and_come_and_go_do_not_put_it_off() {
    let hub = guarded();
    let options = options(&["ord*"]);
    let first = subscribe_with(&hub, &options, Tick::default());
    drain(&first, Tick::default());
    verify(&hub, &first, Tick::default());
    let resume = first.take_resume().expect("all is told");
    hub.unsubscribe(&first, Tick::default());
    let resumed = SubscribeOptions { resume, ..options };
    let mut told = Vec::new();
    for second in (0..90).step_by(10) {
        let now = after(Duration::from_secs(second));
        let listener = [subscribe_with(&hub, &resumed, now)];
        told.extend(asked(&hub, &listener, second, second + 5));
        hub.unsubscribe(&listener[0], after(Duration::from_secs(second + 5)));
        hub.fire(after(Duration::from_secs(second + 9)));
    }
    assert!(matches!(told[..], [(54..=75, _, Sentinel), ..]), "{told:?}");
}

/// Polls a stream second by second. Returns which queues had checks, the time of the last one, and
/// the number of Wakes.
fn checked(hub: &Arc<Hub>, feed: &mut SubscriberStream, from: u64, to: u64) -> (usize, u64, usize) {
    let (_, waker) = Alarm::new();
    let mut queues = std::collections::HashSet::new();
    let (mut last, mut wakes) = (0, 0);
    for second in from..=to {
        let now = after(Duration::from_secs(second));
        while hub.fire(now).is_some_and(|next| next <= now) {}
        let (events, _) = sent(feed, now, &waker);
        for event in events {
            let SubscribeEvent::Wake(work) = event else {
                continue;
            };
            wakes += 1;
            for entry in work {
                assert_eq!(entry.reason, Sentinel);
                last = second;
                queues.insert(entry.queue);
            }
        }
    }
    (queues.len(), last, wakes)
}

#[test]
fn a_stream_of_many_queues_is_asked_to_check_all_of_them_within_an_interval() {
    const QUEUES: usize = 2_000;
    let hub = guarded();
    let names: Vec<_> = (0..QUEUES).map(|number| format!("q{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    // It is away for 75 s, so all checks are due when it comes back with its tokens.
    let head = super::super::counters::Counters::starting_at(0).token(EPOCH);
    let positions: Vec<_> = names.iter().map(|name| (*name, &head)).collect();
    let gone = subscribe(&hub, &names);
    hub.unsubscribe(&gone, Tick::default());
    while hub.detach_some(Tick::default()) {}
    while hub
        .fire(after(75 * SECOND))
        .is_some_and(|next| next <= after(75 * SECOND))
    {}
    let mut feed = feed_at(&hub, &resuming(&names, &positions), after(75 * SECOND));
    let (queues, last, wakes) = checked(&hub, &mut feed, 75, 75 + 66);
    assert_eq!(queues, QUEUES, "the last one at {last} s");
    assert!(wakes <= 200, "checks come together: {wakes}");
}

/// A drained listener, and a group's only member, which was notified.
fn beside_a_group() -> (Arc<Hub>, Arc<Subscription>, Arc<Subscription>) {
    let hub = guarded();
    let outside = settled(&hub, &["orders"]);
    say(&hub, &outside, Drained, Tick::default());
    let options = SubscribeOptions {
        group: Some(GroupName::new("g").expect("a name")),
        ..options(&["orders"])
    };
    let member = subscribe_with(&hub, &options, Tick::default());
    drain(&member, Tick::default());
    hub.end_send(&member, Tick::default());
    (hub, outside, member)
}

#[test]
fn where_all_members_of_a_group_hang_a_listener_outside_of_it_is_asked() {
    let (hub, outside, member) = beside_a_group();
    say(&hub, &member, Drained, Tick::default());
    let all = [member, outside];
    assert_eq!(by(&asked(&hub, &all, 1, 70)), [0, 1]);
}

#[test]
fn a_check_whose_group_is_left_by_its_last_member_goes_to_a_listener_outside_at_once() {
    let (hub, outside, member) = beside_a_group();
    say(&hub, &member, Drained, Tick::default());
    let mut all = vec![member, outside];
    let (at, who, _) = first_asked(&hub, &all, 1);
    assert_eq!(who, 0);
    hub.unsubscribe(&all.remove(0), after(Duration::from_secs(at)));
    let told = asked(&hub, &all, at, at + 1);
    assert!(matches!(told[..], [(_, 0, Sentinel)]), "{told:?}");
}

#[test]
fn a_check_whose_group_is_left_by_its_last_member_goes_to_the_next_group_at_once() {
    let hub = guarded();
    let member = |group: &str| {
        let options = SubscribeOptions {
            group: Some(GroupName::new(group).expect("a name")),
            ..options(&["orders"])
        };
        let member = subscribe_with(&hub, &options, Tick::default());
        drain(&member, Tick::default());
        hub.end_send(&member, Tick::default());
        say(&hub, &member, Drained, Tick::default());
        member
    };
    let mut all = vec![member("a"), member("b")];
    let (at, who, _) = first_asked(&hub, &all, 1);
    hub.unsubscribe(&all.remove(who), after(Duration::from_secs(at)));
    let told = asked(&hub, &all, at, at + 1);
    assert!(matches!(told[..], [(_, 0, Sentinel)]), "{told:?}");
}

#[test]
fn a_check_that_falls_into_a_wake_up_that_no_member_covers_goes_to_a_listener_outside() {
    let start = || {
        let (hub, outside, member) = beside_a_group();
        say(&hub, &member, Drained, Tick::default());
        (hub, [member, outside])
    };
    let (twin, all) = start();
    let (at, ..) = first_asked(&twin, &all, 1);
    // A wake-up precedes the group's check, and the member covers neither.
    let (hub, all) = start();
    assert_eq!(asked(&hub, &all, 1, at - 1), []);
    let now = after(Duration::from_millis(at * 1000 - 950));
    notify_with(&hub, notification("orders"), now);
    for one in &all {
        let told = drain(one, now);
        assert!(
            matches!(&told[..], [work] if work.reason == Notified),
            "{told:?}"
        );
        hub.end_send(one, now);
    }
    hub.fire(after(Duration::from_millis(at * 1000 - 50)));
    let told = asked(&hub, &all, at, at + 5);
    assert!(matches!(told[..], [(_, 1, Sentinel)]), "{told:?}");
}

#[test]
fn members_that_poll_are_not_asked_and_another_listener_is() {
    let (hub, outside, member) = beside_a_group();
    let polls = Report {
        active_dequeue_tasks: 1,
        ..report("orders", Drained, 0, number())
    };
    say_with(&hub, &member, &polls, Tick::default());
    let all = [member, outside];
    assert_eq!(by(&asked(&hub, &all, 1, 70)), [1]);
}

#[test]
fn where_no_member_of_a_group_reads_a_listener_outside_of_it_is_asked() {
    let (hub, outside, member) = beside_a_group();
    say(&hub, &member, Drained, Tick::default());
    // Its frame is never sent.
    member.begin_send();
    let told = asked(&hub, std::slice::from_ref(&outside), 1, 80);
    assert!(matches!(told[..], [(54..=72, 0, Sentinel)]), "{told:?}");
    // The same where a wake-up waits for the member.
    let now = after(Duration::from_secs(81));
    notify_with(&hub, notification("orders"), now);
    drain(&outside, now);
    say_with(&hub, &outside, &report("orders", Drained, 1, number()), now);
    let told = asked(&hub, &[outside], 82, 160);
    assert!(matches!(told[..], [(135..=153, 0, Sentinel)]), "{told:?}");
}

#[test]
fn checks_of_many_patterns_visit_some_of_their_listeners_and_go_in_slices() {
    let hub = guarded();
    let patterns: Vec<_> = (0..100).map(|at| format!("p{at}-*")).collect();
    let patterns: Vec<_> = patterns.iter().map(String::as_str).collect();
    let stream = |number: usize| {
        let options = SubscribeOptions {
            listener_id: ListenerId::new(&format!("listener-{number}")).expect("a name"),
            ..options(&patterns)
        };
        let stream = subscribe_with(&hub, &options, Tick::default());
        drain(&stream, Tick::default());
        stream.begin_send();
        stream
    };
    let streams: Vec<_> = (0..300).map(stream).collect();
    let (mut now, mut slices) = (after(67 * SECOND), 0);
    let mut fire = |now| {
        while hub.next_timer().is_some_and(|due| due <= now) {
            let before = hub.probes.examined();
            hub.fire(now);
            let examined = hub.probes.examined() - before;
            assert!((1..1_200).contains(&examined), "{examined} in one slice");
            slices += 1;
        }
    };
    fire(now);
    // None of the visited listeners could be asked: the next ones follow.
    assert!(streams.iter().all(|stream| drain(stream, now).is_empty()));
    streams[250].mailbox.end_send();
    for _ in 0..5 {
        now += SECOND;
        fire(now);
    }
    assert!(slices >= 20, "{slices}");
    assert!(!drain(&streams[250], now).is_empty());
}
