//! What a subscription's lock guards: its place in each queue, and what it is to be told there.
//!
//! A cursor is behind where its queue has counted further than its place; the difference is what
//! its stream is told (R1). Where the relay is not certain what a subscriber has seen, a CATCH_UP is
//! pending (R2). It also knows which listeners are taken to be busy (R8). Marked cursors wait in the
//! order in which they were marked, so that busy queues do not starve the others; nothing here grows
//! with the cursors that are not marked, but for [`Cursors::verify`], which goes in steps.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::{
    company::Seat,
    group::Heard,
    mailbox::{Marks, WakeBatch},
    place::{Epoch, Read, Tally},
    record::{Newest, Record, State},
    roster::Grant,
    subscription::{Attached, Subscription},
    wake_builder::{Entry, Target, WakeSink},
};
use crate::{
    clock::Tick,
    fault::{Fault, planted},
    words::{QueueAddress, Report, ReportState, Selector, Token, WakeReason},
};

/// What the subscription's lock guards.
pub(super) struct Cursors {
    pub(super) closed: bool,
    /// Cursors keep their places, which their queues' entries know.
    list: Vec<Option<Cursor>>,
    free: Vec<u32>,
    /// Where each queue's cursor is; empty while a look through the list is as quick.
    pub(super) index: HashMap<QueueAddress, u32>,
    /// Marked cursors that were not come to yet, each once.
    marked: VecDeque<u32>,
    /// Selectors whose own check is due.
    checks: Vec<(usize, WakeReason)>,
    /// Until then CATCH_UPs wait: they are spread after a change of epoch.
    pub(super) catch_up_at: Tick,
    /// CATCH_UPs were passed over until then.
    pub(super) waiting: bool,
    /// Up to where the present comparison of all cursors has come.
    verified: usize,
    /// It has reported at least once.
    pub(super) reports: bool,
    pub(super) active_dequeue_tasks: u32,
    pub(super) total_dequeue_tasks: u32,
}

/// A subscriber's place in one queue.
pub(super) struct Cursor {
    pub(super) record: Arc<Record>,
    /// Its key among the record's subscribers; a member's is in its seat.
    pub(super) key: u64,
    seat: Option<Seat>,
    place: Tally,
    /// The relay is not certain what the subscriber has seen: a CATCH_UP is pending (R2).
    needs_catch_up: bool,
    /// It is among the marked ones.
    marked: bool,
    /// The newest wake-up that its stream took, and when.
    woken: Option<u64>,
    woken_at: Tick,
    /// When it took the newest one that was more than a check of the sentinel.
    told_at: Tick,
    /// The newest wake-up after which it has read until empty.
    drained: Option<u64>,
    /// Its newest report says that it took work.
    busy: bool,
    /// The newest report's number.
    number: u64,
}

/// What a Wake was filled with.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Filled {
    pub(crate) entries: usize,
    /// Notifications of all entries, saturating; and of the entry with the fewest.
    pub(crate) notifications: u64,
    pub(crate) fewest: u64,
    /// Nothing is marked any more; otherwise the rest follows in the next.
    pub(crate) complete: bool,
}

/// What became of a marked cursor.
enum Sent {
    /// It is up to date.
    Nothing,
    NoRoom,
    /// Its entry, which stands for so many notifications.
    Entry(u64),
}

/// Cursors up to which there is no index: most subscriptions have one, and a map with one entry
/// takes nearly as much as the cursor itself.
const UNINDEXED: usize = 8;
/// Cursors that one step compares: about a tenth of a millisecond.
const STEP: usize = 1024;
/// A key for a cursor that is registered at the first take only: a planted fault.
pub(super) const UNLINKED: u64 = u64::MAX;

