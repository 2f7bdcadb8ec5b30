//! What a queue has besides its counters: the groups that share it, and its sentinel.
//!
//! Made when the first member joins, or with the first subscriber where there is a sentinel; a queue
//! without either pays one byte's comparison. The record's lock guards all of it, its timers wake it
//! no later than something is due, and no caller learns who was chosen but by the links to wake.

use std::{sync::Arc, time::Duration};

use super::{
    group::{Group, Heard},
    links::{Link, Links},
    place::Tally,
    roster::Grant,
    sentinel::Sentinel,
};
use crate::{
    clock::Tick,
    fault::{Fault, planted},
    words::{GroupName, ReportState, WakeReason},
};

/// How long the hub waits for those that it wakes.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    /// Between two looks at a queue that nobody reports; zero: the sentinel is off.
    pub(crate) sentinel: Duration,
    /// A wake-up to one listener that is not covered by its report for this long goes to another.
    pub(crate) claim: Duration,
    /// A member that reported BUSY is believed for this long (R14).
    pub(crate) lease: Duration,
    /// A group without members is remembered for this long.
    pub(crate) keep: Duration,
    /// Spreads the sentinels' looks.
    pub(crate) seed: u64,
    pub(crate) fault: Fault,
}

/// The groups and the sentinel of one queue.
pub(super) struct Company {
    pace: Arc<Pace>,
    /// Slots that keep their places.
    groups: Vec<Option<Group>>,
    sentinel: Option<Sentinel>,
    /// Which group the sentinel asks next.
    turn: usize,
    /// When the timers come here: no later than anything is due.
    pub(super) tend_at: Tick,
    /// Somebody came, left or reported: there may be something to do at once.
    pub(super) dirty: bool,
    /// When something was last done here.
    now: Tick,
}

/// Where a member sits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) group: u32,
    pub(super) slot: u32,
}

/// What a place is compared with: the queue's totals, and its newest notification.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) tally: Tally,
    pub(super) notified: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            sentinel: Duration::ZERO,
            claim: Duration::from_secs(1),
            lease: Duration::from_secs(30),
            keep: Duration::from_secs(600),
            seed: 0,
            fault: Fault::NONE,
        }
    }
}

impl Head {
    /// Returns why somebody at `place` is owed a wake-up, or `None` where it is not.
    pub(super) fn owed(&self, place: &Tally) -> Option<WakeReason> {
        if place.sequence >= self.tally.sequence {
            return None;
        }
        Some(if self.notified > place.sequence {
            WakeReason::Notified
        } else {
            WakeReason::Timed
        })
    }
}

impl Company {
    pub(super) fn new(pace: &Arc<Pace>, number: u64, now: Tick) -> Self {
        let seed = pace.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let sentinel =
            (!pace.sentinel.is_zero()).then(|| Sentinel::new(pace.sentinel, pace.claim, seed, now));
        Self {
            pace: Arc::clone(pace),
            groups: Vec::new(),
            tend_at: sentinel.as_ref().map_or(Tick::NEVER, Sentinel::due),
            sentinel,
            turn: 0,
            dirty: false,
            now,
        }
    }

    pub(super) fn groups(&self) -> usize {
        self.groups.iter().flatten().count()
    }

    pub(super) fn members(&self) -> usize {
        self.groups.iter().flatten().map(Group::len).sum()
    }

    /// Takes a member into its group, which is made where it is not known; a new one starts at
    /// `place`, and where that is not certain one member is to look.
    pub(super) fn join(
        &mut self,
        name: &GroupName,
        link: Link,
        place: Tally,
        doubt: bool,
        now: Tick,
    ) -> Seat {
        let known = self
            .groups
            .iter()
            .position(|group| group.as_ref().is_some_and(|group| group.name == *name));
        let at = known.unwrap_or_else(|| {
            let pace = (self.pace.claim, self.pace.lease);
            let mut group = Group::new(name.clone(), place, pace, self.pace.fault);
            if doubt {
                group.owe(WakeReason::CatchUp);
            }
            let free = self.groups.iter().position(Option::is_none);
            let at = free.unwrap_or_else(|| {
                self.groups.push(None);
                self.groups.len() - 1
            });
            self.groups[at] = Some(group);
            at
        });
        let group = self.groups[at].as_mut().expect("found or made");
        let slot = group.join(link, now);
        self.link_joined(now);
        self.dirty = true;
        Seat {
            group: u32::try_from(at).expect("fewer groups than numbers"),
            slot,
        }
    }

    pub(super) fn leave(&mut self, seat: Seat, busy: bool, now: Tick) {
        if let Some(group) = self.group(seat) {
            group.leave(seat.slot, busy, now);
            self.dirty = true;
        }
    }

    /// A listener came.
    pub(super) fn link_joined(&mut self, now: Tick) {
        if let Some(sentinel) = &mut self.sentinel {
            sentinel.join(now);
            self.dirty |= sentinel.due() <= now;
        }
    }

    pub(super) fn has_sentinel(&self) -> bool {
        self.sentinel.is_some()
    }

    /// A listener outside of groups left.
    pub(super) fn link_left(&mut self, slot: usize, now: Tick) {
        if let Some(sentinel) = &mut self.sentinel {
            sentinel.leave(slot, now);
            self.dirty |= sentinel.due() <= now;
        }
    }

