//! Checks of queues with groups: a member first, then the listeners outside.

use super::*;

impl Guarded {
    /// Adds a member of a group that has polled.
    fn join(&mut self, group: &str) {
        let member = subscribe_with(&self.hub, &in_group(group, &["orders"]), START);
        take_sent(&self.hub, &member, START);
        self.all.push(member);
    }

    /// A group's only member that has polled, and a drained listener outside.
    fn beside_a_group() -> Self {
        let mut guarded = Self::new(1);
        guarded.join("g");
        guarded.all.swap(0, 1);
        guarded
    }

    /// As above; the member has reported as well.
    fn beside_a_drained_group() -> Self {
        let guarded = Self::beside_a_group();
        guarded.say(0, Drained, 0);
        guarded
    }
}

#[test]
fn with_a_group_on_the_queue_a_member_is_asked_and_without_a_report_the_next() {
    let mut guarded = Guarded::new(1);
    let options = in_group("g", &["orders"]);
    let members = [(); 2].map(|()| subscribe_with(&guarded.hub, &options, START));
    guarded.all.splice(0..0, members);
    assert_eq!(guarded.asked(0, 0), [(0, 0, CatchUp)]);
    guarded.say(0, Drained, 0);
    let told = guarded.asked(1, 70);
    let order = "the reporting listener, the other, then the listener outside of the group";
    assert_eq!(by(&told), [0, 1, 2], "{order}");
    let is_check = |asked: &Asked| asked.2 == Sentinel;
    assert!(told.iter().all(is_check), "{told:?}");
}

#[test]
fn a_members_check_that_finds_more_wakes_members_that_were_woken_before() {
    let mut guarded = Guarded::on::<[&str; 1]>(&[]);
    (0..4).for_each(|_| guarded.join("g"));
    let batch = Notification {
        messages: 4,
        ..notification("orders")
    };
    notify_with(&guarded.hub, batch, START);
    assert_eq!(guarded.asked(0, 0).len(), 4);
    for member in 0..4 {
        guarded.report(member, &report("orders", Drained, 1, number()), 0);
    }
    let (second, asked, reason) = guarded.first_asked(1);
    assert_eq!(reason, Sentinel);
    guarded.report(asked, &finds(2, 1), second);
    let more = by(&guarded.asked(second, second));
    assert!(more.len() == 2 && !more.contains(&asked), "{more:?}");
}

#[test]
fn where_all_members_of_a_group_hang_a_listener_outside_of_it_is_asked() {
    let guarded = Guarded::beside_a_drained_group();
    assert_eq!(by(&guarded.asked(1, 70)), [0, 1]);
}

#[test]
fn a_check_whose_group_is_left_by_its_last_member_goes_to_a_listener_outside_at_once() {
    let mut guarded = Guarded::beside_a_drained_group();
    let (second, asked, _) = guarded.first_asked(1);
    assert_eq!(asked, 0);
    guarded.leave(0, second);
    let told = guarded.asked(second, second + 1);
    assert!(matches!(told[..], [(_, 0, Sentinel)]), "{told:?}");
}

#[test]
fn a_check_whose_group_is_left_by_its_last_member_goes_to_the_next_group_at_once() {
    let mut guarded = Guarded::on::<[&str; 1]>(&[]);
    for (at, group) in ["a", "b"].iter().enumerate() {
        guarded.join(group);
        guarded.say(at, Drained, 0);
    }
    let (second, asked, _) = guarded.first_asked(1);
    guarded.leave(asked, second);
    let told = guarded.asked(second, second + 1);
    assert!(matches!(told[..], [(_, 0, Sentinel)]), "{told:?}");
}

#[test]
fn a_check_that_falls_into_a_wake_up_that_no_member_covers_goes_to_a_listener_outside() {
    let (due, ..) = Guarded::beside_a_drained_group().first_asked(1);
    // A wake-up precedes the group's check, and the member covers neither.
    let guarded = Guarded::beside_a_drained_group();
    assert_eq!(guarded.asked(1, due - 1), []);
    let now = after(Duration::from_millis(due * 1000 - 950));
    notify_with(&guarded.hub, notification("orders"), now);
    for one in &guarded.all {
        let told = take_sent(&guarded.hub, one, now);
        let reasons: Vec<_> = told.iter().map(|work| work.reason).collect();
        assert_eq!(reasons, [Notified]);
    }
    let before = after(Duration::from_millis(due * 1000 - 50));
    guarded.hub.fire(before);
    let told = guarded.asked(due, due + 5);
    assert!(matches!(told[..], [(_, 1, Sentinel)]), "{told:?}");
}

#[test]
fn members_that_poll_are_not_asked_and_another_listener_is() {
    let guarded = Guarded::beside_a_group();
    guarded.report(0, &polls(1), 0);
    assert_eq!(by(&guarded.asked(1, 70)), [1]);
}

#[test]
fn where_no_member_of_a_group_reads_a_listener_outside_of_it_is_asked() {
    let mut guarded = Guarded::beside_a_drained_group();
    // Its frame is never sent.
    let member = guarded.all.remove(0);
    member.begin_send();
    let told = guarded.asked(1, 80);
    assert!(matches!(told[..], [(54..=72, 0, Sentinel)]), "{told:?}");
    // The same where a wake-up waits for the member.
    notify_with(&guarded.hub, notification("orders"), at(81));
    drain(&guarded.all[0], at(81));
    guarded.report(0, &report("orders", Drained, 1, number()), 81);
    let told = guarded.asked(82, 160);
    assert!(matches!(told[..], [(135..=153, 0, Sentinel)]), "{told:?}");
}
