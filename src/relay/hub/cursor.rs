//! A subscriber's position in one queue: its pending wake-up, and whether its listener counts as
//! busy (R8: a woken listener counts as busy until it reports DRAINED).
//!
//! Plain data but for its queue's entry, whose lock each comparison takes. The subscription's lock
//! guards it.

use std::sync::Arc;

use super::{
    coordinator::{ListenerKey, MemberId},
    counters::Counters,
    decisions::Decision,
    interest::Interest,
    members::Assignment,
    queue_entry::{QueueEntry, QueueState},
    wake_builder::{Target, WakeEntry, WakeSink},
};
use crate::{base::clock::Tick, types::WakeReason};

/// The result of attaching a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttachOutcome {
    /// Attached.
    New,
    /// It was attached before.
    Existing,
    /// Attached, in the place of a dead entry's cursor.
    Replaced,
    /// No room for one more cursor.
    Full,
    /// The entry is dead: look the queue up again.
    Dead,
    /// The subscription has ended.
    Closed,
}

/// A subscriber's position in one queue, and its pending wake-ups there.
pub(super) struct Cursor {
    pub(super) entry: Arc<QueueEntry>,
    /// Its key among the entry's subscribers; a member has a `member_id` instead.
    pub(super) key: u64,
    pub(super) member_id: Option<MemberId>,
    pub(super) position: Counters,
    /// R2: the relay is not certain which events the subscriber has seen, so a CATCH_UP is pending.
    pub(super) needs_catch_up: bool,
    /// It is in the list of marked cursors.
    pub(super) marked: bool,
    /// The newest sequence that its stream took, and when.
    pub(super) woken_sequence: Option<u64>,
    pub(super) woken_at: Tick,
    /// When the stream took the newest wake-up other than a sentinel's check.
    pub(super) work_sent_at: Tick,
    /// The newest sequence after which the listener read the queue until empty.
    pub(super) drained_sequence: Option<u64>,
    /// The newest report states that the listener took work.
    pub(super) busy: bool,
    /// The newest report with a state was BUSY.
    pub(super) reported_busy: bool,
    /// The newest report's number.
    pub(super) report_number: u64,
    /// Dequeue tasks by the newest report.
    pub(super) tasks: u32,
}

/// The result of sending a marked cursor's entry.
pub(super) enum SendOutcome {
    /// It is up to date.
    UpToDate,
    NoRoom,
    /// The entry was added; it stands for this many notifications.
    Sent(u64, WakeReason),
}

impl Cursor {
    pub(super) fn new(
        entry: Arc<QueueEntry>,
        key: u64,
        position: Counters,
        needs_catch_up: bool,
    ) -> Self {
        Self {
            entry,
            key,
            member_id: None,
            position,
            needs_catch_up,
            marked: false,
            woken_sequence: None,
            woken_at: Tick::default(),
            work_sent_at: Tick::default(),
            drained_sequence: None,
            busy: false,
            reported_busy: false,
            report_number: 0,
            tasks: 0,
        }
    }

    /// Makes a member's cursor, whose position is its group's.
    pub(super) fn member(entry: Arc<QueueEntry>, member_id: MemberId) -> Self {
        let mut cursor = Self::new(entry, u64::MAX, Counters::default(), false);
        cursor.member_id = Some(member_id);
        cursor
    }

    pub(super) fn member_id(&self) -> Option<MemberId> {
        self.member_id
    }

    pub(super) fn listener_key(&self) -> ListenerKey {
        match self.member_id {
            Some(member_id) => ListenerKey::Member(member_id),
            None => ListenerKey::Subscriber(self.key),
        }
    }

    /// Returns whether an entry is due.
    pub(super) fn is_behind(&self) -> bool {
        let state = self.entry.lock();
        match self.member_id {
            Some(member_id) => state.has_assignment(member_id),
            None => self.needs_catch_up || state.wake_reason(&self.position).is_some(),
        }
    }

