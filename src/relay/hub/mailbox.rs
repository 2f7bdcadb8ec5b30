//! The part of a subscription that queue entries use: its marks, its waker, and whether its stream
//! can take a wake-up that only it gets.
//!
//! A mark means that a cursor may be behind. The first 62 cursors have a bit each; the others are
//! listed, each once. So a stream with a million cursors compares the marked ones only. The stream
//! clears the marks before it reads its cursors (R5: clear the mark, then read; cleared afterwards,
//! a mark set during the read would be lost). Locks: `lists` is a leaf, taken under an entry's
//! lock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64 as PlainU64, Ordering::Relaxed},
    },
    task::Waker,
};

use super::sync::{AtomicU64, AtomicWaker, Mutex, Ordering, lock};
use crate::base::{clock::Tick, fault::planted};

/// The random part of a subscription's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SubscriptionId(pub(crate) u128);

/// One subscription's mailbox; the entries of its queues hold it.
pub(super) struct Mailbox {
    pub(super) id: SubscriptionId,
    /// The most messages that its listener handles at once.
    pub(super) capacity: u32,
    /// Its listener reads no queue, but starts workers.
    pub(super) is_agent: bool,
    marks: AtomicU64,
    waker: AtomicWaker,
    stream: AtomicU64,
    /// When the oldest marked event was accepted, in nanoseconds; 0: not known. Only a histogram
    /// reads it, so it is relaxed. It is set before the mark: a take in between may lose it, but it
    /// is never older than the marks.
    accepted_at: PlainU64,
    /// The listener counts as polling until then, in nanoseconds.
    polls_until: AtomicU64,
    /// Not allocated for a subscription with few queues.
    lists: Mutex<Option<Box<Lists>>>,
}

/// Cursors that have no bit in the words.
#[derive(Default)]
struct Lists {
    /// Marked cursors from [`DIRECT`] on.
    marked: List,
    /// Cursors whose queues wait until the stream has sent its messages.
    waiting: List,
}

/// A set of cursors in insertion order.
#[derive(Default)]
struct List {
    cursors: Vec<u32>,
    /// A bit for each cursor in the list.
    is_in: Vec<u64>,
}

/// The marks that a stream takes.
#[derive(Debug, Default)]
pub(super) struct Marks {
    bits: u64,
    accepted_at: u64,
    listed: Vec<u32>,
}

/// Subscriptions to be woken. They are woken together, after all marks of a request or of a slice
/// of the fan-out are set. So a stream of many queues sends one Wake for all of them. Drop wakes
/// them as well, so that a panic loses no wake.
#[derive(Default)]
pub(crate) struct WakeBatch {
    /// Most notifications wake one stream, so they allocate no list.
    first: Option<Arc<Mailbox>>,
    others: Vec<Arc<Mailbox>>,
    /// Marks set so far.
    pub(super) marked: usize,
    /// When the marked event was accepted; the default: no event, or not known.
    pub(super) accepted_at: Tick,
    /// Other work, measured in marks.
    work: usize,
}

/// Cursors with a mark bit each.
const DIRECT: u32 = 62;
/// A check under a selector's own name is due.
const SELECTORS: u64 = 1 << 62;
/// The list of marked cursors is not empty.
const LISTED: u64 = 1 << 63;

/// A frame is on its way to the stream's transport.
const SENDING: u64 = 1;
/// A wake-up was assigned to this stream alone and not taken yet.
const ASSIGNED: u64 = 1 << 1;
/// Queues wait until the stream has sent its messages.
const AWAITED: u64 = 1 << 2;
/// Its listener has reported at least once.
const REPORTS: u64 = 1 << 3;
/// The waiting queues are being reconciled: each may assign one more wake-up to the stream.
const TURNS: u64 = 1 << 4;

impl Mailbox {
    pub(super) fn new(id: SubscriptionId, capacity: u32, is_agent: bool) -> Self {
        Self {
            id,
            capacity,
            is_agent,
            marks: AtomicU64::new(0),
            waker: AtomicWaker::new(),
            stream: AtomicU64::new(0),
            accepted_at: PlainU64::new(0),
            polls_until: AtomicU64::new(0),
            lists: Mutex::new(None),
        }
    }

    /// Marks a cursor as possibly behind; returns whether to wake the stream.
    #[must_use]
    pub(super) fn set_dirty(&self, cursor: u32) -> bool {
        let bit = match cursor {
            0..DIRECT => 1 << cursor,
            _ if self.list_dirty(cursor) => LISTED,
            _ => return false,
        };
        self.set(bit)
    }

