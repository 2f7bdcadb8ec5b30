//! A hub that is one of a cluster: increments of own causes, causes of other relays, and resyncs.

use super::*;
use crate::{
    error::ErrorKind,
    relay::hub::{ResyncScope, ResyncWalk},
    types::{
        LastEvent,
        cluster::{FrameEntry, queue_hash},
    },
};

fn clustered() -> Arc<Hub> {
    hub_where(|config| config.cluster = true)
}

fn clustered_with(fault: Fault) -> Arc<Hub> {
    fault.plant();
    hub_where(|config| config.cluster = true)
}

/// Takes all increments: name, causes, notifications.
fn increments(hub: &Hub) -> Vec<(String, u64, u64)> {
    let taken = std::iter::from_fn(|| hub.next_increment());
    let row = |entry: FrameEntry| {
        let name = entry.queue.queue_name().to_owned();
        (name, entry.causes, entry.notifications)
    };
    taken.map(row).collect()
}

fn row(name: &str, causes: u64, notifications: u64) -> (String, u64, u64) {
    (name.to_owned(), causes, notifications)
}

#[test]
fn a_count_of_another_relay_is_no_decision_of_this_one() {
    let hub = clustered();
    let noted = || {
        let noted = hub.noted_decisions(&queue("a"), START).decisions;
        noted.iter().map(|one| one.sequence).collect::<Vec<_>>()
    };
    count_peer(&hub, &[from_peer("a", 2, 2)]);
    assert!(noted().is_empty());
    notify(&hub, "a");
    count_peer(&hub, &[from_peer("a", 1, 1)]);
    hub.next_increment().expect("its own cause");
    count_peer(&hub, &[from_peer("a", 1, 1)]);
    notify(&hub, "a");
    assert_eq!(noted(), [3, 6]);
}

/// An entry of another relay's frame.
fn from_peer(name: &str, causes: u64, notifications: u64) -> FrameEntry {
    FrameEntry {
        queue: queue(name),
        causes,
        notifications,
        payload_size: 10 * notifications,
        messages: notifications,
        last_event: LastEvent {
            publisher: "elsewhere".into(),
            ..LastEvent::default()
        },
        served_groups: Vec::new(),
        checked: false,
    }
}

fn count_peer(hub: &Hub, entries: &[FrameEntry]) {
    hub.count_peer_increments(entries, false, START);
}

/// Runs a walk to its end.
fn walk(hub: &Hub, scope: ResyncScope) {
    let mut walk = ResyncWalk::new(scope);
    while hub.resync_step(&mut walk, ResyncWalk::STEP, START) {}
}

fn resync(hub: &Hub, names: &[&str]) {
    let hashes = names.iter().map(|name| queue_hash(&queue(name)));
    walk(hub, ResyncScope::Queues(hashes.collect()));
}

#[test]
fn own_causes_are_announced_once_and_in_sum() {
    let hub = clustered();
    assert_eq!(hub.increments.appended(), 0);
    notify(&hub, "a");
    notify(&hub, "b");
    notify(&hub, "a");
    let position = hub.increments.appended();
    assert_eq!((position, hub.increments.taken()), (2, 0));
    assert_eq!(increments(&hub), [row("a", 2, 2), row("b", 1, 1)]);
    assert_eq!(hub.increments.taken(), position);
    assert_eq!(increments(&hub), []);
    notify(&hub, "a");
    assert_eq!(increments(&hub), [row("a", 1, 1)]);
}

#[test]
fn a_relay_without_a_cluster_announces_nothing() {
    let hub = hub();
    notify(&hub, "a");
    assert!(hub.increments.is_empty());
    assert_eq!((hub.increments.appended(), increments(&hub)), (0, vec![]));
}

/// Without a broker no frame takes them, and the list must not outgrow the table of queues.
#[test]
fn queues_whose_increments_wait_for_a_frame_do_not_give_way_to_others() {
    let hub = hub_where(|config| (config.cluster, config.max_queues) = (true, 2));
    notify(&hub, "a");
    notify(&hub, "b");
    let notify_c = |at| {
        let notifications = [Notification::new(queue("c"))];
        hub.notify_all(&"p".into(), &notifications, at)
    };
    let refused = notify_c(after(SECOND)).expect_err("no room");
    assert_eq!(refused.kind(), ErrorKind::Exhausted);
    hub.set_degraded_from(START);
    let refused = notify_c(after(2 * SECOND)).expect_err("no room");
    assert_eq!(
        refused.kind(),
        ErrorKind::Unavailable,
        "go to another relay"
    );
    assert_eq!(increments(&hub), [row("a", 1, 1), row("b", 1, 1)]);
    notify_c(after(60 * SECOND)).expect("room");
    assert_eq!(increments(&hub), [row("c", 1, 1)]);
}

