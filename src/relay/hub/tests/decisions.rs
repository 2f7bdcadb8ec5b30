//! The decisions about a queue that an operator watches, and what is known about its listeners.

use super::{
    super::{DecisionKind, QueueListener},
    *,
};
use DecisionKind::{Busy, Checked, Empty, Joined, Left, Notified, Reassigned, StoodAside, Woken};

const MINUTE: Duration = Duration::from_secs(60);

fn named(id: &str, options: SubscribeOptions) -> SubscribeOptions {
    SubscribeOptions {
        listener_id: ListenerId::new(id).expect("a name"),
        ..options
    }
}

/// Returns the decisions about `orders`, and asks for more.
fn noted(hub: &Hub, now: Tick) -> Vec<(DecisionKind, String)> {
    let noted = hub.noted_decisions(&queue("orders"), now).decisions;
    let listener = |id: Option<ListenerId>| id.map_or_else(String::new, |id| id.to_string());
    let named = noted.into_iter();
    named
        .map(|one| (one.kind, listener(one.listener)))
        .collect()
}

fn is_noted(hub: &Hub) -> bool {
    let entry = hub.entries.get(&queue("orders")).expect("known");
    entry.lock().noted.is_some()
}

#[test]
fn a_group_is_explained_from_the_notification_to_the_end_of_the_work() {
    let hub = hub();
    let member = |id: &str| {
        let member = subscribe_with(&hub, &named(id, in_group("g", &["orders"])), START);
        take_sent(&hub, &member, START);
        member
    };
    let (a, b) = (member("a"), member("b"));
    say(
        &hub,
        &a,
        &report("orders", ReportState::Drained, 0, number()),
        START,
    );
    assert_eq!(
        noted(&hub, START),
        [],
        "nothing is noted before the first question"
    );
    let at = |second: u64| after(Duration::from_secs(second));
    notify_with(&hub, notification("orders"), at(1));
    take_sent(&hub, &b, at(1));
    hub.fire(at(2));
    take_sent(&hub, &a, at(2));
    let busy = || report("orders", ReportState::Busy, 1, number());
    say(&hub, &a, &busy(), at(3));
    say(&hub, &a, &busy(), at(4));
    say(
        &hub,
        &a,
        &report("orders", ReportState::Drained, 1, number()),
        at(5),
    );
    hub.unsubscribe(&b, at(6));
    let c = subscribe_with(&hub, &named("c", options(&["ord*"])), at(7));
    let expected = [
        (Notified, ""),
        (StoodAside, "a"),
        (Woken, "b"),
        (Reassigned, "a"),
        (Busy, "a"),
        (Empty, "a"),
        (Left, "b"),
        (Joined, "c"),
    ];
    let expected = expected.map(|(kind, listener)| (kind, listener.to_owned()));
    assert_eq!(noted(&hub, at(8)), expected);
    let all = hub.noted_decisions(&queue("orders"), at(8));
    assert_eq!(all.noted_for(), 8 * SECOND);
    let group = |at: usize| all.decisions[at].group.as_ref().map(GroupName::as_str);
    assert_eq!([group(0), group(1), group(7)], [None, Some("g"), None]);
    let busy = &all.decisions[4];
    assert_eq!(
        (busy.at, busy.sequence),
        (at(4), 1),
        "a repeat renews the time"
    );
    assert_eq!(all.decisions[2].reason, WakeReason::Notified);
    assert_eq!(all.decisions[3].reason, WakeReason::Reassigned);
    drop(c);
}

#[test]
fn a_check_of_the_sentinel_and_a_timer_are_noted_as_such() {
    let hub = hub_where(|config| config.sentinel_interval = MINUTE);
    let listener = settled(&hub, &["orders"]);
    say(
        &hub,
        &listener,
        &report("orders", ReportState::Drained, 0, number()),
        START,
    );
    noted(&hub, START);
    hub.fire(after(2 * MINUTE));
    take_sent(&hub, &listener, after(2 * MINUTE));
    assert_eq!(
        noted(&hub, after(2 * MINUTE)),
        [(Checked, "listener".to_owned())]
    );
    notify_with(&hub, delayed("orders", SECOND), after(2 * MINUTE));
    assert_eq!(
        noted(&hub, after(2 * MINUTE)).len(),
        1,
        "it is not counted yet"
    );
    hub.fire(after(2 * MINUTE + 2 * SECOND));
    let all = hub
        .noted_decisions(&queue("orders"), after(3 * MINUTE))
        .decisions;
    assert_eq!((all[1].kind, all[1].reason), (Notified, WakeReason::Timed));
}

