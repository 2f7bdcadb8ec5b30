//! Groups: which members are given a wake-up, and how it is redelivered (R12 to R16, the rules of
//! groups).

mod membership;
mod redelivery;

use std::collections::BTreeMap;

use super::*;
use ReportState::{Busy, Drained};
use WakeReason::{CatchUp, Notified, Reassigned, Timed};

const CLAIM: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);

/// Members of one group on `orders`, and the time.
struct Fleet {
    hub: Arc<Hub>,
    members: BTreeMap<usize, Arc<Subscription>>,
    now: Tick,
}

impl Fleet {
    /// Creates members that have polled, the first of which has reported.
    fn new(count: usize) -> Self {
        Self::on(hub(), count)
    }

    fn on(hub: Arc<Hub>, count: usize) -> Self {
        let mut fleet = Self::empty(hub);
        (0..count).for_each(|_| fleet.join(&of_group("g", 1)));
        fleet.woken();
        fleet.say(0, Drained, 0);
        fleet
    }

    fn empty(hub: Arc<Hub>) -> Self {
        Self {
            hub,
            members: BTreeMap::new(),
            now: START,
        }
    }

    fn join(&mut self, options: &SubscribeOptions) {
        let next = self.members.keys().next_back().map_or(0, |last| last + 1);
        let member = subscribe_with(&self.hub, options, self.now);
        self.members.insert(next, member);
    }

    fn leave(&mut self, member: usize) {
        let left = self.members.remove(&member).expect("a member");
        self.hub.unsubscribe(&left, self.now);
    }

    fn put(&self, messages: u64) {
        let notification = Notification {
            messages,
            ..notification("orders")
        };
        notify_with(&self.hub, notification, self.now);
    }

    fn say(&self, member: usize, state: ReportState, sequence: u64) {
        let report = report("orders", state, sequence, number());
        say(&self.hub, &self.members[&member], &report, self.now);
    }

    /// A member states how many messages it can take from now on.
    fn set_room(&self, member: usize, capacity: u32) {
        let report = Report {
            capacity: Some(capacity),
            ..report("orders", ReportState::Unspecified, 0, number())
        };
        say(&self.hub, &self.members[&member], &report, self.now);
    }

    /// Takes what a member is sent, and does not end its send.
    fn drain(&self, member: usize) -> Vec<WorkDetected> {
        drain(&self.members[&member], self.now)
    }

    fn take(&self, member: usize) -> Vec<Entry> {
        entries(&take_sent(&self.hub, &self.members[&member], self.now))
    }

    /// Returns which members are woken, and why.
    fn woken(&self) -> Vec<(usize, WakeReason)> {
        let entries = |at: usize| self.take(at).into_iter().map(move |entry| (at, entry.1));
        self.members.keys().flat_map(|at| entries(*at)).collect()
    }

    /// Fires the timers at this time; returns which members are woken.
    fn fire(&mut self, now: Tick) -> Vec<(usize, WakeReason)> {
        self.now = now;
        self.hub.fire(now);
        self.woken()
    }
}

/// Options of a member; it listens on `orders`.
fn of_group(group: &str, capacity: u32) -> SubscribeOptions {
    SubscribeOptions {
        capacity,
        ..in_group(group, &["orders"])
    }
}

#[test]
fn a_new_group_wakes_one_member_to_catch_up() {
    let mut fleet = Fleet::empty(hub());
    (0..5).for_each(|_| fleet.join(&of_group("g", 1)));
    assert_eq!(fleet.woken(), [(0, CatchUp)]);
    fleet.join(&of_group("h", 1));
    assert_eq!(fleet.woken(), [(5, CatchUp)]);
}

#[test]
fn a_member_without_room_is_given_nothing_until_it_has_some() {
    let mut fleet = Fleet::new(2);
    fleet.set_room(0, 0);
    fleet.put(1);
    assert_eq!(fleet.woken(), [(1, Notified)]);
    fleet.say(1, Drained, 1);
    fleet.set_room(1, 0);
    fleet.put(1);
    assert_eq!(fleet.woken(), []);
    let later = fleet.now + 10 * CLAIM;
    assert_eq!(fleet.fire(later), []);
    fleet.set_room(0, 1);
    assert_eq!(fleet.woken().len(), 1);
    fleet.say(0, Drained, 2);
    let later = fleet.now + 10 * CLAIM;
    assert_eq!(fleet.fire(later), []);
    fleet.set_room(1, 1);
    assert_eq!(fleet.woken(), []);
}

#[test]
fn a_members_room_is_its_share_and_never_more_than_its_capacity() {
    let mut fleet = Fleet::empty(hub());
    (0..2).for_each(|_| fleet.join(&of_group("g", 10)));
    fleet.woken();
    fleet.say(0, Drained, 0);
    let given = |fleet: &Fleet, member| {
        let work = fleet.drain(member);
        work.iter().map(|one| one.messages).sum::<u64>()
    };
    fleet.set_room(0, 2);
    fleet.set_room(1, 100);
    fleet.put(12);
    assert_eq!((given(&fleet, 0), given(&fleet, 1)), (2, 10));
}