#[test]
fn a_delayed_notification_is_announced_when_it_is_counted() {
    let hub = clustered();
    notify_with(&hub, delayed("a", SECOND), START);
    assert_eq!(increments(&hub), []);
    hub.fire(after(2 * SECOND));
    assert_eq!(increments(&hub), [row("a", 1, 1)]);
}

#[test]
fn a_new_queue_wakes_the_task_that_sends_frames_once() {
    let hub = clustered();
    let (alarm, waker) = Alarm::new();
    hub.increments.waker.register(&waker);
    notify(&hub, "a");
    assert_eq!(alarm.rung(), 1);
    hub.increments.waker.register(&waker);
    notify(&hub, "a");
    assert_eq!(alarm.rung(), 1, "it is listed already");
}

#[test]
fn causes_of_other_relays_wake_subscribers_and_are_not_passed_on() {
    let hub = clustered();
    let subscriber = settled(&hub, &["a"]);
    count_peer(&hub, &[from_peer("a", 3, 2), from_peer("b", 1, 0)]);
    let work = drain(&subscriber, START);
    assert_eq!(entries(&work), [entry("a", WakeReason::Notified, 2)]);
    assert_eq!(
        (work[0].payload_size, &*work[0].last_event.publisher),
        (20, "elsewhere")
    );
    count_peer(&hub, &[from_peer("a", 1, 0)]);
    assert_eq!(told(&subscriber), [entry("a", WakeReason::Timed, 0)]);
    assert_eq!(increments(&hub), []);
    notify(&hub, "a");
    assert_eq!(increments(&hub), [row("a", 1, 1)]);
}

#[test]
fn a_pattern_that_comes_later_learns_the_name_of_a_peers_queue() {
    let hub = clustered();
    count_peer(&hub, &[from_peer("orders", 1, 1)]);
    let told = told(&subscribe(&hub, &["ord*"]));
    assert!(
        told.contains(&entry("orders", WakeReason::CatchUp, 0)),
        "{told:?}"
    );
}

#[test]
fn without_room_for_a_peers_queue_its_patterns_are_checked() {
    let hub = hub_where(|config| (config.cluster, config.max_queues) = (true, 4));
    let plain = settled(&hub, &["ord*"]);
    let member = subscribe_with(&hub, &in_group("workers", &["ord*"]), START);
    drain(&member, START);
    for name in ["x", "y", "z"] {
        notify(&hub, name);
    }
    let other = settled(&hub, &["bill*"]);
    count_peer(&hub, &[from_peer("orders", 1, 1)]);
    assert!(hub.entries.get(&queue("orders")).is_none());
    assert_eq!(told(&plain), [entry("ord*", WakeReason::CatchUp, 0)]);
    hub.fire(START);
    assert_eq!(told(&member), [entry("ord*", WakeReason::CatchUp, 0)]);
    assert_eq!(told(&other), []);
}

/// Names of other relays above three quarters of the table.
#[test]
fn a_peers_new_queue_takes_the_place_of_an_idle_one_and_is_told_by_its_own_name() {
    let hub = hub_where(|config| (config.cluster, config.max_queues) = (true, 8));
    let pattern = settled(&hub, &["job-*"]);
    let count = |number, now| {
        let entry = from_peer(&format!("job-{number}"), 1, 1);
        hub.count_peer_increments(&[entry], false, now);
        drain(&pattern, now);
    };
    (0..6).for_each(|number| count(number, START));
    hub.sweep(&pattern, usize::MAX, after(HOUR));
    let later = after(HOUR);
    hub.count_peer_increments(&[from_peer("job-6", 1, 1)], false, later);
    assert_eq!(
        entries(&drain(&pattern, later)),
        [entry("job-6", WakeReason::Notified, 1)]
    );
    assert_eq!((hub.stats().queues, hub.stats().unnamed), (6, 0));
    // None is idle: the pattern is checked, and a metric counts it.
    (7..13).for_each(|number| count(number, later));
    assert!(hub.stats().unnamed > 0);
}

