//! What a subscription's lock guards: its place in each queue, and what it is owed there.
//!
//! A cursor is behind where its queue has counted further than its place; the difference is what
//! its stream is told (R1). Where the relay is not certain what a subscriber has seen, a cursor is
//! in doubt and a CATCH_UP is owed (R2). It also knows who is taken to be busy (R8).

use std::{collections::HashMap, sync::Arc};

use super::{
    place::{Epoch, Read, Tally},
    record::{Record, State},
    room::{Room, look_at_all, wake_up},
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
    doubts: Vec<usize>,
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
    /// Its slot among the record's links.
    pub(super) slot: usize,
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
        self.doubts = patterns.map(|(index, _)| index).collect();
    }

    fn in_doubt(&self) -> bool {
        !self.doubts.is_empty() || self.list.iter().any(|cursor| cursor.doubt)
    }

    /// Counts the cursors where the listener is taken to be busy, and those that are owed.
    pub(super) fn busy_and_owed(&self, subscription: &Subscription, now: Tick) -> (usize, usize) {
        let busy = |cursor: &&Cursor| cursor.is_busy(self.reports, now, subscription);
        let owed =
            |cursor: &&Cursor| cursor.doubt || cursor.record.lock().owed(&cursor.place).is_some();
        (
            self.list.iter().filter(busy).count(),
            self.list.iter().filter(owed).count(),
        )
    }

    /// Takes a report's word on a queue that this subscription has a cursor for. A sequence above
    /// the queue's own counts as 0 (R9).
    pub(super) fn report(&mut self, report: &Report, fault: Fault) {
        self.reports = true;
        let Some(index) = self.find(&report.queue) else {
            return;
        };
        let cursor = &mut self.list[index];
        if report.number < cursor.number {
            return;
        }
        cursor.number = report.number;
        self.active_dequeue_tasks = report.active_dequeue_tasks;
        self.total_dequeue_tasks = report.total_dequeue_tasks;
        let head = {
            let mut state = cursor.record.lock();
            state.depth = Some(report.current_queue_depth);
            state.tally.sequence
        };
        let trusted = report.sequence <= head || planted!(fault, SequenceAboveHeadAccepted);
        let sequence = if trusted { report.sequence } else { 0 };
        match report.state {
            ReportState::Busy => cursor.busy = true,
            ReportState::Drained => {
                cursor.drained = cursor.drained.max(Some(sequence));
                cursor.busy &= cursor.drained < cursor.woken;
            }
            ReportState::Unspecified => {}
        }
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
        while certain && let Some(&selector) = self.doubts.last() {
            if !room.take(look_at_all(&subscription.selectors[selector])) {
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
            let Some((entry, head)) = cursor.due(subscription.epoch, certain) else {
                continue;
            };
            if !room.take(entry) {
                return Some(index);
            }
            cursor.advance(head, now);
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
            place,
            doubt,
            woken,
            woken_at,
            drained,
            busy,
            number,
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
    fn due(&self, epoch: Epoch, certain: bool) -> Option<(WorkDetected, Tally)> {
        let state = self.record.lock();
        let doubt = (self.doubt && certain).then_some(WakeReason::CatchUp);
        let reason = state.owed(&self.place).or(doubt)?;
        let head = state.tally;
        let newest = state.newest.clone();
        drop(state);
        Some((
            wake_up(
                self.record.address(),
                reason,
                &self.place,
                &head,
                newest,
                epoch,
            ),
            head,
        ))
    }

    /// Moves to the place up to which its stream has been told. Whoever was woken is taken to be
    /// busy until it says otherwise (R8).
    fn advance(&mut self, head: Tally, now: Tick) {
        self.place = head;
        self.doubt = false;
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
