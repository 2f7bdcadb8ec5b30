//! The hub's memory, and that it does not grow with notifications.
//!
//! Computed from the sizes of types and the capacities of lists: an allocator that counts would
//! need unsafe code.

use std::mem::size_of;

use super::{
    super::{
        coordinator::Coordinator,
        cursor::{Cursor, Taken},
        group::Group,
        increments::Announced,
        members::Member,
        queue::QueueEntry,
        subscription::Subscription as Stream,
    },
    *,
};

/// The counts of an `Arc`.
const COUNTS: usize = 2 * size_of::<usize>();
/// A hash table's entry with its control byte, in a table whose shards grow between a half and all of
/// their room, of which an eighth stays free: 16/7 places an entry over all shards.
const fn hashed(entry: usize) -> usize {
    (entry + 1) * 16 / 7
}

/// Bytes of a queue whose address has `text` bytes.
const fn of_queue(text: usize) -> usize {
    let entry = size_of::<QueueAddress>() + size_of::<Arc<QueueEntry>>();
    COUNTS + size_of::<QueueEntry>() + COUNTS + text + hashed(entry)
}

/// Bytes of a cursor: of a queue where a subscription is owed something, or handles messages. The list
/// and the nodes of the tree are half full.
const fn of_cursor() -> usize {
    let cursor = size_of::<(Arc<QueueEntry>, Cursor)>();
    let place = node(size_of::<u64>(), size_of::<usize>()) / 5;
    size_of::<Taken>() + 2 * cursor + place + 2 * size_of::<u64>()
}

/// Returns the capacities of all that may grow: lists, tables and queues.
fn held(hub: &Hub, subscriptions: &[Arc<Subscription>]) -> Vec<usize> {
    let queue_entries = hub.entries.range(std::ops::Bound::Unbounded, usize::MAX);
    let mut held = vec![hub.entries.len(), hub.fanout.len(), hub.timers().len()];
    held.extend(
        queue_entries
            .iter()
            .flat_map(|queue_entry| queue_entry.lock().capacities()),
    );
    for subscription in subscriptions {
        held.extend(subscription.lock().capacities());
    }
    held
}

#[test]
fn a_queue_and_a_cursor_cost_what_is_documented() {
    assert!(of_queue(40) <= 500, "{}", of_queue(40));
    assert!(of_cursor() <= 340, "{}", of_cursor());
    let stream = size_of::<Stream>() + COUNTS;
    assert!(stream <= 640, "{stream}");
}

/// What a queue with causes takes more in a cluster.
#[test]
fn a_queue_of_a_cluster_costs_what_is_documented() {
    assert!(size_of::<Announced>() <= 120, "{}", size_of::<Announced>());
}

/// A node of a B-tree with eleven keys, where a tree begins.
const fn node(key: usize, value: usize) -> usize {
    11 * (key + value) + 2 * size_of::<usize>()
}

/// The coordinator of a queue that has a sentinel or groups.
const fn of_coordinator() -> usize {
    size_of::<Coordinator>() + 2 * size_of::<usize>()
}

/// A group with one member, on a queue without others, with a name of the greatest length.
const fn of_group() -> usize {
    let of_coordinator = size_of::<Group>() + node(size_of::<GroupName>(), size_of::<Box<Group>>());
    let trees = node(ID, size_of::<Box<Member>>()) + node(RANK, 0) + node(LEASE, 0);
    of_coordinator + size_of::<Member>() + trees + COUNTS + 128
}

/// A further member that the group knows: the nodes of the trees are half full.
const fn of_member() -> usize {
    let trees = node(ID, size_of::<Box<Member>>()) + node(RANK, 0) + node(LEASE, 0);
    of_cursor() + size_of::<Member>() + trees / 5
}

const ID: usize = size_of::<SubscriptionId>();
const RANK: usize = size_of::<(bool, u64, SubscriptionId)>();
const LEASE: usize = size_of::<(Tick, SubscriptionId)>();

#[test]
fn a_group_a_member_and_a_coordinator_cost_what_is_documented() {
    assert!(of_coordinator() <= 350, "{}", of_coordinator());
    assert!(of_group() <= 2048, "{}", of_group());
    assert!(of_member() <= 620, "{}", of_member());
}

#[test]
fn a_million_notifications_leave_no_more_behind_than_one() {
    for inline in [64, 0] {
        let hub = hub_with(HubConfig {
            inline,
            ..HubConfig::default()
        });
        // Neither reads; while the fan-out does not run, it has the queue once.
        let subscriptions = ["orders", "ord*"].map(|selector| settled(&hub, &[selector]));
        notify(&hub, "orders");
        let before = held(&hub, &subscriptions);
        let batch = vec![notification("orders"); 1000];
        for _ in 0..1000 {
            let accepted = hub.notify_all(&Arc::from("tests"), &batch, Tick::default());
            accepted.expect("accepted");
        }
        assert_eq!(held(&hub, &subscriptions), before);
    }
}

#[test]
fn to_notify_to_walk_and_to_take_leave_nothing_behind() {
    let hub = hub_with(HubConfig {
        inline: 0,
        ..HubConfig::default()
    });
    let subscriptions = ["orders", "ord*"].map(|selector| settled(&hub, &[selector]));
    let round = || {
        notify(&hub, "orders");
        walk_all(&hub);
        for subscription in &subscriptions {
            assert_eq!(drain(subscription, Tick::default()).len(), 1);
        }
        held(&hub, &subscriptions)
    };
    let before = round();
    (0..100_000).for_each(|_| assert_eq!(round(), before));
}

#[test]
fn delayed_notifications_hold_64_timers_at_most_and_give_them_back() {
    let hub = hub();
    for seconds in 1..100_000 {
        let delayed = Notification {
            delay: Duration::from_secs(seconds),
            ..notification("orders")
        };
        notify_with(&hub, delayed, Tick::default());
    }
    let queue_entry = hub.entries.get(&queue("orders")).expect("known");
    assert_eq!(
        (queue_entry.lock().timers.len(), hub.timers().len()),
        (64, 1)
    );
    hub.fire(after(1_000_000 * SECOND));
    assert_eq!(
        (queue_entry.lock().capacities()[1], hub.timers().len()),
        (0, 0)
    );
}
