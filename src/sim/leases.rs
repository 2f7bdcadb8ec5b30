//! The leases' part of the simulation: several contenders, one blob, and never two holders at a
//! time.
//!
//! The production machine (`lease::machine`) is stepped by each contender on its own clock, which runs
//! up to a twentieth too fast or too slow. The store (`store`) answers late, twice or not at all,
//! and writes arrive late, after newer ones. Contenders freeze, crash, are cut off and release.
//! Then the troubles end, and one contender must hold the lease, keep it, and hand it on.

mod store;

use std::time::Duration;

use self::store::{Ask, Blob};
use super::{Seeds, schedule::Schedule};
use crate::{
    base::{clock::Tick, fault::Fault},
    coordination::lease::{
        LeaseConfig,
        machine::{Action, Answer, EndReason, LeaseMachine},
    },
};

const SEEDS: Seeds = Seeds::new("no_two_hold_a_lease", [1_000; 2]);
/// The time of troubles, in multiples of the longest duration.
const TROUBLED: u64 = 12;
const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;

/// One run. Times are true nanoseconds, which no contender knows.
struct World {
    rng: fastrand::Rng,
    print: bool,
    shape: Shape,
    now: u64,
    events: Schedule<u64, Event>,
    /// Requests to the store so far.
    requests: u64,
    blob: Blob,
    nodes: Vec<Node>,
    /// The greatest token of any holder so far.
    token: u64,
    totals: Totals,
}

/// The choices of a seed.
#[derive(Debug)]
struct Shape {
    /// The lease duration of each contender.
    durations: Vec<u64>,
    poll: u64,
    /// The maximum error of a clock, in thousandths.
    skew: i64,
    /// One request in this many is lost; 0: none.
    lost: u32,
    late: u32,
    twice: u32,
    /// The interval between troubles of a contender or of the store, in milliseconds.
    troubles: u64,
    pauses: bool,
    crashes: bool,
    cuts: bool,
    outages: bool,
    releases: bool,
}

/// A contender.
struct Node {
    machine: LeaseMachine,
    /// The present life; events of another life are dropped.
    life: u32,
    alive: bool,
    /// Thousandths of the true rate.
    rate: u64,
    offset: u64,
    wall: u64,
    /// The number of the request that is not answered yet.
    asked: Option<u64>,
    paused: u64,
    cut: u64,
    /// A write that the network holds back for the worst moment.
    held_back: Option<Ask>,
    /// The token of the lease that it believes to hold.
    believes: Option<u64>,
}

#[derive(Debug, Clone)]
enum Event {
    /// A contender steps its machine.
    Turn(usize, u32),
    Arrives(usize, u32, u64, Ask),
    /// The store's answer; `None`: the request timed out.
    Answers(usize, u32, u64, Option<store::Said>),
    Trouble,
    Begins(usize),
    /// A contender is cut off.
    Cut(usize),
    Outage(u64),
}

/// Counts of events over all seeds: an event that never happens is not tested.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Totals {
    taken: u64,
    renewed: u64,
    released: u64,
    lapsed: u64,
    crashed: u64,
    unanswered: u64,
}

impl Shape {
    fn new(rng: &mut fastrand::Rng) -> Self {
        let duration = |rng: &mut fastrand::Rng| rng.u64(1_000..20_000) * MILLI;
        let (nodes, same, one) = (rng.usize(2..=4), rng.bool(), duration(rng));
        let durations: Vec<_> = (0..nodes)
            .map(|_| if same { one } else { duration(rng) })
            .collect();
        let shortest = durations.iter().min().expect("some");
        let one_in = |rng: &mut fastrand::Rng, n: u32| if rng.bool() { rng.u32(2..n) } else { 0 };
        // A fleet that polls often leaves no room beyond the margin.
        let seldom = shortest / if rng.bool() { 3 } else { 50 };
        Self {
            poll: rng.u64(10 * MILLI..seldom),
            skew: *rng.choice(&[0, 5, 50, 50]).expect("some"),
            lost: one_in(rng, 12),
            late: one_in(rng, 8),
            twice: one_in(rng, 8),
            troubles: rng.u64(300..6_000),
            pauses: rng.bool(),
            crashes: rng.bool(),
            cuts: rng.bool(),
            outages: rng.u8(..3) == 0,
            releases: rng.bool(),
            durations,
        }
    }

