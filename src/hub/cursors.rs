//! What a subscription's lock guards: its place in each queue, and what it is owed there.
//!
//! A cursor is behind where its queue has counted further than its place; the difference is what
//! its stream is told (R1). Where the relay is not certain what a subscriber has seen, a cursor is
//! in doubt and a CATCH_UP is owed (R2). It also knows who is taken to be busy (R8).

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::{
    company::Seat,
    group::Heard,
    links::Link,
    place::{Epoch, Read, Tally},
    record::{Record, State},
    room::{Room, look_at_all, wake_up},
    roster::Grant,
    subscription::{Attached, Subscription},
};
use crate::{
    clock::Tick,
    fault::{Fault, planted},
    words::{QueueAddress, Report, ReportState, Selector, Token, WakeReason, WorkDetected},
};

/// What the subscription's lock guards.
pub(super) struct Cursors {
    pub(super) closed: bool,
    pub(super) list: Vec<Cursor>,
    /// Where each queue's cursor is; empty while a look through the list is as quick.
    pub(super) index: HashMap<QueueAddress, usize>,
    /// Pattern selectors whose CATCH_UP is still owed.
    doubts: Vec<(usize, WakeReason)>,
    /// Until then CATCH_UPs wait: they are spread after a change of epoch.
    pub(super) catch_up_at: Tick,
    /// The last take left CATCH_UPs for then.
    pub(super) waiting: bool,
    /// Where the next take begins, so that busy queues do not starve the others.
    rotor: usize,
    /// It has reported at least once.
    pub(super) reports: bool,
    pub(super) active_dequeue_tasks: u32,
    pub(super) total_dequeue_tasks: u32,
}

/// A subscriber's place in one queue.
pub(super) struct Cursor {
    pub(super) record: Arc<Record>,
    /// Its slot among the record's links; a member's is in its seat.
    pub(super) slot: usize,
    seat: Option<Seat>,
    place: Tally,
    /// The relay is not certain what the subscriber has seen: a CATCH_UP is owed (R2).
    doubt: bool,
    /// The newest wake-up that its stream took, and when.
    woken: Option<u64>,
    woken_at: Tick,
    /// The newest wake-up after which it has read until empty.
    drained: Option<u64>,
    /// Its newest report says that it took work.
    busy: bool,
    /// The newest report's number.
    number: u64,
}

/// A wake-up that is owed, the place after it, and what was taken for it.
struct Due {
    entry: WorkDetected,
    head: Tally,
    given: Given,
}

/// What a wake-up was given to this listener alone for.
enum Given {
    Nothing,
    /// The sentinel asks.
    Ask,
    Grant(Grant),
}

/// Cursors up to which there is no index: most subscriptions have one, and a map with one entry
/// takes nearly as much as the cursor itself.
const UNINDEXED: usize = 8;

impl Cursors {
    /// Makes room for `expected` cursors, exactly: a vector that grows by itself starts with four,
    /// which would be a sixth of what an idle subscription costs.
    pub(super) fn new(now: Tick, expected: usize) -> Self {
        Self {
            closed: false,
            list: Vec::with_capacity(expected),
            index: HashMap::new(),
            doubts: Vec::new(),
            catch_up_at: now,
            waiting: false,
            rotor: 0,
            reports: false,
            active_dequeue_tasks: 0,
            total_dequeue_tasks: 0,
        }
    }

    /// Returns where the queue's cursor is.
    pub(super) fn find(&self, queue: &QueueAddress) -> Option<usize> {
        if self.list.len() <= UNINDEXED {
            return self
                .list
                .iter()
                .position(|cursor| cursor.record.address() == queue);
        }
        self.index.get(queue).copied()
    }

    /// Adds the cursor of a queue that has none.
    pub(super) fn push(&mut self, cursor: Cursor) {
        self.list.push(cursor);
        let unindexed = if self.index.is_empty() {
            0
        } else {
            self.list.len() - 1
        };
        if self.list.len() > UNINDEXED {
            for (at, cursor) in self.list.iter().enumerate().skip(unindexed) {
                self.index.insert(cursor.record.address().clone(), at);
            }
        }
    }

    /// Owes a CATCH_UP under the selector's own name for each pattern (R2).
    pub(super) fn doubt_patterns(&mut self, selectors: &[Selector]) {
        let patterns = selectors.iter().enumerate().filter(|(_, s)| s.is_pattern());
        self.doubts = patterns
            .map(|(index, _)| (index, WakeReason::CatchUp))
            .collect();
    }

