//! A subscriber: its marks, and the way to its cursors.
//!
//! A walk sets one of 64 mark bits (the cursor's index modulo 64) and wakes the stream if none was
//! set; the stream clears the marks, then compares the marked cursors with their queues (R5). So a
//! subscriber costs the same however much it is notified of, and however slowly it reads.

use std::{collections::HashMap, fmt, sync::Arc, task::Waker, time::Duration};

use super::{
    company::Seat,
    cursors::{Cursor, Cursors},
    links::Link,
    place::{Epoch, Tally},
    record::Record,
    sync::{AtomicU64, AtomicWaker, Mutex, MutexGuard, Ordering, lock},
};
use crate::{
    clock::Tick,
    fault::{Fault, planted},
    words::{
        GroupName, Limits, ListenerId, QueueAddress, Selector, SubscribeOptions, Token, WakeReason,
        WorkDetected,
    },
};

/// The random part of a subscription's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SubscriptionId(pub(crate) u128);

/// One stream's subscription.
pub(crate) struct Subscription {
    pub(super) id: SubscriptionId,
    pub(super) listener_id: ListenerId,
    pub(super) selectors: Box<[Selector]>,
    pub(super) group: Option<GroupName>,
    pub(super) capacity: u32,
    pub(super) visibility_timeout: Duration,
    pub(super) since: Tick,
    pub(super) epoch: Epoch,
    pub(super) fault: Fault,
    /// Which cursors may be behind: bit i for those whose index is i modulo 64.
    marks: AtomicU64,
    waker: AtomicWaker,
    /// Whether its stream has sent all it had, and what kind of listener it is; see [`SENDING`].
    stream: AtomicU64,
    /// Until then it is believed that it looks by itself, in nanoseconds.
    polls_until: AtomicU64,
    cursors: Mutex<Cursors>,
}

/// What one wake can say.
#[derive(Debug)]
pub(crate) struct Taken {
    /// Empty where nothing is owed.
    pub(crate) work: Vec<WorkDetected>,
    /// Whether all that was marked was come to; otherwise the rest follows in the next.
    pub(crate) complete: bool,
}

/// Whether a cursor was attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attached {
    /// It is now, or was before.
    Yes,
    /// The token that came with it was of another life of the relay.
    Foreign,
    /// The record is dead: look the queue up again.
    Dead,
    /// The subscription has ended.
    Closed,
}

/// Where a new cursor starts.
#[derive(Debug, Clone, Copy)]
pub(super) enum Start<'a> {
    /// At the record's own start: the subscriber was there before the record.
    Birth,
    /// At the subscriber's token, or where there is none in doubt.
    Token(Option<&'a Token>),
}

/// What close finds of a queue.
pub(super) struct Ended {
    pub(super) record: Arc<Record>,
    /// Its listener is taken to be busy (R8).
    pub(super) busy: bool,
}

/// A slot that is linked at the first take only: a planted fault.
const UNLINKED: usize = usize::MAX;

/// A message is on its way to this stream, or a wake-up that was given to it alone: it is given no
/// other such one.
const SENDING: u64 = 1 << 63;
/// It has reported at least once.
const REPORTS: u64 = 1 << 62;
/// The other bits: members among its cursors, by their indices, that wait until it has sent.
const WAITING: u64 = 60;

#[cfg(test)]
impl Taken {
    /// Returns the entries, where there are any.
    pub(super) fn some(self) -> Option<Vec<WorkDetected>> {
        (!self.work.is_empty()).then_some(self.work)
    }
}

