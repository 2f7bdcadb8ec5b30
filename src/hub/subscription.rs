//! A subscriber: its cursors, and what it is owed.
//!
//! A walk sets one of 64 mark bits (the cursor's index modulo 64) and wakes the stream if none was
//! set; the stream clears the marks, then compares the marked cursors with their queues (R5). So a
//! subscriber costs the same however much it is notified of, and however slowly it reads.

use std::{collections::HashMap, fmt, sync::Arc, task::Waker, time::Duration};

use super::{
    place::{Epoch, Read, Tally},
    record::{Link, Newest, Record, State},
    sync::{AtomicU64, AtomicWaker, Mutex, MutexGuard, Ordering, lock},
};
use crate::{
    clock::Tick,
    fault::{Fault, planted},
    words::{
        Limits, ListenerId, QueueAddress, Report, ReportState, Selector, SubscribeOptions, Token,
        WakeReason, WorkDetected,
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
    pub(super) capacity: u32,
    pub(super) visibility_timeout: Duration,
    pub(super) since: Tick,
    epoch: Epoch,
    pub(super) fault: Fault,
    /// Which cursors may be behind: bit i for those whose index is i modulo 64.
    marks: AtomicU64,
    waker: AtomicWaker,
    cursors: Mutex<Cursors>,
}

/// What the subscription's lock guards.
pub(super) struct Cursors {
    closed: bool,
    pub(super) list: Vec<Cursor>,
    index: HashMap<QueueAddress, usize>,
    /// Pattern selectors whose CATCH_UP is still owed.
    doubts: Vec<usize>,
    /// Until then CATCH_UPs wait: they are spread after a change of epoch.
    pub(super) catch_up_at: Tick,
    /// Where the next take begins, so that busy queues do not starve the others.
    rotor: usize,
    /// It has reported at least once.
    reports: bool,
    pub(super) active_dequeue_tasks: u32,
    pub(super) total_dequeue_tasks: u32,
}

/// A subscriber's place in one queue.
pub(super) struct Cursor {
    pub(super) record: Arc<Record>,
    /// Its slot among the record's links.
    slot: usize,
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

/// A slot that is linked at the first take only: a planted fault.
const UNLINKED: usize = usize::MAX;

impl Subscription {
    pub(super) fn new(
        id: SubscriptionId,
        options: &SubscribeOptions,
        epoch: Epoch,
        now: Tick,
        fault: Fault,
    ) -> Self {
        let cursors = Cursors {
            closed: false,
            list: Vec::new(),
            index: HashMap::new(),
            doubts: Vec::new(),
            catch_up_at: now,
            rotor: 0,
            reports: false,
            active_dequeue_tasks: 0,
            total_dequeue_tasks: 0,
        };
        Self {
            id,
            listener_id: options.listener_id.clone(),
            selectors: distinct(&options.selectors),
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
            cursors: Mutex::new(cursors),
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

    /// Marks all cursors: a look at every one of them is due.
    pub(crate) fn mark_all(&self) {
        if self.marks.swap(u64::MAX, Ordering::AcqRel) == 0 {
            self.waker.wake();
        }
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
    pub(crate) fn take(&self, now: Tick) -> Option<Vec<WorkDetected>> {
        let late = planted!(self.fault, AwakeClearedAfterRead);
        // Cleared first: what is counted after this marks again (R5).
        let marks = if late || planted!(self.fault, AwakeNeverCleared) {
            self.marks.load(Ordering::Acquire)
        } else {
            self.marks.swap(0, Ordering::AcqRel)
        };
        if marks == 0 {
            return None;
        }
        let mut wake = Vec::new();
        let rest = self.lock().collect(self, marks, now, &mut wake);
        if late {
            self.marks.store(0, Ordering::Release);
        }
        if rest != 0 && !planted!(self.fault, WakeDropsRest) {
            self.marks.fetch_or(rest, Ordering::AcqRel);
        }
        (!wake.is_empty()).then_some(wake)
    }

    /// Compares every cursor with its queue, whatever the marks say; only one that finds nothing
    /// may send a heartbeat (R6).
    pub(crate) fn verify(&self, now: Tick) -> Option<Vec<WorkDetected>> {
        if planted!(self.fault, HeartbeatUnchecked) {
            return self.take(now);
        }
        self.lock().catch_up_at = now;
        self.marks.store(u64::MAX, Ordering::Release);
        self.take(now)
    }

    /// Returns when CATCH_UPs that wait are owed, or `None` where none waits.
    pub(crate) fn catch_up_at(&self, now: Tick) -> Option<Tick> {
        let cursors = self.lock();
        let waits = cursors.catch_up_at > now && cursors.in_doubt();
        waits.then_some(cursors.catch_up_at)
    }

    /// Attaches a cursor for this queue, unless there is one.
    pub(super) fn attach(
        self: &Arc<Self>,
        cursors: &mut Cursors,
        record: &Arc<Record>,
        start: Start<'_>,
    ) -> Attached {
        if cursors.closed {
            return Attached::Closed;
        }
        if cursors.index.contains_key(record.address()) {
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
        let late = planted!(self.fault, SnapshotBeforeRegister) && matches!(start, Start::Token(_));
        let slot = if late { UNLINKED } else { state.link(link) };
        let (place, doubt, attached) = match start {
            Start::Birth => (Tally::starting_at(state.start), false, Attached::Yes),
            Start::Token(token) => resume(&state, token, self.epoch, self.fault),
        };
        drop(state);
        cursors.index.insert(record.address().clone(), index);
        cursors
            .list
            .push(Cursor::new(Arc::clone(record), slot, place, doubt));
        if planted!(self.fault, MarkWithoutWake) {
            self.marks.fetch_or(1 << (index % 64), Ordering::AcqRel);
        }
        // Not marked: nothing is owed at a record's start, and a new subscription marks all. A mark
        // without a wake would keep the next one from waking the stream.
        attached
    }

    /// Takes a report's word on a queue that this subscription has a cursor for. A sequence above
    /// the queue's own counts as 0 (R9).
    pub(super) fn report(&self, cursors: &mut Cursors, report: &Report) {
        cursors.reports = true;
        cursors.active_dequeue_tasks = report.active_dequeue_tasks;
        cursors.total_dequeue_tasks = report.total_dequeue_tasks;
        let Some(&index) = cursors.index.get(&report.queue) else {
            return;
        };
        let cursor = &mut cursors.list[index];
        if report.number < cursor.number {
            return;
        }
        cursor.number = report.number;
        let head = {
            let mut state = cursor.record.lock();
            state.depth = Some(report.current_queue_depth);
            state.tally.sequence
        };
        let trusted = report.sequence <= head || planted!(self.fault, SequenceAboveHeadAccepted);
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

    /// Ends the subscription: detaches every cursor, and returns the queues where its listener is
    /// taken to be busy (R8).
    pub(super) fn close(&self, now: Tick) -> Vec<Arc<Record>> {
        let mut cursors = self.lock();
        cursors.closed = true;
        let reports = cursors.reports;
        let list = std::mem::take(&mut cursors.list);
        cursors.index = HashMap::new();
        drop(cursors);
        let mut busy = Vec::new();
        for cursor in list {
            if cursor.slot != UNLINKED {
                cursor.record.lock().unlink(cursor.slot);
            }
            if cursor.is_busy(reports, now, self) {
                busy.push(cursor.record);
            }
        }
        busy
    }

    /// Registers what a planted fault left unregistered when it took the snapshot.
    #[cfg(test)]
    pub(super) fn link_late(self: &Arc<Self>) {
        for (cursor, at) in self.lock().list.iter_mut().zip(0..) {
            if cursor.slot == UNLINKED {
                let link = Link {
                    subscription: Arc::clone(self),
                    cursor: at,
                };
                cursor.slot = cursor.record.lock().link(link);
            }
        }
    }
}

impl Cursors {
    /// Owes a CATCH_UP under the selector's own name for each pattern (R2).
    pub(super) fn doubt_patterns(&mut self, selectors: &[Selector]) {
        let patterns = selectors.iter().enumerate().filter(|(_, s)| s.is_pattern());
        self.doubts = patterns.map(|(index, _)| index).collect();
    }

    pub(super) fn in_doubt(&self) -> bool {
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

    /// Puts what the marked cursors are owed into `wake`, and returns the marks of those that it
    /// did not come to.
    fn collect(
        &mut self,
        subscription: &Subscription,
        marks: u64,
        now: Tick,
        wake: &mut Vec<WorkDetected>,
    ) -> u64 {
        let mut room = Room::new(subscription.fault);
        let certain = now >= self.catch_up_at;
        while certain && let Some(&selector) = self.doubts.last() {
            let entry = look_at_all(&subscription.selectors[selector]);
            if !room.take(&entry) {
                return marks;
            }
            wake.push(entry);
            self.doubts.pop();
        }
        let first = self.rotor;
        for step in 0..=64 {
            let bit = (first + step) % 64;
            if marks & (1 << bit) == 0 {
                continue;
            }
            // The first bit comes twice: from where the last take stopped, then up to there.
            let (from, to) = match step {
                0 => (first, usize::MAX),
                64 => (bit, first),
                _ => (bit, usize::MAX),
            };
            if let Some(stopped) =
                self.collect_bit(subscription, from..to, certain, now, &mut room, wake)
            {
                self.rotor = stopped;
                // What was come to costs one comparison more; what was not must not be lost.
                return marks;
            }
        }
        0
    }

    /// Comes to every 64th cursor of the range; returns the one that found no room.
    fn collect_bit(
        &mut self,
        subscription: &Subscription,
        range: std::ops::Range<usize>,
        certain: bool,
        now: Tick,
        room: &mut Room,
        wake: &mut Vec<WorkDetected>,
    ) -> Option<usize> {
        for index in (range.start..self.list.len().min(range.end)).step_by(64) {
            let cursor = &mut self.list[index];
            let Some((entry, head)) = cursor.due(subscription.epoch, certain) else {
                continue;
            };
            if !room.take(&entry) {
                return Some(index);
            }
            cursor.advance(head, now);
            wake.push(entry);
        }
        None
    }
}

impl Cursor {
    fn new(record: Arc<Record>, slot: usize, place: Tally, doubt: bool) -> Self {
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

    fn is_busy(&self, reports: bool, now: Tick, subscription: &Subscription) -> bool {
        let lapsed = now >= self.woken_at + subscription.visibility_timeout
            || planted!(subscription.fault, NeverReportingIsIdle);
        if !reports && lapsed {
            return false;
        }
        self.busy || self.drained < self.woken
    }
}

/// What still fits into one wake (R1).
struct Room {
    entries: usize,
    bytes: usize,
    unbounded: bool,
}

impl Room {
    fn new(fault: Fault) -> Self {
        let unbounded = planted!(fault, WakeUnbounded);
        Self {
            entries: Limits::WAKE_ENTRIES,
            bytes: Limits::WAKE_BYTES,
            unbounded,
        }
    }

    fn take(&mut self, entry: &WorkDetected) -> bool {
        let size = entry.encoded_at_most();
        if self.unbounded {
            return true;
        }
        if self.entries == 0 || self.bytes < size {
            return false;
        }
        self.entries -= 1;
        self.bytes -= size;
        true
    }
}

/// Reads a subscriber's token against the queue: its place, or a doubt (R2).
fn resume(
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

fn wake_up(
    address: &QueueAddress,
    reason: WakeReason,
    place: &Tally,
    head: &Tally,
    newest: Newest,
    epoch: Epoch,
) -> WorkDetected {
    let sums = head.sums_since(place);
    WorkDetected {
        queue: address.into(),
        reason,
        sequence: head.sequence,
        notifications: sums.notifications,
        payload_size: sums.payload,
        messages: sums.messages,
        publisher: newest.publisher,
        published_at: newest.published_at,
        traceparent: newest.traceparent,
        token: head.token(epoch),
    }
}

/// A pattern's CATCH_UP: look at all the queues you know that match.
fn look_at_all(selector: &Selector) -> WorkDetected {
    let Newest {
        publisher,
        published_at,
        traceparent,
    } = Newest::default();
    WorkDetected {
        queue: selector.clone(),
        reason: WakeReason::CatchUp,
        sequence: 0,
        notifications: 0,
        payload_size: 0,
        messages: 0,
        publisher,
        published_at,
        traceparent,
        token: Token::default(),
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
