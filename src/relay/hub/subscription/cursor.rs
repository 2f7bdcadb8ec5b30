//! A subscriber's state on one queue: what it is owed there, and whether its listener counts as busy
//! (R8: a woken listener counts as busy until it reports DRAINED). And the limits on cursors of a stream,
//! of several subscriptions together, such as all of one principal, and of the relay.
//!
//! A subscriber that is owed nothing and handles nothing has none: its position is the queue's head.
//! Plain data; the subscription's lock guards it. Whether it holds the queue's entry changes under the
//! entry's lock too. Beside each Wake, and at heartbeats, a sweep drops some that nobody needs.
//!
//! A queue that a subscription names counts in the limits as long as the subscription is open. One that
//! only a pattern matches counts while the subscription has a cursor for it. Without room for that, the
//! queue's wake-ups go under the pattern's own name.

use std::{collections::BTreeMap, sync::Arc};

use super::super::{
    config::Shared,
    core::Hub,
    counters::Counters,
    queue::{QueueEntry, QueueState},
    subscription::Subscription,
    sync::{AtomicU64, Ordering},
};
use crate::base::clock::Tick;

/// A subscriber's state on one queue: all that an event which it is owed reads and changes. The rest would
/// cost that event another line of memory, which another core may have written.
pub(crate) struct Cursor {
    /// The number of the queue's entry, which is not read for it.
    number: u64,
    /// The sequence of its position, or [`Self::NO_POSITION`].
    position_at: u64,
    pub(crate) is_owed: bool,
    /// It is in the list of those with something to send, or just taken out of it.
    pub(crate) is_due: bool,
    /// It is in the list of those that wait until the stream has sent.
    pub(crate) waits: bool,
    /// It keeps the queue's entry: `QueueState::held` counts it.
    pub(crate) holds: bool,
    pub(crate) taken: Box<Taken>,
}

/// What its stream has taken there, and what its listener has reported.
#[derive(Default)]
pub(crate) struct Taken {
    /// Its position: before its first undelivered event, or else after all events that the stream took,
    /// because a walk of the fan-out may still come with older ones. A member's position is its group's; one
    /// from before its queue had room for the group is not read.
    position: Counters,
    /// The sentinel's check is pending.
    pub(crate) is_asked: bool,
    /// The newest sequence that its stream took, the messages counted up to it, and when.
    pub(crate) woken_sequence: Option<u64>,
    pub(crate) woken_messages: u128,
    pub(crate) woken_at: Tick,
    /// The newest sequence after which the listener read the queue until empty.
    pub(crate) drained_sequence: Option<u64>,
    /// When the stream took the newest wake-up other than a check of the sentinel; `None` if the messages
    /// of that are visible again.
    pub(crate) work_sent_at: Option<Tick>,
    /// The newest report states that the listener took work.
    pub(crate) busy: bool,
    /// The newest report's number, and when it came.
    pub(crate) report_number: u64,
    pub(crate) reported_at: Tick,
    /// Since when the listener handles the oldest of its messages of this queue, where the newest report
    /// with a state was BUSY; then it is `busy`.
    pub(crate) busy_since: Option<Tick>,
    /// Dequeue tasks by the newest report.
    pub(crate) tasks: u32,
}

impl Cursor {
    const NO_POSITION: u64 = u64::MAX;

    fn new(number: u64) -> Self {
        Self {
            number,
            position_at: Self::NO_POSITION,
            is_owed: false,
            is_due: false,
            waits: false,
            holds: false,
            taken: Box::default(),
        }
    }

    pub(crate) fn position(&self) -> Option<Counters> {
        let is_known = self.position_at != Self::NO_POSITION;
        is_known.then_some(self.taken.position)
    }

    pub(crate) fn set_position(&mut self, position: Option<Counters>) {
        self.position_at = position.map_or(Self::NO_POSITION, |position| position.sequence);
        self.taken.position = position.unwrap_or_default();
    }

    /// Returns whether its stream has taken all events up to this sequence.
    pub(crate) fn has_taken(&self, sequence: u64) -> bool {
        let is_known = self.position_at != Self::NO_POSITION;
        !self.is_owed && is_known && self.position_at >= sequence
    }

    /// It is owed something after its position, or after `from` where it has none.
    pub(crate) fn owe(&mut self, from: &Counters, state: &mut QueueState) {
        if self.position_at == Self::NO_POSITION {
            self.set_position(Some(*from));
        }
        if !std::mem::replace(&mut self.holds, true) {
            state.held += 1;
        }
        self.is_owed = true;
    }

