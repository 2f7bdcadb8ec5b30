//! The members of one group on one queue, and the order in which they get wake-ups.
//!
//! A member that has done nothing here has no state: it is in the queue's list or in its pattern's
//! node, and gets its turn after the one that had it last. One that got a wake-up is *known* until it
//! has nothing more to do. Idle ones come first, then busy ones; of each kind the one woken least
//! recently. A member whose stream has an unsent message is out of the order.
//! Choosing costs the logarithm of the number of known members; only the sentinel's checks skip members
//! that never report. A plain structure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::super::{
    counters::Delta,
    listeners::Listeners,
    queue::QueueEntry,
    subscription::{Subscription, SubscriptionId},
};
use crate::{
    base::{clock::Tick, fault::planted},
    types::WakeReason,
};

/// The members of a group.
#[derive(Default)]
pub(crate) struct Members {
    pub(crate) all: Listeners,
    /// The messages that those which name the queue take at once.
    named_capacity: u64,
    known: BTreeMap<SubscriptionId, Box<Member>>,
    /// Known members that can get a wake-up now, in order.
    ready: BTreeSet<Rank>,
    /// Busy members by the end of their leases (R14: BUSY is a lease).
    leases: BTreeSet<(Tick, SubscriptionId)>,
    pub(crate) wake_count: u64,
    /// A member that was woken after so many wake-ups was asked in this round.
    round_began: u64,
    /// Those that were asked in this round.
    tried: usize,
    /// The one that had its turn to become known last; at first any id.
    turn: Option<SubscriptionId>,
    /// All were known when so many had joined; `None`: some may not be.
    pub(crate) all_known_at: Option<u64>,
}

/// A member's rank: idle before busy, then by its last wake-up.
type Rank = (bool, u64, SubscriptionId);

/// A known member.
pub(crate) struct Member {
    pub(crate) subscription: Arc<Subscription>,
    pub(crate) assignment: Option<Assignment>,
    /// The newest sequence that was assigned to it.
    pub(crate) notified_up_to: Option<u64>,
    woken_order: u64,
    pub(crate) busy: bool,
    /// Messages that it can take now; with 0 it gets no wake-up.
    pub(crate) capacity: u32,
    pub(crate) lease: Option<Tick>,
}

/// A wake-up for one stream; of a member it waits for its stream.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Assignment {
    pub(crate) reason: WakeReason,
    pub(crate) sequence: u64,
    pub(crate) delta: Delta,
}

/// The members to choose from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Candidates {
    All,
    /// Members without a wake-up since the group had so many.
    NotWokenSince(u64),
    /// For a check of the sentinel (R11): members that do not poll at this time. One that does not
    /// report stays busy, behind the others.
    Checkers(Tick),
}

impl Members {
    pub(crate) fn known(&self) -> impl Iterator<Item = &Member> {
        self.known.values().map(|member| &**member)
    }

