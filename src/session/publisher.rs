//! A publisher's pending notifications: conflated per queue, sent until they are acknowledged.
//!
//! What waits is one entry per queue and delay slot, so an unreachable relay costs memory for
//! queues, not for events. Several requests may be on their way; the answers come in their order.
//! A request that was refused for good is sent again one entry at a time, and only the bad ones
//! fail to their callers (R19). Whoever waits is answered: accepted, refused, or out of time.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use super::{
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

/// Names a caller that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct WaiterId(u64);

/// A caller's answer.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) waiter: WaiterId,
    pub(crate) result: Result<Vec<Accepted>>,
}

/// The publisher's state machine.
#[derive(Debug)]
pub(crate) struct PublisherSession {
    config: PublisherConfig,
    pending: Pending,
    on_their_way: VecDeque<Request>,
    waiters: HashMap<WaiterId, Waiter>,
    deadlines: BTreeSet<(Tick, WaiterId)>,
    flushes: Vec<(WaiterId, u64)>,
    done: Vec<Done>,
    backoff: Backoff,
    retry_at: Tick,
    /// Counts submissions: what a flush waits for.
    submitted: u64,
    last_waiter: u64,
    /// The first refusal of something that was posted, for the next flush.
    refused: Option<Error>,
}

#[derive(Debug)]
struct Request {
    entries: Vec<Entry>,
    sent_at: Tick,
}

