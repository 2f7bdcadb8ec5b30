//! Groups that come, go and are forgotten; groups by pattern, and groups of many queues.

use super::*;
use crate::base::fault::Fault;

fn forgetting() -> Arc<Hub> {
    hub_where(|config| config.forget_after = SECOND)
}

#[test]
fn a_group_is_kept_for_a_while_after_its_last_member_left() {
    for (away, told) in [(599, Notified), (601, CatchUp)] {
        let mut fleet = Fleet::on(forgetting(), 1);
        fleet.leave(0);
        fleet.put(1);
        fleet.fire(after(away * SECOND));
        fleet.hub.forget(fleet.now);
        fleet.join(&of_group("g", 1));
        assert_eq!(fleet.woken(), [(0, told)], "{away} s");
    }
}

#[test]
fn a_group_that_is_kept_keeps_its_queue() {
    let mut fleet = Fleet::on(forgetting(), 1);
    fleet.leave(0);
    fleet.hub.forget(after(60 * SECOND));
    assert_eq!(fleet.hub.stats().queues, 1);
    fleet.hub.fire(after(HOUR));
    fleet.hub.forget(after(2 * HOUR));
    assert_eq!(fleet.hub.stats().queues, 0);
}

#[test]
fn a_group_by_pattern_gets_a_new_queue_once() {
    let mut fleet = Fleet::empty(hub());
    for name in numbered("listener-", 3) {
        fleet.join(&SubscribeOptions {
            listener_id: ListenerId::new(&name).expect("a name"),
            ..in_group("g", &["ord*"])
        });
    }
    let told = [0, 1, 2].map(|at| fleet.take(at));
    assert_eq!(told, [vec![entry("ord*", CatchUp, 0)], vec![], vec![]]);
    fleet.put(1);
    assert_eq!(fleet.woken().len(), 1);
}

#[test]
fn the_check_of_a_new_group_by_pattern_goes_to_another_member_where_the_first_ends() {
    let mut fleet = Fleet::empty(hub());
    (0..2).for_each(|_| fleet.join(&in_group("g", &["ord*"])));
    // A report of another queue does not count as a check.
    fleet.say(1, Drained, 0);
    fleet.now = after(SECOND);
    fleet.leave(0);
    assert!(fleet.hub.next_timer() <= Some(after(SECOND)));
    assert_eq!(fleet.fire(after(SECOND)), [(1, CatchUp)]);
}

#[test]
fn the_check_of_an_abandoned_stream_goes_to_its_listeners_new_stream() {
    let by_pattern = in_group("g", &["ord*"]);
    let mut fleet = Fleet::empty(hub());
    fleet.join(&by_pattern);
    fleet.hub.fire(START);
    // The relay does not know that this stream is dead, and may never learn it.
    let _lost = fleet.members.remove(&0);
    fleet.now = after(SECOND);
    fleet.join(&by_pattern);
    assert_eq!(fleet.fire(after(SECOND)), [(0, CatchUp)]);

    // The same where both joined before a member was asked.
    let mut fleet = Fleet::empty(hub());
    (0..2).for_each(|_| fleet.join(&by_pattern));
    let told = fleet.fire(START);
    assert!(told.contains(&(1, CatchUp)), "{told:?}");
}

#[test]
fn a_group_by_pattern_that_comes_back_checks_for_forgotten_queues() {
    let mut fleet = Fleet::empty(forgetting());
    fleet.join(&in_group("g", &["ord*"]));
    fleet.take(0);
    fleet.leave(0);
    fleet.put(1);
    fleet.now = after(10 * SECOND);
    fleet.hub.forget(fleet.now);
    assert_eq!(fleet.hub.stats().queues, 0);
    fleet.join(&in_group("g", &["ord*"]));
    assert_eq!(fleet.take(0), [entry("ord*", CatchUp, 0)]);
}

