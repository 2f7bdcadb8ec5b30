//! A publisher's pending notifications: conflated per queue, sent until they are acknowledged.
//!
//! What waits is one entry per queue and delay slot, so an unreachable relay costs memory for
//! queues, not for events. Several requests may be on their way; the answers come in their order. A
//! refused request is sent again in halves, down to single entries, and only the bad ones fail to
//! their callers (R19: a bad event fails alone); those that the relay has no room for are kept and
//! sent again apart. Every caller is answered: accepted, refused, or out of time.

mod refusing;
mod request;

use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

use self::{
    refusing::Dropped,
    request::{Load, Request},
};
use super::{
    callers::{Callers, Done, WaiterId},
    entry::{Entry, Key},
    link::is_final,
    pending::Pending,
    set_aside::SetAside,
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
    /// Bytes of a request at most.
    pub(crate) request_bytes: usize,
    /// Entries that may wait; more are refused to their callers.
    pub(crate) max_pending: usize,
    /// Entries that may be set aside, which the relay has no room for; more are not kept.
    pub(crate) max_set_aside: usize,
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
    set_aside: SetAside,
    on_their_way: VecDeque<Request>,
    /// One of the requests on their way is a probe.
    probing: bool,
    callers: Callers,
    backoff: Backoff,
    retry_at: Tick,
    /// Counts submissions: what a flush waits for.
    submitted: u64,
    /// The first refusal of something that was posted, for the next flush.
    refused: Option<Error>,
    dropped: Dropped,
    /// Why the last attempt failed, for whoever runs out of time.
    failure: Option<Error>,
    /// A relay has answered before.
    known: bool,
}

/// The publisher's name in a request: key, length and the longest text.
const NAME: usize = 3 + Limits::TEXT;

impl Default for PublisherConfig {
    fn default() -> Self {
        Self {
            conflate: true,
            batch: 256,
            pipeline: 8,
            request_bytes: Limits::NOTIFY_BYTES,
            max_pending: 100_000,
            max_set_aside: 100_000,
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
            set_aside: SetAside::new(config.conflate),
            config,
            on_their_way: VecDeque::new(),
            probing: false,
            callers: Callers::default(),
            backoff,
            retry_at: Tick::default(),
            submitted: 0,
            refused: None,
            dropped: Dropped::default(),
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
            let mut entry = self.entry(notification, now);
            self.callers.list(&mut entry.waiters, id, index);
            self.add(entry);
        }
        Ok(id)
    }