    /// Its stream took all entries up to this sequence, at which so many messages were counted. R8: a
    /// woken listener counts as busy until it reports DRAINED; a wake-up to this stream alone may have a
    /// sequence that the listener has drained already.
    pub(crate) fn advance(&mut self, sequence: u64, messages: u128, is_given: bool, now: Tick) {
        let taken = &mut *self.taken;
        (self.is_owed, taken.is_asked) = (false, false);
        taken.busy |= is_given;
        (taken.woken_sequence, taken.woken_messages) = (Some(sequence), messages);
        taken.woken_at = now;
    }

    /// Returns whether the listener may handle messages, without regard to the time.
    pub(crate) fn has_work(&self) -> bool {
        self.taken.busy || self.taken.drained_sequence < self.taken.woken_sequence
    }

    pub(crate) fn is_busy(&self, now: Tick, subscription: &Subscription) -> bool {
        let reports = subscription.mailbox.reports();
        let is_over = !reports && now >= self.taken.woken_at + subscription.visibility_timeout;
        !is_over && self.has_work()
    }

    /// Its owed or busy state has changed: corrects the entry's number of cursors that keep it. A listener
    /// that does not report keeps it until its visibility time-out is over; a check of the sentinel keeps no
    /// entry then, because a later one finds the same messages.
    pub(crate) fn note_held(&mut self, subscription: &Subscription, state: &mut QueueState) {
        let has_work = match subscription.mailbox.reports() {
            true => self.has_work(),
            false => self.taken.work_sent_at.is_some(),
        };
        let holds = self.is_owed || has_work;
        let before = std::mem::replace(&mut self.holds, holds);
        // Where it stays, it is not written: a line that no core writes stays in the caches of all.
        if holds != before {
            state.held = state.held + u32::from(holds) - u32::from(before);
        }
    }

    /// Returns whether the messages that a listener without reports was woken for are visible again.
    pub(crate) fn is_lapsed(&self, now: Tick, subscription: &Subscription) -> bool {
        let is_over = |sent_at: Tick| sent_at + subscription.visibility_timeout <= now;
        !subscription.mailbox.reports() && self.taken.work_sent_at.is_some_and(is_over)
    }

    /// Returns whether the cursor has nothing that its subscriber needs, since some time.
    pub(crate) fn is_settled(&self, now: Tick, subscription: &Subscription) -> bool {
        let reports = subscription.mailbox.reports();
        let has = self.is_owed || self.is_due || self.waits;
        let newest = self.taken.woken_at.max(self.taken.reported_at);
        let is_late = !reports || newest + SETTLED_FOR <= now;
        !has && is_late && !self.is_busy(now, subscription)
    }
}

/// The cursors of a subscription, mostly in the order in which they were made. A request that names many queues
/// and a take visit them in this order, and search nothing then. Growth to 131,072 takes some 4 ms under the
/// lock; beyond that the allocator moves pages. A hash table takes 60 ms for a million.
#[derive(Default)]
pub(crate) struct Cursors {
    all: Vec<(Arc<QueueEntry>, Cursor)>,
    /// Their places, by the numbers of their queues' entries.
    places: BTreeMap<u64, usize>,
    /// The place after the one that was found last.
    next: usize,
}

