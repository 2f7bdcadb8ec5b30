//! Decisions of the central agent, by look and by call.

use super::*;
use crate::error::ErrorKind;

const INTERVAL: Duration = Duration::from_secs(10);

/// A central agent on a clock. Each look finds `load`.
struct Fleet {
    agent: CentralAgent,
    now: Duration,
    load: FleetLoad,
    looks: u32,
}

fn policy() -> FleetPolicy {
    FleetPolicy {
        max: 10,
        backlog_per_node: Some(10),
        cool_down: SECOND * 60,
        ..FleetPolicy::default()
    }
}

fn backlog(backlog: u64) -> FleetLoad {
    FleetLoad {
        backlog,
        ..FleetLoad::default()
    }
}

impl Fleet {
    /// Starts with a relay and no load.
    fn new(policy: FleetPolicy) -> Self {
        let mut agent = CentralAgent::new(policy, INTERVAL, 7).expect("a policy");
        agent.on_link(true, Duration::ZERO);
        Self {
            agent,
            now: Duration::ZERO,
            load: FleetLoad::default(),
            looks: 0,
        }
    }

    /// Starts with so many nodes, by a first call.
    fn with_nodes(policy: FleetPolicy, nodes: usize) -> Self {
        let mut fleet = Self::new(policy);
        fleet.load = FleetLoad {
            nodes,
            ..backlog(nodes as u64 * 10)
        };
        assert_eq!(fleet.call().desired, nodes);
        fleet.agent.on_success(None, fleet.now);
        fleet
    }

    /// Runs until the next call, for at most an hour.
    fn run(&mut self) -> Option<FleetDecision> {
        let end = self.now + SECOND * 3600;
        loop {
            match self.agent.step(self.now) {
                FleetStep::Look => {
                    self.looks += 1;
                    self.agent.on_load(Some(self.load.clone()), self.now);
                }
                FleetStep::Call(decision) => return Some(decision),
                FleetStep::Wait(until) if until > end => return None,
                FleetStep::Wait(until) => self.now = until,
            }
        }
    }

    fn call(&mut self) -> FleetDecision {
        self.run().expect("a call")
    }

    /// Runs until the next call, which succeeds; returns its number, and how long it took.
    fn next(&mut self) -> (usize, Duration) {
        let before = self.now;
        let desired = self.call().desired;
        self.agent.on_success(None, self.now);
        (desired, self.now - before)
    }
}

#[test]
fn a_wake_up_starts_the_first_nodes_at_once_and_at_rest_nothing_is_read() {
    let mut fleet = Fleet::new(policy());
    let first = fleet.call();
    assert_eq!(
        (first.desired, first.current),
        (0, None),
        "the first call asserts"
    );
    fleet.agent.on_success(None, fleet.now);
    fleet.looks = 0;
    assert_eq!(fleet.run(), None);
    assert!(fleet.looks <= 1, "{} looks at rest", fleet.looks);
    // Also right after a call, within the interval.
    fleet.load = backlog(35);
    fleet.agent.on_wake_up();
    let call = fleet.call();
    assert_eq!((call.desired, call.current, call.backlog), (4, Some(0), 35));
    assert_eq!(call.reason, "the backlog is 35");
    fleet.agent.on_success(None, fleet.now);
    fleet.load = backlog(55);
    assert_eq!(fleet.next(), (6, INTERVAL));
}

#[test]
fn the_first_call_keeps_connected_nodes_until_the_cool_down() {
    let mut fleet = Fleet::new(policy());
    fleet.load.nodes = 4;
    assert_eq!(fleet.next(), (4, SETTLES_IN));
    assert_eq!(fleet.next(), (0, SECOND * 60));
}

