//! The sentinel of one queue: a periodic check, in case a publisher died between put and notify. It
//! decides when a check is due, and which listener outside of groups is asked.
//!
//! R11: one listener is asked in each interval, in turn, and only a report restarts the interval. A
//! listener that hangs costs one interval, since the next one is asked then. Listeners that report
//! are asked first; the others have a turn where none of those has answered. Agents and listeners
//! that poll are not asked. Due times lie on a grid, so that one Wake carries the checks of many
//! queues. A plain structure: the entry's lock guards it.

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
    /// Checks in a row that nobody has reported.
    pub(super) unanswered: usize,
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
        (self.asked, self.unanswered) = (None, 0);
        self.restart(now);
    }

    /// A listener of another relay has reported a check: it is not due here before that one.
    pub(super) fn checked_by_peer(&mut self, now: Tick) {
        // A check that is due without listeners stays due for the next one.
        if self.due != Tick::NEVER {
            (self.asked, self.unanswered) = (None, 0);
            self.restart_after(self.interval, self.interval / 10, now);
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

    /// Asks the next listener, if one can be asked. In every second pass over the listeners, those
    /// that never report have their turn as well.
    pub(super) fn ask(&mut self, subscribers: &Subscribers, now: Tick, batch: &mut WakeBatch) {
        let all_in_turn = self.unanswered / subscribers.len().max(1) % 2 == 1;
        self.unanswered += 1;
        let next = |reporting: bool| {
            let mut in_turn = subscribers.in_turn(self.last_asked);
            in_turn.find(|(_, one)| {
                one.mailbox.can_check(now) && (!reporting || one.mailbox.reports())
            })
        };
        let first = (!all_in_turn).then(|| next(true)).flatten();
        if let Some((key, one)) = first.or_else(|| next(false)) {
            if !planted!(CheckTurnStuck) || self.last_asked.is_none() {
                self.last_asked = Some(key);
            }
            self.asked = Some(key);
            self.add(key, one, batch);
        }
    }

    /// Asks `more` listeners, because one found more than its capacity.
    pub(super) fn ask_more(&mut self, subscribers: &Subscribers, more: u64, batch: &mut WakeBatch) {
        let more = usize::try_from(more).unwrap_or(usize::MAX);
        let others = subscribers.len().saturating_sub(1);
        for (key, one) in subscribers.in_turn(self.last_asked).take(more.min(others)) {
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
