//! A subscriber: its request, its mailbox and its cursors.
//!
//! A notification marks the cursors of its queue in the mailbox, and wakes the stream if nothing
//! was marked before. The stream clears the marks, then compares the marked cursors with their
//! queues (R5: clear the mark, then read). So a subscriber costs the same for any number of
//! notifications, however slowly it reads.

use std::{fmt, ops::Deref, sync::Arc, task::Waker, time::Duration};

use super::{
    attaching::Attaching,
    coordinator::MemberId,
    counters::Counters,
    cursor::{AttachOutcome, Cursor},
    cursors::{Cursors, Filled},
    decisions::{Decision, DecisionKind},
    interest::Interest,
    queue_entry::{EntryBits, QueueEntry, QueueState},
    resume::ResumePoint,
    subscribers::Subscriber,
    sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock},
    wake_builder::WakeSink,
};
use crate::{
    base::{clock::Tick, fault::planted},
    types::ResumeNumber,
};

/// One stream's subscription.
pub(crate) struct Subscription {
    interest: Interest,
    cursors: Mutex<Cursors>,
    /// The queues to be attached. Locked before the cursors.
    pub(super) attaching: Mutex<Option<Box<Attaching>>>,
}

/// The position at which a new cursor starts.
#[derive(Debug, Clone, Copy)]
pub(super) enum CursorStart {
    /// At the entry's start: the subscription is older than the entry.
    EntryStart,
    /// The same, for a listener that reports that it has messages: once its report was accepted it
    /// has a cursor beyond the limits too. R8: its end sets a timer, and without a cursor there is
    /// none.
    Busy,
    /// At the head. A CATCH_UP is pending, unless the subscriber has all changes up to this revision
    /// and the queue has not changed since.
    Resumed(Option<u64>),
}

/// A new stream with at least this many queues gets its overdue checks spread, by this much for
/// each queue.
const SPREAD_FROM: usize = 64;
const SPREAD: Duration = Duration::from_millis(1);

/// A queue that waits for a member's stream.
type Waiting = (Arc<QueueEntry>, MemberId);