#[test]
fn the_noting_ends_ten_minutes_after_the_newest_question() {
    let hub = hub();
    let _listener = settled(&hub, &["orders"]);
    noted(&hub, START);
    assert_eq!(noted(&hub, after(9 * MINUTE)), []);
    notify_with(&hub, notification("orders"), after(18 * MINUTE));
    assert!(is_noted(&hub));
    notify_with(&hub, notification("orders"), after(19 * MINUTE));
    assert!(!is_noted(&hub), "it ended at 19 minutes");
    notify_with(&hub, notification("orders"), after(20 * MINUTE));
    assert_eq!(noted(&hub, after(20 * MINUTE)), []);
    let again = hub.noted_decisions(&queue("orders"), after(21 * MINUTE));
    assert_eq!(again.noted_for(), MINUTE);
}

#[test]
fn the_queue_asked_for_longest_ago_gives_way_and_a_queue_keeps_its_newest_decisions() {
    let hub = hub();
    let at = |second: usize| after(Duration::from_secs(second as u64));
    notify(&hub, "orders");
    noted(&hub, at(0));
    notify(&hub, "more");
    for (second, name) in numbered("q", 63).iter().enumerate() {
        notify(&hub, name);
        hub.noted_decisions(&queue(name), at(1 + second));
    }
    for second in 64..104 {
        notify_with(&hub, notification("orders"), at(second));
    }
    let all = hub.noted_decisions(&queue("orders"), at(200)).decisions;
    assert_eq!((all.len(), all[0].at, all[31].sequence), (32, at(72), 41));
    hub.noted_decisions(&queue("more"), at(201));
    let age = |name: &str| hub.noted_decisions(&queue(name), at(300)).noted_for();
    assert_eq!(age("orders"), 300 * SECOND);
    assert_eq!(age("q1"), 298 * SECOND);
    assert_eq!(age("q0"), Duration::ZERO, "it gave way to `more`");
}

#[test]
fn a_queue_is_noted_from_the_first_question_after_it_is_known() {
    let hub = hub();
    assert_eq!(noted(&hub, START), []);
    assert!(hub.entries.get(&queue("orders")).is_none());
    notify(&hub, "orders");
    assert!(!is_noted(&hub));
    assert_eq!(noted(&hub, START), []);
    notify(&hub, "orders");
    assert_eq!(noted(&hub, START), [(Notified, String::new())]);
}

#[test]
fn few_members_of_a_large_group_are_noted_as_standing_aside() {
    let hub = hub();
    let members = numbered("m", 20);
    let members = members.iter().map(|id| {
        let member = subscribe_with(&hub, &named(id, in_group("g", &["orders"])), START);
        take_sent(&hub, &member, START);
        member
    });
    let members: Vec<_> = members.collect();
    noted(&hub, START);
    notify(&hub, "orders");
    assert_eq!(noted(&hub, START).len(), 1 + 3);
    drop(members);
}

#[test]
fn queues_without_listeners_are_listed_until_one_joins_and_again_when_it_has_left() {
    let hub = hub();
    let listed = |now| {
        let listed = hub.unserved_queues(now).into_iter();
        let shown = listed.map(|one| (one.address.queue_name().to_owned(), one.notifications));
        shown.collect::<Vec<_>>()
    };
    let row = |name: &str, notifications| (name.to_owned(), notifications);
    notify(&hub, "orders");
    notify(&hub, "mails");
    notify(&hub, "orders");
    assert_eq!(listed(START), [row("mails", 1), row("orders", 2)]);
    let ages = hub.unserved_queues(after(SECOND));
    assert_eq!(ages[0].idle_for, Some(SECOND));
    let listener = subscribe(&hub, &["orders"]);
    notify(&hub, "orders");
    assert_eq!(listed(START), [row("mails", 1)]);
    hub.unsubscribe(&listener, START);
    assert_eq!(listed(START), [row("mails", 1)]);
    notify(&hub, "orders");
    assert_eq!(listed(START), [row("orders", 4), row("mails", 1)]);
    numbered("q", 40)
        .iter()
        .for_each(|name| _ = notify(&hub, name));
    assert_eq!(listed(START).len(), 32);
}

