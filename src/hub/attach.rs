//! How one cursor is attached to its queue's record, and what it takes of the limits.
//!
//! A subscription counts the queues that it names from its admission on (see `room`), so their
//! cursors find their places kept. A pattern's cursor takes a free one; where there is none, the
//! subscription is told of the queue under the pattern's own name.

use std::sync::Arc;

use super::{
    core::Hub,
    cursors::Cursors,
    queue_entry::QueueEntry,
    subscription::{AttachOutcome, CursorStart, Subscription},
    sync::Ordering,
};
use crate::{clock::Tick, words::QueueAddress};

/// Where a new cursor's quota among the limited ones comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CursorQuota {
    /// It was kept since the subscription was admitted.
    Reserved,
    /// It was counted now.
    Taken,
    /// There is none.
    Full,
}

impl Hub {
    /// Attaches one queue, and lets its coordinator know.
    pub(super) fn attach_one(
        &self,
        subscription: &Arc<Subscription>,
        entry: Arc<QueueEntry>,
        start: CursorStart<'_>,
        now: Tick,
    ) -> AttachOutcome {
        let mut cursors = subscription.lock();
        let (entry, attached) = self.attach(subscription, &mut cursors, entry, start, now);
        drop(cursors);
        let guarded =
            subscription.group.is_some() || !self.config.coordinator.sentinel_interval.is_zero();
        if guarded && attached != AttachOutcome::Existing {
            self.reconcile(entry, now, |_| {});
        }
        attached
    }

    /// Attaches the subscribers by pattern to a new record. A subscription that registers its
    /// pattern after the index was read here finds the record in the map.
    pub(super) fn attach_patterns(&self, entry: &Arc<QueueEntry>, now: Tick) {
        let patterns = self
            .patterns
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let wanting = patterns.matching(entry.address());
        drop(patterns);
        for subscription in wanting {
            let mut cursors = subscription.lock();
            // A dead record is found out by the caller that counts in it.
            self.attach_once(
                &subscription,
                &mut cursors,
                entry,
                CursorStart::EntryStart,
                now,
            );
        }
        entry.set_live();
    }

    /// Attaches a cursor to a record of this queue that is not dead, and returns that record.
    pub(super) fn attach(
        &self,
        subscription: &Arc<Subscription>,
        cursors: &mut Cursors,
        mut entry: Arc<QueueEntry>,
        start: CursorStart<'_>,
        now: Tick,
    ) -> (Arc<QueueEntry>, AttachOutcome) {
        loop {
            match self.attach_once(subscription, cursors, &entry, start, now) {
                AttachOutcome::Dead => {
                    self.entries.remove(&entry);
                    entry = self.make_entry(entry.address(), now);
                }
                attached => return (entry, attached),
            }
        }
    }

    /// Attaches a cursor to this record, where there is room for it or a selector names the queue.
    fn attach_once(
        &self,
        subscription: &Arc<Subscription>,
        cursors: &mut Cursors,
        entry: &Arc<QueueEntry>,
        start: CursorStart<'_>,
        now: Tick,
    ) -> AttachOutcome {
        if cursors.closed {
            return AttachOutcome::Closed;
        }
        let quota = self.take_quota(subscription, cursors, entry.address(), start);
        let attached = match quota {
            CursorQuota::Full if cursors.list.find(entry.address()).is_none() => {
                AttachOutcome::Full
            }
            _ => subscription.attach(cursors, entry, start, now),
        };
        let new = matches!(attached, AttachOutcome::New | AttachOutcome::OtherEpoch);
        match quota {
            CursorQuota::Reserved if new => cursors.reserved -= 1,
            CursorQuota::Taken if !new => self.cursors_left(1),
            _ => {}
        }
        if attached == AttachOutcome::Full {
            self.note_missing_cursor(subscription, cursors);
        }
        attached
    }

    /// Takes the place of a cursor that may turn out to be there already: then it is given back.
    fn take_quota(
        &self,
        subscription: &Subscription,
        cursors: &Cursors,
        address: &QueueAddress,
        start: CursorStart<'_>,
    ) -> CursorQuota {
        let named = subscription.names(address);
        if named && cursors.reserved > 0 {
            return CursorQuota::Reserved;
        }
        if named || matches!(start, CursorStart::Busy) {
            self.cursors.fetch_add(1, Ordering::Relaxed);
            return CursorQuota::Taken;
        }
        let own = cursors.list.len() + cursors.reserved;
        let room = self.cursors_for_patterns();
        match own < self.config.max_cursors_per_stream && self.take_cursors(1, room) {
            true => CursorQuota::Taken,
            false => CursorQuota::Full,
        }
    }

    /// The subscription has no cursor for a queue that a pattern matches: it is told of it under the
    /// pattern's own name.
    fn note_missing_cursor(&self, subscription: &Arc<Subscription>, cursors: &mut Cursors) {
        if !std::mem::replace(&mut cursors.lacks_cursors, true) {
            self.probes.note_missing_cursors(subscription);
        }
        // Entered first: what is counted after this is told under the pattern's name, what was
        // counted before is covered by the check that is due now.
        if self.fanout.overflow.insert(subscription) {
            cursors.request_pattern_checks(&subscription.selectors);
            subscription.mailbox.wake();
        }
    }
}
