//! The central agent: one fleet, whose hook fails, hangs and acts in part, and whose relay goes away.
//!
//! Nodes take messages, work on them for a while, and start slowly. The platform ends any node. Looks
//! fail, and some are partial. At the end every message was handled, the fleet has its least number of
//! nodes, and at rest nothing is read and nothing is called.

use std::{collections::BTreeMap, time::Duration};

use super::{Seeds, schedule::Schedule};
use crate::{
    base::fault::Fault,
    listener::agent::{CentralAgent, FleetDecision, FleetLoad, FleetPolicy, FleetStep},
};

const SEEDS: Seeds = Seeds::new("a_central_agent", [1_000, 5_000]);
const SECOND: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_secs(10);
/// After the last trouble: the longest wait of a failed call, and time to handle everything.
const CALM: Duration = Duration::from_secs(3_600);
/// At its end nothing happens.
const QUIET: Duration = Duration::from_secs(600);

struct World {
    rng: fastrand::Rng,
    now: Duration,
    events: Schedule<Duration, Event>,
    agent: CentralAgent,
    policy: FleetPolicy,
    /// The hook states the number of nodes.
    states_count: bool,
    is_pushed: bool,
    has_troubles: bool,
    waiting: usize,
    nodes: BTreeMap<u64, Node>,
    started: u64,
    /// Nodes with work in the newest look; `None` after a look that failed, and without a relay.
    seen_at_work: Option<usize>,
    /// The newest number that succeeded.
    asserted: Option<usize>,
    called_at: Option<Duration>,
    has_failed: bool,
    grown_at: Option<Duration>,
    acted_at: Duration,
    violation: Option<String>,
    print: bool,
}

#[derive(Default)]
struct Node {
    is_ready: bool,
    is_busy: bool,
}

#[derive(Clone, Copy)]
enum Event {
    Put,
    Wake,
    Ready(u64),
    Handled(u64),
    /// A message of a node that was ended is visible again.
    Visible,
    Looked,
    Acts(usize),
    Called {
        desired: usize,
        succeeds: bool,
    },
    Link(bool),
    Calm,
}

