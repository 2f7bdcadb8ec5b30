//! The part of a subscription that its lock guards: what it is owed, and what its listener handles.
//!
//! It has a cursor for each queue where something is owed or handled, and none for the others. R2:
//! where the relay is not certain which events a subscriber has seen, a CATCH_UP is pending. What is
//! owed waits in the order in which it came, so that busy queues do not starve the others.
//!
//! Locks: an entry's lock is taken before this one. A stream that takes has this one, and only tries those
//! of entries.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::super::{
    cursor::{Cursor, Cursors},
    decisions::DecisionKind,
    load::{REQUESTS, RequestedReads, StreamLoad},
    members::Assignment,
    queue::{QueueEntry, QueueState},
    subscription::Subscription,
    wake_builder::{Target, WakeEntry, WakeSink},
};
use crate::{
    base::{clock::Tick, fault::planted},
    types::{LastEvent, Report, ReportState, Selector, WakeReason},
};

/// The part of a subscription that its lock guards.
#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) cursors: Cursors,
    /// The numbers of the queues whose cursors have something to send.
    pub(crate) due: VecDeque<u64>,
    /// The stream was woken since it last took.
    is_woken: bool,
    /// When the oldest event in `due` was accepted, where that is known.
    accepted_at: Option<Tick>,
    /// The patterns with a check due under their own name.
    pub(crate) pattern_checks: BTreeMap<Selector, WakeReason>,
    /// The search for settled cursors has visited those from this place on, and how many were made since the
    /// newest search.
    swept_from: usize,
    made: usize,
    /// Cursors whose queues wait until the stream has sent its messages.
    waiting: VecDeque<u64>,
    /// The hub's revision that was drawn for a resume number, and how many of the due cursors are to
    /// be sent before it is stated (see `resume`).
    drawn: Option<(u64, usize)>,
    /// The first wake-up since the newest report.
    pub(crate) woken_at: Option<Tick>,
    pub(crate) active_dequeue_tasks: u32,
    pub(crate) total_dequeue_tasks: u32,
    /// Queues whose newest report states dequeue tasks, and the sum of these.
    awake_queues: u32,
    tasks: i64,
    /// The newest report states that the listener polls.
    polls: bool,
    /// The part of this stream in the load of all.
    pub(crate) noted_load: StreamLoad,
}

/// Cursors that one step visits, some ten microseconds.
const STEP: usize = 1024;
/// A listener reports within milliseconds after a wake-up, and later while its queue's service is slow.
const SILENT_FROM: Duration = Duration::from_secs(3);

/// The contents of a Wake.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Filled {
    pub(crate) entries: usize,
    pub(crate) requested: RequestedReads,
    /// The notifications of all entries, saturating, and of the entry with the fewest.
    pub(crate) notifications: u64,
    pub(crate) fewest: Option<u64>,
    /// No marked cursor is left; otherwise the rest follows in the next Wake.
    pub(crate) complete: bool,
    /// When the oldest marked event was accepted, where that is known. It is not known for checks
    /// of the sentinel, redeliveries, work that a group held back, and entries without room in an
    /// earlier Wake.
    pub(crate) accepted_at: Option<Tick>,
}

impl Inbox {
    pub(crate) fn get(&self, entry: &QueueEntry) -> Option<&Cursor> {
        self.cursors.get(entry.number())
    }

    pub(crate) fn get_mut(&mut self, entry: &QueueEntry) -> Option<&mut Cursor> {
        let (_, cursor) = self.cursors.get_mut(entry.number())?;
        Some(cursor)
    }

    /// Returns the cursor of an entry, and makes it if there is none, within the limits or `beyond` them.
    pub(crate) fn get_or_insert(
        &mut self,
        entry: &Arc<QueueEntry>,
        subscription: &Subscription,
        beyond: bool,
    ) -> Option<&mut Cursor> {
        let place = match self.cursors.find(entry.number()) {
            Some(place) => place,
            None => {
                let (shared, own) = (&entry.shared, self.cursors.len());
                let is_named = subscription.names(entry.address());
                if !is_named && !shared.take_cursor(subscription, own) {
                    if !beyond {
                        return None;
                    }
                    shared.take_cursors_beyond(subscription, 1);
                }
                self.made += 1;
                self.cursors.push(entry)
            }
        };
        Some(self.cursors.at(place))
    }

