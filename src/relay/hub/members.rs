//! The members of one group on one queue, and the order in which they get wake-ups.
//!
//! Idle members come first, then the member woken least recently. A member whose stream has
//! an unsent message is out of the order. Choosing costs the logarithm of the number of members;
//! only the sentinel's checks skip members that never report. A plain structure.

use std::{collections::BTreeSet, sync::Arc};

use super::{counters::Delta, queue_entry::QueueEntry, subscription::Subscription};
use crate::{
    base::{clock::Tick, fault::planted},
    types::WakeReason,
};

/// The members by slot; a slot never moves.
#[derive(Default)]
pub(super) struct Members {
    members: Vec<Option<Member>>,
    free: Vec<u32>,
    /// Members that can get a wake-up now, in order.
    ready: BTreeSet<Rank>,
    /// Busy members by the end of their leases (R14: BUSY is a lease).
    leases: BTreeSet<(Tick, u32)>,
    wake_count: u64,
}

/// A member's rank: idle before busy, then by its last wake-up.
type Rank = (bool, u64, u32);

/// A subscription in a group.
#[derive(Clone)]
pub(super) struct Subscriber {
    pub(super) subscription: Arc<Subscription>,
    /// Only a pattern matches the queue.
    pub(super) by_pattern: bool,
}

/// One subscription of the group.
pub(super) struct Member {
    pub(super) subscriber: Subscriber,
    pub(super) assignment: Option<Assignment>,
    /// The newest sequence that was assigned to it.
    pub(super) notified_up_to: Option<u64>,
    pub(super) woken_order: u64,
    /// The last round in which it was asked.
    pub(super) tried_in_round: u64,
    pub(super) busy: bool,
    /// Messages that it can take now; with 0 it gets no wake-up.
    pub(super) capacity: u32,
    pub(super) lease: Option<Tick>,
}

/// A wake-up that waits for its member's stream.
#[derive(Debug, Clone)]
pub(super) struct Assignment {
    pub(super) reason: WakeReason,
    pub(super) sequence: u64,
    pub(super) delta: Delta,
}

/// The members to choose from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Candidates {
    All,
    /// Members without a wake-up for this sequence.
    NotNotified,
    /// Members that were not asked in this round.
    NotTried,
    /// For a check of the sentinel (R11): members that do not poll. One that does not report stays
    /// busy, behind the others.
    Checkers,
}

impl Members {
    pub(super) fn len(&self) -> usize {
        self.members.len() - self.free.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().flatten()
    }

    /// Returns whether every member can get a wake-up.
    pub(super) fn all_ready(&self) -> bool {
        self.ready.len() == self.len()
    }

    /// Returns whether a member that was not asked in this round can get a wake-up now.
    pub(super) fn any_ready_untried(&self, round: u64) -> bool {
        self.ready
            .iter()
            .any(|rank| self.member(rank.2).tried_in_round != round)
    }

    /// Returns whether a member can be asked for a check.
    pub(super) fn any_can_check(&self, now: Tick) -> bool {
        self.iter()
            .any(|member| member.subscriber.subscription.mailbox.can_check(now))
    }

    /// Returns whether no member needs the queue's entry: none has a wake-up or a lease, and none
    /// names the queue.
    pub(super) fn is_idle(&self) -> bool {
        let mut members = self.members.iter().flatten();
        let idle =
            members.all(|member| member.assignment.is_none() && member.subscriber.by_pattern);
        idle && self.leases.is_empty()
    }