    /// Owes a look under one selector's own name.
    pub(super) fn ask(&mut self, selectors: &[Selector], asked: &Selector, reason: WakeReason) {
        let Some(at) = selectors.iter().position(|selector| selector == asked) else {
            return;
        };
        match self.doubts.iter_mut().find(|(known, _)| *known == at) {
            Some(known) => known.1 = known.1.max(reason),
            None => self.doubts.push((at, reason)),
        }
    }

    fn in_doubt(&self) -> bool {
        !self.doubts.is_empty() || self.list.iter().any(|cursor| cursor.doubt)
    }

    /// Counts the cursors where the listener is taken to be busy, and those that are owed.
    pub(super) fn busy_and_owed(&self, subscription: &Subscription, now: Tick) -> (usize, usize) {
        let busy = |cursor: &&Cursor| cursor.is_busy(self.reports, now, subscription);
        let owed = |cursor: &&Cursor| cursor.is_owed();
        (
            self.list.iter().filter(busy).count(),
            self.list.iter().filter(owed).count(),
        )
    }

    /// Takes a report's word on a queue that this subscription has a cursor for. A sequence above
    /// the queue's own counts as 0 (R9).
    /// Returns whether there is something to do for it; who is to be woken is added to `targets`.
    pub(super) fn report(
        &mut self,
        subscription: &Subscription,
        report: &Report,
        now: Tick,
        targets: &mut Vec<Link>,
    ) -> bool {
        self.reports = true;
        let Some(index) = self.find(&report.queue) else {
            return false;
        };
        let alone = self.list.len() == 1;
        let cursor = &mut self.list[index];
        if report.number < cursor.number {
            return false;
        }
        // The first word on a stream that was not woken repeats what an earlier stream was told.
        let looked = report.state != ReportState::Unspecified
            && (cursor.number > 0 || cursor.woken.is_some());
        cursor.number = report.number;
        self.active_dequeue_tasks = report.active_dequeue_tasks;
        self.total_dequeue_tasks = report.total_dequeue_tasks;
        let fault = subscription.fault;
        // Of a stream for several queues this says nothing about the others, where a task may wait in
        // vain for an answer about this one: it is asked, at the cost of a look at most.
        let polls =
            report.state == ReportState::Drained && report.active_dequeue_tasks > 0 && alone;
        let believed = if polls {
            cursor.record.pace.sentinel * 2
        } else {
            Duration::ZERO
        };
        let told = report.state != ReportState::Unspecified;
        subscription.shows(told.then(|| now + believed));
        let mut state = cursor.record.lock();
        state.depth = Some(report.current_queue_depth);
        let head = state.tally.sequence;
        let trusted = report.sequence <= head || planted!(fault, SequenceAboveHeadAccepted);
        let sequence = if trusted { report.sequence } else { 0 };
        let heard = Heard {
            state: report.state,
            sequence,
            depth: report.current_queue_depth,
            looked,
        };
        let place = cursor.seat.map_or(Ok(cursor.slot), Err);
        let to_do = state.report(place, heard, subscription.capacity, now, targets);
        drop(state);
        match report.state {
            ReportState::Busy => cursor.busy = true,
            ReportState::Drained => {
                cursor.drained = cursor.drained.max(Some(sequence));
                cursor.busy &= cursor.drained < cursor.woken;
            }
            ReportState::Unspecified => {}
        }
        to_do
    }

    /// Returns whether CATCH_UPs that the last take left are owed by now.
    pub(super) fn catch_up_is_due(&self, now: Tick) -> bool {
        self.waiting && now >= self.catch_up_at
    }

    /// Takes what the marked cursors are owed, and returns it with the marks of those that it did
    /// not come to.
    pub(super) fn collect(
        &mut self,
        subscription: &Subscription,
        marks: u64,
        now: Tick,
    ) -> (Vec<WorkDetected>, u64) {
        let mut room = Room::new(subscription.fault);
        let certain = now >= self.catch_up_at;
        self.waiting = !certain && self.in_doubt();
        while certain && let Some(&(selector, reason)) = self.doubts.last() {
            if !room.take(look_at_all(&subscription.selectors[selector], reason)) {
                return (room.work, marks);
            }
            self.doubts.pop();
        }
        let first = self.rotor;
        for step in 0..=64 {
            let bit = (first + step) % 64;
            if marks & (1 << bit) == 0 {
                continue;
            }
            // The first bit comes twice: from where the last take stopped, then up to there.
            let range = match step {
                0 => first..usize::MAX,
                64 => bit..first,
                _ => bit..usize::MAX,
            };
            if let Some(stopped) = self.collect_bit(subscription, range, now, &mut room) {
                self.rotor = stopped;
                // What was come to costs one comparison more; what was not must not be lost.
                return (room.work, marks);
            }
        }
        (room.work, 0)
    }

