//! A publisher's pending notifications: conflated per queue, sent until they are acknowledged.
//!
//! The outbox has one entry per queue and delay slot, so an unreachable relay costs memory for
//! queues, not for events. Several requests may be in flight; the answers arrive in their order.
//! A refused request is sent again in halves, down to single entries, and only the bad ones fail to
//! their callers (R19: a bad event fails alone); entries that the relay has no room for are kept and sent again separately.
//! Every caller gets a result: accepted, refused, or timed out.

mod refusals;

use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

use self::refusals::Dropped;
use super::{
    outbox::{Entry, EntryKey, Outbox},
    reconnect::is_final,
    retries::{RefusedEntry, SetAside},
    waiters::{Completion, WaiterId, Waiters},
};
use crate::{
    base::{
        backoff::{Backoff, jitter},
        clock::Tick,
    },
    error::{Error, ErrorKind, Result},
    types::{Accepted, Counted, Limits, Notification},
};

/// How a publisher sends.
#[derive(Debug, Clone)]
pub(crate) struct PublisherConfig {
    /// Maximum events of one request; 1..=1024.
    pub(crate) batch: usize,
    /// Maximum requests in flight.
    pub(crate) pipeline: usize,
    /// Maximum bytes of a request.
    pub(crate) request_bytes: usize,
    /// Maximum entries in the outbox; more are refused to their callers.
    pub(crate) max_pending: usize,
    /// Maximum entries set aside because the relay has no room; more are dropped.
    pub(crate) max_set_aside: usize,
    /// A request without an answer for this long counts as lost.
    pub(crate) answer_timeout: Duration,
    /// Maximum wait before the first retry.
    pub(crate) base: Duration,
    /// Maximum wait before any retry.
    pub(crate) max: Duration,
}

/// The publisher's state machine.
#[derive(Debug)]
pub(crate) struct PublisherSession {
    config: PublisherConfig,
    pending: Outbox,
    set_aside: SetAside,
    in_flight: VecDeque<Request>,
    /// A probe is in flight.
    probing: bool,
    waiters: Waiters,
    backoff: Backoff,
    retry_at: Tick,
    /// The relay refused requests until this time because they came too soon, and has counted none since.
    too_soon_until: Option<Tick>,
    /// Number of the newest submission, for which a flush waits.
    submitted: u64,
    /// The first refusal of a posted notification, for the next flush.
    refused: Option<Error>,
    dropped: Dropped,
    /// Error of the last failed attempt, for the message of a time-out.
    failure: Option<Error>,
    /// A relay has answered a request before.
    ever_answered: bool,
    /// Relays that were left since a relay has last counted a request.
    left: usize,
}

/// A request in flight.
#[derive(Debug)]
struct Request {
    body: RequestEntries,
    sent_at: Tick,
}

/// The entries of a request.
#[derive(Debug)]
enum RequestEntries {
    Entries(Vec<Entry>),
    /// Entries that the relay refused because it is full.
    Probe(Vec<RefusedEntry>),
}

/// The publisher's name in a request: key, length and the longest text.
const MAX_NAME_BYTES: usize = 3 + Limits::MAX_TEXT;
/// What relays have counted of a request: keys, lengths, epochs and positions.
const COUNTED_BYTES: usize = Counted::MOST * (Limits::TOKEN + 20);
/// Least spread of the requests of publishers that share a limit.
const SHORTEST_SPREAD: Duration = Duration::from_millis(10);

impl PublisherConfig {
    /// Returns the bytes of a request that are available for entries.
    fn entry_bytes(&self) -> usize {
        let others = MAX_NAME_BYTES + COUNTED_BYTES;
        self.request_bytes.saturating_sub(others)
    }
}

impl PublisherSession {
    pub(crate) fn new(config: PublisherConfig) -> Self {
        let backoff = Backoff::new(config.base, config.max);
        Self {
            pending: Outbox::new(),
            set_aside: SetAside::new(),
            config,
            in_flight: VecDeque::new(),
            probing: false,
            waiters: Waiters::default(),
            backoff,
            retry_at: Tick::default(),
            too_soon_until: None,
            submitted: 0,
            refused: None,
            dropped: Dropped::default(),
            failure: None,
            ever_answered: false,
            left: 0,
        }
    }

