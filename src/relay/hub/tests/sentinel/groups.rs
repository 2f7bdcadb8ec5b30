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
fn with_a_group_on_the_queue_a_member_is_asked_and_without_a_report_a_listener_outside() {
    let mut guarded = Guarded::new(1);
    let options = in_group("g", &["orders"]);
    let members = [(); 2].map(|()| subscribe_with(&guarded.hub, &options, START));
    guarded.all.splice(0..0, members);
    assert_eq!(guarded.asked(0, 0), [(0, 0, CatchUp)]);
    guarded.say(0, Drained, 0);
    let told = guarded.asked(1, 4 * 67);
    let order = "the idle member, the listener outside of the group, the member that was woken";
    assert_eq!(by(&told)[..3], [1, 2, 0], "{order}");
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
    assert_eq!(by(&guarded.asked(1, 140)), [0, 1]);
}

#[test]
fn the_check_of_a_member_that_leaves_goes_to_the_next_at_once() {
    let mut guarded = Guarded::on::<[&str; 1]>(&[]);
    (0..2).for_each(|_| guarded.join("g"));
    (0..2).for_each(|at| guarded.say(at, Drained, 0));
    let (second, asked, _) = guarded.first_asked(1);
    guarded.leave(asked, second);
    assert_eq!(guarded.asked(second, second + 1).len(), 1);
}

#[test]
fn a_member_whose_stream_is_busy_gets_its_check_when_it_has_sent() {
    let guarded = Guarded::beside_a_drained_group();
    guarded.all[0].mailbox.begin_send();
    guarded.hub.fire(at(67));
    assert_eq!(drain(&guarded.all[0], at(67)), []);
    assert_eq!(by(&guarded.asked(67, 69)), [0]);
}

#[test]
fn members_that_poll_are_not_asked_and_another_listener_is() {
    let guarded = Guarded::beside_a_group();
    guarded.report(0, &polls(1), 0);
    assert_eq!(by(&guarded.asked(1, 70)), [1]);
}
