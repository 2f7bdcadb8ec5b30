//! What the hub hears of its listeners: their reports, and that their streams have sent all they had.
//!
//! A report moves no counter. It may set a timer, cover what a group was given, put off the sentinel,
//! and show that something is to be handed on.

use std::{sync::Arc, time::Duration};

use super::{
    core::Hub,
    mailbox::WakeBatch,
    queue_entry::{QueueEntry, QueueState},
    subscription::{AttachOutcome, CursorStart, Subscription, SubscriptionId},
    sync::lock,
    timers::Timer,
};
use crate::{
    clock::Tick,
    error::{Error, ErrorKind, Result},
    fault::planted,
    words::{Report, ReportState},
};

/// Queues that are told in one turn that a stream has sent.
const TURNS: usize = 256;

impl Hub {
    /// Takes a listener's report.
    ///
    /// # Errors
    /// `NotFound` for an unknown subscription, `Invalid` for a queue that it does not listen on,
    /// `Exhausted` where there is no room for what it needs: its listener repeats it.
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
        // A report may come before the turn of its queue to be attached.
        let attaching = lock(&subscription.attaching)
            .as_ref()
            .map(|one| one.resumed);
        let mut cursors = subscription.lock();
        // A pattern's listener may report a queue that was not notified yet, or that it has no cursor
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
            // Its stream ended meanwhile, and with it was settled whether it is busy (R8).
            return match planted!(self.config.fault, ReportAfterEnd) {
                true => Ok(()),
                false => Err(unknown_subscription()),
            };
        }
        let mut batch = WakeBatch::default();
        let needs_reconcile = cursors.report(&subscription, report, now, &mut batch);
        drop(cursors);
        batch.wake();
        let new = !matches!(attached, AttachOutcome::Existing | AttachOutcome::Full);
        if new {
            // It may have been attached behind its queue's head.
            subscription.mailbox.wake();
        }
        if report.state != ReportState::Unspecified && subscription.has_pattern() {
            self.probe_reported(&subscription, &report.queue, now);
        }
        // An older report counts for nothing, but may have come to a new entry all the same.
        if needs_reconcile || new {
            self.reconcile(Arc::clone(&entry), now, |_| {});
        }
        match report.visible_in {
            None => {}
            Some(Duration::ZERO) if planted!(self.config.fault, VisibleNowIgnored) => {}
            Some(delay) => self.wake_after(entry, delay, Timer::without_notification(), now),
        }
        Ok(())
    }

    /// Does what is due for the queue's groups and its sentinel, after `change`.
    pub(super) fn reconcile(
        &self,
        entry: Arc<QueueEntry>,
        now: Tick,
        change: impl Fn(&mut QueueState),
    ) {
        let mut batch = WakeBatch::default();
        self.count_in(entry, now, true, &mut batch, |state| {
            change(state);
            false
        });
        self.finish(&mut batch);
    }

    /// A stream has sent all it had: queues that wait for that can give it more, a few at a time.
    /// Returns `false` where others still wait and this was called often enough for one turn.
    pub(super) fn end_send(&self, subscription: &Subscription, now: Tick) -> bool {
        if !subscription.mailbox.end_send() {
            return true;
        }
        let mut left = match planted!(self.config.fault, TurnsUnbounded) {
            true => usize::MAX,
            false => TURNS,
        };
        let done = loop {
            if left == 0 {
                break false;
            }
            let Some(turns) = subscription.take_turns(left) else {
                break true;
            };
            // Those that are gone count as one.
            left -= turns.len().max(1);
            for (entry, place) in turns {
                self.reconcile(entry, now, |state| state.stream_sent(place, now));
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