impl Subscription {
    pub(super) fn new(interest: Interest) -> Self {
        let cursors = Cursors::new(interest.since, interest.selectors.len());
        Self {
            interest,
            cursors: Mutex::new(cursors),
            attaching: Mutex::new(None),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Cursors> {
        lock(&self.cursors)
    }

    /// The transport got a frame of the stream.
    pub(super) fn begin_send(&self) {
        self.mailbox.begin_send();
    }

    /// Returns some of the queues that waited until the stream had sent its messages, or `None`
    /// where none is left to reconcile now.
    pub(super) fn take_turns(&self, most: usize) -> Option<Vec<Waiting>> {
        let turns = self.mailbox.take_turns(most);
        if turns.is_empty() {
            return None;
        }
        let cursors = self.lock();
        let queue = |at| {
            let cursor: &Cursor = cursors.list.get(at)?;
            Some((Arc::clone(&cursor.entry), cursor.member_id()?))
        };
        Some(turns.into_iter().filter_map(queue).collect())
    }

    /// Registers the waker; call this before each [`Subscription::fill`] that may find nothing.
    pub(crate) fn register(&self, waker: &Waker) {
        self.mailbox.register(waker);
    }

    /// Fills a Wake from the marked cursors: at most one entry per queue. Entries without room stay
    /// marked and follow in the next Wake. With `revision` a resume number is drawn.
    pub(crate) fn fill(
        &self,
        now: Tick,
        revision: Option<&AtomicU64>,
        sink: &mut impl WakeSink,
    ) -> Filled {
        // Raised before the marks are taken: see `resume`.
        let mut drawn = revision.map(|revision| revision.fetch_add(1, Ordering::Relaxed));
        // R5: cleared first, then read: an event that is counted after this sets the mark again.
        let marks = self.mailbox.take_marks(drawn.is_some());
        if planted!(ResumeNumberDrawnLate) {
            drawn = revision.map(|revision| revision.fetch_add(1, Ordering::Relaxed));
        }
        let mut cursors = self.lock();
        if drawn.is_none() && marks.is_empty() && !cursors.is_marked(now) {
            return Filled {
                complete: true,
                ..Filled::default()
            };
        }
        let accepted_at = marks.accepted_at();
        let mut filled = cursors.fill(self, (marks, drawn), now, sink);
        if filled.entries > 0 {
            cursors.note_woken(now);
        }
        drop(cursors);
        filled.accepted_at = accepted_at.filter(|_| filled.entries > 0);
        if planted!(AwakeClearedAfterRead) {
            drop(self.mailbox.take_marks(false));
        }
        filled
    }

    /// Takes the resume number that was drawn last, where all wake-ups before it were sent.
    pub(super) fn take_resume(&self) -> Option<ResumeNumber> {
        let revision = self.lock().take_number()?;
        let point = ResumePoint {
            epoch: self.epoch,
            revision,
            digest: self.digest,
        };
        Some(point.number())
    }

    /// Waiting CATCH_UPs become due.
    pub(super) fn end_spread(&self, now: Tick) {
        let mut cursors = self.lock();
        cursors.catch_up_at = cursors.catch_up_at.min(now);
    }

    /// Returns when the waiting CATCH_UPs are due, or `None` where none waits.
    pub(crate) fn catch_up_at(&self) -> Option<Tick> {
        let cursors = self.lock();
        cursors.catch_up_at()
    }

    /// Attaches a cursor for this queue, unless there is one.
    pub(super) fn attach(
        &self,
        cursors: &mut Cursors,
        entry: &Arc<QueueEntry>,
        start: CursorStart,
        now: Tick,
    ) -> AttachOutcome {
        if cursors.closed {
            return AttachOutcome::Closed;
        }
        let known = cursors.list.find(entry.address());
        let dead = known.filter(|at| {
            // The old cursor is not released yet; the new entry's cursor takes its place.
            let old = cursors.list.get(*at).map(|cursor| &cursor.entry);
            old.is_some_and(|old| !Arc::ptr_eq(old, entry) && old.lock().is_dead())
        });
        if known.is_some() && dead.is_none() {
            return AttachOutcome::Existing;
        }
        let at = dead.unwrap_or_else(|| cursors.list.next_number());
        let spread = match cursors.list.len() {
            0..SPREAD_FROM => Duration::ZERO,
            many => SPREAD * u32::try_from(many).unwrap_or(u32::MAX),
        };
        let mut state = entry.lock();
        if state.is_dead() {
            return AttachOutcome::Dead;
        }
        let by_pattern = !self.names(entry.address());
        let grouped = self.group.as_ref();
        let grouped = grouped.filter(|group| state.has_room(&entry.config, group));
        let busy = matches!(start, CursorStart::Busy);
        if grouped.is_none() && self.group.is_some() && by_pattern && !busy && dead.is_none() {
            return AttachOutcome::Full;
        }
        // R4: register first, then take the snapshot, under one lock.
        let subscriber = Subscriber {
            mailbox: Arc::clone(&self.mailbox),
            cursor: at,
            by_pattern,
        };
        if let Some(group) = grouped {
            // The group's position counts.
            let (position, uncertain) = match start {
                CursorStart::EntryStart | CursorStart::Busy => {
                    (Counters::starting_at(state.start), false)
                }
                CursorStart::Resumed(_) => (state.counters, true),
            };
            let member = (group, subscriber);
            let member_id = state.join(entry, member, (position, uncertain), (now, spread));
            self.note_joined(entry, &mut state, now);
            drop(state);
            return cursors.put(dead, Cursor::member(Arc::clone(entry), member_id));
        }
        state.start_sentinel(entry, now, spread);
        let key = state.subscribers.insert(subscriber);
        // A member that the queue has no room for is woken as a subscriber without a group; it
        // resumes by no number.
        let (position, needs_catch_up) = match start {
            CursorStart::EntryStart => (Counters::starting_at(state.start), false),
            // A part of it may have been sent under a pattern's own name.
            CursorStart::Busy => (state.counters, state.counters.sequence > state.start),
            CursorStart::Resumed(revision) => {
                let told = revision.is_some_and(|revision| state.changed_at <= revision);
                (state.counters, !told)
            }
        };
        self.note_joined(entry, &mut state, now);
        let behind = needs_catch_up || state.wake_reason(&position).is_some();
        drop(state);
        let cursor = Cursor::new(Arc::clone(entry), key, position, needs_catch_up);
        let attached = cursors.put(dead, cursor);
        if behind {
            cursors.set_marked(at);
        }
        attached
    }

    fn note_joined(&self, entry: &QueueEntry, state: &mut QueueState, now: Tick) {
        state.bits.remove(EntryBits::UNSERVED);
        entry.note(state, |sequence| {
            Decision::about(self, DecisionKind::Joined, sequence, now)
        });
    }
}

impl Deref for Subscription {
    type Target = Interest;

    fn deref(&self) -> &Interest {
        &self.interest
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("listener_id", &self.listener_id)
            .finish_non_exhaustive()
    }
}
