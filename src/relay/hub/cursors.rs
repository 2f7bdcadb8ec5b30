//! The part of a subscription that its lock guards: its position and pending wake-ups in each
//! queue.
//!
//! A cursor is behind where its queue has counted further than its position. The difference is sent
//! to its stream, in Wakes of a bounded size (R1). R2: where the relay is not certain which events
//! a subscriber has seen, a CATCH_UP is pending. R8: a woken listener counts as busy until it
//! reports DRAINED, and the cursors keep that state. Marked cursors wait in the order of their
//! marks, so that busy queues do not starve the others. No cost here grows with the unmarked
//! cursors.

use std::{collections::VecDeque, num::NonZeroU64, time::Duration};

use super::{
    config::CURSORS_PER_STEP,
    cursor::{AttachOutcome, Cursor},
    cursor_list::{CursorList, DetachedCursors},
    decisions::{Decision, DecisionKind},
    group::MemberReport,
    interest::Interest,
    load::{LoadChange, RequestedReads},
    mailbox::WakeBatch,
};
use crate::{
    base::{clock::Tick, fault::planted},
    types::{QueueAddress, Report, ReportState, Selector, WakeReason},
};

mod filling;

/// The part of a subscription that its lock guards.
pub(super) struct Cursors {
    pub(super) closed: bool,
    pub(super) list: CursorList,
    /// Named queues without a cursor yet. They count as cursors, in the hub too.
    pub(super) reserved: u32,
    /// Marked cursors that wait for a Wake, each once.
    marked: VecDeque<u32>,
    /// Selectors with a check due under their own name.
    pattern_checks: Vec<(usize, WakeReason)>,
    /// CATCH_UPs wait until then: they are spread after a change of epoch.
    pub(super) catch_up_at: Tick,
    /// Cursors whose CATCH_UP waits until then.
    delayed: Vec<u32>,
    /// The hub's revision that was drawn for a resume number, and how many of the marked cursors are
    /// to be sent before it is stated (see `resume`).
    drawn: Option<(NonZeroU64, usize)>,
    /// A queue of a pattern has no cursor here: its wake-ups go under the pattern's name.
    pub(super) lacks_cursors: bool,
    /// The listener has reported at least once.
    pub(super) reports: bool,
    /// The first wake-up since the newest report; [`Tick::NEVER`] without one.
    woken_at: Tick,
    /// The log has the line that the listener is silent.
    silence_logged: bool,
    /// The queue of the oldest message that the listener handles, and when that began;
    /// [`Tick::NEVER`] without one.
    busiest: u32,
    busy_since: Tick,
    pub(super) active_dequeue_tasks: u32,
    pub(super) total_dequeue_tasks: u32,
    /// Since when the listener has run as many dequeue tasks as it may; [`Tick::NEVER`] if it has not.
    pub(super) full_since: Tick,
    /// Queues whose newest report states dequeue tasks.
    awake_queues: u32,
    /// The newest report states that the listener polls.
    polls: bool,
}

/// A listener reports within milliseconds after a wake-up, and later while its queue's service is slow.
const SILENT_FROM: Duration = Duration::from_secs(3);
const LOGGED_FROM: Duration = Duration::from_secs(10);

/// The contents of a Wake.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Filled {
    pub(crate) entries: usize,
    pub(crate) requested: RequestedReads,
    /// The notifications of all entries, saturating, and of the entry with the fewest.
    pub(crate) notifications: u64,
    pub(crate) fewest: u64,
    /// No marked cursor is left; otherwise the rest follows in the next Wake.
    pub(crate) complete: bool,
    /// When the oldest marked event was accepted, where that is known. It is not known for checks
    /// of the sentinel, redeliveries, work that a group held back, and entries without room in an
    /// earlier Wake.
    pub(crate) accepted_at: Option<Tick>,
}

impl Cursors {
    /// Makes room for `expected` cursors.
    pub(super) fn new(now: Tick, expected: usize) -> Self {
        Self {
            closed: false,
            list: CursorList::new(expected),
            reserved: 0,
            marked: VecDeque::new(),
            pattern_checks: Vec::new(),
            catch_up_at: now,
            delayed: Vec::new(),
            drawn: None,
            lacks_cursors: false,
            reports: false,
            woken_at: Tick::NEVER,
            silence_logged: false,
            busiest: 0,
            busy_since: Tick::NEVER,
            active_dequeue_tasks: 0,
            total_dequeue_tasks: 0,
            full_since: Tick::NEVER,
            awake_queues: 0,
            polls: false,
        }
    }

