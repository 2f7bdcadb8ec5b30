//! Reports of listeners, and the end of a stream's sending.
//!
//! A report moves no counter. It may set a timer, cover a wake-up of a group, postpone the
//! sentinel, or show that work must go to another member.

use std::{sync::Arc, time::Duration};

use super::super::{
    core::Hub,
    fanout::UpdateBatch,
    mailbox::SubscriptionId,
    queue::{QueueEntry, QueueState},
    subscription::Subscription,
    sync::lock,
    timers::Timer,
};
use crate::{
    base::{clock::Tick, fault::planted},
    error::{Error, ErrorKind, Result},
    types::{Report, ReportState},
};

/// Queues that one call reconciles after a stream has sent.
const QUEUES_PER_CALL: usize = 256;

impl Hub {
    /// Takes a listener's report.
    ///
    /// # Errors
    /// `NotFound` for an unknown subscription, `Invalid` for a queue that it does not match,
    /// `Exhausted` where there is no room for a timer or a cursor: its listener repeats the report.
    pub(crate) fn report(&self, id: SubscriptionId, report: &Report, now: Tick) -> Result<()> {
        report.check()?;
        let found = lock(&self.subscriptions).get(&id).cloned();
        let subscription = found.ok_or_else(unknown_subscription)?;
        if !subscription.wants(&report.queue) {
            let rule = format_args!(
                "{} is matched by no selector of the subscription",
                report.queue
            );
            return Err(Error::invalid("queue_name", rule));
        }
        self.check_report(&subscription, report)?;
        let mut entry = self.entry(&report.queue, now)?;
        let mut guard = entry.lock_with_nodes(now);
        while guard.is_dead {
            drop(guard);
            self.replace_dead(&mut entry, now);
            guard = entry.lock_with_nodes(now);
        }
        let state = &mut *guard;
        // R8: the end of a busy listener sets a timer, also beyond the limits. Another listener has no
        // cursor there, and its report covers nothing: a BUSY that comes after it keeps the queue until the
        // next report.
        let is_busy = report.state == ReportState::Busy;
        if let Some(group) = state.group_of(&subscription) {
            group.members.admit(&entry, &subscription, is_busy);
        }
        let mut inbox = subscription.lock();
        if subscription.mailbox.is_closed() {
            // Its stream has ended since. R8: the end of a busy listener sets a timer, and that was
            // decided then.
            if planted!(ReportAfterEnd) {
                return Ok(());
            }
            drop(inbox);
            drop(guard);
            // The report may have made the entry, whose check is not in the timers' order yet.
            self.reconcile(entry, now, |_| {});
            return Err(unknown_subscription());
        }
        _ = inbox.get_or_insert(&entry, &subscription, is_busy);
        state.guard(&entry, now);
        let finds_more = inbox.report(&subscription, (&entry, state), report, now);
        self.note_load(&mut inbox, &subscription, now);
        drop(inbox);
        let is_due = state.is_due();
        let is_checked = state.announced.as_ref().is_some_and(|one| one.checked);
        let listed = is_checked && self.increments.list(&entry, state);
        drop(guard);
        if listed {
            self.increments.waker.wake();
        }
        self.sweep(&subscription, 0, now);
        if report.state != ReportState::Unspecified && subscription.has_pattern() {
            self.pattern_reported(&subscription, &report.queue, now);
        }
        if is_due {
            self.reconcile(Arc::clone(&entry), now, |_| {});
        }
        // R11: no listener was told of these messages, so all are woken as by a notification.
        let delays = finds_more.then_some(Duration::ZERO);
        for delay in delays.into_iter().chain(report.visible_in) {
            self.wake_after(Arc::clone(&entry), delay, Timer::default(), now);
        }
        Ok(())
    }

    /// Applies `change`, then runs the due work of the queue's groups and its sentinel. A forgotten queue
    /// has none.
    pub(in super::super) fn reconcile(
        &self,
        entry: Arc<QueueEntry>,
        now: Tick,
        change: impl FnOnce(&mut QueueState),
    ) {
        if entry.lock().is_dead {
            return;
        }
        let mut batch = UpdateBatch::default();
        self.update(entry, true, now, &mut batch, |state| {
            change(state);
            false
        });
    }

    /// A stream has sent all its messages. Queues that waited for this may assign more to it, a few
    /// at a time. Returns `false` where other queues still wait and this call has done its share.
    pub(in super::super) fn end_send(&self, subscription: &Subscription, now: Tick) -> bool {
        if !subscription.mailbox.end_send() {
            return true;
        }
        let mut left = match planted!(TurnsUnbounded) {
            true => usize::MAX,
            false => QUEUES_PER_CALL,
        };
        while left > 0
            && let Some(turns) = subscription.take_turns(left)
        {
            // A batch whose queues are gone counts as one.
            left -= turns.len().max(1);
            for entry in turns {
                self.reconcile(entry, now, |state| {
                    if let Some(group) = state.group_of(subscription) {
                        group.members.set_ready(subscription.id);
                    }
                });
            }
        }
        subscription.mailbox.end_turns();
        left > 0
    }
}

#[cold]
fn unknown_subscription() -> Error {
    let message = "subscription_id: not known here, wait for the next Welcome";
    Error::new(ErrorKind::NotFound, message)
}
