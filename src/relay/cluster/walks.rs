//! The walks over the hub that resyncs and missing peers cause.
//!
//! Resyncs of named queues begin at once, one walk at a time; hashes that arrive during a walk share
//! the next one. A resync of all queues begins a second later, and takes two seconds, so that the
//! checks of all subscribers are spread; the ones that are requested before it begins are one. Checks
//! of all groups are spread alike.

use std::{collections::HashSet, time::Duration};

use crate::{
    base::clock::Tick,
    relay::hub::{Hub, ResyncScope, ResyncWalk},
};

/// The walks that are due or under way.
#[derive(Debug, Default)]
pub(super) struct Walks {
    /// Hashes for the next walk over named queues.
    hashes: HashSet<u64>,
    named: Option<ResyncWalk>,
    all: SpreadWalk,
    groups: SpreadWalk,
}

/// A walk over all queues in even steps. Patterns follow at its end.
#[derive(Debug, Default)]
struct SpreadWalk {
    /// When the next walk begins.
    requested: Option<Tick>,
    current: Option<ResyncWalk>,
    next_step: Tick,
    /// Pauses end then: queues that are made during a walk must not prolong it.
    pauses_until: Tick,
    /// Queues of a step, and the time between two steps.
    limit: usize,
    pause: Duration,
    /// The time between two steps over patterns.
    pattern_pause: Duration,
}

/// A resync of all begins this much later: what several peers cause within it is one.
const BEGINS_AFTER: Duration = Duration::from_secs(1);
/// A walk over all queues takes about this long.
const SPREAD: Duration = Duration::from_secs(2);
/// A walk over all queues has about this many steps, more where a step would be too long.
const STEPS: u32 = 64;

impl Walks {
    pub(super) fn resync_queues(&mut self, hashes: Vec<u64>) {
        self.hashes.extend(hashes);
    }

    pub(super) fn resync_all(&mut self, now: Tick) {
        self.all.request(now + BEGINS_AFTER);
    }

    pub(super) fn check_groups(&mut self, now: Tick) {
        self.groups.request(now);
    }

    /// Returns when [`Walks::step`] has something to do.
    pub(super) fn due_at(&self) -> Tick {
        if self.named.is_some() || !self.hashes.is_empty() {
            return Tick::default();
        }
        self.all.due_at().min(self.groups.due_at())
    }

    /// Takes a step of each walk that is due.
    pub(super) fn step(&mut self, hub: &Hub, now: Tick) {
        if self.named.is_none() && !self.hashes.is_empty() {
            let hashes = std::mem::take(&mut self.hashes);
            self.named = Some(ResyncWalk::new(ResyncScope::Queues(hashes)));
        }
        if let Some(walk) = &mut self.named
            && !hub.resync_step(walk, ResyncWalk::STEP, now)
        {
            self.named = None;
        }
        self.all.step(hub, || ResyncScope::All, now);
        self.groups.step(hub, || ResyncScope::Groups, now);
    }
}

impl SpreadWalk {
    /// A request during a walk adds a further one.
    fn request(&mut self, at: Tick) {
        let at = self.requested.map_or(at, |earlier| earlier.min(at));
        self.requested = Some(at);
    }

    fn due_at(&self) -> Tick {
        match &self.current {
            Some(_) => self.next_step,
            None => self.requested.unwrap_or(Tick::NEVER),
        }
    }

    fn step(&mut self, hub: &Hub, scope: impl FnOnce() -> ResyncScope, now: Tick) {
        if now < self.due_at() {
            return;
        }
        let walk = match &mut self.current {
            Some(walk) => walk,
            None => {
                self.requested = None;
                self.pauses_until = now + SPREAD;
                let stats = hub.stats();
                (self.limit, self.pause) = pace(stats.queues);
                self.pattern_pause = pattern_pause(stats.subscriptions);
                self.current.insert(ResyncWalk::new(scope()))
            }
        };
        if now >= self.pauses_until {
            (self.limit, self.pause) = (ResyncWalk::STEP, Duration::ZERO);
        }
        let more = hub.resync_step(walk, self.limit, now);
        // Few queues make long pauses. The patterns' steps must not wait for one each.
        self.next_step = match walk.visits_queues() {
            true => now + self.pause,
            false if now < self.pauses_until => now + self.pattern_pause,
            false => now,
        };
        if !more {
            self.current = None;
        }
    }
}

/// Returns the queues of a step and the pause after it, so that a walk over so many queues takes
/// [`SPREAD`].
fn pace(queues: u64) -> (usize, Duration) {
    let limit = usize::try_from(queues / u64::from(STEPS)).unwrap_or(usize::MAX) + 1;
    let limit = limit.min(ResyncWalk::STEP);
    let steps = queues.div_ceil(limit as u64).max(1);
    (limit, SPREAD / u32::try_from(steps).unwrap_or(u32::MAX))
}

