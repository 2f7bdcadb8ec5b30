//! A publisher's pending notifications: conflated per queue, sent until they are answered.
//!
//! The outbox has one entry per queue and delay slot, so an unreachable relay costs memory for
//! queues, not for events. Several requests may be in flight; the answers arrive in their order, with
//! a result for each entry (R19: a bad event fails alone). A refused entry fails to its callers and is
//! dropped, unless the relay had no room for it: it is kept, because a listener may sleep until it is
//! counted, and sent again some seconds later. Beyond the limit of kept entries a further one is dropped.
//! Entries without a result are sent again, behind the others. Every caller gets a result, unless it stops
//! waiting.

use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

use super::{
    outbox::{Answer, Entry, Outbox, merge_counted},
    reconnect::is_final,
};
use crate::{
    base::{
        backoff::{Backoff, jitter},
        clock::Tick,
        fault::planted,
    },
    error::{Error, ErrorKind, Result},
    types::{Limits, Notification},
    wire::{NotifyAnswer, proto::Counted},
};

/// How a publisher sends.
#[derive(Debug, Clone)]
pub(crate) struct PublisherConfig {
    /// Maximum events of one request; 1..=1024.
    pub(crate) batch: usize,
    /// Maximum requests in flight.
    pub(crate) pipeline: usize,
    /// Maximum entries in the outbox; more are refused to their callers. As many others are kept because
    /// the relay has no room for them; more are dropped.
    pub(crate) max_pending: usize,
    /// A request without an answer for this long counts as lost.
    pub(crate) answer_timeout: Duration,
}

/// The publisher's state machine.
#[derive(Debug)]
pub(crate) struct PublisherSession {
    config: PublisherConfig,
    pending: Outbox,
    /// Entries that the relay has no room for, the one refused first in front.
    kept: Outbox,
    in_flight: VecDeque<Request>,
    /// The newest request was one of kept entries: the next one is of new entries, if there are any.
    was_retry: bool,
    /// Maximum entries of the next request.
    batch: usize,
    backoff: Backoff,
    retry_at: Tick,
    /// Error of the last failed attempt.
    failure: Option<Error>,
    /// A relay has answered a request before.
    ever_answered: bool,
    /// Relays that were left since a relay has last counted a request.
    left: usize,
}

/// A request in flight.
#[derive(Debug)]
struct Request {
    /// All were kept, or none.
    entries: Vec<Entry>,
    sent_at: Tick,
}

/// Maximum wait before the first retry.
const RETRY_BASE: Duration = Duration::from_millis(100);
/// Maximum wait before any retry.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// A kept entry is sent again after this time, on the grid of [`Tick::after_on_grid`] so that requests are
/// few. 100,000 of them take a full relay about a tenth of a second.
const KEPT_FOR: Duration = Duration::from_secs(5);
/// Least spread of the requests of publishers that share a limit.
const SHORTEST_SPREAD: Duration = Duration::from_millis(10);

impl PublisherSession {
    pub(crate) fn new(mut config: PublisherConfig) -> Self {
        config.batch = config.batch.clamp(1, Limits::EVENTS);
        Self {
            pending: Outbox::default(),
            kept: Outbox::default(),
            batch: config.batch,
            config,
            in_flight: VecDeque::new(),
            was_retry: false,
            backoff: Backoff::new(RETRY_BASE, RETRY_MAX),
            retry_at: Tick::default(),
            failure: None,
            ever_answered: false,
            left: 0,
        }
    }

    /// Accepts notifications; the result of each comes to its answer. A caller that drops an answer
    /// stops waiting, and the notification is still sent.
    ///
    /// # Errors
    /// `Invalid` if one breaks a rule, `Exhausted` if too many are pending; then none is accepted.
    pub(crate) fn notify(
        &mut self,
        notifications: Vec<Notification>,
        now: Tick,
    ) -> Result<Vec<Answer>> {
        notifications.iter().try_for_each(Notification::check)?;
        let entries = notifications.into_iter().map(|one| Entry::new(one, now));
        let (entries, answers): (Vec<_>, Vec<_>) = entries.unzip();
        self.check_room(&entries)?;
        self.add(entries);
        Ok(answers)
    }

    /// Returns the next request if one is due.
    pub(crate) fn request(&mut self, now: Tick) -> Option<Vec<Notification>> {
        if now < self.retry_at || self.in_flight.len() >= self.config.pipeline {
            return None;
        }
        let mut entries = Vec::new();
        // One at a time and in turn, so that no other entry waits for all of them.
        let is_turn = !self.was_retry || self.pending.is_empty();
        if is_turn && !self.is_retrying() {
            entries = self.kept.take(now, self.batch);
        }
        self.was_retry = !entries.is_empty();
        if entries.is_empty() {
            entries = self.pending.take(now, self.batch);
        }
        if entries.is_empty() {
            return None;
        }
        let notifications = entries
            .iter()
            .map(|entry| entry.with_remaining_delay(now))
            .collect();
        self.in_flight.push_back(Request {
            entries,
            sent_at: now,
        });
        Some(notifications)
    }