    /// Lists a cursor that has something to send, unless it was due before. Returns whether to wake the
    /// stream.
    #[must_use]
    pub(crate) fn list_due(
        &mut self,
        entry: &QueueEntry,
        was_due: bool,
        accepted_at: Option<Tick>,
    ) -> bool {
        if !was_due {
            self.due.push_back(entry.number());
        }
        self.accepted_at = self.accepted_at.or(accepted_at);
        self.rings()
    }

    /// Returns whether to wake the stream.
    #[must_use]
    fn rings(&mut self) -> bool {
        !std::mem::replace(&mut self.is_woken, true)
    }

    /// Adds the queue to those that wait until the stream has sent.
    pub(crate) fn set_waiting(&mut self, entry: &QueueEntry) {
        if let Some(cursor) = self.get_mut(entry)
            && !std::mem::replace(&mut cursor.waits, true)
        {
            self.waiting.push_back(entry.number());
        }
    }

    /// Takes a quarter of the waiting queues, `most` at most, so that other members of their groups
    /// get a share. Returns them, and whether none is left.
    pub(crate) fn take_waiting(&mut self, most: usize) -> (Vec<Arc<QueueEntry>>, bool) {
        let count = self.waiting.len().div_ceil(4).min(most);
        let numbers = self.waiting.drain(..count);
        let taken = numbers.filter_map(|number| {
            let (entry, cursor) = self.cursors.get_mut(number)?;
            cursor.waits = false;
            Some(Arc::clone(entry))
        });
        (taken.collect(), self.waiting.is_empty())
    }

    /// Takes out some cursors of a closed inbox, which [`super::super::subscribe`] detaches.
    pub(crate) fn take_cursors(&mut self, most: usize) -> Vec<(Arc<QueueEntry>, Cursor)> {
        let all = std::iter::from_fn(|| self.cursors.pop());
        all.take(most).collect()
    }

    /// Requests a check of a pattern under its own name. Returns whether to wake the stream.
    #[must_use]
    pub(crate) fn request_pattern_check(&mut self, pattern: &Selector, reason: WakeReason) -> bool {
        let known = self.pattern_checks.entry(pattern.clone()).or_default();
        *known = reason.max(*known);
        self.rings()
    }

    /// Counts the cursors with a busy listener among the first ones, and those with something to send.
    pub(crate) fn busy_and_behind(&self, subscription: &Subscription, now: Tick) -> (usize, usize) {
        let some = self.cursors.all().iter().take(STEP);
        let busy = some.filter(|(_, one)| one.is_busy(now, subscription));
        (busy.count(), self.due.len())
    }

    /// Begins to take: returns how many queues are due, and when the oldest due event was accepted, where
    /// that is known. R5: what is owed after this wakes the stream again.
    pub(crate) fn begin_take(&mut self, drawn: Option<u64>) -> (usize, Option<Tick>) {
        self.is_woken = false;
        if let Some(revision) = drawn {
            self.draw(revision, self.due.len());
        }
        (self.due.len(), self.accepted_at.take())
    }

    /// Draws a resume number, to be stated when `left` due cursors were sent.
    pub(crate) fn draw(&mut self, revision: u64, left: usize) {
        self.drawn = Some((revision, left));
    }

    /// Ends to take so many queues. Returns whether nothing is left.
    pub(crate) fn end_take(&mut self, count: usize) -> bool {
        if let Some((_, left)) = &mut self.drawn {
            *left = left.saturating_sub(count);
        }
        if self.due.is_empty() && self.due.capacity() > STEP {
            self.due = VecDeque::new();
        }
        self.due.is_empty() && self.pattern_checks.is_empty()
    }

    /// Returns whether something was not taken that is owed outside of groups.
    pub(crate) fn is_owed(&self) -> bool {
        let due = self.due.iter();
        let mut due = due.filter_map(|number| self.cursors.get(*number));
        !self.pattern_checks.is_empty() || due.any(|one| one.is_owed)
    }