#[derive(Debug)]
struct Waiter {
    results: Vec<Option<Accepted>>,
    missing: usize,
    deadline: Tick,
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
            waiters: HashMap::new(),
            deadlines: BTreeSet::new(),
            flushes: Vec::new(),
            done: Vec::new(),
            backoff,
            retry_at: Tick::default(),
            submitted: 0,
            last_waiter: 0,
            refused: None,
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
        self.check(&notifications)?;
        let id = self.next_waiter();
        let count = notifications.len();
        for (index, notification) in notifications.into_iter().enumerate() {
            let entry = self.add(notification, now);
            entry.waiters.push((id, index));
        }
        let waiter = Waiter {
            results: vec![None; count],
            missing: count,
            deadline,
        };
        self.waiters.insert(id, waiter);
        self.deadlines.insert((deadline, id));
        if count == 0 {
            self.answer(id);
        }
        Ok(id)
    }

    /// Takes a notification that nobody waits for.
    ///
    /// # Errors
    /// As [`PublisherSession::notify`].
    pub(crate) fn post(&mut self, notification: Notification, now: Tick) -> Result<()> {
        self.check(std::slice::from_ref(&notification))?;
        self.add(notification, now).posted = true;
        Ok(())
    }

    /// Waits for all that was taken so far.
    pub(crate) fn flush(&mut self) -> WaiterId {
        let id = self.next_waiter();
        self.flushes.push((id, self.submitted));
        self.finish_flushes();
        id
    }

    /// Returns the next request to send, where there is one and it is time for it.
    pub(crate) fn request(&mut self, now: Tick) -> Option<Vec<Notification>> {
        if now < self.retry_at || self.on_their_way.len() >= self.config.pipeline {
            return None;
        }
        let mut entries = Vec::new();
        while entries.len() < self.config.batch.clamp(1, Limits::EVENTS) {
            let Some(front) = self.pending.front() else {
                break;
            };
            let alone = front.alone;
            if alone && !entries.is_empty() {
                break;
            }
            entries.extend(self.pending.pop());
            if alone {
                break;
            }
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
        self.finish_flushes();
    }

    /// Answers whoever has waited long enough. Returns whether the oldest request has waited too
    /// long for its answer: the connection is dead then.
    pub(crate) fn elapsed(&mut self, now: Tick) -> bool {
        while let Some(&(deadline, waiter)) = self.deadlines.first()
            && deadline <= now
        {
            self.remove(waiter);
            if planted!(self.config.fault, DeadlineSilent) {
                continue;
            }
            let message =
                "no acknowledgement before the deadline; the notification may still arrive";
            let result = Err(Error::new(ErrorKind::Timeout, message));
            self.done.push(Done { waiter, result });
        }
        self.on_their_way
            .front()
            .is_some_and(|r| r.sent_at + self.config.answer_timeout <= now)
    }

    /// Returns when to call [`PublisherSession::elapsed`] or [`PublisherSession::request`] again.
    pub(crate) fn next_at(&self) -> Tick {
        let deadline = self.deadlines.first().map(|(deadline, _)| *deadline);
        let answer = self
            .on_their_way
            .front()
            .map(|r| r.sent_at + self.config.answer_timeout);
        let retry = (!self.pending.is_empty() && self.on_their_way.len() < self.config.pipeline)
            .then_some(self.retry_at);
        [deadline, answer, retry]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(Tick::NEVER)
    }

    /// Returns when the next caller has waited long enough.
    pub(crate) fn deadline(&self) -> Tick {
        let first = self.deadlines.first();
        first.map_or(Tick::NEVER, |(deadline, _)| *deadline)
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
        std::mem::take(&mut self.done)
    }

    /// Forgets a caller that no longer waits; what it notified is still sent.
    pub(crate) fn abandon(&mut self, waiter: WaiterId) {
        self.remove(waiter);
        self.flushes.retain(|(id, _)| *id != waiter);
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

    fn check(&self, notifications: &[Notification]) -> Result<()> {
        notifications.iter().try_for_each(Notification::check)?;
        if self.pending.len() + notifications.len() > self.config.max_pending {
            let message = format!(
                "the limit of {} pending notifications is reached",
                self.config.max_pending
            );
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        Ok(())
    }

    fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        self.deadlines.remove(&(waiter.deadline, id));
        Some(waiter)
    }

    fn next_waiter(&mut self) -> WaiterId {
        self.last_waiter += 1;
        WaiterId(self.last_waiter)
    }

    /// Adds a notification to the entry of its queue and time.
    fn add(&mut self, notification: Notification, now: Tick) -> &mut Entry {
        self.submitted += 1;
        let mut due =
            (!notification.delay.is_zero()).then(|| now.after_on_grid(notification.delay));
        if planted!(self.config.fault, DelaySlotIgnored) {
            due = None;
        }
        let key = Key {
            queue: notification.queue.clone(),
            due,
        };
        self.pending.push(Entry {
            key,
            notification,
            oldest: self.submitted,
            alone: false,
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
    }

    fn accept(&mut self, entry: Entry, accepted: Accepted) {
        for (id, index) in entry.waiters {
            let Some(waiter) = self.waiters.get_mut(&id) else {
                continue;
            };
            if waiter.results[index].replace(accepted).is_none() {
                waiter.missing -= 1;
            }
            if waiter.missing == 0 {
                self.answer(id);
            }
        }
    }

    /// Sends the entries of a refused request one by one; one that was alone is what was refused.
    fn refuse(&mut self, mut request: Request, error: &Error) {
        if planted!(self.config.fault, BatchDropped) && request.entries.len() > 1 {
            return;
        }
        if request.entries.len() > 1 {
            for entry in &mut request.entries {
                entry.alone = true;
            }
            self.put_back(vec![request]);
            return;
        }
        for entry in request.entries {
            if entry.posted {
                self.refused.get_or_insert_with(|| error.clone());
            }
            for (waiter, _) in entry.waiters {
                if self.remove(waiter).is_some() {
                    self.done.push(Done {
                        waiter,
                        result: Err(error.clone()),
                    });
                }
            }
        }
    }

    fn answer(&mut self, id: WaiterId) {
        let Some(waiter) = self.remove(id) else {
            return;
        };
        let accepted = waiter
            .results
            .into_iter()
            .map(Option::unwrap_or_default)
            .collect();
        self.done.push(Done {
            waiter: id,
            result: Ok(accepted),
        });
    }

    /// Answers the flushes whose submissions have all been answered.
    fn finish_flushes(&mut self) {
        if self.flushes.is_empty() {
            return;
        }
        // Entries leave in the order in which they came, but for those put back into a later one:
        // while the first of all is not new enough, no other need be asked.
        let first = self
            .on_their_way
            .front()
            .and_then(|request| request.entries.first());
        let first = first
            .or_else(|| self.pending.front())
            .map_or(u64::MAX, |entry| entry.oldest);
        if self.flushes.iter().all(|(_, upto)| first <= *upto) {
            return;
        }
        let on_their_way = self
            .on_their_way
            .iter()
            .flat_map(|request| &request.entries);
        let oldest = self
            .pending
            .iter()
            .chain(on_their_way)
            .map(|entry| entry.oldest)
            .min();
        let oldest = oldest.unwrap_or(u64::MAX);
        let (finished, waiting) = self.flushes.drain(..).partition(|(_, upto)| *upto < oldest);
        self.flushes = waiting;
        let finished: Vec<(WaiterId, u64)> = finished;
        for (waiter, _) in finished {
            let result = self.refused.take().map_or_else(|| Ok(Vec::new()), Err);
            self.done.push(Done { waiter, result });
        }
    }
}
