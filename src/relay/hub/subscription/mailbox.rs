//! The part of a subscription that is read and changed under no lock: its stream's waker, whether the
//! stream can take a wake-up that only it gets, and whether its listener polls.

use std::sync::Arc;

use super::super::{
    subscription::Subscription,
    sync::{AtomicU64, AtomicWaker, Ordering},
};
use crate::base::clock::Tick;

/// The random part of a subscription's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SubscriptionId(pub(crate) u128);

/// The state of one subscription's stream.
pub(crate) struct Mailbox {
    /// The most messages that its listener handles at once.
    pub(crate) capacity: u32,
    /// Its listener reads no queue, but starts workers.
    pub(crate) is_agent: bool,
    /// Registered before each read that may find nothing.
    pub(crate) waker: AtomicWaker,
    stream: AtomicU64,
    /// The listener counts as polling until then, in nanoseconds.
    polls_until: AtomicU64,
}

/// Subscriptions to be woken. They are woken together, after all of a request or of a slice of the
/// fan-out is owed. So a stream of many queues sends one Wake for all of them. Drop wakes them as
/// well, so that a panic loses no wake.
#[derive(Default)]
pub(crate) struct WakeBatch {
    /// Most notifications wake one stream, so they allocate no list.
    first: Option<Arc<Subscription>>,
    others: Vec<Arc<Subscription>>,
    /// When the event was accepted, if there is one and that is known.
    pub(crate) accepted_at: Option<Tick>,
    /// Subscriptions visited since the last wake, and other work measured in them.
    pub(crate) work: usize,
}

/// A frame is on its way to the stream's transport.
const SENDING: u64 = 1;
/// A wake-up was assigned to this stream alone and not taken yet.
const ASSIGNED: u64 = 1 << 1;
/// Queues wait until the stream has sent its messages.
const AWAITED: u64 = 1 << 2;
/// Its listener has reported at least once.
const REPORTS: u64 = 1 << 3;
/// The subscription has ended.
const CLOSED: u64 = 1 << 5;
/// The waiting queues are being reconciled: each may assign one more wake-up to the stream.
const TURNS: u64 = 1 << 4;

impl Mailbox {
    pub(crate) fn new(capacity: u32, is_agent: bool) -> Self {
        Self {
            capacity,
            is_agent,
            waker: AtomicWaker::new(),
            stream: AtomicU64::new(0),
            polls_until: AtomicU64::new(0),
        }
    }

    /// Reserves the stream for a wake-up to it alone. Returns `false` where it has another such
    /// wake-up or an unsent frame; then the caller's queue waits until the stream has sent.
    pub(crate) fn reserve(&self) -> bool {
        let before = self.stream.fetch_or(ASSIGNED | AWAITED, Ordering::AcqRel);
        before & SENDING == 0 && (before & ASSIGNED == 0 || before & TURNS != 0)
    }

    /// Returns whether the stream has an unsent frame: it may never read.
    pub(crate) fn is_sending(&self) -> bool {
        self.stream.load(Ordering::Acquire) & SENDING != 0
    }

    /// The stream's transport got a frame.
    pub(crate) fn begin_send(&self) {
        if self.stream.load(Ordering::Acquire) & SENDING == 0 {
            self.stream.fetch_or(SENDING, Ordering::AcqRel);
        }
    }

    /// All frames were sent. Returns whether queues wait for that; then they are reconciled until
    /// [`Mailbox::end_turns`].
    pub(crate) fn end_send(&self) -> bool {
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

    /// Returns whether the stream was assigned a wake-up that it has not sent.
    pub(crate) fn is_assigned(&self) -> bool {
        self.stream.load(Ordering::Acquire) & ASSIGNED != 0
    }

    /// No queue waits for the stream any more.
    pub(crate) fn end_wait(&self) {
        self.stream.fetch_and(!AWAITED, Ordering::AcqRel);
    }

    pub(crate) fn end_turns(&self) {
        self.stream.fetch_and(!TURNS, Ordering::AcqRel);
    }

    pub(crate) fn reports(&self) -> bool {
        self.stream.load(Ordering::Acquire) & REPORTS != 0
    }

    /// The subscription ends.
    pub(crate) fn close(&self) {
        self.stream.fetch_or(CLOSED, Ordering::AcqRel);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.stream.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Returns whether its listener counts as polling.
    pub(crate) fn polls(&self, now: Tick) -> bool {
        now.as_nanos() < self.polls_until.load(Ordering::Acquire)
    }

    /// Returns whether its listener can be asked for a check: it reads the queue, and not already by
    /// itself.
    pub(crate) fn can_check(&self, now: Tick) -> bool {
        !self.is_agent && !self.is_closed() && !self.polls(now)
    }

    /// Its listener has reported. The inbox is locked.
    pub(crate) fn note_reports(&self) {
        self.stream.fetch_or(REPORTS, Ordering::AcqRel);
    }

    /// A listener that drained its queue and keeps tasks polls. It counts as polling for a limited time
    /// only, because a later state may go unreported.
    pub(crate) fn set_polls_until(&self, until: Tick) {
        self.polls_until.store(until.as_nanos(), Ordering::Release);
    }
}

impl WakeBatch {
    /// Adds a subscription that is owed something since it last took.
    pub(crate) fn push(&mut self, subscription: &Arc<Subscription>) {
        match &self.first {
            None => self.first = Some(Arc::clone(subscription)),
            Some(_) => self.others.push(Arc::clone(subscription)),
        }
    }

    /// Wakes all streams of the batch. No lock may be held.
    pub(crate) fn wake(&mut self) {
        self.work = 0;
        for one in self.first.take().into_iter().chain(self.others.drain(..)) {
            one.mailbox.waker.wake();
        }
    }
}

impl Drop for WakeBatch {
    fn drop(&mut self) {
        self.wake();
    }
}