/// Returns the pause after a step over patterns, so that so many subscriptions with two patterns each take
/// half of [`SPREAD`]. The list of the nodes takes as long where each pattern is of one subscription.
fn pattern_pause(subscriptions: u64) -> Duration {
    let steps = subscriptions.div_ceil(ResyncWalk::STEP as u64).max(1);
    let pause = SPREAD / 4 / u32::try_from(steps).unwrap_or(u32::MAX);
    pause.min(SPREAD / STEPS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        relay::hub::{HubConfig, SubscriptionId},
        types::{
            GroupName, ListenerId, Notification, QueueAddress, ResumeNumber, Selector,
            SubscribeOptions,
        },
    };

    fn count(hub: &Hub, queues: std::ops::Range<u64>, now: Tick) {
        for number in queues {
            let queue = QueueAddress::new("acct", &format!("q{number:05}")).expect("an address");
            let counted = hub.notify_all(&"p".into(), &[Notification::new(queue)], now);
            counted.expect("there is room");
        }
    }

    /// Takes all steps of the walks, and returns the time of the last one.
    fn finish(walks: &mut Walks, hub: &Hub) -> Tick {
        let mut last = Tick::default();
        while walks.due_at() != Tick::NEVER {
            last = walks.due_at();
            walks.step(hub, last);
        }
        last
    }

    /// Found by the simulation of a cluster: a walk that began with one queue took two seconds for
    /// each that was made later, and a further resync of all waited for its end.
    #[test]
    fn queues_that_are_made_during_a_walk_do_not_prolong_it() {
        let began = Tick::default() + Duration::from_secs(10);
        let (hub, mut walks) = (Hub::new(HubConfig::default()), Walks::default());
        count(&hub, 0..1, began);
        walks.resync_all(began);
        let first = walks.due_at();
        walks.step(&hub, first);
        count(&hub, 1..2_000, first);
        let took = finish(&mut walks, &hub).since(began);
        let limit = BEGINS_AFTER + SPREAD + SPREAD / 10;
        assert!(took <= limit, "{took:?}");
    }

    /// Found by the simulation of a cluster: with one queue in memory, patterns were checked four
    /// seconds after the beginning of the walk, and those of groups eight.
    #[test]
    fn a_walk_over_few_queues_checks_the_patterns_in_time() {
        let began = Tick::default() + Duration::from_secs(10);
        for queues in [0, 1, 3, 200] {
            let hub = Hub::new(HubConfig::default());
            count(&hub, 0..queues, began);
            let mut walks = Walks::default();
            walks.resync_all(began);
            let took = finish(&mut walks, &hub).since(began);
            let limit = BEGINS_AFTER + SPREAD + SPREAD / 10;
            assert!(took <= limit, "{queues} queues: {took:?}");
        }
    }

    #[test]
    fn many_patterns_of_groups_are_checked_in_time() {
        let hub = Hub::new(HubConfig::default());
        let started = Tick::default();
        for number in 0..512_u64 {
            let pattern = |at| format!("acct/a{number}-{at}-*").parse::<Selector>();
            let options = SubscribeOptions {
                listener_id: ListenerId::new("l").expect("a name"),
                group: Some(GroupName::new("g").expect("a name")),
                selectors: (0..256)
                    .map(pattern)
                    .map(|one| one.expect("valid"))
                    .collect(),
                capacity: 1,
                visibility_timeout: Duration::ZERO,
                heartbeat: Duration::from_secs(10),
                resume: ResumeNumber::default(),
                agent: false,
            };
            let id = SubscriptionId(number.into());
            hub.subscribe(id, &options, started).expect("accepted");
        }
        let mut walks = Walks::default();
        walks.resync_all(started);
        let took = finish(&mut walks, &hub).since(started);
        assert!(took <= Duration::from_millis(3_200), "{took:?}");
    }

    #[test]
    fn patterns_of_many_subscriptions_are_checked_within_half_of_the_spread() {
        for (subscriptions, most) in [
            (0, SPREAD / STEPS),
            (1, SPREAD / STEPS),
            (512, SPREAD / STEPS),
        ] {
            assert_eq!(pattern_pause(subscriptions), most);
        }
        for subscriptions in [20_000, 100_000, 1_000_000] {
            let steps = u32::try_from(subscriptions / ResyncWalk::STEP as u64 + 1).expect("few");
            let took = 2 * steps * pattern_pause(subscriptions);
            assert!(took <= SPREAD / 2, "{subscriptions}: {took:?}");
        }
    }
}
