//! A group in a cluster: which work its members here serve (C10), and which work is passed on to the
//! other relays (C11).

use super::{super::counters::Counters, Group};
use crate::base::{clock::Tick, fault::planted};

impl Group {
    /// Returns whether members that were idle took all causes since the last call, in whole, and
    /// their claim is not given up. Then the groups of this name on other relays need not check.
    /// A frame that has no room for the group does not state it.
    pub(crate) fn take_served(&mut self, head: &Counters, has_room: bool) -> bool {
        let unserved = std::mem::take(&mut self.unserved);
        let assigned = self.position.sequence >= head.sequence && self.unassigned == 0;
        let served = assigned && self.left_at.is_none() && !self.is_given_up();
        let served = served && (!unserved || planted!(LinkServedInPart));
        // A member that got them and has left is not replaced by an idle one.
        let served = served && has_room && self.requested.is_none();
        self.announced_as_served |= served && self.is_unfinished();
        served
    }

    /// The members of another relay serve these causes: nothing is owed here for them.
    pub(crate) fn skip(&mut self, increment: &Counters) {
        self.position.sequence += increment.sequence;
        self.position.add_totals(increment);
    }

    /// All members were asked in vain. Other relays do not check causes that were announced as
    /// served; they check the others in any case.
    pub(super) fn pass_on_given_up(&mut self) {
        let announced = self.is_given_up() && self.announced_as_served;
        self.pass_on(announced);
    }

    pub(super) fn pass_on(&mut self, is_due: bool) {
        if !is_due || !self.shared.config.cluster || planted!(LinkServedDropped) {
            return;
        }
        self.announced_as_served = false;
        // The cause that passes it on is not announced as served.
        (self.passed_on, self.unserved) = (true, true);
    }

    /// Returns whether a claim is open, or a member holds a BUSY lease.
    pub(super) fn is_unfinished(&self) -> bool {
        self.claim.is_some() || self.members.next_lease_end() != Tick::NEVER
    }
}