#[test]
fn a_group_that_took_nothing_is_not_kept() {
    let mut fleet = Fleet::empty(hub());
    fleet.join(&of_group("stays", 1));
    fleet.take(0);
    for name in numbered("g", 100) {
        // Its stream ends before it sends anything.
        fleet.join(&in_group(&name, &["orders"]));
        fleet.leave(1);
    }
    let queue_entry = fleet.hub.entries.get(&queue("orders")).expect("known");
    let queue_entry = queue_entry.lock();
    let groups = queue_entry
        .coordinator
        .as_ref()
        .map(|all| all.groups().count());
    assert!(groups.is_some_and(|groups| groups <= 101), "{groups:?}");
}

#[test]
fn a_member_of_many_queues_gets_them_in_few_wakes() {
    let mut fleet = Fleet::empty(hub());
    let names = numbered("q", 500);
    fleet.join(&in_group("g", &names));
    let (mut told, mut wakes) = (0, 0);
    while told < names.len() {
        let some = fleet.take(0).len();
        assert!(some > 0, "{told} told");
        (told, wakes) = (told + some, wakes + 1);
    }
    assert!(wakes <= 30, "{wakes} Wakes");
    assert_eq!(fleet.take(0), []);
    // Each of its queues has it back in the order.
    for name in &names {
        notify(&fleet.hub, name);
    }
    let again = std::iter::from_fn(|| Some(fleet.take(0).len()).filter(|told| *told > 0));
    assert_eq!(again.sum::<usize>(), names.len());
}

#[test]
fn members_of_many_queues_share_what_is_counted_in_all_of_them() {
    let mut fleet = Fleet::empty(hub());
    let names = numbered("q", 30);
    (0..3).for_each(|_| fleet.join(&in_group("g", &names)));
    while !fleet.woken().is_empty() {}
    for name in &names {
        notify(&fleet.hub, name);
    }
    let mut told = [0; 3];
    let rounds = std::iter::from_fn(|| Some(fleet.woken()).filter(|woken| !woken.is_empty()));
    rounds.flatten().for_each(|(at, _)| told[at] += 1);
    assert_eq!(told.iter().sum::<usize>(), names.len(), "{told:?}");
    assert!(told.iter().all(|some| (5..=15).contains(some)), "{told:?}");
}

#[test]
fn the_members_of_a_pattern_share_new_queues_that_get_one_message_each() {
    let hub = hub();
    let members = [1, 2, 3, 4].map(|quarter: u128| {
        let options = SubscribeOptions {
            listener_id: ListenerId::new(&format!("member-{quarter}")).expect("a name"),
            ..in_group("g", &["session-*"])
        };
        let member = open(&hub, (quarter << 126).wrapping_sub(1), &options).expect("accepted");
        while !hub.introduce_some(&member, START) {}
        take_sent(&hub, &member, START);
        member
    });
    let mut told = [0; 4];
    for name in numbered("session-", 400) {
        notify(&hub, &name);
        for (member, told) in members.iter().zip(&mut told) {
            *told += take_sent(&hub, member, START).len();
        }
    }
    assert!(
        told.iter().all(|some| (90..=110).contains(some)),
        "{told:?}"
    );
}

/// The only member's stream has an unsent message, or it hangs and its claim has ended.
#[test]
fn a_new_member_of_a_pattern_takes_up_what_waits_for_one() {
    for (fault, told) in [(Fault::None, 1), (Fault::MemberUnnoticed, 0)] {
        for hangs in [false, true] {
            fault.plant();
            let hub = hub();
            let join = |name: &str| {
                let options = SubscribeOptions {
                    listener_id: ListenerId::new(name).expect("a name"),
                    ..in_group("g", &["ord*"])
                };
                subscribe_with(&hub, &options, START)
            };
            let first = join("first");
            take_sent(&hub, &first, START);
            if !hangs {
                first.mailbox.begin_send();
            }
            notify(&hub, "orders");
            drain(&first, START);
            hub.fire(after(2 * SECOND));
            let second = join("second");
            assert_eq!(
                take_sent(&hub, &second, START).len(),
                told,
                "{fault:?} {hangs}"
            );
        }
    }
}

