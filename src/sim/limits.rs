//! The relay's limits: a table of queues that is full.
//!
//! The table is the hub's own. A foreign publisher fills it with queues that have a pending timer
//! and so cannot give way. The model knows which requests may be refused, and that a refused one
//! leaves nothing behind.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
    time::Duration,
};

use super::{
    plan::{Plan, Shape, Trouble, Work, address, seconds},
    world::World,
};
use crate::{
    base::clock::Tick,
    error::Result,
    relay::hub::Hub,
    types::{Accepted, Notification, QueueAddress, Selector, SubscribeOptions},
};

/// The model's state of the relay's table of queues, if that is small.
#[derive(Debug, Default)]
pub(super) struct FullTable {
    /// When a new queue would have been refused last.
    full_at: Tick,
    /// When the relay refused one last: for a moment after that it does not search again.
    refused_at: Option<Tick>,
    /// Queues that were refused in this run.
    refused: BTreeSet<usize>,
}

/// An entry that was refused is sent again within this after there is room.
const RETRIED: Duration = Duration::from_secs(7);

/// A relay that refused a queue searches for room again after this.
const SEARCHES_AGAIN: Duration = Duration::from_millis(100);

impl World {
    /// A foreign publisher fills the table: its queues have timers, and give way after those.
    pub(super) fn fill_table(&mut self) {
        let (until, now) = (self.until(5_000, 40_000), self.now);
        let (Some(hub), Some(limit)) = (self.relay.hub.clone(), self.plan.max_queues) else {
            return;
        };
        let delay = until.since(now).max(Duration::from_secs(1));
        for number in 0..limit {
            let queue = address(&format!("foreign-{number}"));
            let notification = Notification {
                delay,
                ..Notification::new(queue)
            };
            match hub.notify_all(&"foreign".into(), &[notification], now) {
                Ok(_) => self.relay.applied += 1,
                Err(_) => {
                    self.note_refusal();
                    break;
                }
            }
        }
        self.note_full_table();
    }

    /// Returns by when a publisher sends its refused entries of this queue again.
    pub(super) fn retried_by(&self, queue: usize) -> Option<Tick> {
        let refused = self.full.refused.contains(&queue);
        refused.then_some(self.full.full_at + RETRIED)
    }

    /// Returns how many queues the relay may remember.
    pub(super) fn most_queues(&self) -> Option<u64> {
        self.plan.max_queues.map(|limit| limit as u64)
    }

    /// Returns whether a full relay may have refused a request recently.
    pub(super) fn was_full(&self) -> bool {
        self.plan.max_queues.is_some() && self.now < self.full.full_at + RETRIED
    }

    /// Returns whether the relay has an entry for the queue.
    pub(super) fn is_remembered(&self, queue: usize) -> bool {
        let address = &self.queues.list[queue].address;
        self.relay
            .hub
            .as_ref()
            .is_some_and(|hub| is_known(hub, address))
    }

    /// Returns since when a listener can subscribe to any queues.
    pub(super) fn has_room_since(&self) -> Tick {
        self.full.full_at
    }

    /// Notes whether a new queue would be refused now.
    pub(super) fn note_full_table(&mut self) {
        if let Some(hub) = &self.relay.hub
            && self
                .plan
                .max_queues
                .is_some_and(|limit| room(hub, limit, &[], self.now) == 0)
        {
            self.full.full_at = self.now;
        }
    }

    /// Notifies. A refused notification had no room and leaves nothing behind (R19: a bad event fails
    /// alone).
    pub(super) fn notify_with_limit(
        &mut self,
        hub: &Hub,
        publisher: &Arc<str>,
        notifications: &[Notification],
    ) -> Vec<Result<Accepted>> {
        let queues = notifications.iter().map(|one| one.queue.clone());
        let new = self.unknown(hub, queues);
        let room = self.room_for(hub, notifications.iter().map(|one| &one.queue));
        let results = hub.notify(publisher, notifications, self.now);
        let refused = notifications.iter().zip(&results);
        let refused = refused.filter(|(_, result)| result.is_err());
        let refused: HashSet<_> = refused.map(|(one, _)| one.queue.clone()).collect();
        if !refused.is_empty() {
            let queues = refused.iter().filter_map(|queue| self.queues.find(queue));
            self.full.refused.extend(queues);
            if let Some(known) = refused.iter().find(|queue| !new.contains(*queue)) {
                self.violate(|| format!("R19: {known} is refused, and is known"));
            }
            let made = new.len().saturating_sub(refused.len());
            self.check_refusal(hub, &refused, room.is_none_or(|room| made < room));
        }
        results
    }

    /// These queues were refused for want of room: there was none, and none of them was made.
    pub(super) fn check_refusal(
        &mut self,
        hub: &Hub,
        refused: &HashSet<QueueAddress>,
        has_room: bool,
    ) {
        let (lately, count) = (self.was_refused_lately(), refused.len());
        self.note_refusal();
        // A remembered group keeps its queue, and so does a walk that waits or goes on; no statistic shows
        // that.
        let grouped = self.plan.listeners.iter().any(|one| one.group.is_some());
        let kept = grouped || hub.has_deferred_work() || self.relay.has_walk();
        if !lately && !kept && has_room {
            self.violate(|| format!("R19: {count} new queues are refused, and there is room"));
        }
        if let Some(made) = refused.iter().find(|queue| is_known(hub, queue)) {
            self.violate(|| format!("R19: a refused request leaves {made} behind"));
        }
    }