#[test]
fn a_resync_wakes_the_subscribers_of_its_queues() {
    let hub = clustered();
    let subscribers = ["a", "b"].map(|name| settled(&hub, &[name]));
    resync(&hub, &["a"]);
    assert_eq!(told(&subscribers[0]), [entry("a", WakeReason::CatchUp, 0)]);
    assert_eq!(told(&subscribers[1]), []);
    assert_eq!(increments(&hub), [], "others are not told");
    // A stronger reason stays.
    notify(&hub, "b");
    resync(&hub, &["b"]);
    assert_eq!(told(&subscribers[1]), [entry("b", WakeReason::Notified, 1)]);
}

#[test]
fn a_resync_reaches_a_subscriber_that_is_between_two_streams() {
    for (fault, expected) in [(Fault::None, 1), (Fault::LinkResyncNeedsListener, 0)] {
        let hub = clustered_with(fault);
        let subscriber = settled(&hub, &["a"]);
        notify(&hub, "a");
        let resume = resume_number(&hub, &subscriber, START);
        hub.unsubscribe(&subscriber, START);
        resync(&hub, &["a"]);
        let options = SubscribeOptions {
            resume,
            ..options(&["a"])
        };
        let back = subscribe_with(&hub, &options, START);
        let told = told(&back);
        // R8: the listener had not reported, so there is a timer and no further wake-up yet.
        assert_eq!(told.len(), expected, "{told:?}");
    }
}

#[test]
fn an_unknown_hash_is_a_check_of_all_patterns() {
    let hub = clustered();
    let plain = settled(&hub, &["ord*"]);
    let member = subscribe_with(&hub, &in_group("workers", &["bill*"]), START);
    drain(&member, START);
    let named = settled(&hub, &["other"]);
    resync(&hub, &["orders"]);
    hub.fire(START);
    for (pattern, name) in [(&plain, "ord*"), (&member, "bill*")] {
        assert_eq!(told(pattern), [entry(name, WakeReason::CatchUp, 0)]);
    }
    assert_eq!(told(&named), []);
}

#[test]
fn a_subscriber_that_resumes_by_a_number_checks_its_patterns_after_an_unknown_hash() {
    let hub = clustered();
    let options = options(&["ord*"]);
    let (_, waker) = Alarm::new();
    let mut stream = feed_at(&hub, &options, START);
    sent(&mut stream, START, &waker);
    let (events, _) = sent(&mut stream, after(10 * SECOND), &waker);
    let resuming = SubscribeOptions {
        resume: stated(&events).expect("a silent stream states its number"),
        ..options
    };
    stream.close(after(11 * SECOND));
    assert_eq!(told(&subscribe_with(&hub, &resuming, START)), []);
    resync(&hub, &["orders"]);
    let back = subscribe_with(&hub, &resuming, START);
    assert_eq!(told(&back), [entry("ord*", WakeReason::CatchUp, 0)]);
}

#[test]
fn a_subscription_that_begins_during_the_check_of_all_patterns_checks_as_well() {
    let hub = clustered();
    let options = options(&["ord*"]);
    let (_, waker) = Alarm::new();
    let mut stream = feed_at(&hub, &options, START);
    sent(&mut stream, START, &waker);
    let (events, _) = sent(&mut stream, after(10 * SECOND), &waker);
    stream.close(after(11 * SECOND));
    let hashes = [queue_hash(&queue("orders"))].into();
    let mut walk = ResyncWalk::new(ResyncScope::Queues(hashes));
    // The walk has passed all queues, and all subscriptions there are.
    hub.resync_step(&mut walk, ResyncWalk::STEP, START);
    let resuming = SubscribeOptions {
        resume: stated(&events).expect("a silent stream states its number"),
        ..options
    };
    let back = subscribe_with(&hub, &resuming, START);
    assert_eq!(told(&back), [entry("ord*", WakeReason::CatchUp, 0)]);
    while hub.resync_step(&mut walk, ResyncWalk::STEP, START) {}
}

#[test]
fn a_resync_of_all_covers_every_queue_and_every_pattern() {
    let hub = clustered();
    let names = numbered("q", 1500);
    let exact = subscribe_with(&hub, &options(&names), START);
    drain(&exact, START);
    let pattern = settled(&hub, &["ord*"]);
    walk(&hub, ResyncScope::All);
    let told_exact = entries(&drain(&exact, START));
    assert_eq!(told_exact.len(), 1500);
    assert!(
        told_exact
            .iter()
            .all(|(_, reason, _)| *reason == WakeReason::CatchUp)
    );
    assert_eq!(told(&pattern), [entry("ord*", WakeReason::CatchUp, 0)]);
}

