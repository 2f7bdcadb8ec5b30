//! Groups: which members are given a wake-up, and how it is redelivered (R12 to R16, the rules of
//! groups).

use super::{super::CoordinatorConfig, *};
use crate::types::GroupName;

const CLAIM: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);

/// Options of a member; it listens on `orders`.
fn of_group(group: &str, capacity: u32) -> SubscribeOptions {
    SubscribeOptions {
        group: Some(GroupName::new(group).expect("a name")),
        capacity,
        ..options(&["orders"])
    }
}

fn join(hub: &Arc<Hub>, group: &str) -> Arc<Subscription> {
    join_at(hub, group, Tick::default())
}

fn join_at(hub: &Arc<Hub>, group: &str, now: Tick) -> Arc<Subscription> {
    subscribe_with(hub, &of_group(group, 1), now)
}

/// Takes the entries of a stream, and ends its send, as a stream does.
fn take(hub: &Hub, subscription: &Subscription, now: Tick) -> Vec<Entry> {
    let work = drain(subscription, now);
    hub.end_send(subscription, now);
    entries(&work)
}

/// Members of one group on `orders` that have polled and reported.
fn fleet(hub: &Arc<Hub>, count: usize) -> Vec<Arc<Subscription>> {
    let members: Vec<_> = (0..count).map(|_| join(hub, "g")).collect();
    take_all(hub, &members, Tick::default());
    say(hub, &members[0], Drained, 0, Tick::default());
    members
}

fn take_all(hub: &Hub, members: &[Arc<Subscription>], now: Tick) -> Vec<Vec<Entry>> {
    members
        .iter()
        .map(|member| take(hub, member, now))
        .collect()
}

/// Returns which members were woken, and why.
fn who(hub: &Hub, members: &[Arc<Subscription>], now: Tick) -> Vec<(usize, WakeReason)> {
    let all = take_all(hub, members, now);
    let each = all.into_iter().enumerate();
    each.flat_map(|(at, work)| work.into_iter().map(move |(_, reason, _)| (at, reason)))
        .collect()
}

fn say(hub: &Hub, member: &Subscription, state: ReportState, sequence: u64, now: Tick) {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let said = hub.report(member.id, &report("orders", state, sequence, number), now);
    said.expect("it listens on the queue");
}

fn put(hub: &Hub, messages: u64, now: Tick) {
    let notification = Notification {
        messages,
        ..notification("orders")
    };
    notify_with(hub, notification, now);
}

use ReportState::{Busy, Drained};
use WakeReason::{CatchUp, Notified, Reassigned, Timed};

#[test]
fn a_new_group_wakes_one_member_to_catch_up() {
    let hub = hub();
    let members: Vec<_> = (0..5).map(|_| join(&hub, "g")).collect();
    assert_eq!(who(&hub, &members, Tick::default()), [(0, CatchUp)]);
    let other = join(&hub, "h");
    assert_eq!(who(&hub, &[other], Tick::default()), [(0, CatchUp)]);
}

#[test]
fn one_message_wakes_one_of_a_thousand_members() {
    let hub = hub();
    let members = fleet(&hub, 1000);
    put(&hub, 1, Tick::default());
    assert_eq!(who(&hub, &members, Tick::default()).len(), 1);
}

#[test]
fn as_many_members_are_woken_as_the_messages_need_each_by_its_own_capacity() {
    let hub = hub();
    let capacities = [10, 1, 4, 10];
    let members =
        capacities.map(|capacity| subscribe_with(&hub, &of_group("g", capacity), Tick::default()));
    take_all(&hub, &members, Tick::default());
    put(&hub, 6, Tick::default());
    // The first has caught up, and is busy by now: 1 + 4 + 1 of 10.
    let told: Vec<_> = who(&hub, &members, Tick::default());
    assert_eq!(told, [(1, Notified), (2, Notified), (3, Notified)]);
}

#[test]
fn a_wake_up_that_needs_more_members_than_one_step_wakes_is_left_to_the_fan_out() {
    let hub = hub();
    let members = fleet(&hub, 200);
    put(&hub, 150, Tick::default());
    let given = |members: &[Arc<Subscription>]| {
        let taken = members.iter().map(|member| drain(member, Tick::default()));
        taken.filter(|work| !work.is_empty()).count()
    };
    assert_eq!(given(&members), 64);
    walk_all(&hub);
    assert_eq!(given(&members), 150 - 64);
}