    /// Adds the patterns' own checks; returns whether all of them had room.
    pub(crate) fn fill_checks(&mut self, sink: &mut impl WakeSink, filled: &mut Filled) -> bool {
        let nothing = LastEvent::default();
        while let Some((pattern, &reason)) = self.pattern_checks.first_key_value() {
            let entry = WakeEntry {
                target: Target::Pattern(pattern),
                work: Assignment {
                    reason,
                    ..Assignment::default()
                },
                last_event: &nothing,
            };
            if !sink.push(&entry, None) {
                return false;
            }
            filled.add(0, reason);
            self.pattern_checks.pop_first();
        }
        true
    }

    /// Visits the next `most` cursors, in turn, and two more for each new one: where many are new, for some
    /// of them. Returns the entries of those that have nothing which the subscriber needs, or keep their
    /// entry no longer.
    pub(crate) fn settled(
        &mut self,
        subscription: &Subscription,
        most: usize,
        now: Tick,
    ) -> Vec<Arc<QueueEntry>> {
        let paid = self.made.min(STEP / 2);
        self.made -= paid;
        let most = most.saturating_add(2 * paid);
        // From the end, because the last one moves to the place of one that is removed.
        let end = match self.swept_from {
            0 => self.cursors.len(),
            from => from.min(self.cursors.len()),
        };
        self.swept_from = end.saturating_sub(most);
        let some = self.cursors.all()[self.swept_from..end].iter();
        let settled = some.filter(|(_, cursor)| {
            cursor.is_lapsed(now, subscription) || cursor.is_settled(now, subscription)
        });
        settled.map(|(entry, _)| Arc::clone(entry)).collect()
    }

    /// Removes a cursor that has nothing that the subscriber needs.
    pub(crate) fn remove_settled(
        &mut self,
        entry: &QueueEntry,
        subscription: &Subscription,
        now: Tick,
    ) -> Option<Cursor> {
        self.get(entry)
            .filter(|cursor| cursor.is_settled(now, subscription))?;
        let cursor = self.cursors.remove(entry.number())?;
        self.note_tasks(cursor.taken.tasks, 0);
        Some(cursor)
    }

    /// Takes a report on a queue that this subscription has a cursor for. R9: a sequence above the
    /// head counts as 0. Returns it for the queue's state, with whether the listener has polled the queue
    /// since its wake-up; `None` without a cursor, or where it is older than another one.
    pub(crate) fn report(
        &mut self,
        subscription: &Subscription,
        (entry, state): (&Arc<QueueEntry>, &mut QueueState),
        report: &Report,
        now: Tick,
    ) -> Option<(Report, bool)> {
        subscription.mailbox.note_reports();
        self.woken_at = None;
        let alone = subscription.selectors.len() == 1 && !subscription.has_pattern();
        let (_, cursor) = self.cursors.get_mut(entry.number())?;
        let taken = &mut *cursor.taken;
        if report.number < taken.report_number {
            return None;
        }
        // The first report on a stream without a wake-up repeats one of an earlier stream.
        let polled = report.state != ReportState::Unspecified
            && (taken.report_number > 0 || taken.woken_sequence.is_some());
        (taken.report_number, taken.reported_at) = (report.number, now);
        self.active_dequeue_tasks = report.active_dequeue_tasks;
        self.total_dequeue_tasks = report.total_dequeue_tasks;
        // On a stream of several queues, a report on one says nothing about the others. There, a
        // task may wait for an answer about another queue. So the listener is asked, at the cost of
        // one check at most.
        let polls =
            report.state == ReportState::Drained && report.active_dequeue_tasks > 0 && alone;
        if report.state != ReportState::Unspecified {
            subscription.mailbox.set_polls_until(match polls {
                true => now + entry.shared.config.sentinel_interval * 2,
                false => now,
            });
            self.polls = polls;
        }
        let head = state.counters.sequence;
        let is_trusted = report.sequence <= head || planted!(SequenceAboveHeadAccepted);
        let sequence = if is_trusted { report.sequence } else { 0 };
        let seen = (taken.woken_sequence == Some(sequence)).then_some(taken.woken_messages);
        state.note_depth(report, seen, now);
        let was_busy = taken.busy_since.is_some();
        let decided = match report.state {
            ReportState::Busy => {
                taken.busy = true;
                // Without a stated time its handling began with the first report.
                let since = report.busy_for.map(|age| now - age);
                taken.busy_since = since.or(taken.busy_since).or(Some(now));
                Some(DecisionKind::Busy)
            }
            ReportState::Drained => {
                taken.drained_sequence = taken.drained_sequence.max(Some(sequence));
                taken.busy &= taken.drained_sequence < taken.woken_sequence;
                taken.busy_since = None;
                Some(DecisionKind::Empty)
            }
            ReportState::Unspecified => None,
        };
        let is_busy = taken.busy_since.is_some();
        state.busy = (state.busy + u32::from(is_busy)).saturating_sub(was_busy.into());
        if let Some(kind) = decided {
            let reason = WakeReason::Unspecified;
            state.note(kind, Some(subscription), reason, sequence, now);
        }
        let tasks = std::mem::replace(&mut taken.tasks, report.active_dequeue_tasks);
        cursor.note_held(subscription, state);
        self.note_tasks(tasks, report.active_dequeue_tasks);
        let report = Report {
            sequence,
            ..report.clone()
        };
        Some((report, polled))
    }