#[test]
fn a_resync_does_not_postpone_forgetting() {
    let hub = clustered();
    notify(&hub, "a");
    increments(&hub);
    let hashes = [queue_hash(&queue("a"))].into();
    let mut walk = ResyncWalk::new(ResyncScope::Queues(hashes));
    let late = after(HOUR / 2);
    while hub.resync_step(&mut walk, ResyncWalk::STEP, late) {}
    hub.forget(after(HOUR + SECOND));
    assert_eq!(hub.stats().forgotten, 1);
}

#[test]
fn one_member_of_each_group_checks_after_a_resync() {
    let hub = clustered();
    let members = [1, 2].map(|_| subscribe_with(&hub, &in_group("workers", &["a"]), START));
    for member in &members {
        take_sent(&hub, member, START);
    }
    let drained = report("a", ReportState::Drained, 0, number());
    say(&hub, &members[0], &drained, START);
    resync(&hub, &["a"]);
    let told = members.each_ref().map(|member| told(member));
    let woken: Vec<_> = told.into_iter().flatten().collect();
    assert_eq!(woken, [entry("a", WakeReason::CatchUp, 0)]);
}

#[test]
fn the_depth_that_a_check_after_a_resync_finds_wakes_further_members() {
    let hub = clustered();
    let members = ["m1", "m2", "m3"].map(|id| idle_member(&hub, id));
    resync(&hub, &["a"]);
    let work = members
        .each_ref()
        .map(|member| take_sent(&hub, member, START));
    let checker = work.iter().position(|work| !work.is_empty());
    let checker = checker.expect("one checks");
    let found = Report {
        current_queue_depth: 3,
        ..report("a", ReportState::Busy, work[checker][0].sequence, number())
    };
    say(&hub, &members[checker], &found, START);
    let woken = members.iter().filter(|member| !told(member).is_empty());
    assert_eq!(woken.count(), 2);
}

#[test]
fn a_missing_relay_makes_each_group_check_once_also_one_without_members() {
    let hub = clustered();
    let member = subscribe_with(&hub, &in_group("workers", &["a"]), START);
    take_sent(&hub, &member, START);
    notify(&hub, "a");
    take_sent(&hub, &member, START);
    say(
        &hub,
        &member,
        &report("a", ReportState::Drained, 1, number()),
        START,
    );
    hub.unsubscribe(&member, START);
    let plain = settled(&hub, &["a"]);
    let others = settled(&hub, &["b"]);
    walk(&hub, ResyncScope::Groups);
    assert_eq!(told(&others), [], "only queues with groups");
    assert_eq!(told(&plain), [entry("a", WakeReason::CatchUp, 0)]);
    let back = subscribe_with(&hub, &in_group("workers", &["a"]), START);
    let told = told(&back);
    assert_eq!(told.len(), 1, "{told:?}");
}

#[test]
fn a_degraded_relay_says_so_in_its_first_message_and_at_once() {
    let hub = clustered();
    let (_, waker) = Alarm::new();
    hub.set_degraded_from(START);
    let mut stream = feed_at(&hub, &options(&["a"]), START);
    let (events, _) = sent(&mut stream, START, &waker);
    let SubscribeEvent::Welcome(welcome) = &events[0] else {
        panic!("{events:?}");
    };
    assert!(welcome.degraded);
    hub.set_degraded_from(Tick::NEVER);
    let (events, _) = sent(&mut stream, after(SECOND), &waker);
    assert!(
        matches!(
            events[..],
            [SubscribeEvent::Heartbeat {
                degraded: false,
                ..
            }]
        ),
        "{events:?}"
    );
    let (events, until) = sent(&mut stream, after(SECOND), &waker);
    assert_eq!((events.len(), until), (0, after(11 * SECOND)));
    hub.set_degraded_from(after(2 * SECOND));
    let (events, _) = sent(&mut stream, after(3 * SECOND), &waker);
    assert!(
        matches!(
            events[..],
            [SubscribeEvent::Heartbeat { degraded: true, .. }]
        ),
        "{events:?}"
    );
}