impl Subscription {
    pub(super) fn new(
        id: SubscriptionId,
        options: &SubscribeOptions,
        epoch: Epoch,
        now: Tick,
        fault: Fault,
    ) -> Self {
        Self {
            id,
            listener_id: options.listener_id.clone(),
            selectors: distinct(&options.selectors),
            group: options.group.clone(),
            capacity: options.capacity.max(1),
            visibility_timeout: match options.visibility_timeout {
                Duration::ZERO => Limits::VISIBILITY,
                stated => stated,
            },
            since: now,
            epoch,
            fault,
            marks: AtomicU64::new(0),
            waker: AtomicWaker::new(),
            stream: AtomicU64::new(0),
            polls_until: AtomicU64::new(0),
            cursors: Mutex::new(Cursors::new(now, options.selectors.len())),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Cursors> {
        lock(&self.cursors)
    }

    /// Returns whether a selector matches the queue.
    pub(super) fn wants(&self, address: &QueueAddress) -> bool {
        self.selectors
            .iter()
            .any(|selector| selector.matches(address))
    }

    pub(super) fn has_pattern(&self) -> bool {
        self.selectors.iter().any(Selector::is_pattern)
    }

    /// Marks a cursor as possibly behind, and wakes the stream unless it is awake already.
    pub(super) fn mark(&self, cursor: usize) {
        let bit = 1 << (cursor % 64);
        let before = if planted!(self.fault, MarkReplaces) {
            self.marks.swap(bit, Ordering::AcqRel)
        } else {
            self.marks.fetch_or(bit, Ordering::AcqRel)
        };
        if before == 0 {
            self.waker.wake();
        }
    }

    /// Keeps the stream for a wake-up that is given to it alone; `false` where it has not sent its
    /// last message yet. In either case the member is told when it has.
    pub(super) fn reserve(&self, cursor: usize) -> bool {
        let bits = SENDING | 1 << (cursor as u64 % WAITING);
        self.stream.fetch_or(bits, Ordering::AcqRel) & SENDING == 0
    }

    /// The same for one that is not told.
    pub(super) fn reserve_once(&self) -> bool {
        self.stream.fetch_or(SENDING, Ordering::AcqRel) & SENDING == 0
    }

    /// A message is on its way.
    pub(super) fn sends(&self) {
        if self.stream.load(Ordering::Acquire) & SENDING == 0 {
            self.stream.fetch_or(SENDING, Ordering::AcqRel);
        }
    }

    /// All messages were sent. Returns which members wait for that, as bits of their indices.
    pub(super) fn has_sent(&self) -> u64 {
        if self.stream.load(Ordering::Acquire) & !REPORTS == 0 {
            return 0;
        }
        self.stream.fetch_and(REPORTS, Ordering::AcqRel) & !REPORTS & !SENDING
    }

    pub(super) fn reports(&self) -> bool {
        self.stream.load(Ordering::Acquire) & REPORTS != 0
    }

    /// Returns whether it is believed to look by itself.
    pub(super) fn polls(&self, now: Tick) -> bool {
        now.as_nanos() < self.polls_until.load(Ordering::Acquire)
    }

    /// Notes what kind of listener a report shows: who drained a queue and keeps tasks that wait
    /// for work looks by itself. Believed until then only: what was once told may hold no longer.
    pub(super) fn shows(&self, polls_until: Option<Tick>) {
        if !self.reports() {
            self.stream.fetch_or(REPORTS, Ordering::AcqRel);
        }
        if let Some(until) = polls_until {
            self.polls_until.store(until.as_nanos(), Ordering::Release);
        }
    }

    /// Returns the members' queues whose bits [`Subscription::has_sent`] returned.
    pub(super) fn waiting(&self, bits: u64) -> Vec<(Arc<Record>, Seat)> {
        let cursors = self.lock();
        let waits = |(at, _): &(usize, _)| bits & 1 << (*at as u64 % WAITING) != 0;
        let all = cursors.list.iter().enumerate().filter(waits);
        all.filter_map(|(_, cursor)| Some((Arc::clone(&cursor.record), cursor.seat()?)))
            .collect()
    }

    /// Marks all cursors: a look at every one of them is due.
    pub(crate) fn mark_all(&self) {
        if self.marks.swap(u64::MAX, Ordering::AcqRel) == 0 {
            self.waker.wake();
        }
    }

    /// Asks for a look under a selector's own name.
    pub(super) fn ask(&self, selector: &Selector, reason: WakeReason) {
        self.lock().ask(&self.selectors, selector, reason);
        self.mark_all();
    }

    /// Returns whether it has a cursor on a queue that the selector matches.
    pub(super) fn knows(&self, selector: &Selector) -> bool {
        let cursors = self.lock();
        let mut records = cursors.list.iter().map(|cursor| &cursor.record);
        records.any(|record| selector.matches(record.address()))
    }

    /// Wakes the stream without marking anything.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// Says whom to wake; before each [`Subscription::take`] that may find nothing.
    pub(crate) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    /// Takes what is owed, where anything may be: at most one entry per queue, 256 entries and
    /// 32 KiB (R1). The rest stays marked and follows in the next.
    pub(crate) fn take(&self, now: Tick) -> Taken {
        let late = planted!(self.fault, AwakeClearedAfterRead);
        // Cleared first: what is counted after this marks again (R5).
        let mut marks = if late || planted!(self.fault, AwakeNeverCleared) {
            self.marks.load(Ordering::Acquire)
        } else {
            self.marks.swap(0, Ordering::AcqRel)
        };
        let mut cursors = self.lock();
        if cursors.catch_up_is_due(now) {
            marks = u64::MAX;
        } else if marks == 0 {
            return Taken {
                work: Vec::new(),
                complete: true,
            };
        }
        let (work, rest) = cursors.collect(self, marks, now);
        drop(cursors);
        if late {
            self.marks.store(0, Ordering::Release);
        }
        if rest != 0 && !planted!(self.fault, WakeDropsRest) {
            self.marks.fetch_or(rest, Ordering::AcqRel);
        }
        Taken {
            work,
            complete: rest == 0,
        }
    }

    /// Compares every cursor with its queue, whatever the marks say; only one that finds nothing
    /// may send a heartbeat (R6).
    pub(crate) fn verify(&self, now: Tick) -> Taken {
        if planted!(self.fault, HeartbeatUnchecked) {
            return self.take(now);
        }
        self.lock().catch_up_at = now;
        self.marks.store(u64::MAX, Ordering::Release);
        self.take(now)
    }

    /// Returns when CATCH_UPs that wait are owed, or `None` where none waits.
    pub(crate) fn catch_up_at(&self) -> Option<Tick> {
        let cursors = self.lock();
        cursors.waiting.then_some(cursors.catch_up_at)
    }

    /// Attaches a cursor for this queue, unless there is one.
    pub(super) fn attach(
        self: &Arc<Self>,
        cursors: &mut Cursors,
        record: &Arc<Record>,
        start: Start<'_>,
        now: Tick,
    ) -> Attached {
        if cursors.closed {
            return Attached::Closed;
        }
        if let Some(known) = cursors.find(record.address()) {
            if let Start::Token(Some(token)) = start
                && self.group.is_none()
            {
                cursors.list[known].compare(token, self.epoch, self.fault);
            }
            return Attached::Yes;
        }
        let index = cursors.list.len();
        let mut state = record.lock();
        if state.is_dead() {
            return Attached::Dead;
        }
        // Register first, then take the snapshot, under one lock (R4).
        let link = Link {
            subscription: Arc::clone(self),
            cursor: index,
        };
        if let Some(group) = &self.group {
            // A member's token does not count: the group's place does, or else nobody's.
            let (place, doubt) = match start {
                Start::Birth => (Tally::starting_at(state.start), false),
                Start::Token(_) => (state.tally, true),
            };
            let seat = state.join(record, (group, link), (place, doubt), now);
            drop(state);
            cursors.push(Cursor::member(Arc::clone(record), seat));
            return Attached::Yes;
        }
        state.guard(record, now);
        let late = planted!(self.fault, SnapshotBeforeRegister) && matches!(start, Start::Token(_));
        let slot = if late { UNLINKED } else { state.link(link) };
        let (place, doubt, attached) = match start {
            Start::Birth => (Tally::starting_at(state.start), false, Attached::Yes),
            Start::Token(token) => super::cursors::resume(&state, token, self.epoch, self.fault),
        };
        drop(state);
        cursors.push(Cursor::new(Arc::clone(record), slot, place, doubt));
        if planted!(self.fault, MarkWithoutWake) {
            self.marks.fetch_or(1 << (index % 64), Ordering::AcqRel);
        }
        // No mark is set: a new stream looks at all its cursors by itself, and nothing has been
        // counted yet in a record that a parked one is attached to at its birth. A mark without a
        // wake would swallow the wake of the first that counts.
        attached
    }

    /// Ends the subscription: detaches every cursor, and returns the queues where its end matters.
    pub(super) fn close(&self, now: Tick) -> Vec<Ended> {
        let mut cursors = self.lock();
        cursors.closed = true;
        let reports = cursors.reports;
        let list = std::mem::take(&mut cursors.list);
        cursors.index = HashMap::new();
        drop(cursors);
        let mut ended = Vec::new();
        for cursor in list {
            let busy = cursor.is_busy(reports, now, self);
            let dirty = match cursor.seat() {
                Some(seat) => {
                    cursor.record.lock().leave(seat, busy, now);
                    true
                }
                None if cursor.slot != UNLINKED => cursor.record.lock().unlink(cursor.slot, now),
                None => false,
            };
            if busy || dirty {
                let record = cursor.record;
                ended.push(Ended { record, busy });
            }
        }
        ended
    }

    /// Registers what a planted fault left unregistered when it took the snapshot.
    #[cfg(test)]
    pub(super) fn link_late(self: &Arc<Self>) {
        for (cursor, at) in self.lock().list.iter_mut().zip(0..) {
            if cursor.slot == UNLINKED && cursor.seat().is_none() {
                let link = Link {
                    subscription: Arc::clone(self),
                    cursor: at,
                };
                cursor.slot = cursor.record.lock().link(link);
            }
        }
    }
}

/// Returns the selectors without repetitions, in their order.
fn distinct(selectors: &[Selector]) -> Box<[Selector]> {
    let mut seen = std::collections::HashSet::new();
    selectors
        .iter()
        .filter(|selector| seen.insert(*selector))
        .cloned()
        .collect()
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("listener_id", &self.listener_id)
            .finish_non_exhaustive()
    }
}
