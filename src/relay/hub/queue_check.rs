//! The sentinel of one queue: a periodic resync, in case a publisher died between put and notify.
//! It decides when a check is due, and which listener outside of groups is asked.
//!
//! R11: each queue is checked once per interval, and only a report counts. Reporting listeners are
//! asked in turn. Those that never report are asked only where no other listener reports the check.
//! A stream with an unsent frame and a polling listener are never asked. Without a report in time,
//! the next listener is asked, each once. Due times lie on a grid, so that one Wake carries the
//! checks of many queues. A plain structure: the entry's lock guards it.

use std::{collections::BTreeSet, time::Duration};

use super::{
    config::CoordinatorConfig,
    mailbox::WakeBatch,
    subscribers::{Subscriber, Subscribers},
};
use crate::base::{backoff::jitter, clock::Tick};

/// When a queue was last checked, and which listener is asked.
#[derive(Debug)]
pub(super) struct QueueCheck {
    interval: Duration,
    timeout: Duration,
    /// Listeners of other relays check as well.
    cluster: bool,
    /// When the next check is due; while a listener is asked, when the next listener is.
    due: Tick,
    /// The listener that is asked now.
    asked: Option<u64>,
    /// Checks that wait for their listeners' streams.
    pending: BTreeSet<u64>,
    /// The listener that was asked last.
    last_asked: Option<u64>,
    round: Option<CheckRound>,
    /// A listener was skipped because its stream has an unsent frame; it is asked after that was
    /// sent.
    passed_over: bool,
    /// Spreads the checks: seeded by the hub and the queue's number.
    rng: fastrand::Rng,
}

/// One check, until it is reported.
#[derive(Debug, Clone, Copy)]
struct CheckRound {
    /// Listeners left in this pass.
    left: usize,
    /// The second pass: it asks the listeners that never report.
    non_reporting: bool,
    asked: bool,
}

/// Due times are rounded up to this fraction of the interval: about a second of the default minute.
const GRID: u32 = 64;

impl QueueCheck {
    pub(super) fn new(config: &CoordinatorConfig, seed: u64, now: Tick) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        let mut sentinel = Self {
            interval: config.sentinel_interval,
            timeout: config.claim_timeout,
            cluster: config.cluster,
            due: now,
            asked: None,
            pending: BTreeSet::new(),
            last_asked: None,
            round: None,
            passed_over: false,
            rng,
        };
        sentinel.restart_interval(now);
        sentinel
    }

    pub(super) fn due(&self) -> Tick {
        self.due
    }

    /// A check was reported, or a group was asked for one: the interval restarts.
    pub(super) fn restart_interval(&mut self, now: Tick) {
        // Plus or minus a tenth. In a cluster, only less: the relay whose listener checked is the
        // next one as well, and the others are not due at the same moment (C12).
        let tenth = self.interval / 10;
        let spread = if self.cluster { tenth } else { tenth * 2 };
        self.restart(self.interval - tenth, spread, now);
    }

    /// A listener of another relay has reported a check: it is not due here before that one.
    pub(super) fn checked_by_peer(&mut self, now: Tick) {
        // A check that is due without listeners stays due for the next one.
        if self.due != Tick::NEVER {
            self.restart(self.interval, self.interval / 10, now);
        }
    }

    /// Restarts the interval: at least this long, and up to `spread` longer.
    fn restart(&mut self, least: Duration, spread: Duration, now: Tick) {
        (self.asked, self.round, self.passed_over) = (None, None, false);
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

    /// Returns whether a check of listeners outside of groups is in progress.
    pub(super) fn is_asking(&self) -> bool {
        self.round.is_some()
    }

    pub(super) fn is_asked(&self, key: u64) -> bool {
        self.asked == Some(key)
    }

    /// A listener's stream ended; where it was asked, the next one is asked at once.
    pub(super) fn leave(&mut self, key: u64, now: Tick) {
        self.pending.remove(&key);
        if self.asked == Some(key) {
            (self.asked, self.due) = (None, now);
        }
    }

    /// A listener's stream has sent its messages: it is asked now, where no other listener is.
    pub(super) fn stream_sent(&mut self, now: Tick) {
        if std::mem::take(&mut self.passed_over) && self.asked.is_none() {
            self.due = self.due.min(now);
        }
    }

    /// Asks the next listener; where all were asked, the check waits for the next interval.
    pub(super) fn ask(&mut self, subscribers: &Subscribers, now: Tick, batch: &mut WakeBatch) {
        let count = subscribers.len();
        if count == 0 {
            self.restart_interval(now);
            self.due = Tick::NEVER;
            return;
        }
        let mut round = self.round.unwrap_or(CheckRound {
            left: count,
            non_reporting: false,
            asked: false,
        });
        while round.left > 0 || !round.non_reporting {
            if round.left == 0 {
                (round.left, round.non_reporting) = (count, true);
                continue;
            }
            round.left -= 1;
            let Some((key, one)) = subscribers.after(self.last_asked) else {
                break;
            };
            self.last_asked = Some(key);
            if one.mailbox.reports() == round.non_reporting || !one.mailbox.can_check(now) {
                continue;
            }
            if !one.mailbox.assign_check(one.cursor) {
                self.passed_over = true;
                continue;
            }
            round.asked = true;
            (self.asked, self.round) = (Some(key), Some(round));
            self.due = now + self.timeout;
            self.add_check(key, one, batch);
            return;
        }
        // The queue of a skipped stream waits for it to send.
        let passed_over = self.passed_over && !round.asked;
        self.restart_interval(now);
        self.passed_over = passed_over;
    }

    /// Asks `more` listeners, because one found more than its capacity.
    pub(super) fn ask_more(
        &mut self,
        subscribers: &Subscribers,
        mut more: u64,
        batch: &mut WakeBatch,
    ) {
        for _ in 0..subscribers.len() {
            let Some((key, one)) = subscribers.after(self.last_asked).filter(|_| more > 0) else {
                break;
            };
            self.last_asked = Some(key);
            if one.mailbox.assign_unless_sending() {
                more -= 1;
                self.add_check(key, one, batch);
            }
        }
    }

    fn add_check(&mut self, key: u64, one: &Subscriber, batch: &mut WakeBatch) {
        self.pending.insert(key);
        batch.mark(&one.mailbox, one.cursor);
    }

    /// Takes the check that waits for this listener's stream; returns whether there was one, and
    /// whether there are others.
    pub(super) fn take_check(&mut self, key: u64) -> (bool, bool) {
        let taken = self.pending.remove(&key);
        (taken, !self.pending.is_empty())
    }

    pub(super) fn return_check(&mut self, key: u64) {
        self.pending.insert(key);
    }

    fn on_grid(&self, due: Tick) -> Tick {
        due.next_multiple_of(self.interval / GRID)
    }
}
