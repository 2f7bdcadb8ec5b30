//! Entries that the relay has no room for, until it has (R19: a bad event fails alone).
//!
//! They are sent again in rounds, all of them in each round. The back-off of the rounds is one for all.

use std::time::Duration;

use super::outbox::{Entry, Outbox};
use crate::{
    base::{backoff::Backoff, clock::Tick},
    error::Error,
};

/// Entries that wait until the relay has room.
#[derive(Debug)]
pub(super) struct Retries {
    pub(super) entries: Outbox,
    /// How many of the first entries the present round has still to send.
    due: usize,
    next_round: Tick,
    /// A round has begun, and the wait for the next one is not drawn yet: the first refusal draws it.
    began: bool,
    pub(super) backoff: Backoff,
}

/// Maximum wait before the first round.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// Maximum wait between rounds, unless the relay requests more. It is half of a caller's default
/// deadline, so that a caller whose notification joins an entry learns of the refusal. A round of
/// 100,000 entries takes a full relay about a tenth of a second.
const MAX_RETRY: Duration = Duration::from_secs(15);

impl Retries {
    pub(super) fn new() -> Self {
        Self {
            entries: Outbox::default(),
            due: 0,
            next_round: Tick::default(),
            began: false,
            backoff: Backoff::new(FIRST_RETRY, MAX_RETRY),
        }
    }

    /// Adds a refused entry.
    pub(super) fn add(&mut self, entry: Entry, error: &Error, now: Tick, rng: &mut fastrand::Rng) {
        // Once in a round, so that the back-off does not grow with its requests.
        if self.entries.is_empty() || self.began {
            self.next_round = now + self.backoff.next(rng);
            self.began = false;
        }
        self.entries.push(entry);
        if let Some(requested) = error.retry_after() {
            self.next_round = self.next_round.max(now + requested);
        }
    }

    /// Returns when entries may be sent.
    pub(super) fn due_at(&self) -> Option<Tick> {
        match (self.due, self.entries.is_empty()) {
            (_, true) => None,
            (0, false) => Some(self.next_round),
            (_, false) => Some(Tick::default()),
        }
    }

    /// Removes the entries of the next request of a round.
    pub(super) fn take(&mut self, now: Tick, most: usize, bytes: usize) -> Vec<Entry> {
        if self.due == 0 && self.next_round <= now {
            self.due = self.entries.len();
            self.began = true;
        }
        let taken = self.entries.take(most.min(self.due), bytes);
        self.due -= taken.len();
        taken
    }

    /// Puts an entry back whose request was not answered. It is due at once.
    pub(super) fn put_back(&mut self, entry: Entry) {
        self.entries.put_back(entry);
        self.due = (self.due + 1).min(self.entries.len());
    }
}
