//! Attaches a cursor to its queue's entry, within the limits.
//!
//! The queues that a subscription names count from its admission on (see `admission`), so their
//! cursors are reserved. A pattern's cursor needs a free one. Where there is none, the queue's
//! wake-ups go under the pattern's own name.

use std::sync::Arc;

use super::{
    core::Hub,
    cursor::AttachOutcome,
    cursors::Cursors,
    load::LoadChange,
    queue_entry::QueueEntry,
    subscription::{CursorStart, Subscription},
    sync::read,
};
use crate::{base::clock::Tick, types::QueueAddress};

/// Where a new cursor's share of the limit comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CursorQuota {
    /// Reserved when the subscription was admitted.
    Reserved,
    /// Taken now.
    Taken,
    /// The limit is reached.
    Full,
}

impl Hub {
    /// Attaches one queue, and reconciles its coordinator.
    pub(super) fn attach_one(
        &self,
        subscription: &Arc<Subscription>,
        entry: Arc<QueueEntry>,
        start: CursorStart,
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

    /// Attaches the pattern subscribers to a new entry. A subscription that registers its pattern
    /// after the index was read here finds the entry in the map.
    pub(super) fn attach_patterns(&self, entry: &Arc<QueueEntry>, now: Tick) {
        let wanting = read(&self.patterns).matching(entry.address());
        for subscription in wanting {
            let mut cursors = subscription.lock();
            // The caller detects a dead entry when it counts in it.
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

    /// Attaches a cursor to a live entry of this queue, and returns that entry.
    pub(super) fn attach(
        &self,
        subscription: &Arc<Subscription>,
        cursors: &mut Cursors,
        mut entry: Arc<QueueEntry>,
        start: CursorStart,
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

    /// Attaches a cursor to this entry, where the limit allows it or a selector names the queue.
    fn attach_once(
        &self,
        subscription: &Arc<Subscription>,
        cursors: &mut Cursors,
        entry: &Arc<QueueEntry>,
        start: CursorStart,
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
        let new = attached == AttachOutcome::New;
        match quota {
            CursorQuota::Reserved if new => cursors.reserved -= 1,
            CursorQuota::Taken if !new => self.cursors_left(subscription, 1),
            _ => {}
        }
        if new {
            self.change_load(LoadChange::ATTACHED, now);
        }
        if attached == AttachOutcome::Full {
            self.note_missing_cursor(subscription, cursors);
        }
        attached
    }

    /// Takes a share for a cursor. Where the cursor exists already, the caller returns the share.
    fn take_quota(
        &self,
        subscription: &Subscription,
        cursors: &Cursors,
        address: &QueueAddress,
        start: CursorStart,
    ) -> CursorQuota {
        let named = subscription.names(address);
        if named && cursors.reserved > 0 {
            return CursorQuota::Reserved;
        }
        if named || matches!(start, CursorStart::Busy) {
            self.take_cursor_beyond(subscription);
            return CursorQuota::Taken;
        }
        let own = cursors.list.len() + cursors.reserved as usize;
        let room = self.cursors_for_patterns();
        let own_room = own < self.config.max_cursors_per_stream && !self.is_short_of_memory();
        match own_room && self.take_cursors(subscription, 1, room) {
            true => CursorQuota::Taken,
            false => CursorQuota::Full,
        }
    }

    /// Notes that a queue of a pattern has no cursor: its wake-ups go under the pattern's own name.
    fn note_missing_cursor(&self, subscription: &Arc<Subscription>, cursors: &mut Cursors) {
        if !std::mem::replace(&mut cursors.lacks_cursors, true) {
            self.pattern_checks.need(subscription, None);
        }
        // Inserted first: events counted later are sent under the pattern's name, and the check
        // that is due now covers earlier ones.
        if self.fanout.overflow.insert(subscription) {
            cursors.request_pattern_checks(&subscription.selectors);
            subscription.mailbox.wake();
        }
    }
}