#[test]
fn a_stream_with_a_wake_to_send_is_told_first_that_the_relay_is_degraded() {
    let hub = clustered();
    let (_, waker) = Alarm::new();
    let mut stream = feed_at(&hub, &options(&["a"]), START);
    sent(&mut stream, START, &waker);
    notify(&hub, "a");
    hub.set_degraded_from(START);
    let (events, _) = sent(&mut stream, after(SECOND), &waker);
    assert!(
        matches!(
            events[..],
            [
                SubscribeEvent::Heartbeat { degraded: true, .. },
                SubscribeEvent::Wake(_)
            ]
        ),
        "{events:?}"
    );
}

/// A member that has checked, reported and is idle.
fn idle_member(hub: &Arc<Hub>, id: &str) -> Arc<Subscription> {
    let options = SubscribeOptions {
        listener_id: ListenerId::new(id).expect("a name"),
        ..in_group("workers", &["a"])
    };
    let member = subscribe_with(hub, &options, START);
    take_sent(hub, &member, START);
    let head = hub
        .queues("a", 1, START)
        .first()
        .map_or(0, |row| row.sequence);
    drained(hub, &member, head);
    member
}

fn drained(hub: &Hub, member: &Subscription, sequence: u64) {
    say(
        hub,
        member,
        &report("a", ReportState::Drained, sequence, number()),
        START,
    );
}

fn busy(hub: &Hub, member: &Subscription, sequence: u64) {
    say(
        hub,
        member,
        &report("a", ReportState::Busy, sequence, number()),
        START,
    );
}

/// Takes the groups that the next increment of the queue states as served.
fn served(hub: &Hub) -> Vec<String> {
    let increment = hub.next_increment().expect("a cause was counted");
    let groups = increment.served_groups.iter();
    groups.map(|group| group.as_str().to_owned()).collect()
}

fn served_by_peer(name: &str, notifications: u64) -> FrameEntry {
    FrameEntry {
        served_groups: vec![GroupName::new("workers").expect("a name")],
        ..from_peer(name, notifications, notifications)
    }
}

#[test]
fn a_group_is_announced_as_served_where_idle_members_took_all_causes() {
    let hub = clustered();
    let members = ["m1", "m2"].map(|id| idle_member(&hub, id));
    notify(&hub, "a");
    assert_eq!(served(&hub), ["workers"]);
    notify(&hub, "a");
    assert_eq!(served(&hub), ["workers"], "the other one is idle");
    for fault in [Fault::None, Fault::LinkServedInPart] {
        let hub = clustered_with(fault);
        let member = idle_member(&hub, "m1");
        notify(&hub, "a");
        take_sent(&hub, &member, START);
        notify(&hub, "a");
        let expected: &[&str] = match fault {
            Fault::None => &[],
            _ => &["workers"],
        };
        assert_eq!(served(&hub), expected, "a busy member took the second one");
    }
    drop(members);
}

/// Found by the simulation of a cluster: the next own cause woke a member on each relay.
#[test]
fn a_cause_of_a_peer_that_a_busy_member_took_leaves_the_next_own_one_served() {
    let hub = clustered();
    let member = idle_member(&hub, "m1");
    notify(&hub, "a");
    assert_eq!(served(&hub), ["workers"]);
    take_sent(&hub, &member, START);
    busy(&hub, &member, 1);
    hub.count_peer_increments(&[from_peer("a", 1, 1)], false, START);
    take_sent(&hub, &member, START);
    drained(&hub, &member, 2);
    notify(&hub, "a");
    assert_eq!(served(&hub), ["workers"]);
}

#[test]
fn a_burst_above_the_idle_members_is_given_in_full() {
    let hub = clustered();
    let _members = ["m1", "m2"].map(|id| idle_member(&hub, id));
    let burst = vec![notification("a"); 3];
    notify_all(&hub, &burst, START).expect("room");
    assert_eq!(served(&hub), [""; 0]);
}

#[test]
fn a_group_without_members_is_not_announced_as_served() {
    let hub = clustered();
    let member = idle_member(&hub, "m1");
    hub.unsubscribe(&member, START);
    notify(&hub, "a");
    assert_eq!(served(&hub), [""; 0]);
}

#[test]
fn causes_whose_idle_member_has_left_are_not_announced_as_served() {
    let hub = clustered();
    let [first, second] = ["m1", "m2"].map(|id| idle_member(&hub, id));
    notify(&hub, "a");
    let other = match take_sent(&hub, &first, START).is_empty() {
        true => &first,
        false => &second,
    };
    take_sent(&hub, &second, START);
    increments(&hub);
    notify(&hub, "a");
    hub.unsubscribe(other, START);
    assert_eq!(served(&hub), [""; 0], "the member that is left is busy");
}