    /// Accepts notifications whose caller waits until `deadline`.
    ///
    /// # Errors
    /// `Invalid` if one breaks a rule, `Exhausted` if too many are pending; then none is accepted.
    pub(crate) fn notify(
        &mut self,
        notifications: Vec<Notification>,
        deadline: Tick,
        now: Tick,
    ) -> Result<WaiterId> {
        self.check(&notifications, now)?;
        let id = self.waiters.add(notifications.len(), deadline);
        for (index, notification) in notifications.into_iter().enumerate() {
            let mut entry = self.entry(notification, now);
            self.waiters.add_to_list(&mut entry.waiters, id, index);
            self.add(entry);
        }
        Ok(id)
    }

    /// Accepts a notification without a waiting caller.
    ///
    /// # Errors
    /// As [`PublisherSession::notify`].
    pub(crate) fn post(&mut self, notification: Notification, now: Tick) -> Result<()> {
        self.check(std::slice::from_ref(&notification), now)?;
        let mut entry = self.entry(notification, now);
        entry.posted = true;
        self.add(entry);
        Ok(())
    }

    /// Adds a caller that waits for all submissions so far.
    pub(crate) fn flush(&mut self) -> WaiterId {
        let id = self.waiters.flush(self.submitted);
        self.finish_flushes();
        id
    }

    /// Returns the next request if one is due.
    pub(crate) fn request(&mut self, now: Tick) -> Option<Vec<Notification>> {
        if now < self.retry_at || self.in_flight.len() >= self.config.pipeline {
            return None;
        }
        let body = self.probe(now).or_else(|| self.entries())?;
        let notifications = body
            .entries()
            .map(|entry| entry.with_remaining_delay(now))
            .collect();
        self.in_flight.push_back(Request { body, sent_at: now });
        Some(notifications)
    }

    /// C8: returns what relays have counted of the newest request.
    pub(crate) fn counted(&self) -> Vec<Counted> {
        let newest = self.in_flight.back();
        let mut entries = newest.into_iter().flat_map(|newest| newest.body.entries());
        let Some(mut all) = entries.next().map(|first| first.counted.clone()) else {
            return Vec::new();
        };
        for entry in entries {
            let of = |epoch: &str| entry.counted.iter().find(|other| *other.epoch == *epoch);
            all.retain_mut(|counted| match of(&counted.epoch) {
                Some(other) => {
                    counted.position = counted.position.max(other.position);
                    true
                }
                None => false,
            });
            if all.is_empty() {
                break;
            }
        }
        all
    }

    /// C8: a relay has counted the oldest request in flight. Its answer follows, an error.
    pub(crate) fn was_counted(&mut self, counted: &Counted) {
        let oldest = self.in_flight.front_mut().into_iter();
        for entry in oldest.flat_map(|request| request.body.entries_mut()) {
            entry.was_counted(counted);
        }
    }

    /// Handles the answer to the oldest request in flight.
    pub(crate) fn answered(
        &mut self,
        answer: Result<Vec<Accepted>>,
        now: Tick,
        rng: &mut fastrand::Rng,
    ) {
        let Some(request) = self.in_flight.pop_front() else {
            return;
        };
        let short = |accepted: &Vec<Accepted>| accepted.len() != request.body.len();
        let answer = match answer {
            // Which entries were counted is unknown. They are sent again rather than lost.
            Ok(accepted) if short(&accepted) => Err(Error::new(
                ErrorKind::Internal,
                "the relay's answer does not fit the request",
            )),
            answer => answer,
        };
        self.probing &= !matches!(request.body, RequestEntries::Probe(_));
        match answer {
            Ok(accepted) => self.complete(request.body, &accepted),
            Err(error) if is_refused(&error) => self.refuse(request.body, &error, now, rng),
            Err(error) if came_too_soon(&error) => self.send_later(request, &error, now, rng),
            Err(error) => {
                self.put_back(request.body, now);
                self.wait(&error, now, rng);
            }
        }
        self.finish_flushes();
        self.purge();
    }