#[test]
fn the_parts_add_up_to_what_was_counted() {
    let hub = hub();
    let members = fleet(&hub, 4);
    let batch = Notification {
        messages: 3,
        notifications: 2,
        payload_size: 7,
        ..notification("orders")
    };
    notify_with(&hub, batch, Tick::default());
    let work: Vec<_> = members
        .iter()
        .flat_map(|member| drain(member, Tick::default()))
        .collect();
    assert_eq!(work.len(), 3);
    assert_eq!(work.iter().map(|entry| entry.messages).sum::<u64>(), 3);
    assert_eq!(work.iter().map(|entry| entry.notifications).sum::<u64>(), 2);
    assert_eq!(work.iter().map(|entry| entry.payload_size).sum::<u64>(), 7);
    assert!(work.iter().all(|entry| entry.sequence == 1));
}

#[test]
fn a_payload_is_no_count_of_messages() {
    let hub = hub();
    let members = fleet(&hub, 4);
    let large = Notification {
        payload_size: 1_000_000,
        ..notification("orders")
    };
    notify_with(&hub, large, Tick::default());
    assert_eq!(who(&hub, &members, Tick::default()).len(), 1);
}

#[test]
fn idle_members_come_first_and_then_the_least_recently_woken() {
    let hub = hub();
    let members = fleet(&hub, 3);
    let mut order = Vec::new();
    for sequence in 1..=6 {
        put(&hub, 1, Tick::default());
        let (at, _) = who(&hub, &members, Tick::default())[0];
        order.push(at);
        // The second never reports DRAINED.
        let state = if at == 1 { Busy } else { Drained };
        say(&hub, &members[at], state, sequence, Tick::default());
    }
    assert_eq!(order, [1, 2, 0, 2, 0, 2]);
}

#[test]
fn a_busy_member_that_is_counted_is_sent_the_wake_up() {
    let hub = hub();
    let members = fleet(&hub, 1);
    put(&hub, 1, Tick::default());
    assert_eq!(who(&hub, &members, Tick::default()), [(0, Notified)]);
    say(&hub, &members[0], Busy, 1, Tick::default());
    put(&hub, 1, Tick::default());
    assert_eq!(who(&hub, &members, Tick::default()), [(0, Notified)]);
}

#[test]
fn subscribers_without_a_group_are_all_woken_besides() {
    let hub = hub();
    let members = fleet(&hub, 3);
    let others = [settled(&hub, &["orders"]), settled(&hub, &["ord*"])];
    let accepted = notify(&hub, "orders");
    assert_eq!(accepted.listeners, 5);
    assert_eq!(who(&hub, &members, Tick::default()).len(), 1);
    assert_eq!(who(&hub, &others, Tick::default()).len(), 2);
}

#[test]
fn each_group_has_a_cursor_of_its_own() {
    let hub = hub();
    let (g, h) = (join(&hub, "g"), join(&hub, "h"));
    let both = [g, h];
    who(&hub, &both, Tick::default());
    put(&hub, 1, Tick::default());
    let told = who(&hub, &both, Tick::default());
    assert_eq!(told, [(0, Notified), (1, Notified)]);
}

#[test]
fn a_timed_wake_up_goes_to_one_member() {
    let hub = hub();
    let members = fleet(&hub, 3);
    let delayed = Notification {
        delay: SECOND,
        ..notification("orders")
    };
    notify_with(&hub, delayed, Tick::default());
    assert_eq!(who(&hub, &members, Tick::default()), []);
    hub.fire(after(2 * SECOND));
    assert_eq!(who(&hub, &members, after(2 * SECOND)), [(1, Timed)]);
}

#[test]
fn what_is_not_covered_in_time_goes_to_each_other_member_once() {
    let hub = hub();
    let members = fleet(&hub, 3);
    put(&hub, 1, Tick::default());
    let mut told = who(&hub, &members, Tick::default());
    for second in 1..=10 {
        hub.fire(after(second * CLAIM));
        told.extend(who(&hub, &members, after(second * CLAIM)));
    }
    assert_eq!(told, [(1, Notified), (2, Reassigned), (0, Reassigned)]);
}

