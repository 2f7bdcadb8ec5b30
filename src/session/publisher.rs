//! A publisher's pending notifications: conflated per queue, sent until they are acknowledged.
//!
//! What waits is one entry per queue and delay slot, so an unreachable relay costs memory for
//! queues, not for events. Several requests may be on their way; the answers come in their order.
//! A request that was refused for good is sent again in halves, down to single entries, and only the
//! bad ones fail to their callers (R19). Whoever waits is answered: accepted, refused, or out of time.

use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

use super::{
    callers::{Callers, Done, WaiterId},
    entry::{Entry, Key},
    link::is_final,
    pending::Pending,
};
use crate::{
    backoff::Backoff,
    clock::Tick,
    error::{Error, ErrorKind, Result},
    fault::{Fault, planted},
    words::{Accepted, Limits, Notification},
};

/// How a publisher sends.
#[derive(Debug, Clone)]
pub(crate) struct PublisherConfig {
    /// Conflate what waits for the same queue and time.
    pub(crate) conflate: bool,
    /// Events of one request at most; 1..=1024.
    pub(crate) batch: usize,
    /// Requests on their way at one time.
    pub(crate) pipeline: usize,
    /// Entries that may wait; more are refused to their callers.
    pub(crate) max_pending: usize,
    /// A request without an answer for this long is taken to be lost.
    pub(crate) answer_timeout: Duration,
    /// The first retry waits at most this long.
    pub(crate) base: Duration,
    /// No retry waits longer.
    pub(crate) max: Duration,
    pub(crate) fault: Fault,
}

/// The publisher's state machine.
#[derive(Debug)]
pub(crate) struct PublisherSession {
    config: PublisherConfig,
    pending: Pending,
    on_their_way: VecDeque<Request>,
    callers: Callers,
    backoff: Backoff,
    retry_at: Tick,
    /// Counts submissions: what a flush waits for.
    submitted: u64,
    /// The first refusal of something that was posted, for the next flush.
    refused: Option<Error>,
    /// Why the last attempt failed, for whoever runs out of time.
    failure: Option<Error>,
    /// A relay has answered before.
    known: bool,
}

#[derive(Debug)]
struct Request {
    entries: Vec<Entry>,
    sent_at: Tick,
}

impl Default for PublisherConfig {
    fn default() -> Self {
        Self {
            conflate: true,
            batch: 256,
            pipeline: 8,
            max_pending: 100_000,
            answer_timeout: Duration::from_secs(5),
            base: Duration::from_millis(100),
            max: Duration::from_secs(5),
            fault: Fault::NONE,
        }
    }
}

impl PublisherSession {
    pub(crate) fn new(config: PublisherConfig) -> Self {
        let backoff = Backoff::new(config.base, config.max);
        Self {
            pending: Pending::new(config.conflate),
            config,
            on_their_way: VecDeque::new(),
            callers: Callers::default(),
            backoff,
            retry_at: Tick::default(),
            submitted: 0,
            refused: None,
            failure: None,
            known: false,
        }
    }

    /// Takes notifications whose caller waits until `deadline`.
    ///
    /// # Errors
    /// `Invalid` where one breaks a rule, `Exhausted` where too much waits; nothing was taken then.
    pub(crate) fn notify(
        &mut self,
        notifications: Vec<Notification>,
        deadline: Tick,
        now: Tick,
    ) -> Result<WaiterId> {
        self.check(&notifications, now)?;
        let id = self.callers.add(notifications.len(), deadline);
        for (index, notification) in notifications.into_iter().enumerate() {
            let entry = self.add(notification, now);
            entry.waiters.push((id, index));
        }
        Ok(id)
    }

    /// Takes a notification that nobody waits for.
    ///
    /// # Errors
    /// As [`PublisherSession::notify`].
    pub(crate) fn post(&mut self, notification: Notification, now: Tick) -> Result<()> {
        self.check(std::slice::from_ref(&notification), now)?;
        self.add(notification, now).posted = true;
        Ok(())
    }

    /// Waits for all that was taken so far.
    pub(crate) fn flush(&mut self) -> WaiterId {
        let id = self.callers.flush(self.submitted);
        self.finish_flushes();
        id
    }

