//! A subscriber's place in one queue: its pending wake-up, and whether its listener counts as busy
//! (R8: a woken listener counts as busy until it reports DRAINED).
//!
//! Plain data but for its queue's entry, whose lock each look takes. The subscription's lock guards it.

use std::sync::Arc;

use super::{
    company::Seat,
    place::{Epoch, Read, Tally},
    record::{Record, State},
    roster::Grant,
    subscription::{Attached, Subscription},
    wake_builder::{Entry, Target, WakeSink},
};
use crate::{
    clock::Tick,
    fault::{Fault, planted},
    words::{Token, WakeReason},
};

/// A subscriber's place in one queue.
pub(super) struct Cursor {
    pub(super) record: Arc<Record>,
    /// Its key among the record's subscribers; a member's is in its seat.
    pub(super) key: u64,
    pub(super) seat: Option<Seat>,
    pub(super) place: Tally,
    /// R2: the relay is not certain what the subscriber has seen, so a CATCH_UP is pending.
    pub(super) needs_catch_up: bool,
    /// It is among the marked ones.
    pub(super) marked: bool,
    /// The newest wake-up that its stream took, and when.
    pub(super) woken: Option<u64>,
    pub(super) woken_at: Tick,
    /// When it took the newest one that was more than a check of the sentinel.
    pub(super) told_at: Tick,
    /// The newest wake-up after which it has read until empty.
    pub(super) drained: Option<u64>,
    /// Its newest report says that it took work.
    pub(super) busy: bool,
    /// The newest report's number.
    pub(super) number: u64,
}

/// What became of a marked cursor.
pub(super) enum Sent {
    /// It is up to date.
    Nothing,
    NoRoom,
    /// Its entry, which stands for so many notifications.
    Entry(u64),
}

/// A key for a cursor that is registered at the first take only: a planted fault.
pub(super) const UNLINKED: u64 = u64::MAX;

impl Cursor {
    pub(super) fn new(record: Arc<Record>, key: u64, place: Tally, needs_catch_up: bool) -> Self {
        Self {
            record,
            key,
            seat: None,
            place,
            needs_catch_up,
            marked: false,
            woken: None,
            woken_at: Tick::default(),
            told_at: Tick::default(),
            drained: None,
            busy: false,
            number: 0,
        }
    }

    /// Makes a member's, whose place is its group's.
    pub(super) fn member(record: Arc<Record>, seat: Seat) -> Self {
        let mut cursor = Self::new(record, UNLINKED, Tally::default(), false);
        cursor.seat = Some(seat);
        cursor
    }

    pub(super) fn seat(&self) -> Option<Seat> {
        self.seat
    }

    /// Returns whether there is something to tell.
    pub(super) fn is_behind(&self) -> bool {
        let state = self.record.lock();
        match self.seat {
            Some(seat) => state.is_given(seat),
            None => self.needs_catch_up || state.owed(&self.place).is_some(),
        }
    }

    /// Takes its place once more. R2: where the two differ it is uncertain which is right, and the
    /// higher one could hide a missed wake-up; so a CATCH_UP becomes pending.
    #[cold]
    pub(super) fn compare(&mut self, token: &Token, epoch: Epoch, fault: Fault) {
        let state = self.record.lock();
        let (place, needs_catch_up, _) = resume(&state, token, epoch, fault);
        if needs_catch_up || place != self.place {
            (self.place, self.needs_catch_up) = (state.tally, true);
        }
    }

    /// Writes the entry that is due, and moves to the place after it.
    pub(super) fn send(
        &mut self,
        epoch: Epoch,
        (certain, now): (bool, Tick),
        sink: &mut impl WakeSink,
    ) -> Sent {
        if let Some(seat) = self.seat {
            return self.send_grant(seat, epoch, now, sink);
        }
        let mut guard = self.record.lock();
        let asked = guard.take_ask(self.key);
        let owed = guard.owed(&self.place);
        let reason = owed
            .or_else(|| asked.then_some(WakeReason::Sentinel))
            .or_else(|| (self.needs_catch_up && certain).then_some(WakeReason::CatchUp));
        let Some(reason) = reason else {
            return Sent::Nothing;
        };
        let state = &mut *guard;
        let head = state.tally;
        let sums = head.sums_since(&self.place);
        let entry = Entry {
            target: Target::Queue(self.record.address()),
            reason,
            sums,
            sequence: head.sequence,
            newest: &state.newest,
            position: Some((&head, epoch)),
        };
        // Its reason follows from the two positions, so what is encoded for one fits the others.
        let fits = match owed.is_some() && state.subscribers.len() > 1 {
            true => sink.push_shared(&entry, state.encoded.of(&self.place, head.sequence)),
            false => sink.push(&entry),
        };
        if !fits {
            if asked {
                state.give_ask_back(self.key);
            }
            return Sent::NoRoom;
        }
        drop(guard);
        self.advance(head, asked, now);
        if reason != WakeReason::Sentinel {
            self.told_at = now;
        }
        Sent::Entry(sums.notifications)
    }

