//! Wake-ups that no member covers: claim time-outs, leases, and the ends of members (R13 to R16).

use super::*;

#[test]
fn what_is_not_covered_in_time_goes_to_each_other_member_once() {
    let mut fleet = Fleet::new(3);
    fleet.put(1);
    let mut told = fleet.woken();
    for second in 1..=10 {
        told.extend(fleet.fire(after(second * CLAIM)));
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
        let mut fleet = Fleet::new(2);
        fleet.put(1);
        fleet.woken();
        fleet.say(1, state, sequence);
        let told = fleet.fire(after(CLAIM));
        assert_eq!(told.is_empty(), covered, "{state:?} {sequence}: {told:?}");
    }
}

#[test]
fn time_outs_are_as_configured() {
    let hub = hub_where(|config| config.claim_timeout = 5 * SECOND);
    let mut fleet = Fleet::on(hub, 2);
    fleet.put(1);
    fleet.woken();
    assert_eq!(fleet.fire(after(4 * SECOND)), []);
    assert_eq!(fleet.fire(after(5 * SECOND)), [(0, Reassigned)]);
}

#[test]
fn what_was_counted_while_an_older_one_was_open_waits_no_longer_than_the_time_out() {
    let mut fleet = Fleet::new(3);
    fleet.put(1);
    fleet.now = after(CLAIM / 2);
    fleet.put(1);
    assert_eq!(fleet.woken().len(), 2);
    // The first is covered; the second, which went to another member, is not.
    fleet.say(1, Busy, 1);
    assert_eq!(fleet.fire(after(CLAIM)), []);
    assert_eq!(fleet.fire(after(CLAIM * 3 / 2)), [(0, Reassigned)]);
}

#[test]
fn events_counted_in_a_finished_round_start_a_new_round() {
    let mut fleet = Fleet::new(2);
    fleet.put(1);
    assert_eq!(fleet.woken(), [(1, Notified)]);
    fleet.now = after(CLAIM / 2);
    fleet.put(1);
    assert_eq!(fleet.woken(), [(0, Notified)]);
    // No member covers a wake-up, and the other one was never sent the second message.
    fleet.hub.fire(after(CLAIM));
    assert_eq!(fleet.fire(after(CLAIM * 3 / 2)), [(1, Reassigned)]);
}

#[test]
fn a_report_from_before_the_question_does_not_answer_it() {
    let mut fleet = Fleet::new(3);
    fleet.put(1);
    fleet.woken();
    fleet.say(1, Busy, 1);
    fleet.leave(1);
    // The third has it now; the first repeats its old report of the sequence.
    fleet.say(0, Drained, 1);
    assert_eq!(fleet.woken(), [(2, Reassigned)]);
    assert_eq!(fleet.fire(after(CLAIM)), [(0, Reassigned)]);
}

#[test]
fn what_is_repeated_on_a_new_stream_covers_nothing() {
    // The asked member is gone, and the relay does not know that yet.
    let mut fleet = Fleet::new(1);
    fleet.now = after(SECOND);
    fleet.put(1);
    assert_eq!(fleet.woken(), [(0, Notified)]);
    let _lost = fleet.members.remove(&0);
    // Its new stream repeats a report of the relay's earlier run, with the same sequence.
    fleet.join(&of_group("g", 1));
    fleet.say(0, Drained, 1);
    assert_eq!(fleet.fire(after(SECOND + CLAIM)), [(0, Reassigned)]);
}

#[test]
fn a_lease_lapses_once_and_further_reports_renew_it() {
    let mut fleet = Fleet::new(2);
    fleet.put(1);
    fleet.woken();
    fleet.say(1, Busy, 1);
    fleet.now = after(LEASE / 2);
    fleet.say(1, Busy, 1);
    assert_eq!(fleet.fire(after(LEASE)), []);
    let lapsed = after(LEASE * 3 / 2);
    assert_eq!(fleet.fire(lapsed), [(0, Reassigned)]);
    fleet.say(0, Drained, 1);
    assert_eq!(fleet.fire(lapsed + HOUR), [], "once");
}

#[test]
fn what_was_counted_after_a_member_drained_is_owed_at_once() {
    let fleet = Fleet::new(3);
    fleet.put(1);
    fleet.put(1);
    assert_eq!(fleet.woken(), [(1, Notified), (2, Notified)]);
    // The second drained before the second message; the third has not reported.
    fleet.say(1, Drained, 1);
    assert_eq!(fleet.woken(), [(0, Reassigned)]);
    fleet.say(0, Drained, 1);
    assert_eq!(fleet.woken(), [], "once for each");
}

#[test]
fn the_end_of_a_busy_member_reassigns_at_once_and_sets_a_timer() {
    let mut fleet = Fleet::new(3);
    fleet.put(1);
    fleet.woken();
    fleet.say(1, Busy, 1);
    fleet.leave(1);
    assert_eq!(fleet.woken(), [(2, Reassigned)]);
    fleet.say(2, Drained, 1);
    assert_eq!(fleet.fire(after(34 * SECOND)), [(0, Timed)]);
}