    fn longest(&self) -> u64 {
        *self.durations.iter().max().expect("some")
    }

    /// Troubles end then.
    fn quiet(&self) -> u64 {
        TROUBLED * self.longest()
    }
}

impl Node {
    fn new(number: usize, world_rng: &mut fastrand::Rng, shape: &Shape) -> Self {
        let skew = world_rng.i64(-shape.skew..=shape.skew);
        // The greatest difference is the worst case.
        let skew = if world_rng.bool() {
            skew
        } else {
            shape.skew * skew.signum()
        };
        Self {
            machine: machine(number, world_rng, shape),
            life: 0,
            alive: true,
            rate: (1_000 + skew).unsigned_abs(),
            offset: world_rng.u64(..1_000 * SECOND),
            wall: world_rng.u64(1_700_000_000..1_700_000_600) * 1_000_000,
            asked: None,
            paused: 0,
            cut: 0,
            held_back: None,
            believes: None,
        }
    }

    /// Returns the time of its clock.
    fn local(&self, now: u64) -> Tick {
        Tick::from_nanos(self.offset + now / 1_000 * self.rate + now % 1_000 * self.rate / 1_000)
    }

    /// Returns when its clock shows this, or has just shown it.
    fn when(&self, tick: Tick) -> u64 {
        let local = tick.as_nanos().saturating_sub(self.offset);
        local / self.rate * 1_000 + local % self.rate * 1_000 / self.rate + 2
    }

    fn believed(&self, now: u64) -> Option<u64> {
        let believed = self.machine.validity(self.local(now))?;
        self.alive.then_some(believed.0)
    }
}

fn machine(number: usize, rng: &mut fastrand::Rng, shape: &Shape) -> LeaseMachine {
    let terms = LeaseConfig {
        holder: number.to_string(),
        duration: Duration::from_nanos(shape.durations[number]),
        poll: Duration::from_nanos(shape.poll),
    };
    LeaseMachine::new(terms, rng.fork())
}

impl World {
    fn new(seed: u64, fault: Fault, print: bool) -> Self {
        fault.plant();
        let mut rng = fastrand::Rng::with_seed(seed);
        let shape = Shape::new(&mut rng);
        let nodes = (0..shape.durations.len())
            .map(|number| Node::new(number, &mut rng, &shape))
            .collect();
        let mut world = Self {
            blob: Blob::new(rng.bool()),
            rng,
            print,
            shape,
            now: 0,
            events: Schedule::default(),
            requests: 0,
            nodes,
            token: 0,
            totals: Totals::default(),
        };
        world.log(|world| format!("seed {seed}: {:?}", world.shape));
        for number in 0..world.nodes.len() {
            let after = world.rng.u64(..SECOND);
            world.after(after, Event::Turn(number, 0));
        }
        world.after(SECOND, Event::Trouble);
        world
    }

    fn log(&self, text: impl FnOnce(&Self) -> String) {
        if self.print {
            println!("{:9.3} {}", self.now as f64 / 1e9, text(self));
        }
    }

    fn after(&mut self, span: u64, event: Event) {
        self.events.add(self.now + span, event);
    }