#[test]
fn a_sequence_is_covered_by_a_report_of_it_busy_or_drained() {
    for (state, sequence, covered) in [
        (Busy, 1, true),
        (Drained, 1, true),
        (Busy, 0, false),
        (Drained, 2, false), // R9: above the head, counts as 0
        (ReportState::Unspecified, 1, false),
    ] {
        let hub = hub();
        let members = fleet(&hub, 2);
        put(&hub, 1, Tick::default());
        who(&hub, &members, Tick::default());
        say(&hub, &members[1], state, sequence, Tick::default());
        hub.fire(after(CLAIM));
        let told = who(&hub, &members, after(CLAIM));
        assert_eq!(told.is_empty(), covered, "{state:?} {sequence}: {told:?}");
    }
}

#[test]
fn what_was_counted_while_an_older_one_was_open_waits_no_longer_than_the_time_out() {
    let hub = hub();
    let members = fleet(&hub, 3);
    put(&hub, 1, Tick::default());
    put(&hub, 1, after(CLAIM / 2));
    assert_eq!(who(&hub, &members, after(CLAIM / 2)).len(), 2);
    // The first is covered; the second, which went to another member, is not.
    say(&hub, &members[1], Busy, 1, after(CLAIM / 2));
    hub.fire(after(CLAIM));
    assert_eq!(who(&hub, &members, after(CLAIM)), []);
    hub.fire(after(CLAIM * 3 / 2));
    assert_eq!(who(&hub, &members, after(CLAIM * 3 / 2)), [(0, Reassigned)]);
}

#[test]
fn events_counted_in_a_finished_round_start_a_new_round() {
    let hub = hub();
    let members = fleet(&hub, 2);
    put(&hub, 1, Tick::default());
    assert_eq!(who(&hub, &members, Tick::default()), [(1, Notified)]);
    let half = after(CLAIM / 2);
    put(&hub, 1, half);
    assert_eq!(who(&hub, &members, half), [(0, Notified)]);
    // No member covers a wake-up, and the other one was never sent the second message.
    hub.fire(after(CLAIM));
    let now = half + CLAIM;
    hub.fire(now);
    assert_eq!(who(&hub, &members, now), [(1, Reassigned)]);
}

#[test]
fn a_report_from_before_the_question_does_not_answer_it() {
    let hub = hub();
    let members = fleet(&hub, 3);
    put(&hub, 1, Tick::default());
    who(&hub, &members, Tick::default());
    say(&hub, &members[1], Busy, 1, Tick::default());
    hub.unsubscribe(&members[1], Tick::default());
    // The third has it now; the first repeats its old report of the sequence.
    say(&hub, &members[0], Drained, 1, Tick::default());
    assert_eq!(who(&hub, &members[2..], Tick::default()), [(0, Reassigned)]);
    hub.fire(after(CLAIM));
    assert_eq!(who(&hub, &members[..1], after(CLAIM)), [(0, Reassigned)]);
}

#[test]
fn what_is_repeated_on_a_new_stream_covers_nothing() {
    let hub = hub();
    // The asked member is gone, and the relay does not know that yet.
    let lost = fleet(&hub, 1);
    let now = after(SECOND);
    put(&hub, 1, now);
    assert_eq!(who(&hub, &lost, now), [(0, Notified)]);
    // Its new stream repeats a report of the relay's earlier run, with the same sequence.
    let again = [join_at(&hub, "g", now)];
    say(&hub, &again[0], Drained, 1, now);
    hub.fire(now + CLAIM);
    assert_eq!(who(&hub, &again, now + CLAIM), [(0, Reassigned)]);
}

#[test]
fn a_lease_lapses_once_and_further_reports_renew_it() {
    let hub = hub();
    let members = fleet(&hub, 2);
    put(&hub, 1, Tick::default());
    who(&hub, &members, Tick::default());
    say(&hub, &members[1], Busy, 1, Tick::default());
    say(&hub, &members[1], Busy, 1, after(LEASE / 2));
    hub.fire(after(LEASE));
    assert_eq!(who(&hub, &members, after(LEASE)), []);
    let lapsed = after(LEASE * 3 / 2);
    hub.fire(lapsed);
    assert_eq!(who(&hub, &members, lapsed), [(0, Reassigned)]);
    say(&hub, &members[0], Drained, 1, lapsed);
    hub.fire(lapsed + HOUR);
    assert_eq!(who(&hub, &members, lapsed + HOUR), [], "once");
}