    /// The relay had no room for a queue.
    pub(super) fn note_refusal(&mut self) {
        (self.full.refused_at, self.full.full_at) = (Some(self.now), self.now);
    }

    /// Returns whether the relay may refuse a queue without a search for room.
    fn was_refused_lately(&self) -> bool {
        let refused_at = self.full.refused_at;
        refused_at.is_some_and(|at| self.now < at + SEARCHES_AGAIN)
    }

    /// Returns those of the queues that the relay has no entry for.
    fn unknown(
        &self,
        hub: &Hub,
        queues: impl Iterator<Item = QueueAddress>,
    ) -> HashSet<QueueAddress> {
        match self.plan.max_queues {
            Some(_) => queues.filter(|queue| !is_known(hub, queue)).collect(),
            None => HashSet::new(),
        }
    }

    /// Returns the queues that a subscription would make, and how many the relay has room for.
    pub(super) fn before_subscription(
        &self,
        hub: &Hub,
        options: &SubscribeOptions,
    ) -> (HashSet<QueueAddress>, bool) {
        let named: Vec<_> = options
            .selectors
            .iter()
            .filter_map(Selector::as_address)
            .collect();
        let room = self.room_for(hub, named.iter());
        let new = self.unknown(hub, named.into_iter());
        let has_room = room.is_none_or(|room| new.len() <= room);
        (new, has_room)
    }

    /// Returns how many new queues the relay has room for; none of a request's own gives way.
    fn room_for<'a>(
        &self,
        hub: &Hub,
        own: impl Iterator<Item = &'a QueueAddress>,
    ) -> Option<usize> {
        let limit = self.plan.max_queues?;
        Some(room(hub, limit, &own.collect::<Vec<_>>(), self.now))
    }

    /// Returns whether a listener may be refused before it is accepted, because the relay is full.
    pub(super) fn may_be_refused(&self) -> bool {
        self.plan.max_queues.is_some()
    }
}

impl Plan {
    /// Returns how many queues a run may use. A queue that waits for room gets it when another one
    /// was idle for a minute: where streams that rotate report their queues again, or the sentinel
    /// has them checked, none ever is.
    pub(super) fn most_queues_in_use(&self) -> usize {
        let reported = self.listeners.iter().any(|one| one.talkative);
        let rests = !reported || self.max_age > Duration::from_secs(100);
        let rests = rests && self.sentinel.is_zero();
        self.max_queues
            .map_or(41, |limit| limit + if rests { 2 } else { 0 })
    }

    /// Has the run meet limits: the table is small and full at times, or the listeners share
    /// connections.
    pub(super) fn limit(&mut self, rng: &mut fastrand::Rng) {
        let small = matches!(self.shape, Shape::Sparse | Shape::Fleet);
        if small && rng.bool() {
            self.max_queues = Some(self.queues.len() + rng.usize(1..=3));
            self.troubles.extend([Trouble::TableFull; 2]);
            self.works.push(Work::FreshQueue);
        }
        if small && rng.u32(0..4) != 0 {
            self.shared = Some(rng.usize(2..=3));
            self.troubles.push(Trouble::SlowReader);
        }
    }

    /// Two listeners on one pattern whose streams rotate, and more queues than the relay may
    /// remember.
    pub(super) fn rotate_in_full_table(&mut self, rng: &mut fastrand::Rng) {
        let mut one = self.listeners[0].clone();
        one.selectors = vec![Selector::new("acct", "l0-*").expect("a selector")];
        (one.talkative, one.scaled, one.mute) = (false, false, false);
        self.listeners = vec![one.clone(), one];
        self.queues = vec![address("l0-0")];
        self.max_queues = Some(rng.usize(2..=4));
        (self.works, self.troubles) = (vec![Work::FreshQueue], Vec::new());
        (self.max_age, self.forget_after) = (seconds(rng.u64(5..30)), seconds(3600));
        (self.active, self.steady, self.cursors) = (seconds(30), None, None);
        (self.work_gap, self.sentinel) = (2_000, Duration::ZERO);
    }
}

/// Returns how many new queues the relay has room for: free places, and queues but for its own that
/// may give way.
fn room(hub: &Hub, limit: usize, own: &[&QueueAddress], now: Tick) -> usize {
    let queues = hub.queues("", usize::MAX, now);
    let idle = queues
        .iter()
        .filter(|one| one.listeners == 0 && one.timers == 0);
    let others = idle.filter(|one| !own.contains(&&one.address));
    (limit + others.count()).saturating_sub(queues.len())
}

fn is_known(hub: &Hub, queue: &QueueAddress) -> bool {
    let mut known = hub.queues("", usize::MAX, Tick::default()).into_iter();
    known.any(|view| view.address == *queue)
}