    /// Comes to every 64th cursor of the range; returns the one that found no room.
    fn collect_bit(
        &mut self,
        subscription: &Subscription,
        range: std::ops::Range<usize>,
        now: Tick,
        room: &mut Room,
    ) -> Option<usize> {
        let certain = now >= self.catch_up_at;
        for index in (range.start..self.list.len().min(range.end)).step_by(64) {
            let cursor = &mut self.list[index];
            let Some(due) = cursor.due(subscription.epoch, certain) else {
                continue;
            };
            let Due { entry, head, given } = due;
            if !room.take(entry) {
                cursor.give_back(given);
                return Some(index);
            }
            cursor.advance(head, !matches!(given, Given::Nothing), now);
        }
        None
    }
}

impl Cursor {
    pub(super) fn new(record: Arc<Record>, slot: usize, place: Tally, doubt: bool) -> Self {
        let woken_at = Tick::default();
        let (woken, drained, busy, number) = (None, None, false, 0);
        Self {
            record,
            slot,
            seat: None,
            place,
            doubt,
            woken,
            woken_at,
            drained,
            busy,
            number,
        }
    }

    /// Makes a member's, whose place is its group's.
    pub(super) fn member(record: Arc<Record>, seat: Seat) -> Self {
        let mut cursor = Self::new(record, usize::MAX, Tally::default(), false);
        cursor.seat = Some(seat);
        cursor
    }

    pub(super) fn seat(&self) -> Option<Seat> {
        self.seat
    }

    fn is_owed(&self) -> bool {
        let state = self.record.lock();
        match self.seat {
            Some(seat) => state.is_given(seat),
            None => self.doubt || state.owed(&self.place).is_some(),
        }
    }

    /// Hears of its place once more: where that is another one nobody knows which is right, and the
    /// higher one could hide what was missed. A doubt, then (R2).
    #[cold]
    pub(super) fn compare(&mut self, token: &Token, epoch: Epoch, fault: Fault) {
        let state = self.record.lock();
        let (place, doubt, _) = resume(&state, Some(token), epoch, fault);
        if doubt || place != self.place {
            (self.place, self.doubt) = (state.tally, true);
        }
    }

    /// Returns the wake-up that is owed, and the place after it.
    fn due(&self, epoch: Epoch, certain: bool) -> Option<Due> {
        let mut state = self.record.lock();
        if let Some(seat) = self.seat {
            let grant = state.take_grant(seat)?;
            let head = Tally {
                sequence: grant.sequence,
                ..state.tally
            };
            let newest = state.newest.clone();
            drop(state);
            let address = self.record.address();
            let entry = wake_up(address, grant.reason, grant.sums, &head, newest, epoch);
            let given = Given::Grant(grant);
            return Some(Due { entry, head, given });
        }
        let doubt = (self.doubt && certain).then_some(WakeReason::CatchUp);
        let asked = state.take_ask(self.slot);
        let reason = state
            .owed(&self.place)
            .or_else(|| asked.then_some(WakeReason::Sentinel));
        let reason = reason.or(doubt)?;
        let head = state.tally;
        let newest = state.newest.clone();
        drop(state);
        let sums = head.sums_since(&self.place);
        let entry = wake_up(self.record.address(), reason, sums, &head, newest, epoch);
        let given = if asked { Given::Ask } else { Given::Nothing };
        Some(Due { entry, head, given })
    }

    /// Puts back what was given to this listener alone and found no room.
    #[cold]
    fn give_back(&self, given: Given) {
        let mut state = self.record.lock();
        match (given, self.seat) {
            (Given::Grant(grant), Some(seat)) => state.give_back(seat, grant),
            (Given::Ask, _) => state.give_ask_back(self.slot),
            _ => {}
        }
    }

    /// Moves to the place up to which its stream has been told. Whoever was woken is taken to be
    /// busy until it says otherwise (R8).
    fn advance(&mut self, head: Tally, given: bool, now: Tick) {
        self.place = head;
        self.doubt = false;
        // One that was given to it alone may bear a sequence that it has drained already.
        self.busy |= given;
        self.woken = Some(head.sequence);
        self.woken_at = now;
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

/// Reads a subscriber's token against the queue: its place, or a doubt (R2).
pub(super) fn resume(
    state: &State,
    token: Option<&Token>,
    epoch: Epoch,
    fault: Fault,
) -> (Tally, bool, Attached) {
    let head = state.tally;
    let Some(token) = token.filter(|token| !token.is_empty()) else {
        return (head, !planted!(fault, NoTokenIsCurrent), Attached::Yes);
    };
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
            (Tally::from_counters(&token.0[16..]), false, Attached::Yes)
        }
        Read::Foreign => (head, true, Attached::Foreign),
        Read::Nonsense => (head, true, Attached::Yes),
    }
}