    /// Returns what the stream does, by its newest reports; nothing after its end.
    pub(crate) fn load(&self, subscription: &Subscription) -> StreamLoad {
        if subscription.mailbox.is_closed() {
            return StreamLoad::default();
        }
        let pairs = i64::try_from(subscription.selectors.len()).unwrap_or(i64::MAX);
        [
            pairs - i64::from(self.awake_queues),
            self.tasks,
            i64::from(!self.polls && self.awake_queues > 0),
            i64::from(self.polls),
        ]
    }

    fn note_tasks(&mut self, before: u32, after: u32) {
        self.awake_queues = self.awake_queues + u32::from(after > 0) - u32::from(before > 0);
        self.tasks += i64::from(after) - i64::from(before);
    }

    /// Returns for how long a listener that reports has not done so after a wake-up: it hangs, or it
    /// cannot read its queue. A busy listener reports only after its next get, and one with patterns
    /// does not report a check under their names.
    pub(crate) fn silent_for(&self, subscription: &Subscription, now: Tick) -> Option<Duration> {
        let silent = now.since(self.woken_at?);
        if !subscription.mailbox.reports() || silent < SILENT_FROM || subscription.has_pattern() {
            return None;
        }
        let mut some = self.cursors.all().iter().take(4 * STEP);
        (!some.any(|(_, cursor)| cursor.taken.busy_since.is_some())).then_some(silent)
    }

    /// Returns how long the listener has been handling the oldest of its messages, of some of its queues.
    pub(crate) fn busy_for(&self, now: Tick) -> Option<Duration> {
        let some = self.cursors.all().iter().take(STEP);
        let oldest = some.filter_map(|(_, cursor)| cursor.taken.busy_since).min();
        oldest.map(|since| now.since(since))
    }

    /// Takes the revision that was drawn last, where all wake-ups before it were sent.
    pub(crate) fn take_number(&mut self) -> Option<u64> {
        let has_checks = !self.pattern_checks.is_empty();
        let taken = self.drawn.take_if(|(_, left)| *left == 0 && !has_checks);
        taken.map(|(revision, _)| revision)
    }

    /// Returns the capacities of its lists.
    #[cfg(test)]
    pub(crate) fn capacities(&self) -> [usize; 3] {
        [
            self.cursors.capacity(),
            self.due.capacity(),
            self.waiting.capacity(),
        ]
    }
}

impl Filled {
    pub(crate) fn add(&mut self, notifications: u64, reason: WakeReason) {
        if let Some(at) = REQUESTS.iter().position(|one| *one == reason) {
            self.requested[at] += 1;
        }
        let fewest = self.fewest.unwrap_or(notifications);
        self.fewest = Some(fewest.min(notifications));
        self.entries += 1;
        self.notifications = self.notifications.saturating_add(notifications);
    }
}
