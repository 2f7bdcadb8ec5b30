//! Reports of listeners.
//!
//! A report moves no counter. It may set a timer, cover a wake-up of a group, postpone the
//! sentinel, or show that work must go to another member.

use std::time::Duration;

use super::super::{
    core::Hub,
    subscription::{SubscriptionId, WakeBatch},
    sync::lock,
    timers::Timer,
};
use crate::{
    base::{clock::Tick, fault::planted},
    error::{Error, ErrorKind, Result},
    types::{Report, ReportState},
};

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
            let queue = &report.queue;
            let rule = format_args!("{queue} is matched by no selector of the subscription");
            return Err(Error::invalid("queue_name", rule));
        }
        self.check_report(&subscription, report)?;
        let entry = self.entry(&report.queue, now)?;
        let (mut batch, mut is_closed) = (WakeBatch::default(), false);
        self.update(entry, true, now, &mut batch, |entry, state| {
            // R8: the end of a busy listener sets a timer, also beyond the limits. Another listener has
            // no cursor there, and its report covers nothing: a BUSY that comes after it keeps the queue
            // until the next report.
            let is_busy = report.state == ReportState::Busy;
            if let Some(group) = state.group_of(&subscription) {
                group.members.admit(entry, &subscription, is_busy);
            }
            let mut inbox = subscription.lock();
            is_closed = subscription.mailbox.is_closed();
            if is_closed {
                // Its stream has ended since. R8: the end of a busy listener sets a timer, and that was
                // decided then.
                return;
            }
            _ = inbox.get_or_insert(entry, &subscription, is_busy);
            let taken = inbox.report(&subscription, (entry, state), report, now);
            self.note_load(&mut inbox, &subscription);
            // A group may look at the lists of its patterns, under which inboxes are taken.
            drop(inbox);
            let finds_more = taken
                .is_some_and(|(report, polled)| state.report(&subscription, &report, polled, now));
            // R11: no listener was told of these messages, so all are woken as by a notification.
            let at_once = finds_more.then_some(Duration::ZERO);
            for delay in at_once.into_iter().chain(report.visible_in) {
                self.add_wake(entry, state, delay, Timer::default(), now);
            }
        });
        drop(batch);
        if is_closed && !planted!(ReportAfterEnd) {
            return Err(unknown_subscription());
        }
        self.sweep(&subscription, 0, now);
        if report.state != ReportState::Unspecified && subscription.has_pattern() {
            self.pattern_reported(&subscription, &report.queue, now);
        }
        Ok(())
    }
}

#[cold]
fn unknown_subscription() -> Error {
    let message = "subscription_id: not known here, wait for the next Welcome";
    Error::new(ErrorKind::NotFound, message)
}