    /// C8: returns what relays have counted of the newest request.
    pub(crate) fn counted(&self) -> Vec<Counted> {
        let newest = self.in_flight.back();
        // Entries with other relays are in another request.
        let mut entries = newest.into_iter().flat_map(|newest| &newest.entries);
        let Some(mut all) = entries.next().map(|first| first.counted.clone()) else {
            return Vec::new();
        };
        entries.for_each(|entry| merge_counted(&mut all, &entry.counted));
        all
    }

    /// Handles the answer to the oldest request in flight.
    pub(crate) fn answered(&mut self, answer: NotifyAnswer, now: Tick, rng: &mut fastrand::Rng) {
        let Some(request) = self.in_flight.pop_front() else {
            return;
        };
        if planted!(RefusalTakesAll) && answer.results.iter().any(Result::is_err) {
            return;
        }
        let sent = request.entries.len();
        let mut results = answer.results.into_iter();
        let (mut again, mut failure, mut away) = (Vec::new(), None, None);
        for mut entry in request.entries {
            let error = match (results.next(), &answer.error) {
                (Some(Ok(accepted)), None) => {
                    entry.answer(&Ok(accepted));
                    continue;
                }
                // A kept entry waits on its own, also at a relay that is cut off.
                (Some(Err(error)), _)
                    if error.kind() == ErrorKind::Exhausted
                        || entry.was_kept() && !is_final(error.kind()) =>
                {
                    self.keep(entry, &error, now);
                    if error.kind() != ErrorKind::Exhausted {
                        away = Some(error);
                    }
                    continue;
                }
                (Some(Err(error)), _) => error,
                (_, Some(error)) => {
                    if let Some(counted) = &answer.counted {
                        entry.was_counted(counted);
                    }
                    error.clone()
                }
                // Whether the relay has counted it is unknown. It is sent again rather than lost.
                (None, None) => {
                    let message = "the relay's answer does not fit the request";
                    Error::new(ErrorKind::Internal, message)
                }
            };
            if is_final(error.kind()) {
                entry.answer(&Err(error));
                continue;
            }
            failure = Some(error);
            again.push(entry);
        }
        // Those that the same relays have counted are one request.
        again.sort_by(|one, other| other.key.counted_by.cmp(&one.key.counted_by));
        self.add(again);
        match (failure, away) {
            (Some(error), _) => {
                self.shrink(sent, &error);
                self.wait(&error, now, rng);
            }
            // Nothing was counted, and the others need not wait for it.
            (None, Some(error)) => self.failure = Some(error),
            (None, None) => self.succeeded(),
        }
    }