    /// Marks the selectors' checks as due; returns whether to wake the stream.
    #[must_use]
    pub(super) fn set_selectors_dirty(&self) -> bool {
        self.set(SELECTORS)
    }

    /// Notes when the event was accepted, before it is marked; an older time stays.
    fn note_accepted(&self, at: Tick) {
        if at != Tick::default() && self.accepted_at.load(Relaxed) == 0 {
            self.accepted_at.store(at.as_nanos(), Relaxed);
        }
    }

    fn set(&self, bit: u64) -> bool {
        self.marks.fetch_or(bit, Ordering::AcqRel) == 0
    }

    /// Adds a cursor to the list; returns whether it is the first. Later cursors rely on the first
    /// one's bit, which the caller sets next.
    fn list_dirty(&self, cursor: u32) -> bool {
        let mut lists = lock(&self.lists);
        let marked = &mut lists.get_or_insert_default().marked;
        marked.insert(cursor) && marked.cursors.len() == 1
    }

    /// Takes the marks, and clears them. R5: an event that is counted after this sets the mark
    /// again. With `all` also those whose bit is not set yet.
    pub(super) fn take_marks(&self, all: bool) -> Marks {
        let bits = self.marks.swap(0, Ordering::AcqRel);
        let accepted_at = self.accepted_at.load(Relaxed);
        if accepted_at != 0 {
            self.accepted_at.store(0, Relaxed);
        }
        let mut listed = Vec::new();
        if (all || bits & LISTED != 0)
            && let Some(lists) = &mut *lock(&self.lists)
        {
            listed = lists.marked.take();
        }
        Marks {
            bits,
            accepted_at,
            listed,
        }
    }

    /// Registers the waker; call this before each read that may find nothing.
    pub(super) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    /// Wakes the stream, with or without marks.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// Reserves the stream for a wake-up to it alone. Returns `false` where it has another such
    /// wake-up or an unsent frame. After `false`, the cursor's queue is reconciled when the stream
    /// has sent.
    pub(super) fn assign(&self, cursor: u32) -> bool {
        let before = self.await_sent(cursor);
        before & SENDING == 0 && (before & ASSIGNED == 0 || before & TURNS != 0)
    }

    /// Adds the cursor's queue to the waiting ones; returns the stream's state before.
    fn await_sent(&self, cursor: u32) -> u64 {
        // Set under the lock: `end_send` must not clear the mark before the cursor is listed.
        let mut lists = lock(&self.lists);
        let before = self.stream.fetch_or(ASSIGNED | AWAITED, Ordering::AcqRel);
        if planted!(AwaitedBeforeListed) {
            drop(lists);
            lists = lock(&self.lists);
        }
        lists.get_or_insert_default().waiting.insert(cursor);
        before
    }

    /// The stream's transport got a frame.
    pub(super) fn begin_send(&self) {
        if self.stream.load(Ordering::Acquire) & SENDING == 0 {
            self.stream.fetch_or(SENDING, Ordering::AcqRel);
        }
    }

    /// All frames were sent. Returns whether queues wait for that; then they are reconciled until
    /// [`Mailbox::end_turns`].
    pub(super) fn end_send(&self) -> bool {
        if self.stream.load(Ordering::Acquire) & (SENDING | ASSIGNED | AWAITED) == 0 {
            return false;
        }
        let before = self
            .stream
            .fetch_and(!(SENDING | ASSIGNED), Ordering::AcqRel);
        if before & AWAITED != 0 {
            self.stream.fetch_or(TURNS, Ordering::AcqRel);
        }
        before & AWAITED != 0
    }

    /// Takes a quarter of the waiting cursors, `most` at most, so that other members of their
    /// groups get a share. Takes none where the stream was assigned a wake-up: the others follow
    /// when it was sent.
    pub(super) fn take_turns(&self, most: usize) -> Vec<u32> {
        if self.stream.load(Ordering::Acquire) & ASSIGNED != 0 {
            return Vec::new();
        }
        let mut lists = lock(&self.lists);
        let Some(lists) = lists.as_mut() else {
            return Vec::new();
        };
        let waiting = &mut lists.waiting;
        let turns = waiting.take_some(waiting.cursors.len().div_ceil(4).min(most));
        if waiting.cursors.is_empty() {
            self.stream.fetch_and(!AWAITED, Ordering::AcqRel);
        }
        turns
    }

    pub(super) fn end_turns(&self) {
        self.stream.fetch_and(!TURNS, Ordering::AcqRel);
    }

    pub(super) fn reports(&self) -> bool {
        self.stream.load(Ordering::Acquire) & REPORTS != 0
    }