    /// Returns whether the group has no member, and none whose stream has just ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty() && self.all.len() == 0
    }

    /// Adds one that names the queue.
    pub(crate) fn join_named(&mut self, subscription: &Arc<Subscription>) {
        if self.all.named.insert(subscription) {
            self.named_capacity += u64::from(subscription.mailbox.capacity);
        }
        self.all_known_at = None;
    }

    /// Removes one that names the queue; returns whether it did.
    pub(crate) fn leave_named(&mut self, subscription: &Subscription) -> bool {
        let was_there = self.all.named.remove(subscription.id);
        if was_there {
            self.named_capacity -= u64::from(subscription.mailbox.capacity);
        }
        was_there
    }

    /// Returns the messages that they take at once. One with several matching selectors counts for each.
    pub(crate) fn capacity(&self) -> u64 {
        let patterns = self.all.nodes.iter().map(|node| node.capacity());
        self.named_capacity + patterns.sum::<u64>()
    }

    fn joined(&self) -> u64 {
        self.all.nodes.iter().map(|node| node.joined()).sum()
    }

    /// Returns whether these are all members.
    pub(crate) fn are_all(&mut self, count: usize) -> bool {
        count >= self.known.len() && !self.has_fresh()
    }

    /// Returns whether every member can get a wake-up.
    pub(crate) fn all_ready(&mut self) -> bool {
        self.are_all(self.ready.len())
    }

    /// Returns whether a member may get a wake-up now.
    pub(crate) fn any_ready(&self) -> bool {
        !self.ready.is_empty() || self.all_known_at != Some(self.joined())
    }

    /// Each member may be asked once from now on.
    pub(crate) fn begin_round(&mut self) {
        (self.round_began, self.tried) = (self.wake_count, 0);
    }

    /// Returns whether a member was asked in this round.
    pub(crate) fn is_tried(&self, member: &Member) -> bool {
        member.woken_order > self.round_began
    }

    pub(crate) fn all_tried(&mut self) -> bool {
        self.are_all(self.tried)
    }

    /// Returns the members that were not asked in this round.
    pub(crate) fn not_tried(&self) -> Candidates {
        Candidates::NotWokenSince(self.round_began)
    }

    /// Returns whether a member is not known.
    pub(crate) fn has_fresh(&mut self) -> bool {
        self.next_fresh(Candidates::All).is_some()
    }

    /// Returns the next of these members that is not known.
    fn next_fresh(&mut self, among: Candidates) -> Option<Arc<Subscription>> {
        // Read first: one that joins during the search is searched for again.
        let joined = self.joined();
        if self.all_known_at == Some(joined) {
            return None;
        }
        let (known, turn) = (&self.known, self.turn);
        let is_skipped = |id| planted!(MemberSkipped) && Some(id) < turn;
        let is_fresh = |one: &Subscription| {
            !known.contains_key(&one.id) && !is_skipped(one.id) && !one.mailbox.is_closed()
        };
        let next = self.all.next_after(turn, &|one| match among {
            Candidates::Checkers(now) => is_fresh(one) && one.mailbox.can_check(now),
            _ => is_fresh(one),
        });
        if next.is_none() && self.all.next_after(turn, &is_fresh).is_none() {
            self.all_known_at = Some(joined);
        }
        next
    }

    /// Has a member become known; its cursor is made, with `beyond` also beyond the limits. Returns `false`
    /// where there was no room for it, or the subscription has ended.
    pub(crate) fn admit(
        &mut self,
        entry: &Arc<QueueEntry>,
        subscription: &Arc<Subscription>,
        beyond: bool,
    ) -> bool {
        let id = subscription.id;
        if self.known.contains_key(&id) {
            return true;
        }
        let is_admitted = subscription.join_group(entry, beyond);
        if is_admitted {
            let member = Member {
                capacity: subscription.mailbox.capacity,
                subscription: Arc::clone(subscription),
                assignment: None,
                notified_up_to: None,
                woken_order: 0,
                busy: false,
                lease: None,
            };
            self.known.insert(id, Box::new(member));
            self.set_ready(id);
        }
        is_admitted
    }

    /// The member is not known from now on.
    pub(crate) fn remove(&mut self, id: SubscriptionId) -> Option<Box<Member>> {
        let member = self.known.remove(&id)?;
        self.tried -= usize::from(self.is_tried(&member));
        self.ready.remove(&member.rank());
        if let Some(end) = member.lease {
            self.leases.remove(&(end, id));
        }
        self.all_known_at = None;
        Some(member)
    }

    /// The member's stream has sent all its messages.
    pub(crate) fn set_ready(&mut self, id: SubscriptionId) {
        if let Some(member) = self.get(id).filter(|member| member.capacity > 0) {
            let rank = member.rank();
            self.ready.insert(rank);
        }
    }

    /// The member states how many messages it can take from now on.
    pub(crate) fn set_capacity(&mut self, id: SubscriptionId, capacity: u32) {
        let Some(member) = self.get_mut(id) else {
            return;
        };
        let most = member.subscription.mailbox.capacity;
        let before = std::mem::replace(&mut member.capacity, capacity.min(most));
        let rank = member.rank();
        match (before, capacity) {
            (1.., 0) => _ = self.ready.remove(&rank),
            // A stream with an unsent message is found out when it is chosen.
            (0, 1..) if !planted!(RoomUnnoticed) => self.set_ready(id),
            _ => {}
        }
    }

    pub(crate) fn get(&self, id: SubscriptionId) -> Option<&Member> {
        self.known.get(&id).map(|member| &**member)
    }

    pub(crate) fn get_mut(&mut self, id: SubscriptionId) -> Option<&mut Member> {
        self.known.get_mut(&id).map(|member| &mut **member)
    }

    /// Returns when the next lease ends.
    pub(crate) fn next_lease_end(&self) -> Tick {
        self.leases.first().map_or(Tick::NEVER, |(end, _)| *end)
    }

    /// Removes a lease that has ended, and returns its member.
    pub(crate) fn pop_expired_lease(&mut self, now: Tick) -> Option<SubscriptionId> {
        let &(end, id) = self.leases.first()?;
        if end > now {
            return None;
        }
        self.leases.pop_first();
        if let Some(member) = self.get_mut(id) {
            member.lease = None;
        }
        Some(id)
    }

    /// Returns whether a member can be chosen.
    pub(crate) fn has(&mut self, among: Candidates) -> bool {
        self.next_known(among).is_some() || self.next_fresh(among).is_some()
    }

    /// Chooses the next member for a wake-up, whose stream has no unsent message. It is out of the
    /// order until its stream is ready again. A cursor is made beyond the limits where no known member
    /// can be chosen, one for each call. `limit` counts the members that were tried.
    pub(crate) fn choose(
        &mut self,
        entry: &Arc<QueueEntry>,
        among: Candidates,
        limit: &mut usize,
    ) -> Option<Arc<Subscription>> {
        let mut beyond = true;
        self.turn.get_or_insert_with(|| first_turn(entry.number()));
        while *limit > 0 {
            *limit -= 1;
            if let Some(one) = self.next_fresh(among) {
                self.turn = Some(one.id);
                let beyond = self.next_known(among).is_none() && std::mem::take(&mut beyond);
                if !self.admit(entry, &one, beyond) && one.mailbox.is_closed() {
                    // One that has ended is not found again.
                    continue;
                }
            }
            // One that was never woken is the first of the idle ones.
            let member = self.next_known(among)?;
            let (one, rank) = (Arc::clone(&member.subscription), member.rank());
            self.ready.remove(&rank);
            if one.assign(entry) {
                return Some(one);
            }
        }
        None
    }

    fn next_known(&self, among: Candidates) -> Option<&Member> {
        let is_wanted = |member: &&Member| match among {
            Candidates::All => true,
            Candidates::NotWokenSince(count) => member.woken_order <= count,
            Candidates::Checkers(now) => member.subscription.mailbox.can_check(now),
        };
        let member = |rank: &Rank| &*self.known[&rank.2];
        if matches!(among, Candidates::Checkers(_)) {
            return self.ready.iter().map(member).find(is_wanted);
        }
        // Among idle members, and among busy ones, the one woken last comes last.
        let first_busy = || self.ready.range((true, 0, SubscriptionId(0))..).next();
        let idle = self.ready.first().map(member).filter(is_wanted);
        idle.or_else(|| first_busy().map(member).filter(is_wanted))
    }

    /// Moves a member behind all others of its state.
    pub(crate) fn postpone(&mut self, id: SubscriptionId) {
        self.wake_count += 1;
        let wake_count = self.wake_count;
        let is_tried = self.get(id).is_none_or(|member| self.is_tried(member));
        self.tried += usize::from(!is_tried);
        self.reorder(id, |member| member.woken_order = wake_count);
    }

    /// Sets or ends a member's lease; with one it counts as busy.
    pub(crate) fn set_lease(&mut self, id: SubscriptionId, lease: Option<Tick>) {
        let Some(member) = self.get_mut(id) else {
            return;
        };
        if let Some(end) = std::mem::replace(&mut member.lease, lease) {
            self.leases.remove(&(end, id));
        }
        self.leases.extend(lease.map(|end| (end, id)));
        self.reorder(id, |member| member.busy = lease.is_some());
    }

    fn reorder(&mut self, id: SubscriptionId, change: impl FnOnce(&mut Member)) {
        let Some(member) = self.known.get_mut(&id) else {
            return;
        };
        let was_ready = self.ready.remove(&member.rank());
        change(member);
        if was_ready {
            self.ready.insert(member.rank());
        }
    }
}

/// Returns after which id the first member of a queue is looked for: spread evenly, because members of
/// a pattern share short-lived queues by their first messages only (multiplicative hashing, Knuth, The
/// Art of Computer Programming, volume 3, 6.4).
fn first_turn(queue_number: u64) -> SubscriptionId {
    SubscriptionId(u128::from(queue_number.wrapping_mul(0x9E37_79B9_7F4A_7C15)) << 64)
}

impl Member {
    fn rank(&self) -> Rank {
        (self.busy, self.woken_order, self.subscription.id)
    }
}

impl Assignment {
    /// Conflates with a newer one: the strongest reason stays.
    pub(crate) fn merge(&mut self, newer: &Self) {
        self.reason = self.reason.max(newer.reason);
        self.sequence = self.sequence.max(newer.sequence);
        self.delta.add(&newer.delta);
    }
}