    fn run(&mut self) -> Result<(), String> {
        self.run_until(self.shape.quiet())?;
        self.log(|_| "the troubles are over".to_owned());
        for node in 0..self.nodes.len() {
            if !self.nodes[node].alive {
                self.begin(node);
            }
        }
        // The longest duration by the slowest clock, the remaining lease of a holder that just
        // crashed, and the request's time.
        let settled = self.shape.longest() * 6 / 5 + self.shape.poll * 5 / 4 + 2 * SECOND;
        self.run_until(self.now + settled)?;
        let holder = self.holder().ok_or("liveness: no contender holds it")?;
        let life = self.nodes[holder].life;
        self.run_until(self.now + 3 * self.shape.longest())?;
        if self.holder() != Some(holder) || self.nodes[holder].life != life {
            return Err("liveness: it is lost without a cause".to_owned());
        }
        let token = self.token;
        self.release(holder);
        let handed_on = self.shape.poll * 5 / 4 + SECOND / 2;
        self.run_until(self.now + handed_on)?;
        // Possibly the same contender in its next life.
        if self.holder().is_none() || self.token == token {
            return Err("liveness: a released lease is not taken".to_owned());
        }
        Ok(())
    }

    fn run_until(&mut self, end: u64) -> Result<(), String> {
        while let Some(next) = self.events.take_until(end) {
            self.now = next.at;
            self.happen(next.event);
            self.check()?;
        }
        self.now = end;
        self.check()
    }