    pub(super) fn group(&mut self, seat: Seat) -> Option<&mut Group> {
        self.groups.get_mut(seat.group as usize)?.as_mut()
    }

    pub(super) fn is_given(&self, seat: Seat) -> bool {
        let group = self.groups.get(seat.group as usize);
        group.is_some_and(|group| group.as_ref().is_some_and(|g| g.is_given(seat.slot)))
    }

    /// A member reports.
    pub(super) fn report(&mut self, seat: Seat, heard: Heard, head: &Tally, now: Tick) {
        if let Some(group) = self.group(seat) {
            group.report(seat.slot, heard, head, now);
            self.dirty = true;
        }
    }

    /// A look was reported: the sentinel's interval begins again. Where the listener of this slot
    /// was asked and found more than it takes on, others are asked.
    pub(super) fn looked(
        &mut self,
        slot: Option<usize>,
        heard: Heard,
        capacity: u32,
        links: &Links,
        now: Tick,
        targets: &mut Vec<Link>,
    ) {
        let Some(sentinel) = &mut self.sentinel else {
            return;
        };
        let asked = slot.is_some_and(|slot| sentinel.is_asked(slot));
        sentinel.begin_again(now);
        let capacity = u64::from(capacity);
        if asked && heard.state == ReportState::Busy && heard.depth > capacity {
            sentinel.ask_more(links, heard.depth.div_ceil(capacity), targets);
        }
    }

    pub(super) fn take_ask(&mut self, slot: usize) -> (bool, bool) {
        let sentinel = self.sentinel.as_mut();
        sentinel.map_or((false, false), |sentinel| sentinel.take(slot))
    }

    pub(super) fn give_ask_back(&mut self, slot: usize) {
        if let Some(sentinel) = &mut self.sentinel {
            sentinel.give_back(slot);
        }
    }

    pub(super) fn take_grant(&mut self, seat: Seat) -> Option<Grant> {
        self.group(seat)?.take(seat.slot)
    }

    /// Does what is due, and forgets groups that were left long ago. Returns whether a listener
    /// outside of groups was asked to look.
    pub(super) fn fire(
        &mut self,
        head: &Head,
        links: &Links,
        now: Tick,
        targets: &mut Vec<Link>,
    ) -> bool {
        for group in self.groups.iter_mut().flatten() {
            group.counted(&head.tally, now);
        }
        self.now = now;
        let called = self.tend_at <= now;
        if !called && !std::mem::take(&mut self.dirty) {
            self.tend_at = self.tend_at.min(self.next_due());
            return false;
        }
        self.dirty = false;
        for group in self.groups.iter_mut().flatten() {
            group.fire(now);
        }
        let before = targets.len();
        if self.sentinel.as_ref().is_some_and(|s| s.due() <= now) {
            self.look(&head.tally, links, now, targets);
        }
        if let Some(since) = now.as_nanos().checked_sub(nanos(self.pace.keep)) {
            let left = |group: &Option<Group>| {
                let group = group.as_ref();
                group.is_some_and(|group| group.was_left(Tick::from_nanos(since)))
            };
            for group in &mut self.groups {
                if left(group) {
                    *group = None;
                }
            }
        }
        // Moved later only when the timers have come: most of what is owed is covered long before.
        let due = self.next_due();
        self.tend_at = if called { due } else { self.tend_at.min(due) };
        targets.len() > before
    }

    /// Hands out what is owed to each group, to `limit` members at most; returns whether there is
    /// more.
    pub(super) fn hand_out(&mut self, head: &Head, limit: usize, targets: &mut Vec<Link>) -> bool {
        let mut more = false;
        for group in self.groups.iter_mut().flatten() {
            let counted = head.owed(group.place());
            if group.is_owed(counted.is_some()) {
                more |= group.hand_out(&head.tally, counted, self.now, limit, targets);
            }
        }
        more
    }

    /// Asks one listener of the fleet to look: a group's member where there are any.
    fn look(&mut self, head: &Tally, links: &Links, now: Tick, targets: &mut Vec<Link>) {
        let count = self.groups.len();
        for step in 0..count {
            let at = (self.turn + step) % count;
            let asked = self.groups[at]
                .as_mut()
                .is_some_and(|group| group.look(head, now));
            if asked {
                self.turn = at + 1;
                if let Some(sentinel) = &mut self.sentinel {
                    sentinel.begin_again(now);
                }
                return;
            }
        }
        if let Some(sentinel) = &mut self.sentinel {
            if planted!(self.pace.fault, AskedCountsAsLooked) {
                sentinel.ask(links, now, targets);
                return sentinel.begin_again(now);
            }
            sentinel.ask(links, now, targets);
        }
    }

    fn next_due(&self) -> Tick {
        let sentinel = self.sentinel.as_ref().map_or(Tick::NEVER, Sentinel::due);
        let of_group = |group: &Group| match group.left_at() {
            Some(at) => at + self.pace.keep,
            None => group.due(),
        };
        let groups = self.groups.iter().flatten().map(of_group).min();
        sentinel.min(groups.unwrap_or(Tick::NEVER))
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