    /// Adds a cursor, or replaces a dead entry's cursor.
    pub(super) fn put(&mut self, dead: Option<u32>, cursor: Cursor) -> AttachOutcome {
        match dead {
            Some(at) => {
                self.replace(at, cursor);
                AttachOutcome::Replaced
            }
            None => {
                self.list.push(cursor);
                AttachOutcome::New
            }
        }
    }

    /// Replaces the cursor of a dead entry. A pending wake-up becomes a CATCH_UP, and a busy
    /// listener stays busy.
    pub(super) fn replace(&mut self, at: u32, mut cursor: Cursor) {
        let Some(old) = self.list.get_mut(at) else {
            return;
        };
        cursor.needs_catch_up |= old.is_behind();
        cursor.busy = old.busy || old.drained_sequence < old.woken_sequence;
        (cursor.woken_at, cursor.work_sent_at) = (old.woken_at, old.work_sent_at);
        (cursor.report_number, cursor.reported_busy) = (old.report_number, old.reported_busy);
        (cursor.marked, cursor.tasks) = (old.marked, old.tasks);
        if cursor.reported_busy {
            cursor.entry.lock().busy += 1;
        }
        *old = cursor;
        self.set_marked(at);
    }

    /// Returns whether there is a cursor for the queue's entry.
    pub(super) fn is_attached(&self, queue: &QueueAddress) -> bool {
        let found = self.list.find(queue).and_then(|at| self.list.get(at));
        found.is_some_and(|cursor| !cursor.entry.lock().is_dead())
    }

    /// Takes out all cursors; [`super::subscribe`] detaches them.
    pub(super) fn close(&mut self) -> DetachedCursors {
        self.closed = true;
        self.marked = VecDeque::new();
        self.delayed = Vec::new();
        (self.awake_queues, self.polls) = (0, false);
        self.list.take()
    }

    /// R2: a CATCH_UP under the selector's own name is pending for each pattern.
    pub(super) fn request_pattern_checks(&mut self, selectors: &[Selector]) {
        let patterns = selectors.iter().enumerate().filter(|(_, s)| s.is_pattern());
        self.pattern_checks = patterns
            .map(|(index, _)| (index, WakeReason::CatchUp))
            .collect();
    }

    /// Requests a check under one selector's own name.
    pub(super) fn request_pattern_check(
        &mut self,
        selectors: &[Selector],
        checked: &Selector,
        reason: WakeReason,
    ) {
        let Some(at) = selectors.iter().position(|selector| selector == checked) else {
            return;
        };
        match self
            .pattern_checks
            .iter_mut()
            .find(|(known, _)| *known == at)
        {
            Some(known) => known.1 = known.1.max(reason),
            None => self.pattern_checks.push((at, reason)),
        }
    }

    /// Counts the cursors with a busy listener, and those that are behind. Of a very large
    /// subscription, it compares only the first ones and counts the marked ones.
    pub(super) fn busy_and_behind(&self, subscription: &Interest, now: Tick) -> (usize, usize) {
        let busy = |cursor: &&Cursor| cursor.is_busy(self.reports, now, subscription);
        let some = || self.list.first(4 * CURSORS_PER_STEP);
        let behind = some().filter(|cursor| cursor.is_behind()).count();
        (some().filter(busy).count(), behind.max(self.marked.len()))
    }