#[test]
fn an_assignment_that_a_stream_did_not_take_goes_to_another() {
    let mut fleet = Fleet::new(2);
    fleet.put(1);
    fleet.leave(1);
    assert_eq!(fleet.take(0), [entry("orders", Reassigned, 0)]);
}

#[test]
fn what_is_handed_on_does_not_wait_for_a_stream_that_the_rest_waits_for() {
    let mut fleet = Fleet::new(3);
    fleet.put(1);
    // Its message is not sent yet: it must wait, and a third of the next batch with it.
    assert_eq!(fleet.drain(1).len(), 1);
    fleet.put(3);
    for at in [0, 2] {
        assert_eq!(fleet.take(at).len(), 1);
        fleet.say(at, Busy, 2);
    }
    fleet.leave(2);
    assert_eq!(fleet.take(0), [entry("orders", Reassigned, 0)]);
    fleet.hub.end_send(&fleet.members[&1], START);
    assert_eq!(fleet.take(1), [entry("orders", Reassigned, 0)]);
}

/// Creates two members; both were asked in the same round, and the first takes work after it.
fn spent_round() -> Fleet {
    let mut fleet = Fleet::new(2);
    fleet.put(1);
    fleet.woken();
    assert_eq!(fleet.fire(after(CLAIM)).len(), 1, "both were asked");
    fleet.say(0, Busy, 0);
    fleet
}

#[test]
fn a_lease_that_lapses_when_all_were_asked_opens_a_round_of_its_own() {
    let mut fleet = spent_round();
    // No member reports any more; the pending work is sent again at the end of the lease.
    (2..=29).for_each(|second| _ = fleet.hub.fire(after(second * SECOND)));
    fleet.now = after(29 * SECOND);
    fleet.woken();
    assert_eq!(fleet.fire(after(CLAIM + LEASE)), [(1, Reassigned)]);
}

#[test]
fn a_busy_member_that_ends_when_all_were_asked_opens_a_round_of_its_own() {
    let mut fleet = spent_round();
    fleet.leave(0);
    assert_eq!(fleet.woken(), [(1, Reassigned)]);
}

#[test]
fn a_lease_that_lapses_during_another_check_wakes_the_others_again() {
    let mut fleet = Fleet::new(2);
    fleet.put(1);
    let first = fleet.woken()[0].0;
    fleet.say(first, Busy, 1);
    fleet.now = after(LEASE - SECOND / 10);
    fleet.put(1);
    let other = 1 - first;
    assert_eq!(fleet.woken(), [(other, Notified)]);
    // The first one's messages may become visible after the other one has polled.
    assert_eq!(fleet.fire(after(LEASE)), [(other, Reassigned)]);
}

#[test]
fn a_member_that_does_not_read_has_the_others_woken_for_a_burst_until_the_queue_is_empty() {
    for messages in [9, u64::MAX] {
        let mut fleet = Fleet::new(9);
        // The last one's stream never ends its send.
        let stuck = fleet.members.remove(&8).expect("the last");
        stuck.mailbox.begin_send();
        fleet.put(messages);
        assert_eq!(fleet.woken().len(), 8);
        (0..8).for_each(|at| fleet.say(at, Drained, 1));
        fleet.woken();
        for _ in 0..5 {
            fleet.put(1);
            let woken = fleet.woken();
            assert_eq!(woken.len(), 1, "{messages}: {woken:?}");
            let head = fleet.hub.queues("", 1, START)[0].sequence;
            fleet.say(woken[0].0, Drained, head);
        }
    }
}

#[test]
fn a_joining_member_is_asked_where_no_other_was_left() {
    let mut fleet = Fleet::new(1);
    fleet.put(1);
    fleet.woken();
    (1..=5).for_each(|second| _ = fleet.hub.fire(after(second * CLAIM)));
    fleet.now = after(5 * CLAIM);
    let _asked = fleet.members.remove(&0);
    fleet.join(&of_group("g", 1));
    assert_eq!(fleet.woken(), [(0, Reassigned)]);
}

/// Its group looks at the list of a pattern. A notification takes inboxes under such a list.
#[test]
fn a_late_report_of_a_member_by_pattern_takes_no_list_under_an_inbox() {
    let mut fleet = Fleet::empty(hub());
    let _outside = subscribe(&fleet.hub, &["ord*"]);
    let by_pattern = || SubscribeOptions {
        capacity: 1,
        ..in_group("g", &["ord*"])
    };
    (0..2).for_each(|_| fleet.join(&by_pattern()));
    fleet.woken();
    fleet.put(1);
    let first = fleet.woken()[0].0;
    fleet.say(first, Busy, 1);
    fleet.now += SECOND / 2;
    fleet.put(1);
    let second = fleet.woken()[0].0;
    assert_ne!(first, second);
    fleet.say(second, Busy, 2);
    // The first one's lease lapses, and the second one is asked.
    let now = START + LEASE;
    assert_eq!(fleet.fire(now), [(second, Reassigned)]);
    fleet.join(&by_pattern());
    fleet.say(first, Drained, 1);
    assert!(fleet.woken().contains(&(2, Reassigned)));
}