impl Cursors {
    /// Makes room for `expected` cursors, exactly: a vector that grows by itself starts with four,
    /// which would be a sixth of what an idle subscription costs.
    pub(super) fn new(now: Tick, expected: usize) -> Self {
        Self {
            closed: false,
            list: Vec::with_capacity(expected),
            free: Vec::new(),
            index: HashMap::new(),
            marked: VecDeque::new(),
            checks: Vec::new(),
            catch_up_at: now,
            waiting: false,
            verified: 0,
            reports: false,
            active_dequeue_tasks: 0,
            total_dequeue_tasks: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.list.len() - self.free.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Cursor)> {
        let all = (0..).zip(&self.list);
        all.filter_map(|(at, cursor)| Some((at, cursor.as_ref()?)))
    }

    pub(super) fn get(&self, at: u32) -> Option<&Cursor> {
        self.list.get(at as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut Cursor> {
        self.list.get_mut(at as usize)?.as_mut()
    }

    /// Returns where the queue's cursor is.
    pub(super) fn find(&self, queue: &QueueAddress) -> Option<u32> {
        if self.list.len() <= UNINDEXED {
            let mut all = self.iter();
            return all.find_map(|(at, cursor)| (cursor.record.address() == queue).then_some(at));
        }
        self.index.get(queue).copied()
    }

    /// Returns the place that the next cursor will have.
    pub(super) fn next_place(&self) -> u32 {
        let grown = || u32::try_from(self.list.len()).expect("fewer cursors than numbers");
        self.free.last().copied().unwrap_or_else(grown)
    }

    /// Adds the cursor of a queue that has none, at [`Cursors::next_place`].
    pub(super) fn push(&mut self, cursor: Cursor) {
        let at = self.next_place();
        let address = cursor.record.address().clone();
        match self.free.pop() {
            Some(_) => self.list[at as usize] = Some(cursor),
            None => self.list.push(Some(cursor)),
        }
        if self.list.len() <= UNINDEXED {
            return;
        }
        if self.index.is_empty() {
            let all = self
                .iter()
                .map(|(at, one)| (one.record.address().clone(), at));
            self.index = all.collect();
        } else {
            self.index.insert(address, at);
        }
    }

    /// Adds a cursor, or puts it in a dead one's place, where there was one before.
    pub(super) fn put(&mut self, dead: Option<u32>, cursor: Cursor, new: Attached) -> Attached {
        match dead {
            Some(at) => {
                self.replace(at, cursor);
                Attached::Replaced
            }
            None => {
                self.push(cursor);
                new
            }
        }
    }

    /// Puts a cursor in the place of one whose record is dead. What was pending there is pending here
    /// as a CATCH_UP, and a busy listener stays so.
    pub(super) fn replace(&mut self, at: u32, mut cursor: Cursor) {
        let Some(old) = self.get_mut(at) else {
            return;
        };
        cursor.needs_catch_up |= old.is_behind();
        cursor.busy = old.busy || old.drained < old.woken;
        (cursor.woken_at, cursor.told_at) = (old.woken_at, old.told_at);
        cursor.number = old.number;
        cursor.marked = old.marked;
        *old = cursor;
        self.set_marked(at);
    }

    /// Removes a cursor.
    pub(super) fn remove(&mut self, at: u32) {
        if let Some(cursor) = self.list.get_mut(at as usize).and_then(Option::take) {
            self.index.remove(cursor.record.address());
            self.free.push(at);
        }
    }

    /// Takes out all cursors; they are detached by [`super::detach`].
    pub(super) fn close(&mut self) -> Vec<Cursor> {
        self.closed = true;
        self.index = HashMap::new();
        self.marked = VecDeque::new();
        std::mem::take(&mut self.list)
            .into_iter()
            .flatten()
            .collect()
    }

    /// A CATCH_UP under the selector's own name is pending for each pattern (R2).
    pub(super) fn check_patterns(&mut self, selectors: &[Selector]) {
        let patterns = selectors.iter().enumerate().filter(|(_, s)| s.is_pattern());
        self.checks = patterns
            .map(|(index, _)| (index, WakeReason::CatchUp))
            .collect();
    }

    /// A check under one selector's own name is pending.
    pub(super) fn check_pattern(
        &mut self,
        selectors: &[Selector],
        checked: &Selector,
        reason: WakeReason,
    ) {
        let Some(at) = selectors.iter().position(|selector| selector == checked) else {
            return;
        };
        match self.checks.iter_mut().find(|(known, _)| *known == at) {
            Some(known) => known.1 = known.1.max(reason),
            None => self.checks.push((at, reason)),
        }
    }

    /// Counts the cursors where the listener is taken to be busy, and those that are behind; of a
    /// subscription with very many, among the first of them and the marked ones.
    pub(super) fn busy_and_behind(&self, subscription: &Subscription, now: Tick) -> (usize, usize) {
        let busy = |cursor: &&Cursor| cursor.is_busy(self.reports, now, subscription);
        let some = || self.list.iter().take(4 * STEP).flatten();
        let behind = some().filter(|cursor| cursor.is_behind()).count();
        (some().filter(busy).count(), behind.max(self.marked.len()))
    }

    /// Takes what a report says of a queue that this subscription has a cursor for. A sequence above
    /// the queue's own counts as 0 (R9).
    /// Returns whether the queue's coordinator has something to do for it.
    pub(super) fn report(
        &mut self,
        subscription: &Subscription,
        report: &Report,
        now: Tick,
        batch: &mut WakeBatch,
    ) -> bool {
        self.reports = true;
        let alone = self.len() == 1;
        let found = self.find(&report.queue);
        let Some(cursor) = found.and_then(|at| self.list[at as usize].as_mut()) else {
            return false;
        };
        if report.number < cursor.number {
            return false;
        }
        // The first report on a stream that was not woken repeats what an earlier stream was told.
        let looked = report.state != ReportState::Unspecified
            && (cursor.number > 0 || cursor.woken.is_some());
        cursor.number = report.number;
        self.active_dequeue_tasks = report.active_dequeue_tasks;
        self.total_dequeue_tasks = report.total_dequeue_tasks;
        let fault = subscription.fault;
        // Of a stream for several queues this says nothing about the others, where a task may wait in
        // vain for an answer about this one: it is asked, at the cost of a check at most.
        let polls =
            report.state == ReportState::Drained && report.active_dequeue_tasks > 0 && alone;
        let believed = if polls {
            cursor.record.pace.sentinel * 2
        } else {
            Duration::ZERO
        };
        let told = report.state != ReportState::Unspecified;
        subscription
            .mailbox
            .note_report(told.then(|| now + believed));
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
        let place = cursor.seat.map_or(Ok(cursor.key), Err);
        let to_do = state.report(place, heard, subscription.mailbox.capacity, now, batch);
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

    /// Puts a cursor among the marked ones.
    pub(super) fn set_marked(&mut self, at: u32) {
        let Some(cursor) = self.list.get_mut(at as usize).and_then(Option::as_mut) else {
            return;
        };
        if !std::mem::replace(&mut cursor.marked, true) {
            self.marked.push_back(at);
        }
    }

    /// Returns whether a take may find something.
    pub(super) fn is_marked(&self, now: Tick) -> bool {
        !self.marked.is_empty() || !self.checks.is_empty() || self.catch_up_is_due(now)
    }

    fn catch_up_is_due(&self, now: Tick) -> bool {
        self.waiting && now >= self.catch_up_at
    }

    /// Compares the next cursors with their queues and marks those that are behind; returns whether
    /// all have been compared since the last time that it returned so (R6).
    pub(super) fn verify(&mut self) -> bool {
        let from = self.verified.min(self.list.len());
        let to = (from + STEP).min(self.list.len());
        for at in from..to {
            if self.list[at].as_ref().is_some_and(Cursor::is_behind) {
                self.set_marked(u32::try_from(at).expect("fewer cursors than numbers"));
            }
        }
        let done = to == self.list.len();
        self.verified = if done { 0 } else { to };
        done
    }

    /// Begins the comparison of all cursors anew; CATCH_UPs wait no longer.
    pub(super) fn begin_verify(&mut self, now: Tick) {
        self.verified = 0;
        self.catch_up_at = self.catch_up_at.min(now);
    }

    /// Fills a Wake with what the marked cursors are to be told.
    pub(super) fn fill(
        &mut self,
        subscription: &Subscription,
        marks: Marks,
        now: Tick,
        sink: &mut impl WakeSink,
    ) -> Filled {
        marks.cursors(|at| self.set_marked(at));
        let certain = now >= self.catch_up_at;
        if self.catch_up_is_due(now) {
            self.waiting = false;
            for at in 0..self.next_index() {
                if self.get(at).is_some_and(|cursor| cursor.needs_catch_up) {
                    self.set_marked(at);
                }
            }
        }
        let mut filled = Filled::default();
        if certain && !self.fill_checks(subscription, sink, &mut filled) {
            return filled;
        }
        self.waiting |= !self.checks.is_empty();
        for _ in 0..4 * STEP {
            let Some(&at) = self.marked.front() else {
                filled.complete = true;
                break;
            };
            if !self.fill_one(subscription, at, (certain, now), sink, &mut filled) {
                break;
            }
            self.marked.pop_front();
        }
        if self.marked.is_empty() && self.marked.capacity() > STEP {
            self.marked = VecDeque::new();
        }
        if !filled.complete && planted!(subscription.fault, WakeDropsRest) {
            self.drop_marks();
            filled.complete = true;
        }
        filled
    }

    /// Adds the selectors' own checks; returns whether there was room for all of them.
    fn fill_checks(
        &mut self,
        subscription: &Subscription,
        sink: &mut impl WakeSink,
        filled: &mut Filled,
    ) -> bool {
        let nothing = Newest::default();
        while let Some(&(selector, reason)) = self.checks.last() {
            let selector = &subscription.selectors[selector];
            if !sink.push(&Entry::of_pattern(selector, reason, &nothing)) {
                return false;
            }
            filled.add(0);
            self.checks.pop();
        }
        true
    }

    /// Adds a marked cursor's entry; returns whether there was room for it.
    fn fill_one(
        &mut self,
        subscription: &Subscription,
        at: u32,
        (certain, now): (bool, Tick),
        sink: &mut impl WakeSink,
        filled: &mut Filled,
    ) -> bool {
        let Some(cursor) = self.list.get_mut(at as usize).and_then(Option::as_mut) else {
            return true;
        };
        match cursor.send(subscription.epoch, (certain, now), sink) {
            Sent::NoRoom => return false,
            Sent::Nothing => self.waiting |= cursor.needs_catch_up,
            Sent::Entry(notifications) => filled.add(notifications),
        }
        cursor.marked = false;
        true
    }

    /// Forgets what is marked: a planted fault.
    #[cold]
    fn drop_marks(&mut self) {
        for at in std::mem::take(&mut self.marked) {
            if let Some(cursor) = self.get_mut(at) {
                cursor.marked = false;
            }
        }
    }

    fn next_index(&self) -> u32 {
        u32::try_from(self.list.len()).expect("fewer cursors than numbers")
    }

    /// Returns how much its lists hold room for.
    #[cfg(test)]
    pub(super) fn capacities(&self) -> [usize; 3] {
        [
            self.list.capacity(),
            self.index.capacity(),
            self.marked.capacity(),
        ]
    }
}

impl Filled {
    fn add(&mut self, notifications: u64) {
        self.fewest = match self.entries {
            0 => notifications,
            _ => self.fewest.min(notifications),
        };
        self.entries += 1;
        self.notifications = self.notifications.saturating_add(notifications);
    }
}

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

    /// Takes its place once more: where that is another one, it is not known which is right, and the
    /// higher one could hide what was missed. A CATCH_UP, then (R2).
    #[cold]
    pub(super) fn compare(&mut self, token: &Token, epoch: Epoch, fault: Fault) {
        let state = self.record.lock();
        let (place, needs_catch_up, _) = resume(&state, Some(token), epoch, fault);
        if needs_catch_up || place != self.place {
            (self.place, self.needs_catch_up) = (state.tally, true);
        }
    }

    /// Writes the entry that is due, and moves to the place after it.
    fn send(
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

    /// Moves to the place up to which its stream has been told. A woken listener is taken to be busy
    /// until it says otherwise (R8).
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
            let place = Tally::from_counters(&token.0[16..]).unwrap_or(head);
            (place, false, Attached::Yes)
        }
        Read::Foreign => (head, true, Attached::Foreign),
        Read::Nonsense => (head, true, Attached::Yes),
    }
}