    /// Returns whether its listener counts as polling.
    pub(super) fn polls(&self, now: Tick) -> bool {
        now.as_nanos() < self.polls_until.load(Ordering::Acquire)
    }

    /// Returns whether its listener can be asked for a check: it reads the queue, and not already by
    /// itself.
    pub(super) fn can_check(&self, now: Tick) -> bool {
        !self.is_agent && !self.polls(now)
    }

    /// Notes a report. A listener that drained its queue and keeps tasks polls. It counts as
    /// polling for a limited time only, because a later state may go unreported.
    pub(super) fn note_report(&self, polls_until: Option<Tick>) {
        if !self.reports() {
            self.stream.fetch_or(REPORTS, Ordering::AcqRel);
        }
        if let Some(until) = polls_until {
            self.polls_until.store(until.as_nanos(), Ordering::Release);
        }
    }

    /// Returns the capacities of its lists.
    #[cfg(test)]
    pub(super) fn capacities(&self) -> [usize; 3] {
        lock(&self.lists).as_ref().map_or([0; 3], |lists| {
            [
                lists.marked.cursors.capacity(),
                lists.marked.is_in.capacity(),
                lists.waiting.cursors.capacity(),
            ]
        })
    }
}

impl List {
    /// Adds a cursor; `false` where it is in the list already.
    fn insert(&mut self, cursor: u32) -> bool {
        let (word, bit) = (cursor as usize / 64, 1 << (cursor % 64));
        if self.is_in.len() <= word {
            self.is_in.resize(word + 1, 0);
        }
        let new = self.is_in[word] & bit == 0;
        if new {
            self.is_in[word] |= bit;
            self.cursors.push(cursor);
        }
        new
    }

    fn take(&mut self) -> Vec<u32> {
        let all = std::mem::take(&mut self.cursors);
        self.note_taken(&all);
        all
    }

    /// Takes the first `count` cursors.
    fn take_some(&mut self, count: usize) -> Vec<u32> {
        if count >= self.cursors.len() {
            return self.take();
        }
        let some: Vec<_> = self.cursors.drain(..count).collect();
        self.note_taken(&some);
        some
    }

    fn note_taken(&mut self, taken: &[u32]) {
        for cursor in taken {
            self.is_in[*cursor as usize / 64] &= !(1 << (cursor % 64));
        }
    }
}

impl Marks {
    /// Returns when the oldest marked event was accepted, where that is known.
    pub(super) fn accepted_at(&self) -> Option<Tick> {
        (self.accepted_at != 0).then(|| Tick::from_nanos(self.accepted_at))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bits == 0 && self.listed.is_empty()
    }

    /// Returns the number of marked cursors.
    pub(super) fn len(&self) -> usize {
        (self.bits & !(SELECTORS | LISTED)).count_ones() as usize + self.listed.len()
    }

    /// Calls `each` with every marked cursor.
    pub(super) fn cursors(self, mut each: impl FnMut(u32)) {
        let mut bits = self.bits & !(SELECTORS | LISTED);
        while bits != 0 {
            each(bits.trailing_zeros());
            bits &= bits - 1;
        }
        self.listed.into_iter().for_each(each);
    }
}

impl WakeBatch {
    /// Marks a cursor; its stream is woken with the batch.
    pub(super) fn mark(&mut self, mailbox: &Arc<Mailbox>, cursor: u32) {
        self.marked += 1;
        mailbox.note_accepted(self.accepted_at);
        if mailbox.set_dirty(cursor) {
            self.push(mailbox);
        }
    }

    /// Marks the selectors' checks as due; the stream is woken with the batch.
    pub(super) fn mark_selectors(&mut self, mailbox: &Arc<Mailbox>) {
        self.marked += 1;
        if mailbox.set_selectors_dirty() {
            self.push(mailbox);
        }
    }

    fn push(&mut self, mailbox: &Arc<Mailbox>) {
        match &self.first {
            None => self.first = Some(Arc::clone(mailbox)),
            Some(_) => self.others.push(Arc::clone(mailbox)),
        }
    }

    /// Adds work that is no mark, measured in marks.
    pub(super) fn add_work(&mut self, work: usize) {
        self.work += work;
    }

    /// Returns the work since the last wake, in marks.
    pub(crate) fn work(&self) -> usize {
        self.marked + self.work
    }

    /// Wakes all streams of the batch. No lock may be held.
    pub(crate) fn wake(&mut self) {
        (self.marked, self.work) = (0, 0);
        if let Some(first) = self.first.take() {
            first.wake();
        }
        self.others.drain(..).for_each(|mailbox| mailbox.wake());
    }
}

impl Drop for WakeBatch {
    fn drop(&mut self) {
        self.wake();
    }
}