    /// Writes the due entry, and moves to the position after it.
    pub(super) fn send(
        &mut self,
        subscription: &Interest,
        (certain, now): (bool, Tick),
        sink: &mut impl WakeSink,
    ) -> SendOutcome {
        if let Some(member_id) = self.member_id {
            return self.send_assignment(member_id, subscription, now, sink);
        }
        let mut guard = self.entry.lock();
        let asked = guard.take_check(self.key);
        let counted_reason = guard.wake_reason(&self.position);
        let reason = counted_reason
            .or_else(|| asked.then_some(WakeReason::Sentinel))
            .or_else(|| (self.needs_catch_up && certain).then_some(WakeReason::CatchUp));
        let Some(reason) = reason else {
            return SendOutcome::UpToDate;
        };
        let state = &mut *guard;
        let head = state.counters;
        let delta = head.delta_since(&self.position);
        let entry = WakeEntry {
            target: Target::Queue(self.entry.address()),
            reason,
            delta,
            sequence: head.sequence,
            last_event: &state.last_event,
        };
        // The reason follows from the two positions, so the encoding fits other subscribers at the
        // same position.
        let fits = match counted_reason.is_some() && state.subscribers.len() > 1 {
            true => sink.push_shared(&entry, state.encoded.get(&self.position, head.sequence)),
            false => sink.push(&entry),
        };
        if !fits {
            if asked {
                state.return_check(self.key);
            }
            return SendOutcome::NoRoom;
        }
        self.entry.note(state, |_| {
            Decision::woken(subscription, reason, head.sequence, now)
        });
        drop(guard);
        self.advance(head, asked, now);
        if reason != WakeReason::Sentinel {
            self.work_sent_at = now;
        }
        SendOutcome::Sent(delta.notifications, reason)
    }

    /// Writes the entry of a member's assignment.
    fn send_assignment(
        &mut self,
        member_id: MemberId,
        subscription: &Interest,
        now: Tick,
        sink: &mut impl WakeSink,
    ) -> SendOutcome {
        let mut state = self.entry.lock();
        let Some(assignment) = state.take_assignment(member_id) else {
            return SendOutcome::UpToDate;
        };
        let head = Counters {
            sequence: assignment.sequence,
            ..state.counters
        };
        if !sink.push(&assignment_entry(&self.entry, &assignment, &state)) {
            state.return_assignment(member_id, assignment);
            return SendOutcome::NoRoom;
        }
        // Its position serves the backlog only. The messages at an older sequence are not known.
        let is_newest = assignment.sequence == state.counters.sequence;
        self.entry.note(&mut state, |_| {
            Decision::woken(subscription, assignment.reason, head.sequence, now)
        });
        drop(state);
        let messages = if is_newest { head.messages } else { 0 };
        self.advance(Counters { messages, ..head }, true, now);
        if assignment.reason != WakeReason::Sentinel {
            self.work_sent_at = now;
        }
        SendOutcome::Sent(assignment.delta.notifications, assignment.reason)
    }

    /// Moves to the position up to which its stream took all entries. R8: a woken listener counts
    /// as busy until it reports DRAINED.
    fn advance(&mut self, head: Counters, given: bool, now: Tick) {
        self.position = head;
        self.needs_catch_up = false;
        // A wake-up to this stream alone may have a sequence that the listener has drained already.
        self.busy |= given;
        self.woken_sequence = Some(head.sequence);
        self.woken_at = now;
    }

    /// Returns whether an idle queue that only a pattern matches is kept for this cursor. A
    /// sentinel's check keeps no entry: a later check, under the pattern's own name, finds the same
    /// messages.
    pub(super) fn keeps_entry(&self, reports: bool, now: Tick, subscription: &Interest) -> bool {
        let busy = match reports {
            true => self.holds_work(true),
            false => {
                self.woken_sequence.is_some()
                    && now < self.work_sent_at + subscription.visibility_timeout
            }
        };
        busy || self.is_behind()
    }

    /// Returns whether the listener may be busy, without regard to the time.
    pub(super) fn holds_work(&self, reports: bool) -> bool {
        reports && (self.busy || self.drained_sequence < self.woken_sequence)
    }

    pub(super) fn is_busy(&self, reports: bool, now: Tick, subscription: &Interest) -> bool {
        if !reports && now >= self.woken_at + subscription.visibility_timeout {
            return false;
        }
        self.busy || self.drained_sequence < self.woken_sequence
    }
}

fn assignment_entry<'a>(
    entry: &'a QueueEntry,
    assignment: &Assignment,
    state: &'a QueueState,
) -> WakeEntry<'a> {
    WakeEntry {
        target: Target::Queue(entry.address()),
        reason: assignment.reason,
        delta: assignment.delta,
        sequence: assignment.sequence,
        last_event: &state.last_event,
    }
}