#[test]
fn causes_from_before_a_group_are_not_announced_as_served() {
    let hub = clustered();
    notify(&hub, "a");
    let _member = idle_member(&hub, "m1");
    assert_eq!(
        served(&hub),
        [""; 0],
        "its first member checks, and others may help"
    );
    notify(&hub, "a");
    assert_eq!(served(&hub), ["workers"]);
}

#[test]
fn causes_that_another_relays_members_serve_wake_no_member_here() {
    let hub = clustered();
    let member = idle_member(&hub, "m1");
    let plain = settled(&hub, &["a"]);
    hub.count_peer_increments(&[served_by_peer("a", 2)], false, START);
    assert_eq!(told(&member), []);
    assert_eq!(told(&plain), [entry("a", WakeReason::Notified, 2)]);
    // A report of the head opens no claim for them.
    notify(&hub, "a");
    let work = take_sent(&hub, &member, START);
    assert_eq!(entries(&work), [entry("a", WakeReason::Notified, 1)]);
    busy(&hub, &member, work[0].sequence);
    hub.count_peer_increments(&[served_by_peer("a", 1)], false, START);
    drained(&hub, &member, work[0].sequence);
    hub.fire(after(10 * SECOND));
    assert_eq!(told(&member), []);
}

#[test]
fn after_a_missed_frame_a_group_gets_also_what_others_serve() {
    let hub = clustered();
    let member = idle_member(&hub, "m1");
    hub.count_peer_increments(&[served_by_peer("a", 1)], true, START);
    assert_eq!(told(&member), [entry("a", WakeReason::Notified, 1)]);
}

#[test]
fn the_last_member_passes_on_what_it_does_not_finish() {
    for (fault, expected) in [(Fault::None, 1), (Fault::LinkServedDropped, 0)] {
        let hub = clustered_with(fault);
        let member = idle_member(&hub, "m1");
        notify(&hub, "a");
        assert_eq!(served(&hub), ["workers"]);
        take_sent(&hub, &member, START);
        hub.unsubscribe(&member, START);
        let passed_on = increments(&hub);
        assert_eq!(passed_on.len(), expected, "{passed_on:?}");
        assert!(passed_on.iter().all(|row| *row == ("a".to_owned(), 1, 0)));
    }
}

#[test]
fn an_idle_member_that_leaves_passes_nothing_on() {
    let hub = clustered();
    let member = idle_member(&hub, "m1");
    notify(&hub, "a");
    increments(&hub);
    let work = take_sent(&hub, &member, START);
    drained(&hub, &member, work[0].sequence);
    hub.unsubscribe(&member, START);
    assert_eq!(increments(&hub), []);
}

#[test]
fn served_causes_that_no_member_reports_are_passed_on_once() {
    for (fault, expected) in [(Fault::None, 1), (Fault::LinkServedDropped, 0)] {
        let hub = clustered_with(fault);
        let members = ["m1", "m2"].map(|id| idle_member(&hub, id));
        notify(&hub, "a");
        assert_eq!(served(&hub), ["workers"]);
        let mut passed_on = Vec::new();
        for second in 1..20 {
            for member in &members {
                take_sent(&hub, member, START);
            }
            hub.fire(after(second * SECOND));
            passed_on.extend(increments(&hub));
        }
        assert_eq!(passed_on.len(), expected, "{passed_on:?}");
    }
}

#[test]
fn a_check_is_announced_once_and_restarts_the_interval_of_the_others() {
    let sentinel = |config: &mut HubConfig| {
        config.cluster = true;
        config.sentinel_interval = 60 * SECOND;
    };
    let (hub, other) = (hub_where(sentinel), hub_where(sentinel));
    let [listener, remote] = [&hub, &other].map(|hub| settled(hub, &["a"]));
    drained(&hub, &listener, 0);
    let announced = hub.next_increment().expect("a check");
    assert!(announced.checked && announced.causes == 0, "{announced:?}");
    drained(&hub, &listener, 0);
    assert!(hub.next_increment().is_none(), "not again so soon");
    other.count_peer_increments(&[announced], false, START + 30 * SECOND);
    other.fire(after(89 * SECOND));
    assert_eq!(told(&remote), []);
    other.fire(after(98 * SECOND));
    assert_eq!(told(&remote), [entry("a", WakeReason::Sentinel, 0)]);
}
