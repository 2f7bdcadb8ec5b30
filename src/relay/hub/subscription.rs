//! A subscriber: its request, its stream's state and its inbox.
//!
//! A notification owes the queue to its subscribers, and wakes those streams that were owed nothing
//! before. A stream takes what it is owed: the difference between its queue's head and the position
//! from which it is owed. So a subscriber costs the same for any number of notifications, however
//! slowly it reads.

pub(super) mod cursor;
pub(super) mod inbox;
pub(super) mod report;
pub(crate) mod resume;
pub(super) mod stream;
pub(super) mod subscribe;
pub(super) mod wake_builder;

use std::{sync::Arc, time::Duration};

use super::{
    config::HubConfig,
    counters::Counters,
    cursor::{Cursor, CursorPool},
    decisions::DecisionKind,
    inbox::{Filled, Inbox},
    members::Assignment,
    queue::{QueueEntry, QueueState},
    subscribe::Introduction,
    sync::{AtomicU64, AtomicWaker, Mutex, MutexGuard, Ordering, lock},
    wake_builder::{Target, WakeEntry, WakeSink},
};
use crate::{
    base::{clock::Tick, fault::planted, text::opaque_debug},
    types::{
        GroupName, Limits, ListenerId, QueueAddress, ResumeNumber, Selector, SubscribeOptions,
        WakeReason,
    },
};

/// One stream's subscription.
pub(crate) struct Subscription {
    pub(crate) id: SubscriptionId,
    pub(crate) listener_id: ListenerId,
    /// Each once: those that name a queue, then the patterns, both in order.
    pub(crate) selectors: Box<[Selector]>,
    /// How many of them name a queue.
    named: usize,
    pub(crate) group: Option<GroupName>,
    pub(crate) visibility_timeout: Duration,
    pub(crate) since: Tick,
    /// A hash of the hub's life, the listener and its selectors: see `resume`.
    pub(crate) digest: u64,
    pub(crate) mailbox: Mailbox,
    /// Its cursors count there as well.
    pub(crate) pool: Option<Arc<CursorPool>>,
    inbox: Mutex<Inbox>,
    /// The queues of its patterns that it was not told of yet.
    pub(super) introduction: Mutex<Option<Box<Introduction>>>,
}

/// The random part of a subscription's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SubscriptionId(pub(crate) u128);

/// The part of a subscription that is read and changed under no lock: its stream's waker, whether the stream
/// can take a wake-up that only it gets, and whether its listener polls.
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

/// What a subscriber is owed on a queue.
#[derive(Debug, Clone, Copy)]
pub(super) enum Owed {
    /// Events after this position.
    Events(Counters),
    /// R2: a CATCH_UP.
    CatchUp,
    /// The sentinel's check.
    Check,
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

impl Subscription {
    /// Its cursors count in the pool as well.
    pub(super) fn new(
        id: SubscriptionId,
        options: &SubscribeOptions,
        config: &HubConfig,
        pool: Option<Arc<CursorPool>>,
        now: Tick,
    ) -> Self {
        let mut selectors = options.selectors.clone();
        selectors.sort_by_cached_key(|one| (one.is_pattern(), one.clone()));
        selectors.dedup();
        Self {
            id,
            listener_id: options.listener_id.clone(),
            named: selectors.partition_point(|one| !one.is_pattern()),
            group: options.group.clone(),
            visibility_timeout: match options.visibility_timeout {
                Duration::ZERO => Limits::DEFAULT_VISIBILITY_TIMEOUT,
                stated => stated,
            },
            since: now,
            digest: resume::digest(config, &options.listener_id, &selectors),
            mailbox: Mailbox::new(options.capacity.max(1), options.agent),
            selectors: selectors.into(),
            pool,
            inbox: Mutex::default(),
            introduction: Mutex::new(None),
        }
    }

    /// Returns whether a selector matches the queue.
    pub(crate) fn wants(&self, address: &QueueAddress) -> bool {
        let mut patterns = self.patterns().iter();
        self.names(address) || patterns.any(|pattern| pattern.matches(address))
    }

    /// Returns whether a selector names the queue exactly.
    pub(crate) fn names(&self, address: &QueueAddress) -> bool {
        let text = address.as_str();
        let named = &self.selectors[..self.named];
        named.binary_search_by(|one| one.as_str().cmp(text)).is_ok()
    }

    pub(crate) fn patterns(&self) -> &[Selector] {
        &self.selectors[self.named..]
    }