#[test]
fn what_was_counted_after_a_member_drained_is_owed_at_once() {
    let hub = hub();
    let members = fleet(&hub, 3);
    put(&hub, 1, Tick::default());
    put(&hub, 1, Tick::default());
    let told = who(&hub, &members, Tick::default());
    assert_eq!(told, [(1, Notified), (2, Notified)]);
    // The second drained before the second message; the third has not reported.
    say(&hub, &members[1], Drained, 1, Tick::default());
    assert_eq!(who(&hub, &members, Tick::default()), [(0, Reassigned)]);
    say(&hub, &members[0], Drained, 1, Tick::default());
    assert_eq!(who(&hub, &members, Tick::default()), [], "once for each");
}

#[test]
fn the_end_of_a_busy_member_reassigns_at_once_and_sets_a_timer() {
    let hub = hub();
    let members = fleet(&hub, 3);
    put(&hub, 1, Tick::default());
    who(&hub, &members, Tick::default());
    say(&hub, &members[1], Busy, 1, Tick::default());
    hub.unsubscribe(&members[1], Tick::default());
    let left = [Arc::clone(&members[0]), Arc::clone(&members[2])];
    assert_eq!(who(&hub, &left, Tick::default()), [(1, Reassigned)]);
    say(&hub, &left[1], Drained, 1, Tick::default());
    let visible = after(Duration::from_secs(34));
    hub.fire(visible);
    assert_eq!(who(&hub, &left, visible), [(0, Timed)]);
}

#[test]
fn an_assignment_that_a_stream_did_not_take_goes_to_another_with_its_sums() {
    let hub = hub();
    let members = fleet(&hub, 2);
    notify(&hub, "orders");
    hub.unsubscribe(&members[1], Tick::default());
    let told = take(&hub, &members[0], Tick::default());
    assert_eq!(told, [entry("orders", Reassigned, 1)]);
}

#[test]
fn a_stream_with_an_unsent_message_stands_aside_and_is_given_the_rest_when_it_has_sent() {
    let hub = hub();
    let members = fleet(&hub, 2);
    put(&hub, 1, Tick::default());
    put(&hub, 1, Tick::default());
    put(&hub, 1, Tick::default());
    let woken: Vec<_> = members
        .iter()
        .map(|member| entries(&drain(member, Tick::default())))
        .collect();
    assert!(woken.iter().all(|work| work.len() == 1), "{woken:?}");
    hub.end_send(&members[0], Tick::default());
    let told = take(&hub, &members[0], Tick::default());
    assert_eq!(told, [entry("orders", Notified, 1)]);
}

#[test]
fn what_is_handed_on_does_not_wait_for_a_stream_that_the_rest_waits_for() {
    let hub = hub();
    let members = fleet(&hub, 3);
    let now = Tick::default();
    put(&hub, 1, now);
    // Its message is not sent yet: it must wait, and a third of the next batch with it.
    assert_eq!(drain(&members[1], now).len(), 1);
    put(&hub, 3, now);
    assert_eq!(take(&hub, &members[0], now).len(), 1);
    assert_eq!(take(&hub, &members[2], now).len(), 1);
    say(&hub, &members[0], Busy, 2, now);
    say(&hub, &members[2], Busy, 2, now);
    hub.unsubscribe(&members[2], now);
    let told = take(&hub, &members[0], now);
    assert_eq!(told, [entry("orders", Reassigned, 0)]);
    hub.end_send(&members[1], now);
    let rest = take(&hub, &members[1], now);
    assert_eq!(rest, [entry("orders", Reassigned, 0)]);
}

#[test]
fn a_group_is_kept_for_a_while_after_its_last_member_left() {
    for (away, told) in [(599, Notified), (601, CatchUp)] {
        let hub = hub();
        let members = fleet(&hub, 1);
        hub.unsubscribe(&members[0], Tick::default());
        notify(&hub, "orders");
        let now = after(Duration::from_secs(away));
        hub.fire(now);
        hub.forget(now);
        let back = join_at(&hub, "g", now);
        assert_eq!(who(&hub, &[back], now), [(0, told)]);
    }
}

#[test]
fn a_group_that_is_kept_keeps_its_queue() {
    let hub = hub_with(HubConfig {
        forget_after: SECOND,
        ..HubConfig::default()
    });
    let members = fleet(&hub, 1);
    hub.unsubscribe(&members[0], Tick::default());
    hub.forget(after(60 * SECOND));
    assert_eq!(hub.stats().queues, 1);
    hub.fire(after(HOUR));
    hub.forget(after(2 * HOUR));
    assert_eq!(hub.stats().queues, 0);
}