    /// Takes a report on a queue that this subscription has a cursor for. R9: a sequence above the
    /// head counts as 0. Returns whether the queue's coordinator must be reconciled, and the change of
    /// the load.
    pub(super) fn report(
        &mut self,
        subscription: &Interest,
        report: &Report,
        now: Tick,
        batch: &mut WakeBatch,
    ) -> (bool, LoadChange) {
        self.reports = true;
        (self.woken_at, self.silence_logged) = (Tick::NEVER, false);
        let alone = self.list.len() == 1;
        let Some(at) = self.list.find(&report.queue) else {
            return Default::default();
        };
        let before = self.stream_load();
        let Some(cursor) = self.list.get_mut(at) else {
            return Default::default();
        };
        if report.number < cursor.report_number {
            return Default::default();
        }
        // The first report on a stream without a wake-up repeats one of an earlier stream.
        let polled = report.state != ReportState::Unspecified
            && (cursor.report_number > 0 || cursor.woken_sequence.is_some());
        cursor.report_number = report.number;
        self.active_dequeue_tasks = report.active_dequeue_tasks;
        self.total_dequeue_tasks = report.total_dequeue_tasks;
        let is_full = (1..=report.active_dequeue_tasks).contains(&report.total_dequeue_tasks);
        self.full_since = match is_full {
            true => self.full_since.min(now),
            false => Tick::NEVER,
        };
        // On a stream of several queues, a report on one says nothing about the others. There, a
        // task may wait for an answer about another queue. So the listener is asked, at the cost of
        // one check at most.
        let polls =
            report.state == ReportState::Drained && report.active_dequeue_tasks > 0 && alone;
        let believed = if polls {
            cursor.entry.config.sentinel_interval * 2
        } else {
            Duration::ZERO
        };
        let told = report.state != ReportState::Unspecified;
        subscription
            .mailbox
            .note_report(told.then(|| now + believed));
        let mut state = cursor.entry.lock();
        let head = state.counters.sequence;
        let sequence = trusted_sequence(report.sequence, head);
        let seen = (cursor.woken_sequence == Some(sequence)).then_some(cursor.position.messages);
        state.note_depth(report, seen, now);
        let is_busy = match report.state {
            ReportState::Busy => true,
            ReportState::Drained => false,
            ReportState::Unspecified => cursor.reported_busy,
        };
        match (cursor.reported_busy, is_busy) {
            (false, true) => state.busy += 1,
            (true, false) => state.busy = state.busy.saturating_sub(1),
            _ => {}
        }
        cursor.reported_busy = is_busy;
        let member_report = MemberReport {
            state: report.state,
            sequence,
            depth: report.current_queue_depth,
            capacity: report.capacity,
            polled,
        };
        let reported = match report.state {
            ReportState::Busy => Some(DecisionKind::Busy),
            ReportState::Drained => Some(DecisionKind::Empty),
            ReportState::Unspecified => None,
        };
        if let Some(kind) = reported {
            cursor.entry.note(&mut state, |_| {
                Decision::about(subscription, kind, sequence, now)
            });
        }
        let listener = cursor.listener_key();
        let needs_reconcile = state.report(
            listener,
            member_report,
            subscription.mailbox.capacity,
            now,
            batch,
        );
        drop(state);
        match report.state {
            ReportState::Busy => cursor.busy = true,
            ReportState::Drained => {
                cursor.drained_sequence = cursor.drained_sequence.max(Some(sequence));
                cursor.busy &= cursor.drained_sequence < cursor.woken_sequence;
            }
            ReportState::Unspecified => {}
        }
        let tasks = std::mem::replace(&mut cursor.tasks, report.active_dequeue_tasks);
        self.note_tasks(tasks, report.active_dequeue_tasks);
        if told {
            self.polls = polls;
        }
        self.note_busy(at, report, now);
        let change = LoadChange::of_tasks(tasks, report.active_dequeue_tasks);
        (needs_reconcile, change.plus(self.load_since(before)))
    }

    /// Removes the cursor of a queue that was forgotten; returns the change of the load.
    pub(super) fn remove(&mut self, at: u32) -> LoadChange {
        let before = self.stream_load();
        let Some(cursor) = self.list.remove(at) else {
            return LoadChange::default();
        };
        self.note_tasks(cursor.tasks, 0);
        LoadChange::of_detached(&cursor).plus(self.load_since(before))
    }

    /// Returns whether the stream is awake, and whether its listener polls.
    pub(super) fn stream_load(&self) -> (bool, bool) {
        (!self.polls && self.awake_queues > 0, self.polls)
    }

    fn load_since(&self, before: (bool, bool)) -> LoadChange {
        let after = self.stream_load();
        LoadChange {
            awake: i64::from(after.0) - i64::from(before.0),
            polling: i64::from(after.1) - i64::from(before.1),
            ..LoadChange::default()
        }
    }

    fn note_tasks(&mut self, before: u32, after: u32) {
        match (before, after) {
            (0, 1..) => self.awake_queues += 1,
            (1.., 0) => self.awake_queues -= 1,
            _ => {}
        }
    }

