//! The sentinel of one queue: a periodic check, in case a publisher died between put and notify. It
//! decides when a check is due, and which listener outside of groups is asked.
//!
//! R11: one listener is asked in each interval, in turn, and only a report restarts the interval. A
//! listener that hangs costs one interval, since the next one is asked then. Listeners that report
//! are asked first; where none of those has answered, all are in turn. Agents and listeners that
//! poll are not asked. Due times lie on a grid, so that one Wake carries the checks of many queues.
//! A plain structure: the entry's lock guards it.

use std::{collections::BTreeSet, time::Duration};

use super::{
    config::CoordinatorConfig,
    mailbox::WakeBatch,
    subscribers::{Subscriber, Subscribers},
};
use crate::base::{backoff::jitter, clock::Tick, fault::planted};

/// When a queue is checked, and which listener is asked.
#[derive(Debug)]
pub(super) struct QueueCheck {
    interval: Duration,
    /// Listeners of other relays check as well.
    cluster: bool,
    /// When the next listener is asked; [`Tick::NEVER`]: when one joins.
    due: Tick,
    /// Checks in a row without a report: of all, and those that listeners outside of groups were
    /// asked for.
    pub(super) unanswered: usize,
    asked_in_vain: usize,
    /// The listener that was asked last, while the check is unreported.
    asked: Option<u64>,
    last_asked: Option<u64>,
    /// Checks that wait for their listeners' streams.
    pending: BTreeSet<u64>,
    /// Spreads the checks: seeded by the hub and the queue's number.
    rng: fastrand::Rng,
}

/// Due times are rounded up to this fraction of the interval: about a second of the default minute.
const GRID: u32 = 64;

impl QueueCheck {
    pub(super) fn new(config: &CoordinatorConfig, seed: u64, now: Tick) -> Self {
        let mut check = Self {
            interval: config.sentinel_interval,
            cluster: config.cluster,
            due: now,
            unanswered: 0,
            asked_in_vain: 0,
            asked: None,
            last_asked: None,
            pending: BTreeSet::new(),
            rng: fastrand::Rng::with_seed(seed),
        };
        check.restart(now);
        check
    }

    pub(super) fn due(&self) -> Tick {
        self.due
    }

    /// A check was reported.
    pub(super) fn reported(&mut self, now: Tick) {
        self.forget_asked();
        self.restart(now);
    }

    /// A listener of another relay has reported a check: it is not due here before that one.
    pub(super) fn checked_by_peer(&mut self, now: Tick) {
        // A check that is due without listeners stays due for the next one.
        if self.due != Tick::NEVER {
            self.forget_asked();
            self.restart_after(self.interval, self.interval / 10, now);
        }
    }

    fn forget_asked(&mut self) {
        (self.asked, self.unanswered, self.asked_in_vain) = (None, 0, 0);
    }

    /// Nobody is left whom the unreported check was given to: the next one is asked at once.
    pub(super) fn ask_at_once(&mut self, now: Tick) {
        if self.unanswered > 0 {
            self.due = now;
        }
    }

    /// Begins the next interval.
    pub(super) fn restart(&mut self, now: Tick) {
        // Plus or minus a tenth. In a cluster, only less: the relay whose listener checked is the
        // next one as well, and the others are not due at the same moment (C12).
        let tenth = self.interval / 10;
        let spread = if self.cluster { tenth } else { tenth * 2 };
        self.restart_after(self.interval - tenth, spread, now);
    }

    fn restart_after(&mut self, least: Duration, spread: Duration, now: Tick) {
        // Less the width of the grid.
        let spread = spread - self.interval / GRID;
        let due = now + least + jitter(spread, &mut self.rng);
        self.due = self.on_grid(due);
    }

    /// A listener joined. A check that fell due without listeners is due now, or within `spread`
    /// for a stream of many queues. Otherwise, streams that come and go faster than the interval
    /// would put it off for ever.
    pub(super) fn join(&mut self, now: Tick, spread: Duration) {
        if self.due == Tick::NEVER {
            let within = jitter(spread.min(self.interval), &mut self.rng);
            self.due = match spread.is_zero() {
                true => now,
                false => self.on_grid(now + within),
            };
        }
    }

    pub(super) fn is_asked(&self, key: u64) -> bool {
        self.asked == Some(key)
    }

    /// A listener's stream ended; where it was asked, the next one is asked at once.
    pub(super) fn leave(&mut self, key: u64, now: Tick) {
        self.pending.remove(&key);
        let asked = self.asked.take_if(|asked| *asked == key).is_some();
        if asked && !planted!(AskedCountsAsLooked) {
            self.due = now;
        }
    }

    /// No listener is there to ask: the next one that joins is.
    pub(super) fn wait_for_listener(&mut self) {
        self.due = Tick::NEVER;
    }

    /// Asks the next listener; returns whether one can be asked.
    pub(super) fn ask(
        &mut self,
        subscribers: &Subscribers,
        now: Tick,
        batch: &mut WakeBatch,
    ) -> bool {
        let can_check = || subscribers.iter().filter(|one| one.mailbox.can_check(now));
        let reporting = can_check().filter(|one| one.mailbox.reports()).count();
        let of_reporting = is_turn_of_reporting(self.asked_in_vain, reporting, can_check().count());
        let next = subscribers.in_turn(self.last_asked).find(|(_, one)| {
            one.mailbox.can_check(now) && (!of_reporting || one.mailbox.reports())
        });
        let Some((key, one)) = next else {
            return false;
        };
        if !planted!(CheckTurnStuck) {
            self.last_asked = Some(key);
        }
        self.asked_in_vain += 1;
        self.asked = Some(key);
        self.add(key, one, batch);
        true
    }

    /// Asks `more` listeners, because one found more than its capacity.
    pub(super) fn ask_more(
        &mut self,
        subscribers: &Subscribers,
        more: u64,
        now: Tick,
        batch: &mut WakeBatch,
    ) {
        let more = usize::try_from(more).unwrap_or(usize::MAX);
        let others = subscribers.len().saturating_sub(1);
        let others = subscribers.in_turn(self.last_asked).take(others);
        let can_check = others.filter(|(_, one)| one.mailbox.can_check(now));
        for (key, one) in can_check.take(more) {
            self.last_asked = Some(key);
            self.add(key, one, batch);
        }
    }

    fn add(&mut self, key: u64, one: &Subscriber, batch: &mut WakeBatch) {
        self.pending.insert(key);
        batch.mark(&one.mailbox, one.cursor);
    }

    /// Takes the check that waits for this listener's stream; returns whether there was one, and
    /// whether there are others.
    pub(super) fn take(&mut self, key: u64) -> (bool, bool) {
        let taken = self.pending.remove(&key);
        (taken, !self.pending.is_empty())
    }

    pub(super) fn give_back(&mut self, key: u64) {
        self.pending.insert(key);
    }

    fn on_grid(&self, due: Tick) -> Tick {
        due.next_multiple_of(self.interval / GRID)
    }
}

/// Returns whether a listener that reports has its turn, after so many in vain. Each of those has one
/// turn before all listeners have theirs.
pub(super) fn is_turn_of_reporting(in_vain: usize, reporting: usize, all: usize) -> bool {
    in_vain % (reporting + all).max(1) < reporting
}