fn on_orders(hub: &Hub, now: Tick) -> Vec<QueueListener> {
    let (stats, listeners) = hub.queue_listeners(&queue("orders"), now);
    assert!(stats.is_some());
    listeners
}

#[test]
fn the_listeners_of_a_queue_are_silent_busy_or_at_capacity_there() {
    let hub = hub();
    let listener = settled(&hub, &["mails", "orders"]);
    let member = subscribe_with(&hub, &named("m", in_group("g", &["orders"])), START);
    take_sent(&hub, &member, START);
    let at = |second: u64| after(Duration::from_secs(second));
    let now = |second| on_orders(&hub, at(second));
    assert_eq!(now(1).len(), 2);
    assert!(now(1).iter().all(|one| !one.busy));
    let busy = |name: &str, tasks: [u32; 2], age: u64| Report {
        active_dequeue_tasks: tasks[0],
        total_dequeue_tasks: tasks[1],
        busy_for: Some(Duration::from_secs(age)),
        ..report(name, ReportState::Busy, 0, number())
    };
    say(&hub, &listener, &busy("orders", [1, 2], 3), at(10));
    let one = &now(12)[0];
    assert_eq!(
        (one.busy, one.is_full, one.busy_for),
        (true, false, Some(5 * SECOND))
    );
    say(&hub, &listener, &busy("orders", [2, 2], 3), at(10));
    assert!(now(12)[0].is_full);
    say(&hub, &listener, &busy("orders", [1, 2], 3), at(11));
    assert!(!now(12)[0].is_full);
    // The oldest of its messages is of another queue.
    say(&hub, &listener, &busy("mails", [2, 2], 9), at(10));
    assert_eq!(now(12)[0].busy_for, Some(4 * SECOND));
    say(
        &hub,
        &member,
        &report("orders", ReportState::Drained, 0, number()),
        at(20),
    );
    notify_with(&hub, notification("orders"), at(20));
    take_sent(&hub, &member, at(20));
    assert_eq!(now(26)[1].silent_for, Some(6 * SECOND));
    assert_eq!(now(26)[0].silent_for, None, "it is busy");
}

#[test]
fn a_queue_that_is_not_known_has_the_listeners_of_its_patterns() {
    let hub = hub();
    let _listeners = ["ord*", "mails*"].map(|pattern| settled(&hub, &[pattern]));
    let (stats, listeners) = hub.queue_listeners(&queue("orders"), START);
    assert_eq!((stats, listeners.len()), (None, 1));
}

#[test]
fn a_survey_names_the_longest_silent_and_busy_listeners() {
    let hub = hub();
    let at = |second: u64| after(Duration::from_secs(second));
    let mut all = Vec::new();
    for second in 0..100 {
        let id = format!("worker-{second}");
        let listener = subscribe_with(&hub, &named(&id, options(&["orders"])), START);
        drain(&listener, START);
        let state = match second % 2 {
            0 => ReportState::Busy,
            _ => ReportState::Drained,
        };
        say(
            &hub,
            &listener,
            &report("orders", state, 0, number()),
            at(second),
        );
        all.push(listener);
    }
    notify_with(&hub, notification("orders"), at(100));
    walk_all(&hub);
    all.iter().for_each(|one| _ = drain(one, at(100)));
    let survey = |now| {
        let (mut survey, mut after) = (super::super::ListenerSurvey::default(), None);
        let mut steps = 1;
        loop {
            after = hub.survey(after, &mut survey, now);
            if after.is_none() {
                return (survey, steps);
            }
            steps += 1;
        }
    };
    let (found, steps) = survey(at(110));
    assert_eq!((found.listeners, found.polling, steps), (100, 0, 2));
    assert_eq!(found.silent.len(), 8);
    assert_eq!(found.silent[0].span, 10 * SECOND);
    assert_eq!(found.busy.len(), 8);
    let longest: Vec<_> = found
        .busy
        .iter()
        .map(|one| one.listener_id.as_str())
        .collect();
    assert_eq!(longest[..3], ["worker-0", "worker-2", "worker-4"]);
}
