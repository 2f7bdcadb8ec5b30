//! What becomes of a refused request: halves, down to the entries that are to blame (R19: a bad
//! event fails alone).
//!
//! An entry that breaks a rule fails to its callers and is gone. One that the relay has no room for
//! fails to its callers as well, and is kept: somebody may sleep until it is counted. Where as many
//! are kept as may be, the one that is refused last is not: its callers are told so now, and those
//! of the others were told that theirs are kept.

use super::{Load, PublisherSession};
use crate::{
    clock::Tick,
    error::{Error, ErrorKind},
    fault::planted,
    session::entry::{Entry, Key},
    words::QueueAddress,
};

/// Notifications that the relay had no room for and that were not kept either.
#[derive(Debug, Default, Clone)]
pub(crate) struct Dropped {
    pub(crate) count: u64,
    /// The queue of the newest of them, until it is taken.
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
    /// Returns what was dropped so far, where something was since the last time.
    pub(crate) fn take_dropped(&mut self) -> Option<Dropped> {
        let queue = self.dropped.queue.take()?;
        let count = self.dropped.count;
        Some(Dropped {
            count,
            queue: Some(queue),
        })
    }

    /// Returns how many notifications were dropped so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.count
    }

    /// Returns whether an entry may be set aside: it joins another one, or there is room.
    fn is_kept(&self, key: &Key) -> bool {
        let on_their_way = self.on_their_way.iter().map(|request| &request.load);
        let probes = on_their_way.filter(|load| matches!(load, Load::Probe(_)));
        let kept = self.set_aside.len() + probes.map(Load::len).sum::<usize>();
        kept < self.config.max_set_aside || self.set_aside.holds(key)
    }

    /// Takes the entries of a probe, where one is due.
    pub(super) fn probe(&mut self, now: Tick) -> Option<Load> {
        if self.probing {
            return None;
        }
        let room = self.config.request_bytes.saturating_sub(super::NAME);
        let probe = self.set_aside.take_probe(now, self.config.batch, room);
        self.probing = !probe.is_empty();
        self.probing.then_some(Load::Probe(probe))
    }

    /// A request was refused: it is sent again in halves. So the good entries wait for the logarithm
    /// of their number, and not for each other. An entry that was alone is to blame.
    pub(super) fn refuse(&mut self, load: Load, error: &Error, now: Tick, rng: &mut fastrand::Rng) {
        let full = error.kind() == ErrorKind::Exhausted;
        if planted!(self.config.fault, ExhaustedRetriedWhole) && full {
            self.put_back(load, now);
            return self.wait(error, now, rng);
        }
        if load.len() > 1 {
            if !planted!(self.config.fault, BatchDropped) {
                self.halve(load, now);
            }
            return;
        }
        match load {
            Load::Entries(entries) => {
                for mut entry in entries {
                    let kept = full && self.is_kept(&entry.key);
                    self.tell(&mut entry, error, kept);
                    if planted!(self.config.fault, SetAsideDropped) {
                        continue;
                    }
                    if kept {
                        entry.is_set_aside();
                        self.set_aside.add(entry, error, now, rng);
                    } else if full {
                        self.dropped.add(entry);
                    }
                }
            }
            Load::Probe(probe) => {
                for mut refused in probe {
                    self.tell(&mut refused.entry, error, full);
                    if full {
                        self.set_aside.refused_again(refused, error, now, rng);
                    }
                }
            }
        }
    }

    /// Puts what a request carried back, to be sent in requests of half its size at most.
    pub(super) fn halve(&mut self, mut load: Load, now: Tick) {
        let half = load.len().div_ceil(2);
        if let Load::Entries(entries) = &mut load {
            entries.iter_mut().for_each(|entry| entry.among = half);
        } else {
            self.set_aside.narrow(half);
        }
        self.put_back(load, now);
    }

    /// Tells the entry's callers, and for what was posted the next flush; and whether it is kept where
    /// the relay has no room for it.
    fn tell(&mut self, entry: &mut Entry, error: &Error, kept: bool) {
        let mut told = error.clone();
        if error.kind() == ErrorKind::Exhausted {
            let message = match (kept, self.config.max_set_aside) {
                (true, _) => format!("{error}; the notification is kept and sent again"),
                (false, limit) => format!(
                    "{error}; the notification is dropped: {limit} refused ones are kept already"
                ),
            };
            let after = error.retry_after().unwrap_or_default();
            told = Error::new(ErrorKind::Exhausted, message).with_retry_after(after);
        }
        if std::mem::take(&mut entry.posted) {
            self.refused.get_or_insert_with(|| told.clone());
        }
        let waiters = std::mem::take(&mut entry.waiters);
        self.callers.all_on_refused(waiters, &told);
    }
}
