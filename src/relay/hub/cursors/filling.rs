//! Fills a Wake with the entries of marked cursors.

use std::{collections::VecDeque, num::NonZeroU64};

use super::{
    super::{
        config::CURSORS_PER_STEP,
        cursor::SendOutcome,
        interest::Interest,
        mailbox::Marks,
        wake_builder::{WakeEntry, WakeSink},
    },
    Cursors, Filled,
};
use crate::{
    base::clock::Tick,
    types::{LastEvent, WakeReason},
};

impl Cursors {
    /// Fills a Wake with the entries of the marked cursors.
    pub(in super::super) fn fill(
        &mut self,
        subscription: &Interest,
        (mut marks, drawn): (Marks, Option<u64>),
        now: Tick,
        sink: &mut impl WakeSink,
    ) -> Filled {
        let certain = now >= self.catch_up_at;
        if self.catch_up_is_due(now) {
            self.release_delayed();
        }
        if let Some(revision) = drawn.filter(|_| self.delayed.is_empty()) {
            std::mem::take(&mut marks).cursors(|at| self.set_marked(at));
            self.drawn = NonZeroU64::new(revision).map(|revision| (revision, self.marked.len()));
        }
        let mut filled = Filled::default();
        if certain && !self.fill_checks(subscription, sink, &mut filled) {
            marks.cursors(|at| self.set_marked(at));
            return filled;
        }
        if self.marked.is_empty() && marks.len() <= CURSORS_PER_STEP {
            self.fill_now(subscription, marks, (certain, now), sink, &mut filled);
        } else {
            marks.cursors(|at| self.set_marked(at));
            self.fill_marked(subscription, (certain, now), sink, &mut filled);
        }
        filled.complete &= !self.catch_up_is_due(now);
        if self.marked.is_empty() && self.marked.capacity() > CURSORS_PER_STEP {
            self.marked = VecDeque::new();
        }
        filled
    }

    /// Marks some of the cursors whose CATCH_UP waits no longer.
    fn release_delayed(&mut self) {
        for _ in 0..4 * CURSORS_PER_STEP {
            let Some(at) = self.delayed.pop() else {
                self.delayed = Vec::new();
                break;
            };
            self.set_marked(at);
        }
    }

    /// Adds the entries of newly marked cursors, where no older ones wait. Only entries without
    /// room go into the list.
    fn fill_now(
        &mut self,
        subscription: &Interest,
        marks: Marks,
        when: (bool, Tick),
        sink: &mut impl WakeSink,
        filled: &mut Filled,
    ) {
        filled.complete = true;
        sink.expect(marks.len());
        marks.cursors(|at| {
            if filled.complete && !self.fill_one(subscription, at, when, sink, filled) {
                filled.complete = false;
            }
            if !filled.complete {
                self.set_marked(at);
            }
        });
    }

    /// Adds the entries of the listed cursors, in their order.
    fn fill_marked(
        &mut self,
        subscription: &Interest,
        when: (bool, Tick),
        sink: &mut impl WakeSink,
        filled: &mut Filled,
    ) {
        sink.expect(self.marked.len());
        for _ in 0..4 * CURSORS_PER_STEP {
            let Some(&at) = self.marked.front() else {
                filled.complete = true;
                break;
            };
            if !self.fill_one(subscription, at, when, sink, filled) {
                break;
            }
            self.marked.pop_front();
            if let Some((_, left)) = &mut self.drawn {
                *left = left.saturating_sub(1);
            }
        }
    }

    /// Adds the selectors' own checks; returns whether all of them had room.
    fn fill_checks(
        &mut self,
        subscription: &Interest,
        sink: &mut impl WakeSink,
        filled: &mut Filled,
    ) -> bool {
        let nothing = LastEvent::default();
        while let Some(&(selector, reason)) = self.pattern_checks.last() {
            let selector = &subscription.selectors[selector];
            if !sink.push(&WakeEntry::for_pattern(selector, reason, &nothing)) {
                return false;
            }
            filled.add(0, reason);
            self.pattern_checks.pop();
        }
        true
    }

    /// Adds a marked cursor's entry; returns whether it had room.
    fn fill_one(
        &mut self,
        subscription: &Interest,
        at: u32,
        (certain, now): (bool, Tick),
        sink: &mut impl WakeSink,
        filled: &mut Filled,
    ) -> bool {
        let Some(cursor) = self.list.get_mut(at) else {
            return true;
        };
        match cursor.send(subscription, (certain, now), sink) {
            SendOutcome::NoRoom => return false,
            SendOutcome::UpToDate if cursor.needs_catch_up => self.delayed.push(at),
            SendOutcome::UpToDate => {}
            SendOutcome::Sent(notifications, reason) => filled.add(notifications, reason),
        }
        cursor.marked = false;
        true
    }
}

impl Filled {
    fn add(&mut self, notifications: u64, reason: WakeReason) {
        self.requested.add(reason);
        self.fewest = match self.entries {
            0 => notifications,
            _ => self.fewest.min(notifications),
        };
        self.entries += 1;
        self.notifications = self.notifications.saturating_add(notifications);
    }
}