#[test]
fn the_first_call_waits_for_nodes_that_connect_again_and_for_all_relays() {
    let mut fleet = Fleet::new(policy());
    fleet.load = backlog(1);
    fleet.load.is_partial = true;
    for seen in [0, 7, 3] {
        fleet.load.nodes = seen;
        assert_eq!(fleet.agent.step(fleet.now), FleetStep::Look);
        fleet.agent.on_load(Some(fleet.load.clone()), fleet.now);
        let FleetStep::Wait(until) = fleet.agent.step(fleet.now) else {
            panic!("nothing is called");
        };
        fleet.now = until.max(SETTLES_IN);
    }
    fleet.load.is_partial = false;
    assert_eq!(fleet.next().0, 7);
}

#[test]
fn fewer_nodes_need_a_cool_down_without_a_peak_and_steps() {
    let policy = FleetPolicy {
        step_down: Some(2),
        ..policy()
    };
    let mut fleet = Fleet::with_nodes(policy, 8);
    fleet.load = backlog(0);
    fleet.now += SECOND;
    let began = fleet.now;
    assert_eq!(fleet.agent.step(began), FleetStep::Wait(INTERVAL * 2));
    // A peak within the cool-down is the next number.
    for _ in 0..3 {
        fleet.now += SECOND * 10;
        assert_eq!(fleet.agent.step(fleet.now), FleetStep::Look);
        let load = backlog(if fleet.now < SECOND * 30 { 50 } else { 10 });
        fleet.agent.on_load(Some(load), fleet.now);
        assert!(matches!(fleet.agent.step(fleet.now), FleetStep::Wait(_)));
    }
    let down = fleet.call();
    assert_eq!(down.desired, 6);
    assert!(
        down.reason.starts_with("there is no work, for 1m"),
        "{}",
        down.reason
    );
    fleet.agent.on_success(None, fleet.now);
    assert_eq!(fleet.next(), (5, INTERVAL), "the peak");
    let (desired, after) = fleet.next();
    assert_eq!(desired, 3);
    assert!(after >= SECOND * 60, "{after:?}");
}

#[test]
fn nodes_with_work_are_not_removed() {
    let mut fleet = Fleet::with_nodes(policy(), 5);
    fleet.load = FleetLoad {
        nodes_at_work: 3,
        ..FleetLoad::default()
    };
    let down = fleet.call();
    assert_eq!((down.desired, &*down.reason), (3, "3 nodes have work"));
    fleet.agent.on_success(None, fleet.now);
    assert_eq!(fleet.run(), None);
    // Listeners that the hook did not start need no node.
    fleet.load.nodes_at_work = 9;
    assert_eq!(fleet.run(), None);
}

#[test]
fn a_partial_look_removes_no_node_and_adds_some() {
    let mut fleet = Fleet::with_nodes(policy(), 5);
    fleet.load = FleetLoad {
        is_partial: true,
        ..backlog(0)
    };
    assert_eq!(fleet.run(), None);
    fleet.load.backlog = 80;
    assert_eq!(fleet.next().0, 8);
}

#[test]
fn changes_up_are_limited_by_step() {
    let policy = FleetPolicy {
        step_up: Some(2),
        ..policy()
    };
    let mut fleet = Fleet::new(policy);
    fleet.next();
    fleet.now += SECOND * 100;
    fleet.load = backlog(100);
    let call = fleet.call();
    assert_eq!(
        (call.desired, &*call.reason),
        (2, "the backlog is 100, in steps")
    );
    fleet.agent.on_success(None, fleet.now);
    assert_eq!(fleet.next(), (4, INTERVAL));
}

#[test]
fn a_failed_call_is_repeated_soon_and_then_less_often_whatever_is_needed_by_then() {
    let mut fleet = Fleet::with_nodes(policy(), 3);
    fleet.load = backlog(0);
    assert_eq!(fleet.call().desired, 0);
    fleet.agent.on_failure(fleet.now);
    // It may have ended all nodes: the present number is asserted.
    fleet.load = backlog(30);
    let mut waits = Vec::new();
    for _ in 0..8 {
        let before = fleet.now;
        let call = fleet.call();
        assert_eq!((call.desired, call.current), (3, Some(3)));
        assert!(
            call.reason.ends_with("; the call before failed"),
            "{}",
            call.reason
        );
        fleet.agent.on_failure(fleet.now);
        waits.push(fleet.now - before);
    }
    assert!(waits[0] >= SECOND && waits[0] <= SECOND * 2, "{waits:?}");
    assert!(waits.iter().max() > Some(&(SECOND * 10)), "{waits:?}");
    fleet.next();
    assert_eq!(fleet.run(), None, "it is done");
}