#[test]
fn one_message_wakes_one_of_a_thousand_members() {
    let fleet = Fleet::new(1000);
    fleet.put(1);
    assert_eq!(fleet.woken().len(), 1);
}

#[test]
fn as_many_members_are_woken_as_the_messages_need_each_by_its_own_capacity() {
    let mut fleet = Fleet::empty(hub());
    for capacity in [10, 1, 4, 10] {
        fleet.join(&of_group("g", capacity));
    }
    fleet.woken();
    fleet.put(6);
    // The first has caught up, and is busy by now: 1 + 4 + 1 of 10.
    assert_eq!(fleet.woken(), [1, 2, 3].map(|at| (at, Notified)));
}

#[test]
fn a_wake_up_that_needs_more_members_than_one_step_wakes_is_left_to_the_fan_out() {
    let fleet = Fleet::new(200);
    fleet.put(150);
    let given = || (0..200).filter(|at| !fleet.drain(*at).is_empty()).count();
    assert_eq!(given(), 64);
    walk_all(&fleet.hub);
    assert_eq!(given(), 150 - 64);
}

#[test]
fn the_parts_add_up_to_what_was_counted() {
    let fleet = Fleet::new(4);
    let batch = Notification {
        messages: 3,
        notifications: 2,
        payload_size: 7,
        ..notification("orders")
    };
    notify_with(&fleet.hub, batch, START);
    let work: Vec<_> = (0..4).flat_map(|at| fleet.drain(at)).collect();
    assert_eq!(work.len(), 3);
    assert_eq!(work.iter().map(|entry| entry.messages).sum::<u64>(), 3);
    assert_eq!(work.iter().map(|entry| entry.notifications).sum::<u64>(), 2);
    assert_eq!(work.iter().map(|entry| entry.payload_size).sum::<u64>(), 7);
    assert!(work.iter().all(|entry| entry.sequence == 1));
}

#[test]
fn a_payload_is_no_count_of_messages() {
    let fleet = Fleet::new(4);
    let large = Notification {
        payload_size: 1_000_000,
        ..notification("orders")
    };
    notify_with(&fleet.hub, large, START);
    assert_eq!(fleet.woken().len(), 1);
}

#[test]
fn idle_members_come_first_and_then_the_least_recently_woken() {
    let fleet = Fleet::new(3);
    let mut order = Vec::new();
    for sequence in 1..=6 {
        fleet.put(1);
        let (at, _) = fleet.woken()[0];
        order.push(at);
        // The second never reports DRAINED.
        fleet.say(at, if at == 1 { Busy } else { Drained }, sequence);
    }
    assert_eq!(order, [1, 2, 0, 2, 0, 2]);
}

#[test]
fn a_busy_member_that_is_counted_is_sent_the_wake_up() {
    let fleet = Fleet::new(1);
    fleet.put(1);
    assert_eq!(fleet.woken(), [(0, Notified)]);
    fleet.say(0, Busy, 1);
    fleet.put(1);
    assert_eq!(fleet.woken(), [(0, Notified)]);
}

#[test]
fn subscribers_without_a_group_are_all_woken_besides() {
    let fleet = Fleet::new(3);
    let others = [["orders"], ["ord*"]].map(|selectors| settled(&fleet.hub, &selectors));
    assert_eq!(notify(&fleet.hub, "orders").listeners, 5);
    assert_eq!(fleet.woken().len(), 1);
    assert!(others.iter().all(|other| drain(other, START).len() == 1));
}

#[test]
fn each_group_has_a_cursor_of_its_own() {
    let mut fleet = Fleet::empty(hub());
    for group in ["g", "h"] {
        fleet.join(&of_group(group, 1));
    }
    fleet.woken();
    fleet.put(1);
    assert_eq!(fleet.woken(), [(0, Notified), (1, Notified)]);
}

#[test]
fn a_timed_wake_up_goes_to_one_member() {
    let mut fleet = Fleet::new(3);
    notify_with(&fleet.hub, delayed("orders", SECOND), START);
    assert_eq!(fleet.woken(), []);
    assert_eq!(fleet.fire(after(2 * SECOND)), [(1, Timed)]);
}

#[test]
fn a_stream_with_an_unsent_message_stands_aside_and_is_given_the_rest_when_it_has_sent() {
    let fleet = Fleet::new(2);
    (0..3).for_each(|_| fleet.put(1));
    let woken = [0, 1].map(|at| fleet.drain(at).len());
    assert_eq!(woken, [1, 1]);
    fleet.hub.end_send(&fleet.members[&0], START);
    assert_eq!(fleet.take(0), [entry("orders", Notified, 1)]);
}

#[test]
fn a_wake_up_that_no_member_reads_waits_for_one_without_a_timer() {
    let mut fleet = Fleet::new(2);
    let members = fleet.members.values();
    members.for_each(|member| member.mailbox.begin_send());
    fleet.put(1);
    (1..=5).for_each(|second| _ = fleet.hub.fire(after(second * CLAIM)));
    assert_eq!(fleet.hub.next_timer(), None, "it is parked");
    fleet.now = after(5 * CLAIM);
    assert_eq!(fleet.drain(1), []);
    fleet.hub.end_send(&fleet.members[&1], fleet.now);
    assert_eq!(fleet.take(1).len(), 1);
}