    fn troubled(&self) -> bool {
        self.now < self.shape.quiet()
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Turn(node, life) if self.is_away(node, life) => {
                self.wait_for(node, Event::Turn(node, life));
            }
            Event::Turn(node, life) => {
                if self.nodes[node].life == life && self.nodes[node].asked.is_none() {
                    self.turn(node);
                }
            }
            Event::Arrives(node, life, number, ask) => self.arrive(node, life, number, &ask),
            Event::Answers(node, life, number, said) if self.is_away(node, life) => {
                self.wait_for(node, Event::Answers(node, life, number, said));
            }
            Event::Answers(node, life, number, said) => self.answer(node, life, number, said),
            Event::Trouble => self.trouble(),
            Event::Begins(node) => {
                if !self.nodes[node].alive {
                    self.begin(node);
                }
            }
            Event::Cut(node) => self.cut(node),
            Event::Outage(until) => self.blob.outage(until),
        }
    }

    fn is_away(&self, node: usize, life: u32) -> bool {
        let node = &self.nodes[node];
        node.life == life && node.alive && self.now < node.paused
    }

    fn wait_for(&mut self, node: usize, event: Event) {
        let span = self.nodes[node].paused - self.now;
        self.after(span, event);
    }

    /// Steps a machine, and sends its request.
    fn turn(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        if !node.alive {
            return;
        }
        let (local, life) = (node.local(self.now), node.life);
        let micros = node.wall + self.now / 1_000;
        let step = node.machine.step(local, micros);
        let ask = match step {
            Action::Wait(until) => {
                let at = node.when(until).max(self.now);
                let late = self.rng.u64(..5 * MILLI);
                return self.after(at - self.now + late, Event::Turn(number, life));
            }
            Action::Ended(end) => return self.ended(number, &end),
            Action::Read => Ask::Read,
            Action::Create(record) => Ask::Write(record.bytes(), None),
            Action::Update(record, version) => Ask::Write(record.bytes(), Some(version)),
        };
        let patience = node.machine.config().request_timeout();
        let gives_up = node.when(local + patience) - self.now;
        self.log(|_| format!("{number} asks {ask:?}"));
        self.requests += 1;
        let request = self.requests;
        self.nodes[number].asked = Some(request);
        self.after(gives_up, Event::Answers(number, life, request, None));
        let write = matches!(ask, Ask::Write(..));
        if write && self.troubled() && self.shape.cuts && self.rng.u8(..6) == 0 {
            self.nodes[number].held_back = Some(ask);
        } else if let Some(span) = self.way(number) {
            self.after(span, Event::Arrives(number, life, request, ask));
        }
    }

    /// Returns the time of a request or an answer in flight; `None` if it is lost.
    fn way(&mut self, number: usize) -> Option<u64> {
        let plain = self.rng.u64(MILLI..30 * MILLI);
        if !self.troubled() {
            return Some(plain);
        }
        let one_in = |rng: &mut fastrand::Rng, n: u32| n > 0 && rng.u32(..n) == 0;
        if self.now < self.nodes[number].cut || one_in(&mut self.rng, self.shape.lost) {
            return None;
        }
        if !one_in(&mut self.rng, self.shape.late) {
            return Some(plain);
        }
        // Mostly around the time-out of an answer; all requests arrive before the troubles end.
        let longest = self.shape.durations[number] * if self.rng.u8(..4) == 0 { 3 } else { 1 } / 2;
        let span = self.rng.u64(MILLI..longest);
        Some(span.min(self.shape.quiet() - self.now))
    }

    fn arrive(&mut self, number: usize, life: u32, request: u64, ask: &Ask) {
        let one_in = self.shape.twice;
        let twice = self.troubled() && one_in > 0 && self.rng.u32(..one_in) == 0;
        let mut said = self.blob.ask(self.now, ask);
        if twice {
            // A proxy sends the request again, and returns the second result.
            said = self.blob.ask(self.now, ask);
        }
        let mut slowly = 0;
        if self.troubled()
            && *ask == Ask::Read
            && let Some(late) = self.nodes[number].held_back.take()
        {
            // Directly after a read that does not show it, with a slow answer. When the contender
            // learns of it, it cannot act any more: its belief at that time must be right.
            self.blob.ask(self.now, &late);
            let eighth = self.shape.durations[number] / 8;
            slowly = self.rng.u64(..eighth);
            let cut = slowly + self.rng.u64(..eighth);
            self.after(cut, Event::Cut(number));
        }
        self.log(|_| format!("{number} is told {said:?}"));
        if let Some(said) = said
            && let Some(span) = self.way(number)
        {
            self.after(
                span + slowly,
                Event::Answers(number, life, request, Some(said)),
            );
        }
    }

    fn answer(&mut self, number: usize, life: u32, request: u64, said: Option<store::Said>) {
        let node = &mut self.nodes[number];
        if node.life != life || node.asked != Some(request) || !node.alive {
            return;
        }
        node.asked = None;
        let local = node.local(self.now);
        self.totals.unanswered += u64::from(said.is_none());
        let answer = said.map_or(Answer::Unknown, store::Said::answer);
        self.totals.renewed +=
            u64::from(matches!(answer, Answer::Written(_)) && node.believes.is_some());
        node.machine
            .answered(local, answer)
            .expect("only leases are written");
        self.turn(number);
    }

    fn ended(&mut self, number: usize, end: &EndReason) {
        self.log(|_| format!("{number} ends: {end:?}"));
        match end {
            EndReason::Lapsed => self.totals.lapsed += 1,
            EndReason::Released => self.totals.released += 1,
            // The outcome is unknown, or `check` has seen it already.
            _ => {}
        }
        self.nodes[number].alive = false;
        let after = self.rng.u64(..3 * SECOND);
        self.after(after, Event::Begins(number));
    }

    fn begin(&mut self, number: usize) {
        let machine = machine(number, &mut self.rng, &self.shape);
        let node = &mut self.nodes[number];
        node.machine = machine;
        node.life += 1;
        (node.alive, node.asked, node.believes) = (true, None, None);
        node.held_back = None;
        let life = node.life;
        self.after(0, Event::Turn(number, life));
    }

    fn release(&mut self, number: usize) {
        self.log(|_| format!("{number} releases"));
        let node = &mut self.nodes[number];
        let local = node.local(self.now);
        node.machine.release(local);
        let life = node.life;
        self.after(0, Event::Turn(number, life));
    }

    /// A trouble of a contender or of the store begins.
    fn trouble(&mut self) {
        if !self.troubled() {
            return;
        }
        let next = self.rng.u64(..self.shape.troubles * 2) * MILLI;
        self.after(next, Event::Trouble);
        // Mostly the holder, for which a trouble matters most.
        let any = self.rng.usize(..self.nodes.len());
        let number = self
            .holder()
            .filter(|_| self.rng.u8(..3) > 0)
            .unwrap_or(any);
        let until = self.some_time(number);
        match self.rng.u8(..5) {
            0 if self.shape.pauses => {
                self.log(|_| format!("{number} stands still until {}", until / MILLI));
                self.nodes[number].paused = until;
            }
            1 if self.shape.crashes => {
                self.log(|_| format!("{number} crashes"));
                self.totals.crashed += 1;
                self.nodes[number].alive = false;
                self.after(until - self.now, Event::Begins(number));
            }
            2 if self.shape.cuts => self.cut(number),
            3 if self.shape.outages => self.after(0, Event::Outage(until)),
            4 if self.shape.releases && self.now >= self.nodes[number].paused => {
                self.release(number);
            }
            _ => {}
        }
    }

    fn cut(&mut self, number: usize) {
        let until = self.some_time(number);
        self.log(|_| format!("{number} is cut off until {}", until / MILLI));
        self.nodes[number].cut = until;
    }

    /// Returns until when a trouble lasts: up to half as long again as a lease.
    fn some_time(&mut self, number: usize) -> u64 {
        let longest = self.shape.durations[number] * 3 / 2;
        let quiet = self.shape.quiet().max(self.now);
        (self.now + self.rng.u64(..longest)).min(quiet)
    }

    fn holder(&self) -> Option<usize> {
        (0..self.nodes.len()).find(|number| self.nodes[*number].believed(self.now).is_some())
    }

    /// At most one contender believes to hold the lease at any moment, and tokens grow.
    fn check(&mut self) -> Result<(), String> {
        let mut holder = None;
        for number in 0..self.nodes.len() {
            let believed = self.nodes[number].believed(self.now);
            let before = std::mem::replace(&mut self.nodes[number].believes, believed);
            let Some(token) = believed else { continue };
            if let Some(other) = holder.replace(number) {
                return Err(format!(
                    "I7: two believe at one time: {{{other} and {number}}}"
                ));
            }
            if before == believed {
                continue;
            }
            self.log(|_| format!("{number} holds it with {token}"));
            self.totals.taken += 1;
            if token <= self.token {
                return Err(format!(
                    "I7: a token does not grow: {{{token} after {}}}",
                    self.token
                ));
            }
            self.token = token;
        }
        Ok(())
    }
}

