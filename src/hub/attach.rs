//! How one cursor is attached to its queue's record, and what it takes of the limits.
//!
//! A subscription counts the queues that it names from its admission on (see `room`), so their
//! cursors find their places kept. A pattern's cursor takes a free one; where there is none, the
//! subscription is told of the queue under the pattern's own name.

use std::sync::Arc;

use super::{
    core::Hub,
    cursors::Cursors,
    record::Record,
    subscription::{Attached, Start, Subscription},
    sync::Ordering,
};
use crate::{clock::Tick, words::QueueAddress};

/// Where a new cursor's place among the limited ones comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It was kept since the subscription was admitted.
    Reserved,
    /// It was counted now.
    Counted,
    /// There is none.
    Full,
}

impl Hub {
    /// Attaches one queue, and lets its coordinator know.
    pub(super) fn attach_one(
        &self,
        subscription: &Arc<Subscription>,
        record: Arc<Record>,
        start: Start<'_>,
        now: Tick,
    ) -> Attached {
        let mut cursors = subscription.lock();
        let (record, attached) = self.attach(subscription, &mut cursors, record, start, now);
        drop(cursors);
        let guarded = subscription.group.is_some() || !self.config.pace.sentinel.is_zero();
        if guarded && attached != Attached::Before {
            self.tend(record, now, |_| {});
        }
        attached
    }

    /// Attaches the subscribers by pattern to a new record. A subscription that registers its
    /// pattern after the index was read here finds the record in the map.
    pub(super) fn attach_patterns(&self, record: &Arc<Record>, now: Tick) {
        let patterns = self
            .patterns
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let wanting = patterns.matching(record.address());
        drop(patterns);
        for subscription in wanting {
            let mut cursors = subscription.lock();
            // A dead record is found out by the caller that counts in it.
            self.attach_once(&subscription, &mut cursors, record, Start::Birth, now);
        }
        record.attached();
    }

    /// Attaches a cursor to a record of this queue that is not dead, and returns that record.
    pub(super) fn attach(
        &self,
        subscription: &Arc<Subscription>,
        cursors: &mut Cursors,
        mut record: Arc<Record>,
        start: Start<'_>,
        now: Tick,
    ) -> (Arc<Record>, Attached) {
        loop {
            match self.attach_once(subscription, cursors, &record, start, now) {
                Attached::Dead => {
                    self.records.remove(&record);
                    record = self.make_record(record.address(), now);
                }
                attached => return (record, attached),
            }
        }
    }

    /// Attaches a cursor to this record, where there is room for it or a selector names the queue.
    fn attach_once(
        &self,
        subscription: &Arc<Subscription>,
        cursors: &mut Cursors,
        record: &Arc<Record>,
        start: Start<'_>,
        now: Tick,
    ) -> Attached {
        if cursors.closed {
            return Attached::Closed;
        }
        let place = self.take_place(subscription, cursors, record.address(), start);
        let attached = match place {
            Place::Full if cursors.list.find(record.address()).is_none() => Attached::Full,
            _ => subscription.attach(cursors, record, start, now),
        };
        let new = matches!(attached, Attached::Yes | Attached::Foreign);
        match place {
            Place::Reserved if new => cursors.reserved -= 1,
            Place::Counted if !new => self.cursors_left(1),
            _ => {}
        }
        if attached == Attached::Full {
            self.lack_cursor(subscription, cursors);
        }
        attached
    }

    /// Takes the place of a cursor that may turn out to be there already: then it is given back.
    fn take_place(
        &self,
        subscription: &Subscription,
        cursors: &Cursors,
        address: &QueueAddress,
        start: Start<'_>,
    ) -> Place {
        let named = subscription.names(address);
        if named && cursors.reserved > 0 {
            return Place::Reserved;
        }
        if named || matches!(start, Start::Busy) {
            self.cursors.fetch_add(1, Ordering::Relaxed);
            return Place::Counted;
        }
        let own = cursors.list.len() + cursors.reserved;
        let room = self.cursors_for_patterns();
        match own < self.config.max_cursors_per_stream && self.take_cursors(1, room) {
            true => Place::Counted,
            false => Place::Full,
        }
    }

    /// The subscription has no cursor for a queue that a pattern matches: it is told of it under the
    /// pattern's own name.
    fn lack_cursor(&self, subscription: &Arc<Subscription>, cursors: &mut Cursors) {
        if !std::mem::replace(&mut cursors.lacks_cursors, true) {
            self.probes.lack_cursors(subscription);
        }
        // Entered first: what is counted after this is told under the pattern's name, what was
        // counted before is covered by the check that is due now.
        if self.fanout.overflow.insert(subscription) {
            cursors.check_patterns(&subscription.selectors);
            subscription.mailbox.wake();
        }
    }
}