    /// Returns the next request to send, where there is one and it is time for it.
    pub(crate) fn request(&mut self, now: Tick) -> Option<Vec<Notification>> {
        if now < self.retry_at || self.on_their_way.len() >= self.config.pipeline {
            return None;
        }
        let mut entries = Vec::new();
        let mut most = self.config.batch.clamp(1, Limits::EVENTS);
        while let Some(front) = self.pending.front() {
            most = most.min(front.among);
            if entries.len() >= most {
                break;
            }
            entries.extend(self.pending.pop());
        }
        if entries.is_empty() {
            return None;
        }
        let notifications = entries.iter().map(|entry| entry.effective(now)).collect();
        self.on_their_way.push_back(Request {
            entries,
            sent_at: now,
        });
        Some(notifications)
    }

    /// Takes the answer to the oldest request on its way.
    pub(crate) fn answered(
        &mut self,
        answer: Result<Vec<Accepted>>,
        now: Tick,
        rng: &mut fastrand::Rng,
    ) {
        let Some(request) = self.on_their_way.pop_front() else {
            return;
        };
        let short = |accepted: &Vec<Accepted>| accepted.len() != request.entries.len();
        let answer = match answer {
            // Nobody knows which of them were counted: sent again, rather than lost.
            Ok(accepted) if short(&accepted) => Err(Error::new(
                ErrorKind::Internal,
                "the relay's answer does not fit the request",
            )),
            answer => answer,
        };
        match answer {
            Ok(accepted) => {
                self.backoff.reset();
                (self.failure, self.known) = (None, true);
                for (entry, accepted) in request.entries.into_iter().zip(accepted) {
                    self.accept(entry, accepted);
                }
            }
            Err(error) if is_final(error.kind()) => self.refuse(request, &error),
            Err(error) => {
                self.put_back(vec![request]);
                self.wait(&error, now, rng);
            }
        }
        self.finish_flushes();
    }

    /// The connection broke: all that is on its way is sent again, and may be counted twice.
    pub(crate) fn broken(&mut self, error: &Error, now: Tick, rng: &mut fastrand::Rng) {
        let requests = self.on_their_way.drain(..).collect();
        self.put_back(requests);
        self.wait(error, now, rng);
        if self.is_refusal(error.kind()) {
            // Said at once, instead of letting everybody run out of time. What they notified is kept
            // all the same: once the refusal is mended, somebody may still be asleep for want of it.
            self.callers.all_refused(error);
        }
        self.finish_flushes();
    }

    /// Answers whoever has waited long enough. Returns whether the oldest request has waited too
    /// long for its answer: the connection is dead then.
    pub(crate) fn elapsed(&mut self, now: Tick) -> bool {
        while let Some(waiter) = self.callers.late(now) {
            if !planted!(self.config.fault, DeadlineSilent) {
                self.callers.finish(waiter, Err(self.out_of_time()));
            }
        }
        self.on_their_way
            .front()
            .is_some_and(|r| r.sent_at + self.config.answer_timeout <= now)
    }

    /// Returns when to call [`PublisherSession::elapsed`] or [`PublisherSession::request`] again.
    pub(crate) fn next_at(&self) -> Tick {
        let answer = self
            .on_their_way
            .front()
            .map(|r| r.sent_at + self.config.answer_timeout);
        let retry = (!self.pending.is_empty() && self.on_their_way.len() < self.config.pipeline)
            .then_some(self.retry_at);
        let others = [answer, retry].into_iter().flatten();
        others.fold(self.callers.deadline(), Tick::min)
    }

    /// Returns when the next request may be sent.
    pub(crate) fn retry_at(&self) -> Tick {
        self.retry_at
    }

    /// Returns whether there is something to send, now or later: a connection is needed.
    pub(crate) fn has_work(&self) -> bool {
        !self.pending.is_empty() || !self.on_their_way.is_empty()
    }

    /// Takes the answers for callers that wait.
    pub(crate) fn take_done(&mut self) -> Vec<Done> {
        self.callers.take_done()
    }

    /// Forgets a caller that no longer waits; what it notified is still sent.
    pub(crate) fn abandon(&mut self, waiter: WaiterId) {
        self.callers.abandon(waiter);
    }