impl World {
    fn new(seed: u64, fault: Fault, print: bool) -> Self {
        fault.plant();
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x0066_6c65_6574);
        let max = rng.usize(1..=6);
        let limit = |rng: &mut fastrand::Rng| rng.bool().then(|| rng.usize(1..=3));
        let policy = FleetPolicy {
            min: if rng.u32(0..4) == 0 { 1 } else { 0 },
            max,
            backlog_per_node: Some(rng.u64(1..=8)),
            latency: None,
            busy_share: rng.bool().then_some(0.8),
            step_up: limit(&mut rng),
            step_down: limit(&mut rng),
            cool_down: SECOND * rng.u32(0..60),
        };
        let agent = CentralAgent::new(policy.clone(), INTERVAL, rng.u64(..));
        let agent = agent.expect("a policy");
        let mut world = Self {
            now: SECOND,
            events: Schedule::default(),
            agent,
            policy,
            states_count: rng.bool(),
            is_pushed: false,
            has_troubles: true,
            waiting: 0,
            nodes: BTreeMap::new(),
            started: 0,
            seen_at_work: None,
            asserted: None,
            called_at: None,
            has_failed: false,
            grown_at: None,
            acted_at: SECOND,
            violation: None,
            print,
            rng,
        };
        world.after(500, Event::Link(true));
        world.after(20_000, Event::Put);
        world.after(60_000, Event::Link(false));
        let calm = world.now + SECOND * world.rng.u32(60..400);
        world.events.add(calm, Event::Calm);
        world
    }

    /// Schedules an event within so many milliseconds.
    fn after(&mut self, millis: u64, event: Event) {
        let after = Duration::from_micros(self.rng.u64(0..=millis * 1000));
        self.events.add(self.now + after, event);
    }

    fn run(&mut self) -> Option<String> {
        let mut end = None;
        loop {
            let wait = self.drive();
            if self.violation.is_some() {
                return self.violation.take();
            }
            if !self.has_troubles {
                let end = *end.get_or_insert(self.now + CALM);
                if self.now >= end {
                    return self.check_end();
                }
            }
            let event = self.events.next_at();
            let next = event.into_iter().chain(end).chain([wait]).min();
            self.now = self.now.max(next.unwrap_or(wait));
            while let Some(next) = self.events.take_until(self.now) {
                self.happens(next.event);
            }
        }
    }

    /// Runs the agent's steps until it waits.
    fn drive(&mut self) -> Duration {
        for _ in 0..100 {
            match self.agent.step(self.now) {
                FleetStep::Wait(until) => return until,
                FleetStep::Look => {
                    self.acted_at = self.now;
                    self.after(50, Event::Looked);
                }
                FleetStep::Call(decision) => self.call(&decision),
            }
        }
        self.violate("the agent does not come to rest".to_owned());
        self.now
    }

    fn call(&mut self, decision: &FleetDecision) {
        let (now, desired) = (self.now, decision.desired);
        if self.print {
            println!("{now:?} {} nodes: {decision:?}", self.nodes.len());
        }
        self.acted_at = now;
        let at_work = self.seen_at_work.map(|seen| seen.min(self.nodes.len()));
        if self.is_pushed && at_work.is_some_and(|at_work| desired < at_work) {
            self.violate(format!("K1: nodes with work are removed: {decision:?}"));
        }
        let is_first = self.asserted == Some(0) && desired > 0;
        let is_soon = |at: Duration| now < at + INTERVAL;
        if !is_first && !self.has_failed && self.called_at.is_some_and(is_soon) {
            self.violate(format!("K2: two calls within the interval: {decision:?}"));
        }
        let is_cooling = self
            .grown_at
            .is_some_and(|at| now < at + self.policy.cool_down);
        if is_cooling && self.asserted.is_some_and(|asserted| desired < asserted) {
            self.violate(format!(
                "K3: nodes are removed within the cool-down: {decision:?}"
            ));
        }
        self.called_at = Some(now);
        let (acts, succeeds, hangs) = match self.has_troubles {
            true => {
                let succeeds = self.rng.u32(0..3) > 0;
                (
                    succeeds || self.rng.bool(),
                    succeeds,
                    !succeeds && self.rng.u32(0..4) == 0,
                )
            }
            false => (true, true, false),
        };
        if acts {
            self.after(1_000, Event::Acts(desired));
        }
        let end = now + SECOND + SECOND * if hangs { 60 } else { self.rng.u32(0..3) };
        self.events.add(end, Event::Called { desired, succeeds });
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Put => {
                self.waiting += self.rng.usize(1..=20);
                self.after(50, Event::Wake);
                if self.has_troubles {
                    self.after(60_000, Event::Put);
                }
            }
            Event::Wake if self.is_pushed => self.agent.on_wake_up(),
            Event::Wake => {}
            Event::Ready(node) => {
                if let Some(node) = self.nodes.get_mut(&node) {
                    node.is_ready = true;
                }
            }
            Event::Handled(node) => {
                if let Some(node) = self.nodes.get_mut(&node) {
                    node.is_busy = false;
                }
            }
            Event::Visible => {
                self.waiting += 1;
                self.after(50, Event::Wake);
            }
            Event::Looked => self.looked(),
            Event::Acts(desired) => self.act(desired),
            Event::Called { desired, succeeds } => self.called(desired, succeeds),
            Event::Link(is_pushed) => self.link(is_pushed),
            Event::Calm => {
                self.has_troubles = false;
                self.link(true);
                self.after(300_000, Event::Put);
            }
        }
        self.take();
    }

    /// Idle nodes take messages.
    fn take(&mut self) {
        let idle = self
            .nodes
            .iter_mut()
            .filter(|(_, node)| node.is_ready && !node.is_busy);
        let mut taken = Vec::new();
        for (id, node) in idle.take(self.waiting) {
            node.is_busy = true;
            taken.push(*id);
        }
        self.waiting -= taken.len();
        for id in taken {
            self.after(20_000, Event::Handled(id));
        }
    }

    fn looked(&mut self) {
        let at_work = self.nodes.values().filter(|node| node.is_busy).count();
        let fails = self.has_troubles && self.rng.u32(0..8) == 0;
        let ready = self.nodes.values().filter(|node| node.is_ready).count();
        let is_partial = self.has_troubles && self.rng.u32(0..8) == 0;
        // A relay that does not answer has half of the nodes, and of the reports.
        let seen = |all: usize| if is_partial { all / 2 } else { all };
        let load = (!fails).then(|| FleetLoad {
            backlog: seen(self.waiting + at_work) as u64,
            nodes: seen(ready),
            nodes_at_work: seen(at_work),
            active_tasks: seen(at_work) as u64,
            total_tasks: seen(ready) as u64,
            latency: None,
            is_partial,
        });
        self.seen_at_work = load.as_ref().map(|load| load.nodes_at_work);
        self.agent.on_load(load, self.now);
    }

    /// The platform starts nodes, or ends some, whatever they do.
    fn act(&mut self, desired: usize) {
        while self.nodes.len() < desired {
            self.started += 1;
            self.nodes.insert(self.started, Node::default());
            self.after(5_000, Event::Ready(self.started));
        }
        while self.nodes.len() > desired {
            let ids: Vec<u64> = self.nodes.keys().copied().collect();
            let id = *self.rng.choice(&ids).expect("one at least");
            if self.nodes.remove(&id).is_some_and(|node| node.is_busy) {
                self.after(30_000, Event::Visible);
            }
        }
    }

    fn called(&mut self, desired: usize, succeeds: bool) {
        self.has_failed = !succeeds;
        if !succeeds {
            return self.agent.on_failure(self.now);
        }
        if self.asserted.is_some_and(|asserted| desired > asserted) {
            self.grown_at = Some(self.now);
        }
        self.asserted = Some(desired);
        let present = self.states_count.then_some(self.nodes.len());
        self.agent.on_success(present, self.now);
    }

    fn link(&mut self, is_pushed: bool) {
        let is_away = !is_pushed && self.has_troubles;
        if is_away {
            self.after(90_000, Event::Link(true));
        } else if self.has_troubles {
            self.after(120_000, Event::Link(false));
        }
        self.is_pushed = !is_away;
        self.agent.on_link(self.is_pushed, self.now);
    }

    fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    fn check_end(&self) -> Option<String> {
        let busy = self.nodes.values().filter(|node| node.is_busy).count();
        if self.waiting + busy > 0 {
            return Some(format!("K4: {} messages are stranded", self.waiting + busy));
        }
        let (nodes, min) = (self.nodes.len(), self.policy.min);
        if nodes != min {
            return Some(format!(
                "K5: {nodes} nodes without work, and {min} are the least"
            ));
        }
        if min == 0 && self.acted_at + QUIET > self.now {
            return Some("K6: at rest the relay is asked or the hook is called".to_owned());
        }
        None
    }
}

pub(super) fn run(seed: u64, fault: Fault) -> Option<String> {
    World::new(seed, fault, false).run()
}

/// The fleet follows its backlog, and returns to its least number.
#[test]
fn a_central_agent_strands_no_message_and_removes_no_node_with_work() {
    SEEDS.run(|seed, fault, print| {
        let mut world = World::new(seed, fault, print);
        if print {
            println!("{:?}", world.policy);
        }
        world.run()
    });
}