    /// The connection broke: all requests in flight are sent again, and may be counted twice.
    pub(crate) fn broken(&mut self, error: &Error, now: Tick, rng: &mut fastrand::Rng) {
        self.probing = false;
        // The last one first: each is put back to the front.
        for request in std::mem::take(&mut self.in_flight).into_iter().rev() {
            match error.kind() {
                // The relay ends the stream so for a request that is too large. Which one is
                // unknown.
                ErrorKind::Exhausted if !came_too_soon(error) => self.halve(request.body, now),
                _ => self.put_back(request.body, now),
            }
        }
        self.wait(error, now, rng);
        if self.is_refusal(error.kind()) {
            // All callers fail at once instead of by time-out. Their notifications are kept: after
            // the cause of the refusal is fixed, listeners may still sleep for lack of them.
            self.waiters.refuse_all(error);
        }
        self.finish_flushes();
        self.purge();
    }

    /// The client goes to another relay after [`PublisherSession::broken`]. Each of the others may be
    /// well, so the first request to it waits only for a short random time.
    pub(crate) fn left_relay(&mut self, others: usize, now: Tick, rng: &mut fastrand::Rng) {
        if self.has_relay_to_try(others) {
            self.left += 1;
            self.retry_at = now + jitter(self.config.base / 4, rng);
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

    /// Fails callers whose deadline has passed. Returns whether the connection is dead: the oldest
    /// request has had no answer for too long.
    pub(crate) fn elapsed(&mut self, now: Tick) -> bool {
        while let Some(waiter) = self.waiters.pop_expired(now) {
            self.waiters.finish(waiter, Err(self.timeout_error()));
        }
        self.purge();
        self.in_flight
            .front()
            .is_some_and(|r| r.sent_at + self.config.answer_timeout <= now)
    }

    /// Returns when to call [`PublisherSession::elapsed`] or [`PublisherSession::request`] again.
    pub(crate) fn next_at(&self) -> Tick {
        let answer = self
            .in_flight
            .front()
            .map(|r| r.sent_at + self.config.answer_timeout);
        let room = self.in_flight.len() < self.config.pipeline;
        let retry = (room && !self.pending.is_empty()).then_some(self.retry_at);
        let probe = self.set_aside.due().filter(|_| room && !self.probing);
        let probe = probe.map(|due| due.max(self.retry_at));
        let others = [answer, retry, probe].into_iter().flatten();
        others.fold(self.waiters.deadline(), Tick::min)
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
        !self.in_flight.is_empty() || !self.pending.is_empty() || self.set_aside.len() > 0
    }

    /// Takes the results for waiting callers.
    pub(crate) fn take_completions(&mut self) -> Vec<Completion> {
        self.waiters.take_completions()
    }

    /// Removes a caller that no longer waits. Its notifications are still sent.
    pub(crate) fn abandon(&mut self, waiter: WaiterId) {
        self.waiters.abandon(waiter);
        self.purge();
    }

    /// Returns the number of entries in the outbox.
    pub(crate) fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// Returns the number of entries in the outbox, set aside and in flight.
    pub(crate) fn pending(&self) -> usize {
        let sent = self.in_flight.iter().map(|request| request.body.len());
        self.pending.len() + self.set_aside.len() + sent.sum::<usize>()
    }

    /// Returns the total length and capacity of all waiter lists.
    #[cfg(test)]
    pub(crate) fn listed(&mut self) -> (usize, usize) {
        let sent = self.in_flight.iter_mut();
        let sent = sent.flat_map(|request| request.body.entries_mut());
        let waiting = self.pending.iter_mut().chain(self.set_aside.entries_mut());
        waiting.chain(sent).fold((0, 0), |(listed, room), entry| {
            (
                listed + entry.waiters.len(),
                room + entry.waiters.capacity(),
            )
        })
    }

    fn check(&self, notifications: &[Notification], now: Tick) -> Result<()> {
        notifications.iter().try_for_each(Notification::check)?;
        // Entries set aside have a separate limit, or refused queues would block others.
        let waiting = self.pending.len();
        if waiting + notifications.len() <= self.config.max_pending {
            return Ok(());
        }
        // Near the limit only new entries count, as a conflated notification adds none.
        let new: HashSet<EntryKey> = notifications
            .iter()
            .map(|notification| self.key(notification, now))
            .filter(|key| !self.pending.contains(key) && !self.set_aside.contains(key))
            .collect();
        if waiting + new.len() > self.config.max_pending {
            let message = format!(
                "the limit of {} pending notifications is reached",
                self.config.max_pending
            );
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        Ok(())
    }

    /// Returns the notification's conflation key.
    fn key(&self, notification: &Notification, now: Tick) -> EntryKey {
        let queue = notification.queue.clone();
        let due = (!notification.delay.is_zero()).then(|| now.after_on_grid(notification.delay));
        EntryKey::new(queue, due)
    }

    /// Returns whether the error is a refusal of the whole stream rather than a broken connection.
    fn is_refusal(&self, kind: ErrorKind) -> bool {
        match kind {
            // A proxy may answer so while the relay is unavailable. It may also deny; that is still
            // a refusal. It would end a subscription, but here the callers lose nothing by an early
            // error, as their notifications are kept.
            ErrorKind::Unsupported | ErrorKind::NotFound => !self.ever_answered,
            kind => is_final(kind),
        }
    }

    fn timeout_error(&self) -> Error {
        let mut message =
            "no acknowledgement before the deadline; the notification may still arrive".to_owned();
        if let Some(failure) = &self.failure {
            message.push_str(&format!("; the last attempt failed: {failure}"));
        }
        Error::new(ErrorKind::Timeout, message)
    }

    fn entry(&mut self, notification: Notification, now: Tick) -> Entry {
        self.submitted += 1;
        Entry {
            key: self.key(&notification, now),
            notification,
            first_submission: self.submitted,
            max_batch: usize::MAX,
            waiters: Vec::new(),
            posted: false,
            counted: Vec::new(),
        }
    }

    /// Adds an entry, or merges it into the entry with its key.
    fn add(&mut self, entry: Entry) {
        match self.set_aside.find(&entry.key) {
            Some(refused) => {
                // No flush waits for an entry set aside, so the next flush reports the refusal.
                if entry.posted {
                    self.refused.get_or_insert_with(|| refused.error.clone());
                }
                refused.merge(entry);
            }
            None => self.pending.push(entry),
        }
    }

    /// Takes the next request's entries in order of arrival.
    fn entries(&mut self) -> Option<RequestEntries> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut most = self.config.batch.clamp(1, Limits::EVENTS);
        let mut room = self.config.entry_bytes();
        while let Some(front) = self.pending.front() {
            let bytes = front.notification.encoded_at_most();
            most = most.min(front.max_batch);
            let is_full = entries.len() >= most || (bytes > room && !entries.is_empty());
            // What a relay has counted and what it has not are two requests.
            let first = entries.first();
            if is_full || first.is_some_and(|first| first.key.counted_by != front.key.counted_by) {
                break;
            }
            room = room.saturating_sub(bytes);
            entries.extend(self.pending.pop());
        }
        (!entries.is_empty()).then_some(RequestEntries::Entries(entries))
    }

    /// Puts a request's entries back where they came from.
    fn put_back(&mut self, body: RequestEntries, now: Tick) {
        match body {
            RequestEntries::Entries(entries) => {
                for entry in entries.into_iter().rev() {
                    self.pending.put_back(entry);
                }
            }
            RequestEntries::Probe(probe) => self.set_aside.put_back(probe, now),
        }
    }

    /// Sends a request again that came too soon. A request that did so after it had waited is made smaller:
    /// where publishers share a limit, the small requests of others take the room before a large one
    /// fits.
    fn send_later(&mut self, request: Request, error: &Error, now: Tick, rng: &mut fastrand::Rng) {
        let waited = |until| request.sent_at >= until;
        if self.too_soon_until.is_some_and(waited) {
            self.halve(request.body, now);
        } else {
            self.put_back(request.body, now);
        }
        self.wait(error, now, rng);
        self.too_soon_until = Some(self.retry_at);
    }

    fn wait(&mut self, error: &Error, now: Tick, rng: &mut fastrand::Rng) {
        let requested = error.retry_after().unwrap_or_default();
        let wait = match came_too_soon(error) {
            // The relay knows the time. Each request in flight has this answer, so the back-off would
            // grow by all of them. The spread is for publishers that share the limit.
            true => requested + jitter(requested.max(SHORTEST_SPREAD), rng),
            false => self.backoff.next(rng).max(requested),
        };
        self.retry_at = self.retry_at.max(now + wait);
        self.failure = Some(error.clone());
    }

    /// The relay counted all entries of the request.
    fn complete(&mut self, body: RequestEntries, accepted: &[Accepted]) {
        self.backoff.reset();
        (self.failure, self.too_soon_until, self.ever_answered) = (None, None, true);
        self.left = 0;
        if let RequestEntries::Probe(probe) = &body {
            self.set_aside.probe_accepted(probe.len());
        }
        for (entry, accepted) in body.into_entries().zip(accepted) {
            self.waiters.accept_listed(entry.waiters, *accepted);
        }
    }

    /// Completes the flushes whose submissions have all been answered.
    fn finish_flushes(&mut self) {
        // Entries leave in order of arrival, except those merged into a later one when put back. So
        // the first entry decides quickly that no flush is complete.
        let mut sent = self.in_flight.iter().filter_map(Request::entries);
        let first = sent.next().and_then(<[Entry]>::first);
        let first = first
            .or_else(|| self.pending.front())
            .map_or(u64::MAX, |entry| entry.first_submission);
        if !self.waiters.has_flush_before(first) {
            return;
        }
        let sent = self.in_flight.iter().filter_map(Request::entries);
        let all = self.pending.iter().chain(sent.flatten());
        let submissions = all.map(|entry| entry.first_submission);
        let oldest = submissions.min().unwrap_or(u64::MAX);
        self.waiters.finish_flushes(oldest, &mut self.refused);
    }

    /// Removes callers that no longer wait from the entries' lists, so that these grow with queues
    /// and not with calls.
    fn purge(&mut self) {
        if !self.waiters.needs_purge(|| self.pending()) {
            return;
        }
        let sent = self.in_flight.iter_mut();
        let sent = sent.flat_map(|request| request.body.entries_mut());
        let waiting = self.pending.iter_mut().chain(self.set_aside.entries_mut());
        let lists = waiting.chain(sent).map(|entry| &mut entry.waiters);
        self.waiters.purge(lists);
    }
}

impl Request {
    /// Returns the entries for which a flush waits, so none of a probe.
    fn entries(&self) -> Option<&[Entry]> {
        match &self.body {
            RequestEntries::Entries(entries) => Some(entries),
            RequestEntries::Probe(_) => None,
        }
    }
}

impl RequestEntries {
    fn len(&self) -> usize {
        match self {
            Self::Entries(entries) => entries.len(),
            Self::Probe(probe) => probe.len(),
        }
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        let (entries, probe) = match self {
            Self::Entries(entries) => (&entries[..], &[][..]),
            Self::Probe(probe) => (&[][..], &probe[..]),
        };
        entries
            .iter()
            .chain(probe.iter().map(|refused| &refused.entry))
    }

    fn entries_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        let (entries, probe) = match self {
            Self::Entries(entries) => (&mut entries[..], &mut [][..]),
            Self::Probe(probe) => (&mut [][..], &mut probe[..]),
        };
        let refused = probe.iter_mut().map(|refused| &mut refused.entry);
        entries.iter_mut().chain(refused)
    }

    fn into_entries(self) -> impl Iterator<Item = Entry> {
        let (entries, probe) = match self {
            Self::Entries(entries) => (entries, Vec::new()),
            Self::Probe(probe) => (Vec::new(), probe),
        };
        let refused = probe.into_iter().map(|refused| refused.entry);
        entries.into_iter().chain(refused)
    }
}

/// Returns whether the answer refuses an entry of the request. A whole request that came too soon is
/// sent again.
fn is_refused(error: &Error) -> bool {
    is_final(error.kind()) || error.kind() == ErrorKind::Exhausted && !came_too_soon(error)
}

/// Returns whether the request was over a rate or a limit of its publisher.
fn came_too_soon(error: &Error) -> bool {
    error.kind() == ErrorKind::Exhausted && error.retry_after().is_some()
}