    /// The connection broke: all requests in flight are sent again, and may be counted twice.
    pub(crate) fn broken(&mut self, error: &Error, now: Tick, rng: &mut fastrand::Rng) {
        for request in std::mem::take(&mut self.in_flight) {
            self.shrink(request.entries.len(), error);
            self.add(request.entries);
        }
        self.wait(error, now, rng);
        // A proxy may answer so while the relay is unavailable. It may also deny; that is still a refusal.
        // It would end a subscription, but here the callers lose nothing by an early error, as their
        // notifications are kept.
        let is_away = matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::NotFound);
        let is_refusal = is_final(error.kind()) && !(is_away && self.ever_answered);
        for entry in self.pending.iter_mut().chain(self.kept.iter_mut()) {
            if is_refusal {
                // All callers fail at once instead of by time-out. Their notifications are kept: after
                // the cause of the refusal is fixed, listeners may still sleep for lack of them.
                entry.answer(&Err(error.clone()));
            }
            // Without a relay nothing else empties the lists of callers that have stopped waiting.
            entry.purge();
        }
    }

    /// The client goes to another relay after [`PublisherSession::broken`]. Each of the others may be
    /// well, so the first request to it waits only for a short random time.
    pub(crate) fn left_relay(&mut self, others: usize, now: Tick, rng: &mut fastrand::Rng) {
        if self.has_relay_to_try(others) {
            self.left += 1;
            self.retry_at = now + jitter(RETRY_BASE / 4, rng);
        }
    }

    /// Returns whether one of the other relays was not tried since a relay has last counted a
    /// request.
    pub(crate) fn has_relay_to_try(&self, others: usize) -> bool {
        self.left < others
    }

    /// Sets the time in which the relay must answer a request.
    pub(crate) fn set_answer_timeout(&mut self, timeout: Duration) {
        self.config.answer_timeout = timeout;
    }

    /// Returns whether the connection is dead: the oldest request has had no answer for too long.
    pub(crate) fn is_overdue(&self, now: Tick) -> bool {
        self.answer_due().is_some_and(|due| due <= now)
    }

    fn answer_due(&self) -> Option<Tick> {
        let oldest = self.in_flight.front()?;
        Some(oldest.sent_at + self.config.answer_timeout)
    }

    /// Returns when to call [`PublisherSession::is_overdue`] or [`PublisherSession::request`] again.
    pub(crate) fn next_at(&self) -> Tick {
        let room = self.in_flight.len() < self.config.pipeline;
        let retry = (room && !self.pending.is_empty()).then_some(self.retry_at);
        let kept = self.kept.due().filter(|_| room && !self.is_retrying());
        let kept = kept.map(|due| due.max(self.retry_at));
        let all = [self.answer_due(), retry, kept].into_iter().flatten();
        all.min().unwrap_or(Tick::NEVER)
    }

    /// Returns the error of the last failed attempt, unless one was acknowledged since.
    pub(crate) fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Returns the earliest time of the next request.
    pub(crate) fn retry_at(&self) -> Tick {
        self.retry_at
    }

    /// Returns whether anything is unsent or unanswered, so that a connection is needed.
    pub(crate) fn has_work(&self) -> bool {
        !self.in_flight.is_empty() || !self.pending.is_empty() || !self.kept.is_empty()
    }

    /// Returns the number of entries in the outbox, in flight, and kept for lack of room.
    pub(crate) fn pending(&self) -> usize {
        let sent = self.in_flight.iter().map(|request| request.entries.len());
        self.pending.len() + self.kept.len() + sent.sum::<usize>()
    }

    /// Returns the total length and capacity of all lists of callers.
    #[cfg(test)]
    pub(crate) fn listed(&self) -> (usize, usize) {
        let sent = self.in_flight.iter().flat_map(|request| &request.entries);
        let waiting = self.pending.iter().chain(self.kept.iter());
        waiting.chain(sent).fold((0, 0), |(listed, room), entry| {
            (
                listed + entry.callers.len(),
                room + entry.callers.capacity(),
            )
        })
    }

    /// A conflated notification adds no entry. Kept entries have a limit of their own, or refused queues
    /// would block others.
    fn check_room(&self, entries: &[Entry]) -> Result<()> {
        let mut new: HashSet<_> = entries.iter().map(|entry| &entry.key).collect();
        new.retain(|key| !self.pending.contains(key) && !self.kept.contains(key));
        let limit = self.config.max_pending;
        if !new.is_empty() && self.pending.len() + new.len() > limit {
            let message = format!("the limit of {limit} pending notifications is reached");
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        Ok(())
    }

    /// Adds entries behind the others, or to those that the relay has no room for: one that was kept stays
    /// so, and a notification of its queue waits with it.
    fn add(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            match entry.was_kept() || self.kept.contains(&entry.key) {
                true => self.kept.push(entry),
                false => self.pending.push(entry),
            }
        }
    }

    /// Reports that the relay has no room for an entry, and keeps it if the limit has room.
    fn keep(&mut self, mut entry: Entry, error: &Error, now: Tick) {
        let limit = self.config.max_pending;
        // One that was kept before stays.
        let was_kept = entry.was_kept() || self.kept.contains(&entry.key);
        let is_kept = was_kept || self.kept.len() < limit;
        let refusal = if is_kept {
            error.clone()
        } else {
            let message = format!(
                "{error}; the notification is dropped: {limit} refused ones are kept already"
            );
            Error::new(error.kind(), message)
        };
        entry.answer(&Err(refusal));
        if is_kept && !planted!(RefusedDropped) {
            let requested = error.retry_after().unwrap_or_default();
            entry.due = now.after_on_grid(requested.max(KEPT_FOR));
            self.kept.push(entry);
        }
    }

    /// After a request over a limit the next ones are at most half as large, and then grow again. A relay
    /// or proxy may have no room for one so large. Where publishers share a rate, the small requests of
    /// others take the room before a large one fits.
    fn shrink(&mut self, sent: usize, error: &Error) {
        if error.kind() == ErrorKind::Exhausted {
            self.batch = self.batch.min(sent.div_ceil(2)).max(1);
        }
    }

    fn wait(&mut self, error: &Error, now: Tick, rng: &mut fastrand::Rng) {
        let requested = error.retry_after().unwrap_or_default();
        let too_soon = error.kind() == ErrorKind::Exhausted && error.retry_after().is_some();
        let wait = match too_soon {
            // The relay knows the time. Each request in flight has this answer, so the back-off would
            // grow by all of them. The spread is for publishers that share the limit.
            true => requested + jitter(requested.max(SHORTEST_SPREAD), rng),
            false => self.backoff.next(rng).max(requested),
        };
        self.retry_at = self.retry_at.max(now + wait);
        self.failure = Some(error.clone());
    }

    /// The relay has answered for each entry of a request.
    fn succeeded(&mut self) {
        self.backoff.reset();
        (self.failure, self.ever_answered, self.left) = (None, true, 0);
        self.batch = (self.batch * 2).min(self.config.batch);
    }

    fn is_retrying(&self) -> bool {
        let is_retry = |request: &Request| request.entries.first().is_some_and(Entry::was_kept);
        self.in_flight.iter().any(is_retry)
    }
}