/// A queue stays listed while it waits, whoever looks up its patterns meanwhile.
#[test]
fn what_waits_for_a_member_stays_listed_while_other_patterns_come_and_go() {
    let hub = hub();
    let join = |name: &str| {
        let options = SubscribeOptions {
            listener_id: ListenerId::new(name).expect("a name"),
            ..in_group("g", &["ord*"])
        };
        subscribe_with(&hub, &options, START)
    };
    let first = join("first");
    take_sent(&hub, &first, START);
    notify(&hub, "orders");
    drain(&first, START);
    hub.fire(after(2 * SECOND));
    for _ in 0..2 {
        let other = subscribe_with(&hub, &options(&["ord*"]), START);
        hub.queues("", 9, after(2 * SECOND));
        hub.unsubscribe(&other, after(2 * SECOND));
        hub.queues("", 9, after(2 * SECOND));
    }
    let second = join("second");
    assert_eq!(take_sent(&hub, &second, START).len(), 1);
}

/// Returns all that the member is told, a Wake after the other.
fn told_in_all(hub: &Hub, member: &Arc<Subscription>, now: Tick) -> Vec<Entry> {
    let wakes = (0..3_000).map(|_| entries(&take_sent(hub, member, now)));
    wakes
        .take_while(|wake| !wake.is_empty())
        .flatten()
        .collect()
}

/// So many that a member is not told of `orders` by name.
fn many_queues(hub: &Hub, now: Tick) {
    for name in numbered("ord", 1_100) {
        notify_with(hub, notification(&name), now);
    }
}

#[test]
fn a_kept_group_whose_members_come_back_unseen_gets_its_work() {
    let hub = forgetting();
    let by_pattern = in_group("g", &["ord*"]);
    let first = subscribe_with(&hub, &by_pattern, START);
    notify(&hub, "orders");
    assert_eq!(told_in_all(&hub, &first, START).len(), 2);
    hub.unsubscribe(&first, START);
    let back_at = after(500 * SECOND);
    notify_with(&hub, notification("orders"), back_at);
    many_queues(&hub, back_at);
    let second = subscribe_with(&hub, &by_pattern, back_at);
    while !hub.introduce_some(&second, back_at) {}
    let told = told_in_all(&hub, &second, back_at);
    assert!(!told.contains(&entry("orders", Notified, 1)), "too many");
    // The search for idle queues visits all of them.
    let later = after(560 * SECOND);
    hub.forget(later);
    let told = told_in_all(&hub, &second, later);
    assert!(told.contains(&entry("orders", Notified, 1)), "{told:?}");
    let later = after(700 * SECOND);
    hub.forget(later);
    notify_with(&hub, notification("orders"), later);
    let told = told_in_all(&hub, &second, later);
    assert!(told.iter().any(|(name, ..)| name == "orders"), "{told:?}");
}

#[test]
fn the_queues_that_the_first_member_did_not_visit_are_visited_by_the_next() {
    let hub = hub();
    numbered("q", 1_000)
        .iter()
        .for_each(|name| _ = notify(&hub, name));
    // Neither has visited all of them.
    let [first, second] =
        [1, 2].map(|id| open(&hub, id, &in_group("g", &["*"])).expect("accepted"));
    hub.unsubscribe(&first, START);
    while !hub.introduce_some(&second, START) {}
    let told = told_in_all(&hub, &second, START);
    assert!(told.contains(&entry("q999", CatchUp, 0)), "{}", told.len());
}

#[test]
fn what_a_member_without_room_for_its_group_did_not_take_is_checked_by_another() {
    let hub = hub_where(|config| config.max_groups_per_queue = 0);
    let join = || subscribe_with(&hub, &in_group("g", &["ord*"]), START);
    let first = join();
    told_in_all(&hub, &first, START);
    notify(&hub, "orders");
    let second = join();
    told_in_all(&hub, &second, START);
    hub.unsubscribe(&first, START);
    hub.fire(START);
    assert_eq!(
        told_in_all(&hub, &second, START),
        [entry("ord*", CatchUp, 0)]
    );
}

