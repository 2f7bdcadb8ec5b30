//! The sentinel of one queue: a periodic check, in case a publisher died between put and notify. It
//! decides when a check is due, and which listener outside of groups is asked. A pattern has one as well,
//! for its queues without an entry (`pattern::checks`).
//!
//! R11: one listener is asked in each interval, in turn, and only a report restarts the interval. A
//! listener that hangs costs one interval, since the next one is asked then. Listeners that report
//! are asked first; where none of those has answered, all are in turn. Agents and listeners that
//! poll are not asked. Due times lie on a grid, so that one Wake carries the checks of many queues.
//! A plain structure: the entry's lock guards it.

use std::{sync::Arc, time::Duration};

use super::super::{
    config::HubConfig,
    listeners::Listeners,
    subscription::{Subscription, SubscriptionId},
};
use crate::base::{backoff::jitter, clock::Tick, fault::planted};

/// When a queue is checked, and which listener is asked.
#[derive(Debug)]
pub(crate) struct QueueCheck {
    interval: Duration,
    /// Listeners of other relays check as well, and these are told of no check before this time.
    cluster: bool,
    told_until: Tick,
    /// When the next listener is asked; [`Tick::NEVER`]: when one joins.
    pub(crate) due: Tick,
    /// Checks in a row without a report: of all, and those that listeners outside of groups were
    /// asked for.
    pub(crate) unanswered: usize,
    asked_in_vain: usize,
    /// The listener that was asked last, while the check is unreported.
    pub(crate) asked: Option<SubscriptionId>,
    last_asked: Option<SubscriptionId>,
    /// Spreads the checks: seeded by the hub and the queue's number.
    rng: fastrand::Rng,
}

/// Other relays are told of checks at most once in this fraction of the interval.
const TOLD_PER_INTERVAL: u32 = 4;
/// Due times are rounded up to this fraction of the interval: about a second of the default minute.
const GRID: u32 = 64;

impl QueueCheck {
    /// `None` where the sentinel is off. Each `number` has a seed of its own, so that the checks of several
    /// queues do not fall due together.
    pub(crate) fn new(config: &HubConfig, number: u64, now: Tick) -> Option<Self> {
        if config.sentinel_interval.is_zero() {
            return None;
        }
        let seed = config.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut check = Self {
            interval: config.sentinel_interval,
            cluster: config.cluster,
            told_until: now,
            due: now,
            unanswered: 0,
            asked_in_vain: 0,
            asked: None,
            last_asked: None,
            rng: fastrand::Rng::with_seed(seed),
        };
        check.restart(now);
        Some(check)
    }

    /// A check was reported. Returns whether the other relays of a cluster are told of it.
    pub(crate) fn reported(&mut self, now: Tick) -> bool {
        self.forget_asked();
        self.restart(now);
        let tells = self.cluster && now >= self.told_until;
        if tells {
            self.told_until = now + self.interval / TOLD_PER_INTERVAL;
        }
        tells
    }

    /// A listener of another relay has reported a check: it is not due here before that one.
    pub(crate) fn checked_by_peer(&mut self, now: Tick) {
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
    pub(crate) fn ask_at_once(&mut self, now: Tick) {
        if self.unanswered > 0 {
            self.due = now;
        }
    }

    /// The listener that was asked has reported, and not that all is checked.
    pub(crate) fn answered(&mut self, id: SubscriptionId) {
        if self.asked == Some(id) {
            self.forget_asked();
        }
    }

    /// Begins with any part of an interval.
    pub(crate) fn restart_at_random(&mut self, now: Tick) {
        self.restart_after(Duration::ZERO, self.interval, now);
    }

    /// Begins the next interval.
    pub(crate) fn restart(&mut self, now: Tick) {
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
        self.due = due.next_multiple_of(self.interval / GRID);
    }

    /// A listener's stream ended; where it was asked, the next one is asked at once.
    pub(crate) fn leave(&mut self, id: SubscriptionId, now: Tick) {
        let asked = self.asked.take_if(|asked| *asked == id).is_some();
        if asked && !planted!(AskedCountsAsLooked) {
            self.due = now;
        }
    }

    /// Chooses the listener that is asked now, if one can be.
    pub(crate) fn choose(&mut self, listeners: &Listeners, now: Tick) -> Option<Arc<Subscription>> {
        let (mut all, mut reporting) = (0, 0);
        listeners.each(|one| {
            let can = one.mailbox.can_check(now);
            all += usize::from(can);
            reporting += usize::from(can && one.mailbox.reports());
        });
        // Each of those that report has one turn before all listeners have theirs.
        let of_reporting = self.asked_in_vain % (reporting + all).max(1) < reporting;
        let next = listeners.next_after(self.last_asked, &|one| {
            one.mailbox.can_check(now) && (!of_reporting || one.mailbox.reports())
        })?;
        if !planted!(CheckTurnStuck) {
            self.last_asked = Some(next.id);
        }
        self.asked_in_vain += 1;
        self.asked = Some(next.id);
        Some(next)
    }
}
