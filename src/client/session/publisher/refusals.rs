//! What becomes of a refused request: halves, down to the entries that are to blame (R19).
//!
//! An entry that breaks a rule fails to its callers and is dropped. An entry that the relay has no
//! room for fails to its callers as well, but is kept, because a listener may sleep until it is
//! counted. At the limit of kept entries a further one is dropped. Its error says so,
//! and the error of a kept entry says that it is kept.

use super::{PublisherSession, RequestEntries};
use crate::{
    base::{clock::Tick, fault::planted},
    client::session::outbox::{Entry, EntryKey},
    error::{Error, ErrorKind},
    types::QueueAddress,
};

/// Notifications that the relay had no room for and that were not kept.
#[derive(Debug, Default, Clone)]
pub(crate) struct Dropped {
    pub(crate) count: u64,
    /// The queue of the newest one, until it is taken.
    pub(crate) queue: Option<QueueAddress>,
}

impl Dropped {
    fn add(&mut self, entry: Entry) {
        let count = entry.notification.notifications.max(1);
        self.count = self.count.saturating_add(count);
        self.queue = Some(entry.key.queue);
    }
}

impl PublisherSession {
    /// Returns the notifications dropped so far, if the number grew since the last call.
    pub(crate) fn take_dropped(&mut self) -> Option<Dropped> {
        let queue = self.dropped.queue.take()?;
        let count = self.dropped.count;
        Some(Dropped {
            count,
            queue: Some(queue),
        })
    }

    /// Returns the number of notifications dropped so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.count
    }

    /// Returns whether an entry may be set aside: it merges into a kept one, or the limit has room.
    fn is_kept(&self, key: &EntryKey) -> bool {
        let in_flight = self.in_flight.iter().map(|request| &request.body);
        let probes = in_flight.filter(|body| matches!(body, RequestEntries::Probe(_)));
        let kept = self.set_aside.len() + probes.map(RequestEntries::len).sum::<usize>();
        kept < self.config.max_set_aside || self.set_aside.contains(key)
    }

    /// Takes the entries of a probe if one is due.
    pub(super) fn probe(&mut self, now: Tick) -> Option<RequestEntries> {
        if self.probing {
            return None;
        }
        let max_bytes = self.config.entry_bytes();
        let probe = self.set_aside.take_probe(now, self.config.batch, max_bytes);
        self.probing = !probe.is_empty();
        self.probing.then_some(RequestEntries::Probe(probe))
    }

    /// Splits a refused request into halves, which are sent again. So the valid entries wait for a
    /// logarithmic number of round trips. In a request of one entry, that entry is the refused one.
    pub(super) fn refuse(
        &mut self,
        body: RequestEntries,
        error: &Error,
        now: Tick,
        rng: &mut fastrand::Rng,
    ) {
        let full = error.kind() == ErrorKind::Exhausted;
        if body.len() > 1 {
            if planted!(BatchDropped) {
                return;
            }
            return self.halve(body, now);
        }
        match body {
            RequestEntries::Entries(entries) => {
                for mut entry in entries {
                    let kept = full && self.is_kept(&entry.key);
                    self.refuse_waiters(&mut entry, error, kept);
                    if kept {
                        entry.mark_set_aside();
                        self.set_aside.add(entry, error, now, rng);
                    } else if full {
                        self.dropped.add(entry);
                    }
                }
            }
            RequestEntries::Probe(probe) => {
                for mut refused in probe {
                    self.refuse_waiters(&mut refused.entry, error, full);
                    if full {
                        self.set_aside.refused_again(refused, error, now, rng);
                    }
                }
            }
        }
    }

    /// Puts a request's entries back, to be sent in requests of at most half its size.
    pub(super) fn halve(&mut self, mut body: RequestEntries, now: Tick) {
        let half = body.len().div_ceil(2);
        if let RequestEntries::Entries(entries) = &mut body {
            entries.iter_mut().for_each(|entry| entry.max_batch = half);
        } else {
            self.set_aside.limit_probe(half);
        }
        self.put_back(body, now);
    }

    /// Fails the entry's callers, and the next flush if the entry was posted. If the relay is full,
    /// the error says whether the entry is kept.
    fn refuse_waiters(&mut self, entry: &mut Entry, error: &Error, kept: bool) {
        let mut waiter_error = error.clone();
        if error.kind() == ErrorKind::Exhausted {
            let message = match (kept, self.config.max_set_aside) {
                (true, _) => format!("{error}; the notification is kept and sent again"),
                (false, limit) => format!(
                    "{error}; the notification is dropped: {limit} refused ones are kept already"
                ),
            };
            let after = error.retry_after().unwrap_or_default();
            waiter_error = Error::new(ErrorKind::Exhausted, message).with_retry_after(after);
        }
        if std::mem::take(&mut entry.posted) {
            self.refused.get_or_insert_with(|| waiter_error.clone());
        }
        let waiters = std::mem::take(&mut entry.waiters);
        self.waiters.refuse_listed(waiters, &waiter_error);
    }
}
