//! Reports of listeners, and the end of a stream's sending.
//!
//! A report moves no counter. It may set a timer, cover a wake-up of a group, postpone the
//! sentinel, or show that work must go to another member.

use std::sync::Arc;

use super::{
    core::Hub,
    cursor::AttachOutcome,
    fanout::UpdateBatch,
    mailbox::{SubscriptionId, WakeBatch},
    queue_entry::{QueueEntry, QueueState},
    subscription::{CursorStart, Subscription},
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
        let entry = self.entry(&report.queue, now)?;
        // A report may arrive before its queue is attached.
        let attaching = lock(&subscription.attaching)
            .as_ref()
            .map(|one| one.resumed);
        let mut cursors = subscription.lock();
        // A pattern's listener may report a queue that was never notified, or that it has no cursor
        // for.
        let start = match (attaching, report.state) {
            (Some(resumed), _) if subscription.names(&report.queue) => {
                CursorStart::Resumed(resumed)
            }
            (_, ReportState::Busy) => CursorStart::Busy,
            _ => CursorStart::EntryStart,
        };
        let (entry, attached) = self.attach(&subscription, &mut cursors, entry, start, now);
        if attached == AttachOutcome::Closed {
            // Its stream has ended since. R8: the end of a busy listener sets a timer, and that was
            // decided then.
            if planted!(ReportAfterEnd) {
                return Ok(());
            }
            return Err(unknown_subscription());
        }
        let mut batch = WakeBatch::default();
        let (needs_reconcile, change) = cursors.report(&subscription, report, now, &mut batch);
        drop(cursors);
        self.change_load(change, now);
        batch.wake();
        let new = !matches!(attached, AttachOutcome::Existing | AttachOutcome::Full);
        if new {
            // It may have been attached behind its queue's head.
            subscription.mailbox.wake();
        }
        if report.state != ReportState::Unspecified && subscription.has_pattern() {
            self.pattern_reported(&subscription, &report.queue, now);
        }
        // An outdated report changes nothing, but it may have created the entry.
        if needs_reconcile || new {
            self.reconcile(Arc::clone(&entry), now, |_| {});
        }
        self.list_check(&entry);
        if let Some(delay) = report.visible_in {
            self.wake_after(entry, delay, Timer::without_notification(), now);
        }
        Ok(())
    }

    /// Applies `change`, then runs the due work of the queue's groups and its sentinel.
    pub(super) fn reconcile(
        &self,
        entry: Arc<QueueEntry>,
        now: Tick,
        change: impl Fn(&mut QueueState),
    ) {
        let mut batch = UpdateBatch::default();
        self.update_and_reconcile(entry, now, &mut batch, |state| {
            change(state);
            false
        });
        self.finish(&mut batch);
    }

    /// A stream has sent all its messages. Queues that waited for this may assign more to it, a few
    /// at a time. Returns `false` where other queues still wait and this call has done its share.
    pub(super) fn end_send(&self, subscription: &Subscription, now: Tick) -> bool {
        if !subscription.mailbox.end_send() {
            return true;
        }
        let mut left = match planted!(TurnsUnbounded) {
            true => usize::MAX,
            false => QUEUES_PER_CALL,
        };
        let done = loop {
            if left == 0 {
                break false;
            }
            let Some(turns) = subscription.take_turns(left) else {
                break true;
            };
            // A batch whose queues are gone counts as one.
            left -= turns.len().max(1);
            for (entry, member_id) in turns {
                self.reconcile(entry, now, |state| state.stream_sent(member_id));
            }
        };
        subscription.mailbox.end_turns();
        done
    }
}

#[cold]
fn unknown_subscription() -> Error {
    let message = "subscription_id: not known here, wait for the next Welcome";
    Error::new(ErrorKind::NotFound, message)
}