#[test]
fn members_tokens_do_not_count() {
    let hub = hub();
    let members = fleet(&hub, 1);
    put(&hub, 1, Tick::default());
    let first = drain(&members[0], Tick::default());
    hub.end_send(&members[0], Tick::default());
    say(&hub, &members[0], Drained, 1, Tick::default());
    let stale = super::super::counters::Counters::starting_at(0).token(EPOCH);
    for token in [first[0].token.clone(), stale, Token::default()] {
        let options = SubscribeOptions {
            group: Some(GroupName::new("g").expect("a name")),
            ..resuming(&["orders"], &[("orders", &token)])
        };
        let back = subscribe_with(&hub, &options, Tick::default());
        assert_eq!(who(&hub, &[back], Tick::default()), []);
    }
}

#[test]
fn a_group_by_pattern_gets_a_new_queue_once() {
    let hub = hub();
    let by_pattern = SubscribeOptions {
        group: Some(GroupName::new("g").expect("a name")),
        ..options(&["ord*"])
    };
    let members: Vec<_> = (0..3)
        .map(|number| {
            let listener_id = ListenerId::new(&format!("listener-{number}"));
            let listener_id = listener_id.expect("a name");
            let options = SubscribeOptions {
                listener_id,
                ..by_pattern.clone()
            };
            subscribe_with(&hub, &options, Tick::default())
        })
        .collect();
    let told = take_all(&hub, &members, Tick::default());
    assert_eq!(told, [vec![entry("ord*", CatchUp, 0)], vec![], vec![]]);
    put(&hub, 1, Tick::default());
    assert_eq!(who(&hub, &members, Tick::default()).len(), 1);
}

#[test]
fn the_check_of_a_new_group_by_pattern_goes_to_another_member_where_the_first_ends() {
    let hub = hub();
    let by_pattern = SubscribeOptions {
        group: Some(GroupName::new("g").expect("a name")),
        ..options(&["ord*"])
    };
    let members = [(); 2].map(|()| subscribe_with(&hub, &by_pattern, Tick::default()));
    // A report of another queue does not count as a check.
    say(&hub, &members[1], Drained, 0, Tick::default());
    hub.unsubscribe(&members[0], after(SECOND));
    assert!(hub.next_timer() <= Some(after(SECOND)));
    hub.fire(after(SECOND));
    assert_eq!(who(&hub, &members[1..], after(SECOND)), [(0, CatchUp)]);
}

#[test]
fn the_check_of_an_abandoned_stream_goes_to_its_listeners_new_stream() {
    let hub = hub();
    let by_pattern = SubscribeOptions {
        group: Some(GroupName::new("g").expect("a name")),
        ..options(&["ord*"])
    };
    let lost = subscribe_with(&hub, &by_pattern, Tick::default());
    hub.fire(Tick::default());
    // The relay does not know that this stream is dead, and may never learn it.
    let streams = [lost, subscribe_with(&hub, &by_pattern, after(SECOND))];
    hub.fire(after(SECOND));
    let told = who(&hub, &streams[1..], after(SECOND));
    assert_eq!(told, [(0, CatchUp)]);

    // The same where both joined before a member was asked.
    let hub = self::hub();
    let streams = [(); 2].map(|()| subscribe_with(&hub, &by_pattern, Tick::default()));
    hub.fire(Tick::default());
    let told = who(&hub, &streams, Tick::default());
    assert!(told.contains(&(1, CatchUp)), "{told:?}");
}

#[test]
fn a_joining_member_is_asked_where_no_other_was_left() {
    let hub = hub();
    let members = fleet(&hub, 1);
    put(&hub, 1, Tick::default());
    who(&hub, &members, Tick::default());
    (1..=5).for_each(|second| _ = hub.fire(after(second * CLAIM)));
    let new = join_at(&hub, "g", after(5 * CLAIM));
    assert_eq!(who(&hub, &[new], after(5 * CLAIM)), [(0, Reassigned)]);
}