#[test]
fn a_group_that_gets_room_during_a_walk_has_the_events_of_that_walk() {
    let hub = hub_where(|config| (config.max_groups, config.inline) = (1, 0));
    let other = subscribe_with(&hub, &in_group("other", &["else"]), START);
    let member = subscribe_with(&hub, &in_group("g", &["ord*"]), START);
    notify(&hub, "orders");
    walk_all(&hub);
    told_in_all(&hub, &member, START);
    notify(&hub, "orders");
    // Before the walk: room for the group, and a pattern that has the queues look up theirs.
    hub.unsubscribe(&other, START);
    hub.forget(after(3_000 * SECOND));
    let _new = subscribe_with(&hub, &options(&["z*"]), START);
    hub.queues("", 9, START);
    let queue_entry = hub.entries.get(&queue("orders")).expect("known");
    assert!(queue_entry.lock().is_grouped());
    walk_all(&hub);
    let told = told_in_all(&hub, &member, START);
    assert_eq!(told, [entry("orders", Notified, 1)]);
}

#[test]
fn a_walk_does_not_repeat_what_a_member_took_before_its_group_had_room() {
    let hub = hub_where(|config| (config.max_groups, config.inline) = (1, 0));
    let other = subscribe_with(&hub, &in_group("other", &["else"]), START);
    let member = subscribe_with(&hub, &in_group("g", &["ord*", "orde*"]), START);
    notify(&hub, "orders");
    walk_all(&hub);
    told_in_all(&hub, &member, START);
    notify(&hub, "orders");
    // The walk visits the member for each of its patterns.
    let (mut walk, mut batch) = (hub.fanout.pop().expect("begun"), WakeBatch::default());
    let one = [entry("orders", Notified, 1)];
    let mut visit = || {
        walk.step(&mut batch);
        told_in_all(&hub, &member, START)
    };
    assert_eq!([visit(), visit()].concat(), one);
    hub.unsubscribe(&other, START);
    hub.forget(after(3_000 * SECOND));
    let _new = subscribe_with(&hub, &options(&["z*"]), START);
    notify(&hub, "orders");
    // The group cannot know what its member took.
    let assigned = told_in_all(&hub, &member, START);
    assert_eq!(assigned, [entry("orders", Notified, 2)]);
    assert_eq!([visit(), visit()].concat(), one);
}

/// Without room a cursor is made only where no known member can be chosen.
#[test]
fn a_member_that_finds_no_room_is_woken_beyond_the_limits() {
    let hub = hub_where(|config| config.max_cursors = 1);
    let members = [0; 2].map(|_| subscribe_with(&hub, &in_group("g", &["ord*"]), START));
    members
        .iter()
        .for_each(|one| _ = told_in_all(&hub, one, START));
    for (cursors, name) in [(1, "order-1"), (2, "order-2")] {
        notify(&hub, name);
        let told = members.each_ref().map(|one| told_in_all(&hub, one, START));
        assert_eq!(told.concat(), [entry(name, Notified, 1)]);
        assert_eq!(hub.stats().cursors, cursors);
    }
}

#[test]
fn a_member_of_a_pattern_with_very_many_queues_is_told_of_some_by_name() {
    let hub = hub();
    let names = numbered("q", 1_500);
    names.iter().for_each(|name| _ = notify(&hub, name));
    let member = subscribe_with(&hub, &in_group("g", &["*"]), START);
    // It gets the queues' wake-ups one after the other.
    let told = || {
        let some = (0..2_000).flat_map(|_| take_sent(&hub, &member, START));
        entries(&some.collect::<Vec<_>>())
    };
    assert_eq!(told().len(), 1_025, "with the pattern's own");
    notify(&hub, "q1499");
    assert_eq!(told(), [entry("q1499", Notified, 1)]);
}

#[test]
fn a_member_that_reports_a_queue_has_no_cursor_after_its_end() {
    let hub = hub();
    let names = numbered("q", 2_000);
    names.iter().for_each(|name| _ = notify(&hub, name));
    let member = open(&hub, 1 << 70, &in_group("g", &["*"])).expect("accepted");
    let busy = report("q1999", Busy, 1, 1);
    hub.report(member.id, &busy, START).expect("known");
    while !hub.introduce_some(&member, START) {}
    let entry = hub.entries.get(&queue("q1999")).expect("known");
    assert_eq!(entry.lock().listeners(), 1);
    hub.unsubscribe(&member, START);
    while hub.detach_some(START) {}
    assert_eq!(hub.stats().cursors, 0);
}