    /// Takes a notification that nobody waits for.
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
        let load = self.probe(now).or_else(|| self.entries())?;
        let notifications = load.entries().map(|entry| entry.effective(now)).collect();
        self.on_their_way.push_back(Request { load, sent_at: now });
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
        let short = |accepted: &Vec<Accepted>| accepted.len() != request.load.len();
        let answer = match answer {
            // Nobody knows which of them were counted: sent again, rather than lost.
            Ok(accepted) if short(&accepted) => Err(Error::new(
                ErrorKind::Internal,
                "the relay's answer does not fit the request",
            )),
            answer => answer,
        };
        self.probing &= !matches!(request.load, Load::Probe(_));
        match answer {
            Ok(accepted) => self.take(request.load, &accepted),
            Err(error) if is_refused(error.kind()) => self.refuse(request.load, &error, now, rng),
            Err(error) => {
                self.put_back(request.load, now);
                self.wait(&error, now, rng);
            }
        }
        self.finish_flushes();
        self.purge();
    }

    /// The connection broke: all that is on its way is sent again, and may be counted twice.
    pub(crate) fn broken(&mut self, error: &Error, now: Tick, rng: &mut fastrand::Rng) {
        self.probing = false;
        // The last one first: each is put back to the front.
        for request in std::mem::take(&mut self.on_their_way).into_iter().rev() {
            match error.kind() {
                // The stream ends so where a request is too large, and does not tell which.
                ErrorKind::Exhausted => self.halve(request.load, now),
                _ => self.put_back(request.load, now),
            }
        }
        self.wait(error, now, rng);
        if self.is_refusal(error.kind()) {
            // Said at once, instead of letting everybody run out of time. What they notified is kept
            // all the same: once the refusal is mended, somebody may still be asleep for want of it.
            self.callers.all_refused(error);
        }
        self.finish_flushes();
        self.purge();
    }

    /// Answers whoever has waited long enough. Returns whether the oldest request has waited too
    /// long for its answer: the connection is dead then.
    pub(crate) fn elapsed(&mut self, now: Tick) -> bool {
        while let Some(waiter) = self.callers.late(now) {
            if !planted!(self.config.fault, DeadlineSilent) {
                self.callers.finish(waiter, Err(self.out_of_time()));
            }
        }
        self.purge();
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
        let room = self.on_their_way.len() < self.config.pipeline;
        let retry = (room && !self.pending.is_empty()).then_some(self.retry_at);
        let probe = self.set_aside.due().filter(|_| room && !self.probing);
        let probe = probe.map(|due| due.max(self.retry_at));
        let others = [answer, retry, probe].into_iter().flatten();
        others.fold(self.callers.deadline(), Tick::min)
    }

    /// Returns when the next request may be sent.
    pub(crate) fn retry_at(&self) -> Tick {
        self.retry_at
    }

    /// Returns whether there is something to send, now or later: a connection is needed.
    pub(crate) fn has_work(&self) -> bool {
        !self.on_their_way.is_empty() || !self.pending.is_empty() || self.set_aside.len() > 0
    }

    /// Takes the answers for callers that wait.
    pub(crate) fn take_done(&mut self) -> Vec<Done> {
        self.callers.take_done()
    }

    /// Forgets a caller that no longer waits; what it notified is still sent.
    pub(crate) fn abandon(&mut self, waiter: WaiterId) {
        self.callers.abandon(waiter);
        self.purge();
    }

    /// Returns the number of entries that wait to be sent.
    pub(crate) fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// Returns the number of entries that wait, were set aside or are on their way.
    pub(crate) fn pending(&self) -> usize {
        let sent = self.on_their_way.iter().map(|request| request.load.len());
        self.pending.len() + self.set_aside.len() + sent.sum::<usize>()
    }

    /// Returns how many callers' notifications the entries' lists name, and have room for.
    #[cfg(test)]
    pub(crate) fn listed(&mut self) -> (usize, usize) {
        let sent = self.on_their_way.iter_mut();
        let sent = sent.flat_map(|request| request.load.entries_mut());
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
        // Those that were set aside have a limit of their own, or refused queues would block others.
        let waiting = self.pending.len();
        if waiting + notifications.len() <= self.config.max_pending {
            return Ok(());
        }
        // Exactly, where it is close: what is conflated costs nothing.
        let keys = notifications.iter().map(|n| self.key(n, now));
        let new = if self.config.conflate {
            let holds = |key: &Key| self.pending.holds(key) || self.set_aside.holds(key);
            let new: HashSet<Key> = keys.filter(|key| !holds(key)).collect();
            new.len()
        } else {
            notifications.len()
        };
        if waiting + new > self.config.max_pending {
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

    fn entry(&mut self, notification: Notification, now: Tick) -> Entry {
        self.submitted += 1;
        Entry {
            key: self.key(&notification, now),
            notification,
            oldest: self.submitted,
            among: usize::MAX,
            waiters: Vec::new(),
            posted: false,
        }
    }

    /// Adds an entry to the one of its queue and time, where there is one.
    fn add(&mut self, entry: Entry) {
        match self.set_aside.find(&entry.key) {
            Some(refused) => {
                // No flush waits for it, so the next one is told.
                if entry.posted {
                    self.refused.get_or_insert_with(|| refused.error.clone());
                }
                refused.merge(entry);
            }
            None => self.pending.push(entry),
        }
    }

    /// Takes the next request's entries, in the order in which they came.
    fn entries(&mut self) -> Option<Load> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut most = self.config.batch.clamp(1, Limits::EVENTS);
        let mut room = self.config.request_bytes.saturating_sub(NAME);
        while let Some(front) = self.pending.front() {
            let bytes = front.notification.encoded_at_most();
            most = most.min(front.among);
            if entries.len() >= most || (bytes > room && !entries.is_empty()) {
                break;
            }
            room = room.saturating_sub(bytes);
            entries.extend(self.pending.pop());
        }
        (!entries.is_empty()).then_some(Load::Entries(entries))
    }

    /// Puts what a request carried back to where it came from.
    fn put_back(&mut self, load: Load, now: Tick) {
        if planted!(self.config.fault, PublisherGivesUp) {
            return;
        }
        match load {
            Load::Entries(entries) => {
                for entry in entries.into_iter().rev() {
                    self.pending.put_back(entry);
                }
            }
            Load::Probe(probe) => self.set_aside.put_back(probe, now),
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

    /// The relay counted all that the request carried.
    fn take(&mut self, load: Load, accepted: &[Accepted]) {
        self.backoff.reset();
        (self.failure, self.known) = (None, true);
        if let Load::Probe(probe) = &load {
            self.set_aside.taken(probe.len());
        }
        for (entry, accepted) in load.into_entries().zip(accepted) {
            self.callers.all_accepted(entry.waiters, *accepted);
        }
    }

    /// Answers the flushes whose submissions have all been answered.
    fn finish_flushes(&mut self) {
        // Entries leave in the order in which they came, but for those put back into a later one:
        // while the first of all is not new enough, no other need be asked.
        let mut sent = self.on_their_way.iter().filter_map(Request::entries);
        let first = sent.next().and_then(<[Entry]>::first);
        let first = first
            .or_else(|| self.pending.front())
            .map_or(u64::MAX, |entry| entry.oldest);
        if !self.callers.flushes_before(first) {
            return;
        }
        let sent = self.on_their_way.iter().filter_map(Request::entries);
        let all = self.pending.iter().chain(sent.flatten());
        let oldest = all.map(|entry| entry.oldest).min().unwrap_or(u64::MAX);
        self.callers.flushed(oldest, &mut self.refused);
    }

    /// Takes callers that left off the entries' lists, so that these grow with queues, not calls.
    fn purge(&mut self) {
        if !self.callers.wants_purge(|| self.pending()) {
            return;
        }
        let sent = self.on_their_way.iter_mut();
        let sent = sent.flat_map(|request| request.load.entries_mut());
        let waiting = self.pending.iter_mut().chain(self.set_aside.entries_mut());
        let lists = waiting.chain(sent).map(|entry| &mut entry.waiters);
        self.callers.purge(lists);
    }
}

/// Returns whether the answer says that an entry of the request is refused.
fn is_refused(kind: ErrorKind) -> bool {
    is_final(kind) || kind == ErrorKind::Exhausted
}