    pub(crate) fn has_pattern(&self) -> bool {
        !self.patterns().is_empty()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inbox> {
        lock(&self.inbox)
    }

    /// Owes the subscriber something on a queue whose entry the caller has locked. It is owed each
    /// event once. Returns `false` where there was no room for a cursor: it is told under a pattern's own
    /// name.
    pub(super) fn owe(
        self: &Arc<Self>,
        entry: &Arc<QueueEntry>,
        state: &mut QueueState,
        owed: Owed,
        batch: &mut WakeBatch,
    ) -> bool {
        batch.work += 1;
        let mut inbox = self.lock();
        if self.mailbox.is_closed() {
            return true;
        }
        let Some(cursor) = inbox.get_or_insert(entry, self, false) else {
            let reason = match owed {
                Owed::Check => WakeReason::Sentinel,
                Owed::Events(_) | Owed::CatchUp => WakeReason::CatchUp,
            };
            // R2: it checks all queues of a pattern that matches this one.
            let mut patterns = self.patterns().iter();
            let pattern = patterns.find(|pattern| pattern.matches(entry.address()));
            if let Some(pattern) = pattern.filter(|_| !planted!(OverflowUntold))
                && inbox.request_pattern_check(pattern, reason)
            {
                batch.push(self);
            }
            // It is told again of the next count, because no take of the queue shows when.
            state.told = 0;
            return false;
        };
        let is_event = matches!(owed, Owed::Events(_));
        // A walk may come with events that the stream has taken.
        if is_event && cursor.has_taken(state.counters.sequence) {
            state.told = 0;
            return true;
        }
        let from = match owed {
            Owed::Events(from) => from,
            // It joins: what was counted before is not told as new. One that took before has a position.
            Owed::CatchUp => state.counters,
            Owed::Check => {
                cursor.taken.is_asked = true;
                state.told_position()
            }
        };
        cursor.owe(&from, state);
        let was_due = std::mem::replace(&mut cursor.is_due, true);
        let accepted_at = batch.accepted_at.filter(|_| is_event);
        if inbox.list_due(entry, was_due, accepted_at) {
            batch.push(self);
        }
        true
    }

    /// Makes the cursor of a member that its group gets to know; with `beyond`, up to twice the limit.
    /// Returns `false` where there was no room for it, or the subscription has ended.
    pub(super) fn join_group(&self, entry: &Arc<QueueEntry>, beyond: bool) -> bool {
        let beyond = beyond && !entry.shared.cursors.is_full_beyond();
        let mut inbox = self.lock();
        !self.mailbox.is_closed() && inbox.get_or_insert(entry, self, beyond).is_some()
    }

    /// A member's stream has a wake-up to take.
    pub(super) fn set_due(self: &Arc<Self>, entry: &Arc<QueueEntry>, batch: &mut WakeBatch) {
        batch.work += 1;
        let mut inbox = self.lock();
        let cursor = inbox.get_mut(entry);
        let was_due = cursor.is_none_or(|cursor| std::mem::replace(&mut cursor.is_due, true));
        if inbox.list_due(entry, was_due, batch.accepted_at) {
            batch.push(self);
        }
    }

    /// One of the listener's patterns is checked under its own name.
    pub(super) fn request_pattern_check(
        self: &Arc<Self>,
        pattern: &Selector,
        reason: WakeReason,
        batch: &mut WakeBatch,
    ) {
        if self.lock().request_pattern_check(pattern, reason) {
            batch.push(self);
        }
    }

    /// R2: each of the listener's patterns is checked under its own name.
    pub(super) fn request_pattern_checks(self: &Arc<Self>, batch: &mut WakeBatch) {
        for pattern in self.patterns() {
            self.request_pattern_check(pattern, WakeReason::CatchUp, batch);
        }
    }

    /// Reserves the stream for a wake-up to it alone. Where it returns `false`, the queue waits until
    /// the stream has sent.
    pub(super) fn assign(&self, entry: &QueueEntry) -> bool {
        // Reserved under the lock: the wait must not end before the queue is listed.
        let mut inbox = self.lock();
        let is_free = self.mailbox.reserve();
        if planted!(AwaitedBeforeListed) {
            drop(inbox);
            inbox = self.lock();
        }
        inbox.set_waiting(entry);
        is_free
    }

    /// Returns some of the queues that waited until the stream had sent its messages, or `None`
    /// where none is left to reconcile now: where the stream was assigned a wake-up, the others follow
    /// when it was sent.
    pub(super) fn take_turns(&self, most: usize) -> Option<Vec<Arc<QueueEntry>>> {
        if self.mailbox.is_assigned() {
            return None;
        }
        let mut inbox = self.lock();
        let (taken, is_last) = inbox.take_waiting(most);
        if is_last {
            self.mailbox.end_wait();
        }
        (!taken.is_empty() || !is_last).then_some(taken)
    }

    /// Fills a Wake with what is due: at most one entry per queue. Entries without room follow in the
    /// next Wake. With `revision` a resume number is drawn.
    pub(crate) fn fill(
        &self,
        now: Tick,
        revision: Option<&AtomicU64>,
        sink: &mut impl WakeSink,
    ) -> Filled {
        // Raised before the inbox is read: see `resume`.
        let raise = |revision: &AtomicU64| revision.fetch_add(1, Ordering::Relaxed);
        let drawn = revision.map(raise);
        let mut filled = Filled::default();
        let mut inbox = self.lock();
        let (due, accepted_at) = inbox.begin_take(drawn);
        if !inbox.fill_checks(sink, &mut filled) {
            return filled;
        }
        filled.accepted_at = accepted_at;
        sink.expect(due);
        let mut count = 0;
        while count < due
            && let Some(number) = inbox.due.pop_front()
        {
            count += 1;
            let Some((entry, cursor)) = inbox.cursors.get_mut(number) else {
                continue;
            };
            // An entry is locked before an inbox, so one that is not free is locked without it. Otherwise the
            // inbox stays locked for the whole Wake: 256 queues at most, some ten microseconds.
            let has_room = if let Some(mut state) = entry.try_lock() {
                self.send((entry, &mut state), cursor, now, sink, &mut filled)
            } else {
                let entry = Arc::clone(entry);
                drop(inbox);
                let mut state = entry.lock();
                inbox = self.lock();
                inbox.get_mut(&entry).is_none_or(|cursor| {
                    self.send((&entry, &mut state), cursor, now, sink, &mut filled)
                })
            };
            if !has_room {
                // It comes first in the next Wake.
                inbox.due.push_front(number);
                count -= 1;
                break;
            }
        }
        filled.complete = inbox.end_take(count);
        if filled.entries > 0 {
            inbox.woken_at.get_or_insert(now);
        }
        if planted!(ResumeNumberDrawnLate)
            && let Some(revision) = revision
        {
            inbox.draw(raise(revision), 0);
        }
        filled
    }

    /// Writes the entry of a queue that is due: a member's assignment, or what the subscriber is owed.
    /// Returns `false` where it has no room.
    fn send(
        &self,
        (entry, state): (&QueueEntry, &mut QueueState),
        cursor: &mut Cursor,
        now: Tick,
        sink: &mut impl WakeSink,
        filled: &mut Filled,
    ) -> bool {
        cursor.is_due = false;
        let head = state.counters;
        // A member may be owed what came before its queue had the group: an assignment covers this.
        let group = state.group_of(self);
        let assigned = group.and_then(|group| group.members.get_mut(self.id)?.assignment.take());
        let is_given = assigned.is_some() || cursor.taken.is_asked;
        let was_owed = cursor.is_owed;
        let mut shared_from = None;
        let work = match (assigned, cursor.position().filter(|_| was_owed)) {
            (Some(assignment), _) => assignment,
            (None, Some(from)) => {
                let counted = state.head().wake_reason(&from);
                let reason = counted.unwrap_or(match cursor.taken.is_asked {
                    true => WakeReason::Sentinel,
                    false => WakeReason::CatchUp,
                });
                // The reason follows from the two positions, so the encoding fits other subscribers at
                // the same position.
                let is_shared = counted.is_some() && state.outside.len() > 1;
                shared_from = is_shared.then_some(from.sequence);
                Assignment {
                    reason,
                    sequence: head.sequence,
                    delta: head.delta_since(&from),
                }
            }
            (None, None) => return true,
        };
        let written = WakeEntry {
            target: Target::Queue(entry.address()),
            work,
            last_event: &state.last_event,
        };
        let shared = shared_from.map(|from| state.encoded.get(from, work.sequence));
        if !sink.push(&written, shared) {
            cursor.is_due = true;
            let group = state.group_of(self);
            if let Some(member) = group.and_then(|group| group.members.get_mut(self.id)) {
                member.assignment = assigned;
            }
            return false;
        }
        // A member's position serves the backlog only. The messages at an older sequence are not known.
        let is_newest = work.sequence == head.sequence;
        let messages = if is_newest { head.messages } else { 0 };
        cursor.advance(work.sequence, messages, is_given, now);
        if work.reason != WakeReason::Sentinel {
            cursor.taken.work_sent_at = Some(now);
        }
        if was_owed {
            cursor.set_position(assigned.is_none().then_some(head));
        }
        if was_owed && state.told > 0 && !planted!(TakeUnnoticed) {
            state.told = 0;
        }
        cursor.note_held(self, state);
        if state.noted.is_some() {
            let (kind, reason) = (DecisionKind::Woken, work.reason);
            state.note(kind, Some(self), reason, work.sequence, now);
        }
        filled.add(work.delta.notifications, work.reason);
        true
    }

    /// Takes the resume number that was drawn last, where all wake-ups before it were sent.
    pub(super) fn take_resume(&self) -> Option<ResumeNumber> {
        let revision = self.lock().take_number()?;
        Some(resume::number(self.digest, revision))
    }
}

opaque_debug!(Subscription: listener_id);

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