    pub(super) fn any_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn join(&mut self, subscriber: Subscriber) -> u32 {
        let member = Member {
            capacity: subscriber.subscription.mailbox.capacity,
            subscriber,
            assignment: None,
            notified_up_to: None,
            woken_order: 0,
            tried_in_round: 0,
            busy: false,
            lease: None,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.members[slot as usize] = Some(member);
                slot
            }
            None => {
                // Many groups have one member, and a list would begin with room for four.
                if self.members.len() < 4 {
                    self.members.reserve_exact(1);
                }
                self.members.push(Some(member));
                u32::try_from(self.members.len() - 1).expect("fewer members than numbers")
            }
        };
        self.set_ready(slot);
        slot
    }

    pub(super) fn leave(&mut self, slot: u32) -> Option<Member> {
        let member = self.members.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        self.ready.remove(&member.rank(slot));
        if let Some(end) = member.lease {
            self.leases.remove(&(end, slot));
        }
        if self.len() == 0 {
            (self.members, self.free) = (Vec::new(), Vec::new());
        }
        Some(member)
    }

    /// The member's stream has sent all its messages.
    pub(super) fn set_ready(&mut self, slot: u32) {
        if let Some(member) = self.get(slot).filter(|member| member.capacity > 0) {
            let rank = member.rank(slot);
            self.ready.insert(rank);
        }
    }

    /// The member states how many messages it can take from now on.
    pub(super) fn set_capacity(&mut self, slot: u32, capacity: u32) {
        let Some(member) = self.get_mut(slot) else {
            return;
        };
        let most = member.subscriber.subscription.mailbox.capacity;
        let before = std::mem::replace(&mut member.capacity, capacity.min(most));
        let rank = member.rank(slot);
        match (before, capacity) {
            (1.., 0) => _ = self.ready.remove(&rank),
            // A stream with an unsent message is found out when it is chosen.
            (0, 1..) if !planted!(RoomUnnoticed) => self.set_ready(slot),
            _ => {}
        }
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Member> {
        self.members.get(slot as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Member> {
        self.members.get_mut(slot as usize)?.as_mut()
    }

    /// Returns when the next lease ends.
    pub(super) fn next_lease_end(&self) -> Tick {
        self.leases.first().map_or(Tick::NEVER, |(end, _)| *end)
    }

    /// Removes a lease that has ended, and returns its member.
    pub(super) fn pop_expired_lease(&mut self, now: Tick) -> Option<u32> {
        let &(end, slot) = self.leases.first()?;
        if end > now {
            return None;
        }
        self.leases.pop_first();
        self.member_mut(slot).lease = None;
        Some(slot)
    }

    /// Chooses the next member for a wake-up up to sequence `head` in `round`.
    pub(super) fn choose(
        &self,
        among: Candidates,
        head: u64,
        round: u64,
        now: Tick,
    ) -> Option<u32> {
        let untold = |rank: &&Rank| self.member(rank.2).notified_up_to < Some(head);
        let untried = |rank: &&Rank| self.member(rank.2).tried_in_round != round;
        // Among idle members, and among busy ones, a notified or asked member comes last.
        let idle = self.ready.first();
        let busy = self.ready.range((true, 0, 0)..).next();
        let chosen = match among {
            Candidates::All => idle,
            Candidates::NotNotified => idle.filter(untold).or_else(|| busy.filter(untold)),
            Candidates::NotTried => idle.filter(untried).or_else(|| busy.filter(untried)),
            Candidates::Checkers => {
                let can = |rank: &&Rank| {
                    self.member(rank.2)
                        .subscriber
                        .subscription
                        .mailbox
                        .can_check(now)
                };
                self.ready.iter().find(can)
            }
        };
        chosen.map(|rank| rank.2)
    }

    /// Takes a member out of the order until its stream is ready again. Returns its subscriber,
    /// unless the stream has an unsent message.
    pub(super) fn assign(&mut self, slot: u32, entry: &QueueEntry) -> Option<Arc<Subscription>> {
        let member = self.members[slot as usize].as_mut()?;
        self.ready.remove(&member.rank(slot));
        let one = &member.subscriber.subscription;
        one.assign(entry).then(|| Arc::clone(one))
    }

    /// Moves a member behind all others of its state.
    pub(super) fn postpone(&mut self, slot: u32) {
        self.wake_count += 1;
        let wake_count = self.wake_count;
        let member = self.members[slot as usize].as_mut().expect("it is there");
        let was = self.ready.remove(&member.rank(slot));
        member.woken_order = wake_count;
        if was {
            self.ready.insert(member.rank(slot));
        }
    }

    pub(super) fn set_busy(&mut self, slot: u32, busy: bool, lease: Option<Tick>) {
        let member = self.members[slot as usize].as_mut().expect("it reports");
        if let Some(end) = std::mem::replace(&mut member.lease, lease) {
            self.leases.remove(&(end, slot));
        }
        if let Some(end) = lease {
            self.leases.insert((end, slot));
        }
        let was = self.ready.remove(&member.rank(slot));
        member.busy = busy;
        if was {
            self.ready.insert(member.rank(slot));
        }
    }

    fn member(&self, slot: u32) -> &Member {
        self.members[slot as usize].as_ref().expect("in the order")
    }

    pub(super) fn member_mut(&mut self, slot: u32) -> &mut Member {
        self.members[slot as usize].as_mut().expect("in the order")
    }
}

impl Member {
    fn rank(&self, slot: u32) -> Rank {
        (self.busy, self.woken_order, slot)
    }
}

impl Assignment {
    /// Conflates with a newer one: the strongest reason stays.
    pub(super) fn merge(&mut self, newer: &Self) {
        self.reason = self.reason.max(newer.reason);
        self.sequence = self.sequence.max(newer.sequence);
        self.delta.add(&newer.delta);
    }
}