    /// The same for a member's grant.
    fn send_grant(
        &mut self,
        seat: Seat,
        epoch: Epoch,
        now: Tick,
        sink: &mut impl WakeSink,
    ) -> Sent {
        let mut state = self.record.lock();
        let Some(grant) = state.take_grant(seat) else {
            return Sent::Nothing;
        };
        let head = Tally {
            sequence: grant.sequence,
            ..state.tally
        };
        if !sink.push(&grant_entry(&self.record, &grant, (&head, epoch), &state)) {
            state.give_back(seat, grant);
            return Sent::NoRoom;
        }
        drop(state);
        self.advance(head, true, now);
        if grant.reason != WakeReason::Sentinel {
            self.told_at = now;
        }
        Sent::Entry(grant.sums.notifications)
    }

    /// Moves to the place up to which its stream has been told. R8: a woken listener counts as busy
    /// until it reports DRAINED.
    fn advance(&mut self, head: Tally, given: bool, now: Tick) {
        self.place = head;
        self.needs_catch_up = false;
        // A wake-up that it alone is given may bear a sequence that it has drained already.
        self.busy |= given;
        self.woken = Some(head.sequence);
        self.woken_at = now;
    }

    /// Returns whether an idle queue that only a pattern matches is kept for it. Checks of the sentinel
    /// keep none: what one of them found is found again by the next, under the pattern's own name.
    pub(super) fn pins(&self, reports: bool, now: Tick, subscription: &Subscription) -> bool {
        let busy = match reports {
            true => self.holds_work(true),
            false => self.woken.is_some() && now < self.told_at + subscription.visibility_timeout,
        };
        busy || self.is_behind()
    }

    /// Returns whether it may be busy, whatever time it is.
    pub(super) fn holds_work(&self, reports: bool) -> bool {
        reports && (self.busy || self.drained < self.woken)
    }

    pub(super) fn is_busy(&self, reports: bool, now: Tick, subscription: &Subscription) -> bool {
        let lapsed = now >= self.woken_at + subscription.visibility_timeout
            || planted!(subscription.fault, NeverReportingIsIdle);
        if !reports && lapsed {
            return false;
        }
        self.busy || self.drained < self.woken
    }
}

fn grant_entry<'a>(
    record: &'a Record,
    grant: &Grant,
    position: (&'a Tally, Epoch),
    state: &'a State,
) -> Entry<'a> {
    Entry {
        target: Target::Queue(record.address()),
        reason: grant.reason,
        sums: grant.sums,
        sequence: grant.sequence,
        newest: &state.newest,
        position: Some(position),
    }
}

/// Reads a subscriber's token against the queue: its place, or uncertainty, which becomes a
/// CATCH_UP (R2).
pub(super) fn resume(
    state: &State,
    token: &Token,
    epoch: Epoch,
    fault: Fault,
) -> (Tally, bool, Attached) {
    let head = state.tally;
    if token.is_empty() {
        return (head, !planted!(fault, NoTokenIsCurrent), Attached::Yes);
    }
    match Tally::read(token, epoch) {
        Read::Place(place) => {
            let below = place.sequence < state.start;
            if below && planted!(fault, TokenBelowStartAccepted) {
                return (head, false, Attached::Yes);
            }
            let above = !head.covers(&place) && !planted!(fault, TokenAboveHeadAccepted);
            if below || above {
                (head, true, Attached::Yes)
            } else {
                (place, false, Attached::Yes)
            }
        }
        Read::Foreign if planted!(fault, ForeignEpochAccepted) => {
            let place = Tally::from_counters(&token.0[16..]).unwrap_or(head);
            (place, false, Attached::Yes)
        }
        Read::Foreign => (head, true, Attached::Foreign),
        Read::Nonsense => (head, true, Attached::Yes),
    }
}