    /// Returns the number of entries that wait to be sent.
    pub(crate) fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// Returns the number of entries that wait or are on their way.
    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
            + self
                .on_their_way
                .iter()
                .map(|r| r.entries.len())
                .sum::<usize>()
    }

    fn check(&self, notifications: &[Notification], now: Tick) -> Result<()> {
        notifications.iter().try_for_each(Notification::check)?;
        if self.pending.len() + notifications.len() <= self.config.max_pending {
            return Ok(());
        }
        // Exactly, where it is close: what is conflated costs nothing.
        let keys = notifications.iter().map(|n| self.key(n, now));
        let new = if self.config.conflate {
            let new: HashSet<Key> = keys.filter(|key| !self.pending.holds(key)).collect();
            new.len()
        } else {
            notifications.len()
        };
        if self.pending.len() + new > self.config.max_pending {
            let message = format!(
                "the limit of {} pending notifications is reached",
                self.config.max_pending
            );
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        Ok(())
    }

    /// Returns what the notification is conflated by.
    fn key(&self, notification: &Notification, now: Tick) -> Key {
        let due = (!notification.delay.is_zero()).then(|| now.after_on_grid(notification.delay));
        Key {
            queue: notification.queue.clone(),
            due: due.filter(|_| !planted!(self.config.fault, DelaySlotIgnored)),
        }
    }

    /// Returns whether the whole stream was refused, and not cut.
    fn is_refusal(&self, kind: ErrorKind) -> bool {
        match kind {
            // A proxy may say so in the place of a relay that is away just now. It may deny as well;
            // that is told at once all the same, unlike to a subscription, which it would end: a
            // caller that is told loses nothing, as what it notified is kept.
            ErrorKind::Unsupported | ErrorKind::NotFound => !self.known,
            kind => is_final(kind),
        }
    }

    fn out_of_time(&self) -> Error {
        let mut message =
            "no acknowledgement before the deadline; the notification may still arrive".to_owned();
        if let Some(failure) = &self.failure {
            message.push_str(&format!("; the last attempt failed: {failure}"));
        }
        Error::new(ErrorKind::Timeout, message)
    }

    /// Adds a notification to the entry of its queue and time.
    fn add(&mut self, notification: Notification, now: Tick) -> &mut Entry {
        self.submitted += 1;
        let key = self.key(&notification, now);
        self.pending.push(Entry {
            key,
            notification,
            oldest: self.submitted,
            among: usize::MAX,
            waiters: Vec::new(),
            posted: false,
        })
    }

    /// Puts requests back to the front, in their order.
    fn put_back(&mut self, requests: Vec<Request>) {
        if planted!(self.config.fault, PublisherGivesUp) {
            return;
        }
        for request in requests.into_iter().rev() {
            for entry in request.entries.into_iter().rev() {
                self.pending.put_back(entry);
            }
        }
    }

    fn wait(&mut self, error: &Error, now: Tick, rng: &mut fastrand::Rng) {
        let wait = self
            .backoff
            .next(rng)
            .max(error.retry_after().unwrap_or_default());
        self.retry_at = self.retry_at.max(now + wait);
        self.failure = Some(error.clone());
    }

    fn accept(&mut self, entry: Entry, accepted: Accepted) {
        for (waiter, index) in entry.waiters {
            self.callers.accepted(waiter, index, accepted);
        }
    }

    /// Sends a refused request again in halves; an entry that was alone is what was refused. So the
    /// good ones wait for the logarithm of their number, and not for each other.
    fn refuse(&mut self, mut request: Request, error: &Error) {
        if planted!(self.config.fault, BatchDropped) && request.entries.len() > 1 {
            return;
        }
        if request.entries.len() > 1 {
            let half = request.entries.len().div_ceil(2);
            for entry in &mut request.entries {
                entry.among = half;
            }
            self.put_back(vec![request]);
            return;
        }
        for entry in request.entries {
            if entry.posted {
                self.refused.get_or_insert_with(|| error.clone());
            }
            for (waiter, _) in entry.waiters {
                self.callers.refused(waiter, error);
            }
        }
    }

    /// Answers the flushes whose submissions have all been answered.
    fn finish_flushes(&mut self) {
        // Entries leave in the order in which they came, but for those put back into a later one:
        // while the first of all is not new enough, no other need be asked.
        let first = self
            .on_their_way
            .front()
            .and_then(|request| request.entries.first());
        let first = first
            .or_else(|| self.pending.front())
            .map_or(u64::MAX, |entry| entry.oldest);
        if !self.callers.flushes_before(first) {
            return;
        }
        let on_their_way = self
            .on_their_way
            .iter()
            .flat_map(|request| &request.entries);
        let all = self.pending.iter().chain(on_their_way);
        let oldest = all.map(|entry| entry.oldest).min().unwrap_or(u64::MAX);
        self.callers.flushed(oldest, &mut self.refused);
    }
}
