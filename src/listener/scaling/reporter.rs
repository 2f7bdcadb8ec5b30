//! The reports of a listener to the relay: busy, drained, and when messages become visible again.
//!
//! R8: a woken listener counts as busy until it reports DRAINED, so quick work costs one report. A
//! listener that finds work without a wake-up reports BUSY at once; a woken listener reports it
//! when the work lasts. After each Welcome all valid reports are sent again, because a new stream
//! is a new subscription.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    base::{clock::Tick, fault::planted},
    error::ErrorKind,
    types::{Limits, ReportState},
};

/// A report to send now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PendingReport {
    pub(crate) state: ReportState,
    /// The sequence of the newest wake-up before the get.
    pub(crate) sequence: u64,
    /// Messages become visible after this delay.
    pub(crate) visible_in: Option<Duration>,
}

/// The wake-up counters at the moment before a get is issued.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// The listener's own count of wakes: wake-ups, and new tasks.
    pub(crate) wake_count: u64,
    stream: u64,
    sequence: u64,
}

/// The reporting side of one queue.
#[derive(Debug, Default)]
pub(crate) struct Reporter {
    /// Number of streams that received a Welcome; 0 means that there is no stream to report on.
    pub(crate) stream: u64,
    connected: bool,
    /// The newest wake-up of this stream: its sequence, and the wake count when it arrived.
    sequence: u64,
    woken: u64,
    state: ReportState,
    /// The newest snapshot of a completed get.
    pub(crate) covered: Snapshot,
    /// The last report that this stream's relay acknowledged.
    acknowledged: Option<SentReport>,
    /// When to report BUSY or DRAINED.
    due: Option<Tick>,
    /// When messages become visible that only this listener knows of, and whether it was reported.
    hidden: BTreeMap<Tick, bool>,
    in_flight: Option<SentReport>,
    /// No report before this time: the last one failed.
    retry_at: Tick,
}

#[derive(Debug, Clone, Copy)]
struct SentReport {
    state: ReportState,
    wake_count: u64,
    hidden: Option<Tick>,
    at: Tick,
}

/// Shorter work is reported as DRAINED only, never as BUSY: a quarter of the time after which a
/// relay gives the wake-up to another member of a group.
const BUSY_AFTER: Duration = Duration::from_millis(250);
/// R14: BUSY is a lease, of 30 s, and renewed by gets well before.
const RENEW_AFTER: Duration = Duration::from_secs(10);
/// Wait before a failed report is sent again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Wait before a refused report is sent again.
const REFUSED_AFTER: Duration = Duration::from_secs(30);

impl Reporter {
    /// Returns the snapshot for a get that is issued now.
    pub(crate) fn snapshot(&self, wake_count: u64) -> Snapshot {
        Snapshot {
            wake_count,
            stream: self.stream,
            sequence: self.sequence,
        }
    }

    /// The link changed. A new stream has no reports yet: all valid ones are sent again. Returns whether
    /// there is one.
    pub(crate) fn on_link_changed(&mut self, connected: bool, stream: u64, now: Tick) -> bool {
        self.connected = connected;
        if stream == self.stream {
            return false;
        }
        self.stream = stream;
        self.acknowledged = None;
        self.in_flight = None;
        self.retry_at = now;
        (self.sequence, self.woken) = (0, 0);
        if planted!(ReportsNotRepeated) {
            self.due = None;
            return true;
        }
        self.due = (self.state == ReportState::Busy).then_some(now);
        // Messages that are visible by now and were reported are covered by the relay or a
        // CATCH_UP.
        self.hidden.retain(|at, reported| *at > now || !*reported);
        self.hidden
            .values_mut()
            .for_each(|reported| *reported = false);
        true
    }

    /// Returns whether a report can reach the relay.
    pub(crate) fn has_stream(&self) -> bool {
        self.connected && self.stream > 0
    }

    /// The relay must be told now, whatever the state.
    pub(crate) fn request(&mut self, now: Tick) {
        self.due = Some(now);
    }

    /// No work is in hand, and the queue is not known to be empty.
    pub(crate) fn release(&mut self) {
        if self.state == ReportState::Busy {
            self.state = ReportState::Unspecified;
        }
    }

    /// A wake-up arrived, as wake number `wake_count`.
    pub(crate) fn on_wake_up(&mut self, sequence: u64, wake_count: u64) {
        // A pattern's CATCH_UP has no sequence.
        self.sequence = self.sequence.max(sequence);
        self.woken = wake_count;
    }