#[test]
fn a_lost_mark_of_a_member_heals_with_its_heartbeat() {
    let hub = hub();
    let members = fleet(&hub, 1);
    put(&hub, 1, Tick::default());
    // The mark is taken, and the wake-up is not.
    let queue_entry = hub.entries.get(&queue("orders")).expect("known");
    let member_id = members[0]
        .lock()
        .list
        .get(0)
        .and_then(|cursor| cursor.member_id());
    let member_id = member_id.expect("a member");
    let assignment = queue_entry
        .lock()
        .take_assignment(member_id)
        .expect("given");
    assert_eq!(drain(&members[0], Tick::default()), []);
    queue_entry.lock().return_assignment(member_id, assignment);
    assert_eq!(drain(&members[0], Tick::default()), []);
    verify(&hub, &members[0], Tick::default());
    let healed = drain(&members[0], Tick::default());
    assert_eq!(entries(&healed), [entry("orders", Notified, 1)]);
}

#[test]
fn time_outs_are_as_configured() {
    let coordinator = CoordinatorConfig {
        claim_timeout: 5 * SECOND,
        ..CoordinatorConfig::default()
    };
    let hub = hub_with(HubConfig {
        coordinator,
        ..HubConfig::default()
    });
    let members = fleet(&hub, 2);
    put(&hub, 1, Tick::default());
    who(&hub, &members, Tick::default());
    hub.fire(after(4 * SECOND));
    assert_eq!(who(&hub, &members, after(4 * SECOND)), []);
    hub.fire(after(5 * SECOND));
    assert_eq!(who(&hub, &members, after(5 * SECOND)), [(0, Reassigned)]);
}

#[test]
fn a_group_by_pattern_that_comes_back_checks_for_forgotten_queues() {
    let hub = hub_with(HubConfig {
        forget_after: SECOND,
        ..HubConfig::default()
    });
    let by_pattern = SubscribeOptions {
        group: Some(GroupName::new("g").expect("a name")),
        ..options(&["ord*"])
    };
    let member = subscribe_with(&hub, &by_pattern, Tick::default());
    take(&hub, &member, Tick::default());
    hub.unsubscribe(&member, Tick::default());
    notify(&hub, "orders");
    hub.forget(after(10 * SECOND));
    assert_eq!(hub.stats().queues, 0);
    let back = subscribe_with(&hub, &by_pattern, after(10 * SECOND));
    let told = take(&hub, &back, after(10 * SECOND));
    assert_eq!(told, [entry("ord*", CatchUp, 0)]);
}

/// Two members; the first takes work and reports that, the second was asked in the same round.
fn spent_round(hub: &Arc<Hub>) -> Vec<Arc<Subscription>> {
    let members = fleet(hub, 2);
    put(hub, 1, Tick::default());
    who(hub, &members, Tick::default());
    hub.fire(after(CLAIM));
    assert_eq!(who(hub, &members, after(CLAIM)).len(), 1, "both were asked");
    members
}

#[test]
fn a_lease_that_lapses_when_all_were_asked_opens_a_round_of_its_own() {
    let hub = hub();
    let members = spent_round(&hub);
    say(&hub, &members[0], Busy, 0, after(CLAIM));
    // No member reports any more; the pending work is sent again at the end of the lease.
    (2..=29).for_each(|second| _ = hub.fire(after(second * SECOND)));
    who(&hub, &members, after(29 * SECOND));
    let lapsed = after(CLAIM + LEASE);
    hub.fire(lapsed);
    assert_eq!(who(&hub, &members, lapsed), [(1, Reassigned)]);
}

#[test]
fn a_lease_that_lapses_during_another_check_wakes_the_others_again() {
    let hub = hub();
    let members = fleet(&hub, 2);
    put(&hub, 1, Tick::default());
    let first = who(&hub, &members, Tick::default())[0].0;
    say(&hub, &members[first], Busy, 1, Tick::default());
    let before = after(LEASE - SECOND / 10);
    put(&hub, 1, before);
    let other = 1 - first;
    assert_eq!(who(&hub, &members, before), [(other, Notified)]);
    // The first one's messages may become visible after the other one has polled.
    hub.fire(after(LEASE));
    assert_eq!(who(&hub, &members, after(LEASE)), [(other, Reassigned)]);
}

#[test]
fn a_busy_member_that_ends_when_all_were_asked_opens_a_round_of_its_own() {
    let hub = hub();
    let members = spent_round(&hub);
    say(&hub, &members[0], Busy, 0, after(CLAIM));
    hub.unsubscribe(&members[0], after(CLAIM));
    let rest = &members[1..];
    assert_eq!(who(&hub, rest, after(CLAIM)), [(0, Reassigned)]);
}

