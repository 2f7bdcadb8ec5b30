//! The claim of a group: work that no report covers yet, and when another member is asked.
//!
//! A sequence is covered by a member's report of it: a get was issued after that wake-up had
//! arrived. R13: an uncovered wake-up is redelivered. One point in time is kept, however many
//! wake-ups follow: those that come while a claim is open belong to the next one, which is opened when the
//! claim is covered or given up. So the memory is constant, and a wake-up waits for twice the time-out at
//! most until another member is asked. With each claim a round begins: a member that was woken since counts
//! as asked.

use super::Group;
use crate::base::clock::Tick;

/// Work was assigned, or waits to be, that no member has reported yet.
#[derive(Debug)]
pub(super) struct Claim {
    up_to: u64,
    /// When another member is asked. [`Tick::NEVER`]: no member is left to ask in this round.
    due: Tick,
}

impl Group {
    /// Expects a report of all work so far in time, and begins a round.
    pub(super) fn open_claim(&mut self, now: Tick) {
        self.members.begin_round();
        self.claim = Some(Claim {
            up_to: self.owed_up_to,
            due: now + self.shared.config.claim_timeout,
        });
    }

    /// Returns when another member must be asked.
    pub(super) fn claim_due(&self) -> Tick {
        self.claim.as_ref().map_or(Tick::NEVER, |claim| claim.due)
    }

    /// Returns whether a report is missing and no member is left to ask in this round.
    pub(super) fn is_given_up(&self) -> bool {
        self.claim.is_some() && self.claim_due() == Tick::NEVER
    }

    pub(super) fn rearm_claim(&mut self, due: Tick) {
        if let Some(claim) = &mut self.claim {
            claim.due = due;
        }
    }

    /// All members of the round were asked: the sentinel, or the next member that joins, goes on.
    /// Work that came during this round starts a new round, at once.
    pub(super) fn end_round(&mut self, now: Tick) {
        self.requested = None;
        let owed = self.owed_up_to;
        let more = self.claim.as_ref().is_some_and(|claim| claim.up_to < owed);
        if more {
            self.open_claim(now);
        }
        self.rearm_claim(if more { now } else { Tick::NEVER });
        self.pass_on_given_up();
    }

    /// A member reports `sequence`; `asked`: it took a wake-up of this round. Work after that
    /// sequence stays open.
    pub(super) fn cover(&mut self, sequence: u64, asked: bool, now: Tick) {
        // A report of an already covered sequence may be older than the wake-up.
        let covers =
            |claim: &Claim| sequence >= claim.up_to && (asked || Some(claim.up_to) > self.covered);
        if self.claim.as_ref().is_some_and(covers) {
            self.claim = None;
            if self.owed_up_to > sequence {
                self.open_claim(now);
            }
        }
        self.covered = self.covered.max(Some(sequence));
    }

    /// R15: returns whether the open work is pending at once, because a member without a wake-up for
    /// it reported DRAINED with a lower `sequence`. Once for each head: in dense traffic every report
    /// is a little late, and would wake one more.
    pub(super) fn expedite(&mut self, sequence: u64) -> bool {
        let owed = self.owed_up_to;
        let newer = self.claim.is_some() && owed > sequence && self.expedited_up_to < owed;
        if newer {
            self.expedited_up_to = owed;
        }
        newer
    }
}