impl Totals {
    fn add(&mut self, other: &Self) {
        self.taken += other.taken;
        self.renewed += other.renewed;
        self.released += other.released;
        self.lapsed += other.lapsed;
        self.crashed += other.crashed;
        self.unanswered += other.unanswered;
    }

    fn rarest(&self) -> u64 {
        let counts = [
            self.taken,
            self.renewed,
            self.released,
            self.lapsed,
            self.crashed,
            self.unanswered,
        ];
        counts.into_iter().min().expect("some")
    }
}

/// Runs one seed to its end, or to the first violation, which it returns.
pub(super) fn run(seed: u64, fault: Fault, print: bool) -> Option<String> {
    World::new(seed, fault, print).run().err()
}

/// In any order of steps at most one contender believes to hold the lease, and at the end one does.
#[test]
fn no_two_hold_a_lease() {
    let totals = std::sync::Mutex::new(Totals::default());
    let all = SEEDS.run(|seed, fault, print| {
        let mut world = World::new(seed, fault, print);
        let violation = world.run().err();
        totals.lock().expect("no panic").add(&world.totals);
        violation
    });
    let totals = totals.into_inner().expect("no panic");
    println!("{totals:?}");
    let rarest = totals.rarest();
    assert!(!all || rarest >= 200, "only {rarest}: {totals:?}");
}