    /// A get found messages.
    pub(crate) fn found(&mut self, snapshot: Snapshot, now: Tick) {
        self.cover(snapshot);
        self.state = ReportState::Busy;
        let due = match self
            .last_report()
            .filter(|last| last.wake_count >= self.woken)
        {
            // R14: the BUSY lease is renewed by gets, never by a timer.
            Some(last) if last.state == ReportState::Busy && now < last.at + RENEW_AFTER => return,
            Some(_) => now,
            None if self.woken == 0 => now,
            None => now + BUSY_AFTER,
        };
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
    }

    /// A get found nothing, no wake arrived since it was issued, and no task holds a message.
    pub(crate) fn drained(&mut self, snapshot: Snapshot, now: Tick) {
        self.cover(snapshot);
        self.state = ReportState::Drained;
        let is_news = self
            .last_report()
            .is_none_or(|last| last.state != ReportState::Drained || last.wake_count < self.woken);
        self.due = is_news.then_some(now);
    }

    /// Messages become visible after `delay`, and no other process reports them.
    pub(crate) fn add_hidden(&mut self, delay: Duration, now: Tick) {
        self.merge_elapsed(now);
        self.hidden.entry(now.after_on_grid(delay)).or_insert(false);
    }

    /// Returns the report that is due, and marks it as in flight.
    pub(crate) fn take(&mut self, now: Tick) -> Option<PendingReport> {
        if self.next(now)? > now {
            return None;
        }
        self.merge_elapsed(now);
        let hidden = self.hidden.iter().find(|(_, reported)| !**reported);
        let hidden = hidden.map(|(at, _)| *at);
        // A sequence of an earlier stream means nothing on this one.
        let covered = Some(self.covered).filter(|snapshot| snapshot.stream == self.stream);
        self.due = None;
        self.in_flight = Some(SentReport {
            state: self.state,
            wake_count: self.covered.wake_count,
            hidden,
            at: now,
        });
        Some(PendingReport {
            state: self.state,
            sequence: covered.map_or(0, |snapshot| snapshot.sequence),
            visible_in: hidden.map(|at| at.since(now).min(Limits::DELAY)),
        })
    }

    /// Returns when the next report is due; `None` where none can be sent.
    pub(crate) fn next(&self, now: Tick) -> Option<Tick> {
        if !self.has_stream() || self.in_flight.is_some() {
            return None;
        }
        let is_unreported = self.hidden.values().any(|reported| !reported);
        let due = if is_unreported { now } else { self.due? };
        Some(due.max(self.retry_at))
    }

    /// Returns whether a report can be sent soon, or waits for its answer.
    pub(crate) fn has_pending_report(&self, now: Tick) -> bool {
        let soon = |at: Tick| at <= now + RETRY_AFTER;
        self.connected && (self.in_flight.is_some() || self.next(now).is_some_and(soon))
    }

    /// The report in flight was answered.
    pub(crate) fn on_answered(&mut self, error: Option<ErrorKind>, now: Tick) {
        let Some(sent) = self.in_flight.take() else {
            // It belongs to an earlier stream; the report was queued again.
            return;
        };
        match error {
            // An invalid report breaks a rule: sending it again would not help.
            None | Some(ErrorKind::Invalid) => {
                self.acknowledged = Some(sent);
                if let Some(reported) = sent.hidden.and_then(|at| self.hidden.get_mut(&at)) {
                    *reported = true;
                }
                self.hidden.retain(|at, reported| *at > now || !*reported);
            }
            // The relay has lost the stream. Report after the next Welcome.
            Some(ErrorKind::NotFound) => self.connected = false,
            Some(kind) => {
                // A proxy may have refused it, and may accept it later.
                let refused = matches!(kind, ErrorKind::Denied | ErrorKind::Unsupported);
                let wait = if refused { REFUSED_AFTER } else { RETRY_AFTER };
                (self.retry_at, self.due) = (now + wait, Some(now));
            }
        }
    }

    /// Returns the report in flight, or else the last acknowledged one.
    fn last_report(&self) -> Option<SentReport> {
        self.in_flight.or(self.acknowledged)
    }

    /// Replaces all elapsed times by one: a single poll serves all messages that are visible by
    /// now.
    fn merge_elapsed(&mut self, now: Tick) {
        let later = self.hidden.split_off(&(now + Duration::from_nanos(1)));
        let past = std::mem::replace(&mut self.hidden, later);
        if past.values().any(|reported| !reported) {
            self.hidden.insert(now, false);
        }
    }

    fn cover(&mut self, snapshot: Snapshot) {
        if snapshot.wake_count >= self.covered.wake_count {
            self.covered = snapshot;
        }
    }
}