#[test]
fn a_count_that_the_hook_states_is_asserted_again_each_interval() {
    let mut fleet = Fleet::with_nodes(policy(), 3);
    fleet.load = backlog(50);
    assert_eq!(fleet.call().desired, 5);
    fleet.agent.on_success(Some(2), fleet.now);
    let before = fleet.now;
    let again = fleet.call();
    assert_eq!((again.desired, again.current), (5, Some(2)));
    assert_eq!(fleet.now - before, INTERVAL);
    fleet.agent.on_success(Some(5), fleet.now);
    assert_eq!(fleet.run(), None);
}

#[test]
fn latency_and_busy_tasks_raise_by_their_ratio() {
    let policy = FleetPolicy {
        backlog_per_node: None,
        latency: Some(SECOND),
        busy_share: Some(0.5),
        max: 100,
        ..policy()
    };
    let mut fleet = Fleet::new(policy);
    fleet.load = FleetLoad {
        nodes: 4,
        ..backlog(9)
    };
    assert_eq!(fleet.next().0, 4, "a backlog alone needs one node");
    fleet.load.latency = Some(SECOND * 3 / 2);
    let call = fleet.call();
    assert_eq!((call.desired, &*call.reason), (6, "the latency is 1.5s"));
    fleet.agent.on_success(None, fleet.now);
    fleet.load.latency = Some(SECOND * 60);
    assert_eq!(
        fleet.next().0,
        8,
        "at most double the nodes that are connected"
    );
    assert_eq!(fleet.run(), None, "the others have not started yet");
    fleet.load.nodes = 8;
    fleet.load.latency = None;
    (fleet.load.active_tasks, fleet.load.total_tasks) = (3, 4);
    let call = fleet.call();
    assert_eq!(
        (call.desired, &*call.reason),
        (12, "75 % of the tasks are busy")
    );
    fleet.agent.on_success(None, fleet.now);
    (fleet.load.nodes, fleet.load.active_tasks) = (12, 2);
    assert_eq!(fleet.run(), None, "at the target");
    assert_eq!(scaled(10, 0.8 / 0.1), 80);
}

#[test]
fn while_the_relay_is_away_the_number_is_kept() {
    let least = FleetPolicy { min: 1, ..policy() };
    let mut fleet = Fleet::with_nodes(least, 4);
    fleet.agent.on_link(false, fleet.now);
    assert_eq!(fleet.run(), None);
    fleet.agent.on_link(true, fleet.now);
    fleet.load = backlog(90);
    assert_eq!(fleet.next(), (9, INTERVAL));
}

#[test]
fn a_failed_look_is_repeated_and_decides_nothing() {
    let mut fleet = Fleet::with_nodes(policy(), 3);
    fleet.now += SECOND * 100;
    for _ in 0..3 {
        assert_eq!(fleet.agent.step(fleet.now), FleetStep::Look);
        fleet.agent.on_load(None, fleet.now);
        let FleetStep::Wait(until) = fleet.agent.step(fleet.now) else {
            panic!("it waits");
        };
        assert!(until >= fleet.now + SECOND && until < fleet.now + SECOND * 10);
        fleet.now = until;
    }
}

#[test]
fn wrong_settings_are_refused_with_their_name() {
    let refused = |policy: FleetPolicy, interval| {
        let error = CentralAgent::new(policy, interval, 7).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        error.message().to_owned()
    };
    assert!(refused(policy(), Duration::ZERO).starts_with("interval: "));
    let none = FleetPolicy { max: 0, ..policy() };
    assert_eq!(refused(none, INTERVAL), "max: must be 1 or more");
}
