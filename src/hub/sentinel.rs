//! The sentinel of one queue: when a look is due, and which listener outside of groups is asked.
//!
//! One look per interval since the last one that was reported (R11), in case a publisher died
//! between put and notify. Asked are, in turn, those that report, and who never does only where
//! none of them reports it; never one whose stream has not sent its last message yet, nor one that
//! polls. Only a report ends a question: without one in time, the next listener is asked, each once.
//! A plain structure: the record's lock guards it.

use std::{collections::BTreeSet, time::Duration};

use super::links::{Link, Links};
use crate::{backoff::about, clock::Tick};

/// When a queue was last looked at, and who is asked to.
#[derive(Debug)]
pub(super) struct Sentinel {
    interval: Duration,
    timeout: Duration,
    /// When the next look is due, or while one is asked, when the next one is.
    due: Tick,
    /// Who is asked now.
    asked: Option<usize>,
    /// Questions that their streams have not taken yet.
    asks: BTreeSet<usize>,
    /// Where the next turn begins.
    turn: usize,
    round: Option<Round>,
    /// Spreads the looks: seeded by the hub's maker and the queue's number.
    rng: fastrand::Rng,
}

/// One look, until somebody reports it.
#[derive(Debug, Clone, Copy)]
struct Round {
    /// Slots that are still to come to.
    left: usize,
    /// Those that never report are asked by now.
    mute: bool,
    /// One was passed over whose stream sends just now.
    aside: bool,
    asked: bool,
}

impl Sentinel {
    pub(super) fn new(interval: Duration, timeout: Duration, seed: u64, now: Tick) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        Self {
            interval,
            timeout,
            due: now + about(interval, &mut rng),
            asked: None,
            asks: BTreeSet::new(),
            turn: 0,
            round: None,
            rng,
        }
    }

    pub(super) fn due(&self) -> Tick {
        self.due
    }

    /// Somebody looked and said so, or a group was asked to: the interval begins again.
    pub(super) fn begin_again(&mut self, now: Tick) {
        (self.asked, self.round) = (None, None);
        self.due = now + about(self.interval, &mut self.rng);
    }

    /// Somebody came: a look that was due while nobody was here is due now. Streams that come and go
    /// faster than the interval must not put it off for ever.
    pub(super) fn join(&mut self, now: Tick) {
        if self.due == Tick::NEVER {
            self.due = now;
        }
    }

    pub(super) fn is_asked(&self, slot: usize) -> bool {
        self.asked == Some(slot)
    }

    /// A listener's stream ended; where it was asked, the next one is asked at once.
    pub(super) fn leave(&mut self, slot: usize, now: Tick) {
        self.asks.remove(&slot);
        if self.asked == Some(slot) {
            (self.asked, self.due) = (None, now);
        }
    }

    /// Asks the next listener; where everybody was asked, the look waits for the next interval.
    pub(super) fn ask(&mut self, links: &Links, now: Tick, targets: &mut Vec<Link>) {
        if links.len() == 0 {
            self.begin_again(now);
            self.due = Tick::NEVER;
            return;
        }
        let count = links.slots();
        let mut round = self.round.unwrap_or(Round {
            left: count,
            mute: false,
            aside: false,
            asked: false,
        });
        while round.left > 0 || !round.mute {
            if round.left == 0 {
                (round.left, round.mute) = (count, true);
                continue;
            }
            round.left -= 1;
            let slot = self.turn % count;
            self.turn = slot + 1;
            let Some(link) = links.get(slot).filter(|link| looks(link, round.mute, now)) else {
                continue;
            };
            if !link.subscription.reserve_once() {
                round.aside = true;
                continue;
            }
            round.asked = true;
            (self.asked, self.round) = (Some(slot), Some(round));
            self.due = now + self.timeout;
            self.asks.insert(slot);
            targets.push(link.clone());
            return;
        }
        let retry = round.aside && !round.asked;
        self.begin_again(now);
        if retry {
            self.due = now + self.timeout;
        }
    }

    /// Asks as many more, because one found more than it can take on.
    pub(super) fn ask_more(&mut self, links: &Links, more: u64, targets: &mut Vec<Link>) {
        let (count, mut more) = (links.slots(), more);
        for _ in 0..count {
            let slot = self.turn % count;
            if more == 0 {
                break;
            }
            self.turn = slot + 1;
            if let Some(link) = links.get(slot)
                && link.subscription.reserve_once()
            {
                more -= 1;
                self.asks.insert(slot);
                targets.push(link.clone());
            }
        }
    }

    /// Takes the question that waits for the slot's stream; returns whether there was one, and
    /// whether there are others.
    pub(super) fn take(&mut self, slot: usize) -> (bool, bool) {
        let taken = self.asks.remove(&slot);
        (taken, !self.asks.is_empty())
    }

    pub(super) fn give_back(&mut self, slot: usize) {
        self.asks.insert(slot);
    }
}

fn looks(link: &Link, mute: bool, now: Tick) -> bool {
    link.subscription.reports() != mute && !link.subscription.polls(now)
}