#[test]
fn a_member_that_does_not_read_has_the_others_woken_for_a_burst_until_the_queue_is_empty() {
    for messages in [9, u64::MAX] {
        let hub = hub();
        let members = fleet(&hub, 9);
        // The last one's stream never ends its send.
        let (reading, stuck) = members.split_at(8);
        stuck[0].begin_send();
        put(&hub, messages, Tick::default());
        assert_eq!(who(&hub, reading, Tick::default()).len(), 8);
        for member in reading {
            say(&hub, member, Drained, 1, Tick::default());
        }
        who(&hub, reading, Tick::default());
        for _ in 0..5 {
            put(&hub, 1, Tick::default());
            let woken = who(&hub, reading, Tick::default());
            assert_eq!(woken.len(), 1, "{messages}: {woken:?}");
            let head = hub.queues(None, 1, Tick::default())[0].sequence;
            say(&hub, &reading[woken[0].0], Drained, head, Tick::default());
        }
    }
}

#[test]
fn a_wake_up_that_no_member_reads_waits_for_one_without_a_timer() {
    let hub = hub();
    let members = fleet(&hub, 2);
    members.iter().for_each(|member| member.begin_send());
    put(&hub, 1, Tick::default());
    (1..=5).for_each(|second| _ = hub.fire(after(second * CLAIM)));
    assert_eq!(hub.next_timer(), None, "it is parked");
    assert_eq!(drain(&members[1], after(5 * CLAIM)), []);
    hub.end_send(&members[1], after(5 * CLAIM));
    assert_eq!(take(&hub, &members[1], after(5 * CLAIM)).len(), 1);
}

#[test]
fn a_group_that_took_nothing_is_not_kept() {
    let hub = hub();
    let stays = join(&hub, "stays");
    take(&hub, &stays, Tick::default());
    for number in 0..100 {
        let name = format!("g{number}");
        let options = SubscribeOptions {
            group: Some(GroupName::new(&name).expect("a name")),
            ..options(&["orders"])
        };
        // Its stream ends before it sends anything.
        let passing = subscribe_with(&hub, &options, Tick::default());
        hub.unsubscribe(&passing, Tick::default());
    }
    let queue_entry = hub.entries.get(&queue("orders")).expect("known");
    let groups = queue_entry
        .lock()
        .coordinator
        .as_ref()
        .map(|coordinator| coordinator.groups());
    assert!(groups.is_some_and(|groups| groups <= 101), "{groups:?}");
}

fn of_queues(names: &[String]) -> SubscribeOptions {
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    SubscribeOptions {
        group: Some(GroupName::new("g").expect("a name")),
        ..options(&names)
    }
}

#[test]
fn a_member_of_many_queues_gets_them_in_few_wakes() {
    let hub = hub();
    let names: Vec<_> = (0..500).map(|number| format!("q{number}")).collect();
    let member = subscribe_with(&hub, &of_queues(&names), Tick::default());
    let (mut told, mut wakes) = (0, 0);
    while told < names.len() {
        let some = take(&hub, &member, Tick::default()).len();
        assert!(some > 0, "{told} told");
        (told, wakes) = (told + some, wakes + 1);
    }
    assert!(wakes <= 30, "{wakes} Wakes");
    assert_eq!(take(&hub, &member, Tick::default()), []);
    // Each of its queues has it back in the order.
    for name in &names {
        notify(&hub, name);
    }
    let again: usize = std::iter::from_fn(|| Some(take(&hub, &member, Tick::default()).len()))
        .take_while(|told| *told > 0)
        .sum();
    assert_eq!(again, names.len());
}

#[test]
fn members_of_many_queues_share_what_is_counted_in_all_of_them() {
    let hub = hub();
    let names: Vec<_> = (0..30).map(|number| format!("q{number}")).collect();
    let members = [(); 3].map(|()| subscribe_with(&hub, &of_queues(&names), Tick::default()));
    while take_all(&hub, &members, Tick::default())
        .iter()
        .any(|told| !told.is_empty())
    {}
    for name in &names {
        notify(&hub, name);
    }
    let mut told = [0; 3];
    loop {
        let each = take_all(&hub, &members, Tick::default());
        if each.iter().all(Vec::is_empty) {
            break;
        }
        for (sum, some) in told.iter_mut().zip(&each) {
            *sum += some.len();
        }
    }
    assert_eq!(told.iter().sum::<usize>(), names.len(), "{told:?}");
    assert!(told.iter().all(|some| (5..=15).contains(some)), "{told:?}");
}