impl Cursors {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the place of a queue's cursor.
    pub(crate) fn find(&mut self, number: u64) -> Option<usize> {
        let next = self.all.get(self.next);
        let place = match next.is_some_and(|(_, next)| next.number == number) {
            true => self.next,
            false => *self.places.get(&number)?,
        };
        self.next = if place + 1 < self.len() { place + 1 } else { 0 };
        Some(place)
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Cursor> {
        let place = self.places.get(&number);
        place.map(|place| &self.all[*place].1)
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut (Arc<QueueEntry>, Cursor)> {
        self.find(number).map(|place| &mut self.all[place])
    }

    pub(crate) fn at(&mut self, place: usize) -> &mut Cursor {
        &mut self.all[place].1
    }

    /// Adds the cursor of a queue that has none; returns its place.
    pub(crate) fn push(&mut self, entry: &Arc<QueueEntry>) -> usize {
        let (number, place) = (entry.number(), self.len());
        // Most listeners have one, and a vector would begin with room for four.
        if place < 4 {
            self.all.reserve_exact(1);
        }
        self.places.insert(number, place);
        self.all.push((Arc::clone(entry), Cursor::new(number)));
        place
    }

    /// Removes a queue's cursor. The last one moves to its place.
    pub(crate) fn remove(&mut self, number: u64) -> Option<Cursor> {
        let place = self.places.remove(&number)?;
        let (_, removed) = self.all.swap_remove(place);
        if let Some((_, moved)) = self.all.get(place) {
            self.places.insert(moved.number, place);
        }
        if self.len() * 2 < self.all.capacity() {
            self.all.shrink_to(self.len() + self.len() / 2);
        }
        Some(removed)
    }

    /// Removes the last one.
    pub(crate) fn pop(&mut self) -> Option<(Arc<QueueEntry>, Cursor)> {
        let (entry, last) = self.all.pop()?;
        self.places.remove(&last.number);
        Some((entry, last))
    }

    /// Returns them by their places.
    pub(crate) fn all(&self) -> &[(Arc<QueueEntry>, Cursor)] {
        &self.all
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.all.capacity()
    }
}

/// The cursor of a listener that reports is kept for this long: a late report may refer to it.
pub(crate) const SETTLED_FOR: std::time::Duration = std::time::Duration::from_secs(120);

/// Cursors that were taken, and their limit: of all subscriptions, or of those that share the pool.
#[derive(Debug)]
pub(crate) struct CursorPool {
    taken: AtomicU64,
    limit: AtomicU64,
}

impl Shared {
    /// Takes the cursor of a queue that only a pattern matches, of a stream that has `own`. A quarter of all
    /// is left for named queues, because their wake-ups cannot go under a pattern's name.
    pub(crate) fn take_cursor(&self, subscription: &Subscription, own: usize) -> bool {
        let is_short = self.is_short_of_memory.load(Ordering::Relaxed);
        let has_room = own < self.config.max_cursors_per_stream && !is_short;
        let most = self.config.max_cursors;
        has_room && self.take_cursors(subscription, 1, most - most / 4)
    }

    /// Takes `count` cursors below a limit, and below that of the subscription's pool, all or none. Where two
    /// take the last ones at the same time, neither may get them.
    pub(crate) fn take_cursors(
        &self,
        subscription: &Subscription,
        count: u64,
        limit: usize,
    ) -> bool {
        if count == 0 {
            return true;
        }
        self.take_cursors_beyond(subscription, count);
        let mut pool = subscription.pool.iter();
        let is_below = self.cursors.taken() <= limit as u64;
        let fits = is_below && pool.all(|pool| pool.taken() <= pool.limit());
        if !fits {
            self.give_cursors_back(subscription, count);
        }
        fits
    }

    pub(crate) fn give_cursors_back(&self, subscription: &Subscription, count: u64) {
        // Wraps below zero, as the sums do not.
        self.take_cursors_beyond(subscription, count.wrapping_neg());
    }

    /// Takes cursors that are needed even beyond the limits.
    pub(crate) fn take_cursors_beyond(&self, subscription: &Subscription, count: u64) {
        self.cursors.taken.fetch_add(count, Ordering::Relaxed);
        if let Some(pool) = &subscription.pool {
            pool.taken.fetch_add(count, Ordering::Relaxed);
        }
    }
}

impl CursorPool {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            taken: AtomicU64::new(0),
            limit: AtomicU64::new(limit),
        }
    }

    /// Sets the limit. Cursors beyond it stay.
    pub(crate) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns whether there are as many beyond the limit, for busy listeners, as within it.
    pub(crate) fn is_full_beyond(&self) -> bool {
        self.taken() >= self.limit().saturating_mul(2)
    }
}

impl Hub {
    /// Drops some cursors that have nothing which their subscriber needs: it visits `most` of them.
    pub(in super::super) fn sweep(&self, subscription: &Arc<Subscription>, most: usize, now: Tick) {
        let settled = subscription.lock().settled(subscription, most, now);
        for entry in settled {
            let mut state = entry.lock();
            if state.is_walked() {
                continue;
            }
            let mut inbox = subscription.lock();
            if let Some(cursor) = inbox.get_mut(&entry)
                && cursor.is_lapsed(now, subscription)
            {
                cursor.taken.work_sent_at = None;
                cursor.note_held(subscription, &mut state);
            }
            let group = state.group_of(subscription);
            if group.is_none_or(|group| group.is_settled(subscription.id))
                && let Some(cursor) = inbox.remove_settled(&entry, subscription, now)
            {
                self.note_load(&mut inbox, subscription);
                state.held -= u32::from(cursor.holds);
                if let Some(group) = state.group_of(subscription) {
                    group.members.remove(subscription.id);
                }
                if !subscription.names(entry.address()) {
                    self.shared.give_cursors_back(subscription, 1);
                }
            }
        }
    }
}