    /// A Wake has entries.
    pub(super) fn note_woken(&mut self, now: Tick) {
        self.woken_at = self.woken_at.min(now);
    }

    /// Returns for how long a listener that reports has not done so after a wake-up: it hangs, or it
    /// cannot read its queue. A busy listener reports only after its next get, and one with patterns
    /// does not report a check under their names.
    pub(super) fn silent_for(&self, subscription: &Interest, now: Tick) -> Option<Duration> {
        let silent = now.since(self.woken_at);
        if !self.reports || silent < SILENT_FROM || subscription.has_pattern() {
            return None;
        }
        let mut some = self.list.first(4 * CURSORS_PER_STEP);
        (!some.any(|cursor| cursor.reported_busy)).then_some(silent)
    }

    /// Returns the silence of a listener once, for the log.
    pub(super) fn take_silence(&mut self, subscription: &Interest, now: Tick) -> Option<Duration> {
        if self.silence_logged {
            return None;
        }
        let silent = self.silent_for(subscription, now);
        let silent = silent.filter(|silent| *silent >= LOGGED_FROM)?;
        self.silence_logged = true;
        Some(silent)
    }

    /// Returns how long the listener has been handling the oldest of its messages.
    pub(super) fn busy_for(&self, now: Tick) -> Option<Duration> {
        (self.busy_since != Tick::NEVER).then(|| now.since(self.busy_since))
    }

    /// The same, if that message is of this queue.
    pub(super) fn busy_with(&self, queue: &QueueAddress, now: Tick) -> Option<Duration> {
        let busiest = self.list.find(queue) == Some(self.busiest);
        self.busy_for(now).filter(|_| busiest)
    }

    /// Notes since when the listener handles a message of the reported queue. Without a stated time that
    /// began with the first report.
    fn note_busy(&mut self, at: u32, report: &Report, now: Tick) {
        let is_busiest = self.busiest == at;
        let since = match (report.state, report.busy_for) {
            (ReportState::Drained, _) if is_busiest => Tick::NEVER,
            (ReportState::Drained, _) => return,
            (_, Some(age)) => now - age,
            (ReportState::Busy, None) => match is_busiest {
                true => self.busy_since.min(now),
                false => now,
            },
            (_, None) => return,
        };
        if is_busiest || since < self.busy_since {
            (self.busiest, self.busy_since) = (at, since);
        }
    }

    /// Adds a cursor to the marked ones.
    pub(super) fn set_marked(&mut self, at: u32) {
        let Some(cursor) = self.list.get_mut(at) else {
            return;
        };
        if !std::mem::replace(&mut cursor.marked, true) {
            self.marked.push_back(at);
        }
    }

    /// Returns whether `fill` may find an entry.
    pub(super) fn is_marked(&self, now: Tick) -> bool {
        !self.marked.is_empty() || !self.pattern_checks.is_empty() || self.catch_up_is_due(now)
    }

    fn catch_up_is_due(&self, now: Tick) -> bool {
        !self.delayed.is_empty() && now >= self.catch_up_at
    }

    /// Returns when the waiting CATCH_UPs are due, or `None` where none waits.
    pub(super) fn catch_up_at(&self) -> Option<Tick> {
        let waits = !self.delayed.is_empty() || !self.pattern_checks.is_empty();
        waits.then_some(self.catch_up_at)
    }

    /// Takes the revision that was drawn last, where all wake-ups before it were sent.
    pub(super) fn take_number(&mut self) -> Option<NonZeroU64> {
        let others = self.pattern_checks.len() + self.delayed.len();
        let taken = self.drawn.take_if(|(_, left)| *left == 0 && others == 0);
        taken.map(|(revision, _)| revision)
    }

    /// Returns the capacities of its lists.
    #[cfg(test)]
    pub(super) fn capacities(&self) -> [usize; 3] {
        let [cursors, index] = self.list.capacities();
        [cursors, index, self.marked.capacity()]
    }
}

/// R9: a reported sequence above the head counts as 0.
fn trusted_sequence(sequence: u64, head: u64) -> u64 {
    if planted!(SequenceAboveHeadAccepted) {
        return sequence;
    }
    if sequence <= head { sequence } else { 0 }
}
