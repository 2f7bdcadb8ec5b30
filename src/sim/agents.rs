//! Agents: machines that start workers for the messages of queues, on a real hub.
//!
//! Workers read until their queue is empty, or serve until they are ended. They crash with messages in
//! their hands, agents are killed and come back, machines have no room for a while, and the relay is
//! restarted. No sentinel checks anything. At the end every message was handled, no worker runs, and
//! for the last minutes none was started.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Wake, Waker},
    time::Duration,
};

use super::{Seeds, schedule::Schedule};
use crate::{
    base::{clock::Tick, fault::Fault},
    error::ErrorKind,
    listener::agent::{AgentConfig, AgentMachine, Step, WorkerEnd},
    relay::hub::{
        Epoch, Hub, HubConfig, StreamConfig, StreamMessage, SubscriberStream, SubscriptionId,
        WakeBatch, WakeBuilder, Walk,
    },
    types::{
        ConnectionState, GroupName, LinkState, ListenerId, Notification, QueueAddress, Report,
        StreamAction, SubscribeEvent, SubscribeOptions,
    },
};

const SEEDS: Seeds = Seeds::new("agents_strand", [600, 3_000]);
const SECOND: Duration = Duration::from_secs(1);
/// How long a get hides a message.
const VISIBILITY: Duration = Duration::from_secs(10);
/// After the last trouble: the longest rest of a slot, and time to read everything.
const CALM: Duration = Duration::from_secs(900);
/// At its end no worker is started any more.
const QUIET: Duration = Duration::from_secs(200);
const IDLE: Duration = Duration::from_secs(20);

struct World {
    rng: fastrand::Rng,
    now: Tick,
    events: Schedule<Tick, Event>,
    hub: Option<Arc<Hub>>,
    walk: Option<Walk>,
    subscriptions: u128,
    /// Relays that have started.
    relays: u64,
    queues: Vec<Queue>,
    agents: Vec<Agent>,
    config: AgentConfig,
    /// Its depths can be read; signals decide about room.
    settings: (bool, bool),
    has_troubles: bool,
    /// The time of the newest start of a worker.
    started_at: Tick,
    starts: u64,
    /// Puts after the last trouble, just when a worker ends.
    last_puts: u32,
    /// After the last trouble an agent is killed while one of its workers holds messages.
    ends_late: bool,
    violation: Option<String>,
    /// Prints the run.
    print: bool,
}

struct Queue {
    address: QueueAddress,
    messages: Vec<Message>,
}

struct Message {
    visible_at: Tick,
    handled: bool,
}

struct Agent {
    machine: AgentMachine,
    life: u64,
    is_alive: bool,
    /// It was asked to end in order.
    is_stopping: bool,
    has_room: bool,
    link: LinkState,
    conn: Option<Conn>,
    workers: BTreeMap<usize, Worker>,
    wait: Tick,
}

struct Conn {
    feed: SubscriberStream,
    id: SubscriptionId,
    alarm: Arc<Alarm>,
    poll_at: Tick,
    number: u64,
}

/// A worker; its number tells it apart from others of its slot.
struct Worker {
    number: u64,
    queue: usize,
    is_ending: bool,
}

#[derive(Default)]
struct Alarm(AtomicBool);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A worker of an agent's life.
type At = (usize, u64, usize, u64);

enum Event {
    Puts,
    LastPut,
    Kill(usize),
    Notify(usize, u64),
    Reads(At),
    Handled(At, usize),
    Exits(At, WorkerEnd),
    /// Agent, its life, the queue and the stream of its report.
    Reported(usize, u64, SubscriptionId, (usize, u64), Report),
    Answered(usize, u64, (usize, u64), Option<ErrorKind>),
    Depth(usize, u64, usize),
    Room(usize, u64),
    Trouble,
    Restart(usize),
    RelayStarts,
    Connects(usize, u64),
    RoomAgain(usize),
    Calm,
}

impl World {
    fn new(seed: u64, fault: Fault, print: bool) -> Self {
        fault.plant();
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x6167_656e);
        let serves = rng.u32(0..3) == 0;
        let has_signals = rng.bool();
        let config = AgentConfig {
            max: rng.usize(1..=4),
            per: [1, 1, 3, 20][rng.usize(0..4)],
            idle: serves.then_some(IDLE),
            visibility_timeout: VISIBILITY,
            poll: SECOND * [10, 3600][rng.usize(0..2)],
            check: None,
            policy: None,
        };
        let settings = (rng.u32(0..3) == 0, has_signals);
        let queue = |number| Queue {
            address: super::plan::address(&format!("q{number}")),
            messages: Vec::new(),
        };
        let mut world = Self {
            queues: (0..rng.usize(1..=2)).map(queue).collect(),
            agents: Vec::new(),
            now: Tick::default() + SECOND,
            events: Schedule::default(),
            hub: None,
            walk: None,
            subscriptions: 0,
            relays: 0,
            config,
            settings,
            has_troubles: true,
            started_at: Tick::default(),
            starts: 0,
            last_puts: rng.u32(0..3),
            ends_late: rng.bool(),
            violation: None,
            print,
            rng,
        };
        for at in 0..world.rng.usize(1..=3) {
            let machine = world.make_machine();
            world.agents.push(Agent {
                machine,
                life: 0,
                is_alive: true,
                is_stopping: false,
                has_room: true,
                link: LinkState::default(),
                conn: None,
                workers: BTreeMap::new(),
                wait: Tick::NEVER,
            });
            world.after(500, Event::Connects(at, 0));
        }
        world.start_relay();
        world.after(1_000, Event::Puts);
        world.after(3_000, Event::Trouble);
        let end = world.now + SECOND * world.rng.u32(20..150);
        world.events.add(end, Event::Calm);
        world
    }

    fn make_machine(&mut self) -> AgentMachine {
        let rng = fastrand::Rng::with_seed(self.rng.u64(..));
        AgentMachine::new(
            self.config.clone(),
            self.settings,
            self.queues.len(),
            self.now,
            rng,
        )
    }

    fn start_relay(&mut self) {
        let hub = Hub::new(HubConfig {
            epoch: Epoch(self.rng.u128(..)),
            seed: self.rng.u64(..),
            inline: if self.rng.bool() { 0 } else { 64 },
            ..HubConfig::default()
        });
        (self.hub, self.walk) = (Some(Arc::new(hub)), None);
        self.relays += 1;
    }

    /// Schedules an event within so many milliseconds.
    fn after(&mut self, millis: u64, event: Event) {
        let after = Duration::from_micros(self.rng.u64(0..=millis * 1000));
        self.events.add(self.now + after, event);
    }

    fn run(&mut self) -> Option<String> {
        let mut end = None;
        loop {
            self.rest();
            if self.violation.is_some() {
                return self.violation.take();
            }
            if !self.has_troubles {
                let end = *end.get_or_insert(self.now + CALM);
                if self.now >= end {
                    return self.check_end(end);
                }
            }
            let event = self.events.next_at();
            let waits = self.agents.iter().flat_map(|agent| {
                let polls = agent.conn.as_ref().map(|conn| conn.poll_at);
                [Some(agent.wait), polls].into_iter().flatten()
            });
            let timer = self.hub.as_ref().and_then(|hub| hub.next_timer());
            let next = waits.chain(event).chain(timer).chain(end).min();
            self.now = self.now.max(next.unwrap_or(Tick::NEVER));
            while let Some(next) = self.events.take_until(self.now) {
                self.happens(next.event);
            }
        }
    }

    /// Runs all steps that are due.
    fn rest(&mut self) {
        for _ in 0..10_000 {
            let mut moved = false;
            if let Some(hub) = self.hub.clone() {
                if hub.next_timer().is_some_and(|next| next <= self.now) {
                    hub.fire(self.now);
                    moved = true;
                }
                moved |= hub.detach_some(self.now);
                if let Some(mut walk) = self.walk.take().or_else(|| hub.fanout.pop()) {
                    let mut batch = WakeBatch::default();
                    if walk.step(&mut batch) {
                        self.walk = Some(walk);
                    }
                    moved = true;
                }
            }
            for at in 0..self.agents.len() {
                moved |= self.poll(at);
                moved |= self.drive(at);
            }
            if !moved {
                return;
            }
        }
        self.violate("work: the agents do not come to rest".to_owned());
    }

    /// Polls an agent's stream for its next message.
    fn poll(&mut self, at: usize) -> bool {
        let now = self.now;
        let agent = &mut self.agents[at];
        let Some(conn) = &mut agent.conn else {
            return false;
        };
        let rung = conn.alarm.0.swap(false, Ordering::Relaxed);
        if !rung && conn.poll_at > now {
            return false;
        }
        let waker = Waker::from(Arc::clone(&conn.alarm));
        let mut sink = WakeBuilder::default();
        let next = conn.feed.next_into(now, None, &waker, &mut sink);
        conn.poll_at = match &next {
            StreamAction::Wait(until) => *until,
            _ => now,
        };
        if let StreamAction::Send(StreamMessage::Event(SubscribeEvent::Welcome(welcome))) = &next {
            agent.link.epoch = Arc::clone(&welcome.epoch);
            agent.link.announced = false;
            agent.link.connection = ConnectionState::Connected;
            agent.link.welcomes += 1;
            agent.machine.on_link(&agent.link, now);
        }
        for work in sink.work {
            let known = |queue: &Queue| work.queue.matches(&queue.address);
            let queue = self
                .queues
                .iter()
                .position(known)
                .expect("it has two at most");
            let messages = work.messages.max(work.notifications);
            if self.print {
                println!(
                    "{now:?} agent {at} is woken for queue {queue}: {:?} {}, {messages}",
                    work.reason, work.sequence
                );
            }
            agent
                .machine
                .on_wake_up(queue, work.sequence, messages, now);
        }
        true
    }

    /// Runs the steps of an agent's machine until it waits.
    fn drive(&mut self, at: usize) -> bool {
        let now = self.now;
        let agent = &mut self.agents[at];
        if !agent.is_alive {
            agent.wait = Tick::NEVER;
            return false;
        }
        let life = agent.life;
        let step = agent.machine.step(now);
        if self.print && !matches!(step, Step::Wait(_)) {
            println!("{now:?} agent {at}: {step:?}");
        }
        match step {
            Step::Wait(until) => {
                agent.wait = until;
                if agent.is_stopping && !agent.machine.is_at_work(now) {
                    self.kill(at);
                }
                return false;
            }
            Step::Start { slot, queue } => self.start(at, slot, queue),
            Step::End { slot } => {
                if let Some(worker) = agent.workers.get_mut(&slot) {
                    worker.is_ending = true;
                }
            }
            Step::AskRoom => self.after(20, Event::Room(at, life)),
            Step::QueryDepth { queue } => self.after(20, Event::Depth(at, life, queue)),
            Step::Report { queue, report } => {
                let (sent, of) = (report.pending, (queue, report.stream));
                let conn = agent.conn.as_mut();
                let conn = conn.map(|conn| {
                    conn.number += 1;
                    (conn.id, conn.number)
                });
                match conn {
                    None => {
                        let kind = Some(ErrorKind::Unavailable);
                        self.after(1, Event::Answered(at, life, of, kind));
                    }
                    Some((id, number)) => {
                        let report = Report {
                            state: sent.state,
                            sequence: sent.sequence,
                            visible_in: sent.visible_in,
                            number,
                            capacity: Some(report.capacity),
                            active_dequeue_tasks: u32::try_from(report.running).expect("few"),
                            total_dequeue_tasks: u32::try_from(report.slots).expect("few"),
                            ..Report::new(self.queues[queue].address.clone())
                        };
                        self.after(5, Event::Reported(at, life, id, of, report));
                    }
                }
            }
        }
        true
    }

    fn start(&mut self, at: usize, slot: usize, queue: usize) {
        self.starts += 1;
        self.started_at = self.now;
        let number = self.starts;
        let agent = &mut self.agents[at];
        let life = agent.life;
        let worker = Worker {
            number,
            queue,
            is_ending: false,
        };
        if agent.workers.insert(slot, worker).is_some() {
            self.violate(format!("A1: slot {slot} of agent {at} has two workers"));
        }
        let event = match self.has_troubles && self.rng.u32(0..12) == 0 {
            // It cannot be started, or crashes at once.
            true => Event::Exits((at, life, slot, number), WorkerEnd::Failed(String::new())),
            false => Event::Reads((at, life, slot, number)),
        };
        self.after(40, event);
    }

    /// Returns the queue of a worker that still runs, and whether it is to end.
    fn worker(&self, (at, life, slot, number): At) -> Option<(usize, bool)> {
        let agent = self.agents.get(at).filter(|agent| agent.life == life)?;
        let worker = agent.workers.get(&slot)?;
        (worker.number == number).then_some((worker.queue, worker.is_ending))
    }

    fn happens(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Puts => self.puts(),
            Event::Notify(queue, messages) => {
                let notification = Notification {
                    messages,
                    ..Notification::new(self.queues[queue].address.clone())
                };
                match &self.hub {
                    Some(hub) => {
                        let told = hub.notify_all(&"p".into(), &[notification], now);
                        told.expect("there is room");
                    }
                    None => self.after(200, Event::Notify(queue, messages)),
                }
            }
            Event::Reads(worker) => self.reads(worker),
            Event::Handled(worker, message) => {
                if let Some((queue, _)) = self.worker(worker) {
                    self.queues[queue].messages[message].handled = true;
                    self.reads(worker);
                }
            }
            Event::Exits(worker, ended) => {
                if self.worker(worker).is_some() {
                    if self.print {
                        println!("{now:?} agent {}: slot {} {ended:?}", worker.0, worker.2);
                    }
                    let agent = &mut self.agents[worker.0];
                    agent.workers.remove(&worker.2);
                    let holds = !agent.workers.is_empty();
                    agent.machine.on_ended(worker.2, &ended, now);
                    // Nothing after it heals what it leaves.
                    if self.ends_late && !self.has_troubles && holds && worker.0 > 0 {
                        self.after(1_000, Event::Kill(worker.0));
                    }
                }
            }
            Event::Reported(at, life, id, of, report) => {
                let answer = match &self.hub {
                    Some(hub) => hub.report(id, &report, now).map_err(|error| error.kind()),
                    None => Err(ErrorKind::Unavailable),
                };
                // Now and then it comes when the next stream is open.
                let late = if self.rng.u32(0..10) == 0 { 3_000 } else { 5 };
                self.after(late, Event::Answered(at, life, of, answer.err()));
            }
            Event::Answered(at, life, (queue, stream), error) => {
                let agent = &mut self.agents[at];
                if agent.life == life {
                    agent.machine.on_answered(queue, stream, error, now);
                }
            }
            Event::Depth(at, life, queue) => {
                let left = self.queues[queue].messages.iter();
                let left = left.filter(|one| !one.handled).count() as u64;
                let fails = self.has_troubles && self.rng.u32(0..6) == 0;
                let agent = &mut self.agents[at];
                if agent.life == life {
                    agent.machine.on_depth(queue, (!fails).then_some(left), now);
                }
            }
            Event::Room(at, life) => {
                let agent = &mut self.agents[at];
                if agent.life == life {
                    agent.machine.on_room(agent.has_room, now);
                }
            }
            Event::Kill(at) => self.kill(at),
            Event::LastPut => {
                let queue = self.rng.usize(0..self.queues.len());
                self.put(queue, 1);
            }
            event => self.happens_to_fleet(&event),
        }
    }

    /// What happens to agents and the relay.
    fn happens_to_fleet(&mut self, event: &Event) {
        match *event {
            Event::Trouble => self.trouble(),
            Event::Restart(at) => {
                let machine = self.make_machine();
                let agent = &mut self.agents[at];
                agent.machine = machine;
                agent.is_alive = true;
                agent.link = LinkState::default();
                let life = agent.life;
                self.after(500, Event::Connects(at, life));
            }
            Event::RelayStarts => {
                self.start_relay();
                for at in 0..self.agents.len() {
                    let life = self.agents[at].life;
                    self.after(1_000, Event::Connects(at, life));
                }
            }
            Event::Connects(at, life) => self.connects(at, life),
            Event::RoomAgain(at) => self.agents[at].has_room = true,
            Event::Calm => {
                self.has_troubles = false;
                // The last trouble has nothing after it that heals it.
                for at in 1..self.agents.len() {
                    match self.rng.u32(0..3) {
                        0 => self.kill(at),
                        1 => self.agents[at].has_room = false,
                        _ => {}
                    }
                }
                if self.rng.u32(0..3) == 0 {
                    self.end_relay();
                }
                for _ in 0..self.rng.usize(0..4) {
                    self.after(20_000, Event::LastPut);
                }
                // Others may have none for ever.
                self.agents[0].has_room = true;
            }
            _ => unreachable!("it happens to a worker or a report"),
        }
    }

    fn puts(&mut self) {
        if !self.has_troubles {
            return;
        }
        let queue = self.rng.usize(0..self.queues.len());
        let count = match self.rng.u32(0..4) {
            0 => self.rng.u64(1..40),
            _ => 1,
        };
        self.put(queue, count);
        let pause = [30, 2_000, 15_000][self.rng.usize(0..3)];
        self.after(pause, Event::Puts);
    }

    fn put(&mut self, queue: usize, count: u64) {
        for _ in 0..count {
            self.queues[queue].messages.push(Message {
                visible_at: self.now,
                handled: false,
            });
        }
        self.after(20, Event::Notify(queue, count));
    }

    /// A worker gets the next message, or finds none.
    fn reads(&mut self, at: At) {
        let Some((queue, is_ending)) = self.worker(at) else {
            return;
        };
        let now = self.now;
        if is_ending {
            let mut left = self.queues[queue].messages.iter();
            let ended = match left.any(|one| !one.handled && one.visible_at <= now) {
                true => WorkerEnd::Unfinished,
                false => WorkerEnd::Done,
            };
            return self.after(10, Event::Exits(at, ended));
        }
        let crashes = self.has_troubles && self.rng.u32(0..25) == 0;
        let mut messages = self.queues[queue].messages.iter_mut();
        let found = messages.position(|one| !one.handled && one.visible_at <= now);
        let Some(message) = found else {
            return match self.config.idle {
                // The queue may fill before its exit is seen.
                None => {
                    self.after(30, Event::Exits(at, WorkerEnd::Done));
                    if self.last_puts > 0 && !self.has_troubles && self.rng.u32(0..3) == 0 {
                        self.last_puts -= 1;
                        self.put(queue, 1);
                    }
                }
                Some(_) => self.after(700, Event::Reads(at)),
            };
        };
        self.queues[queue].messages[message].visible_at = now + VISIBILITY;
        let event = match crashes {
            true => Event::Exits(at, WorkerEnd::Failed(String::new())),
            false => Event::Handled(at, message),
        };
        let takes = [5, 200, 4_000][self.rng.usize(0..3)];
        self.after(takes, event);
    }

    fn trouble(&mut self) {
        if !self.has_troubles {
            return;
        }
        if self.print {
            println!("{:?} trouble", self.now);
        }
        let at = self.rng.usize(0..self.agents.len());
        match self.rng.u32(0..6) {
            0 => self.kill(at),
            5 if self.agents[at].is_alive => {
                self.agents[at].machine.stop();
                self.agents[at].is_stopping = true;
            }
            1 => self.end_relay(),
            2 => {
                self.disconnect(at);
                let life = self.agents[at].life;
                self.after(2_000, Event::Connects(at, life));
            }
            _ => {
                self.agents[at].has_room = false;
                if at == 0 || self.rng.bool() {
                    self.after(30_000, Event::RoomAgain(at));
                }
            }
        }
        self.after(12_000, Event::Trouble);
    }

    /// The relay ends, and another one starts.
    fn end_relay(&mut self) {
        if self.hub.take().is_some() {
            let is_announced = self.rng.bool();
            for at in 0..self.agents.len() {
                self.agents[at].link.announced = is_announced;
                self.disconnect(at);
            }
            self.after(4_000, Event::RelayStarts);
        }
    }

    /// SIGKILL, or the end of a shutdown. Workers that still run are ended with it, and their messages
    /// stay hidden for a while.
    fn kill(&mut self, at: usize) {
        self.disconnect(at);
        let agent = &mut self.agents[at];
        if !agent.is_alive {
            return;
        }
        agent.life += 1;
        agent.is_alive = false;
        agent.workers.clear();
        // One of several may stay away, but for the first one.
        let was_stopping = std::mem::take(&mut agent.is_stopping);
        if at == 0 || was_stopping || self.has_troubles && self.rng.u32(0..3) > 0 {
            self.after(15_000, Event::Restart(at));
        }
    }

    fn disconnect(&mut self, at: usize) {
        let now = self.now;
        let agent = &mut self.agents[at];
        if let Some(mut conn) = agent.conn.take() {
            conn.feed.close(now);
        }
        agent.link.connection = ConnectionState::Reconnecting;
        if agent.is_alive {
            agent.machine.on_link(&agent.link, now);
        }
    }

    fn connects(&mut self, at: usize, life: u64) {
        let agent = &self.agents[at];
        if agent.life != life || !agent.is_alive || agent.conn.is_some() {
            return;
        }
        let Some(hub) = self.hub.clone() else {
            return self.after(500, Event::Connects(at, life));
        };
        self.subscriptions += 1;
        let id = SubscriptionId(self.subscriptions);
        let listener = ListenerId::new(&format!("agent-{at}")).expect("a name");
        let queues = self.queues.iter().map(|queue| queue.address.clone());
        let options = SubscribeOptions {
            group: Some(GroupName::new("workers").expect("a name")),
            capacity: self.config.nominal(),
            visibility_timeout: VISIBILITY,
            agent: true,
            ..SubscribeOptions::new(listener, queues)
        };
        let config = StreamConfig {
            relay_id: "sim".into(),
            epoch: self.relays.to_string().into(),
            version: "0".into(),
            max_age: SECOND * 3600 * 24 * 365,
            throttle_from: StreamConfig::THROTTLE_FROM,
        };
        let made = hub.subscribe(id, &options, self.now);
        let made = made.expect("there is room");
        let feed = SubscriberStream::new(hub, made, &options, &config, self.now, &mut self.rng);
        self.agents[at].conn = Some(Conn {
            feed,
            id,
            alarm: Arc::default(),
            poll_at: self.now,
            number: 0,
        });
    }

    fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    fn check_end(&self, end: Tick) -> Option<String> {
        for (at, queue) in self.queues.iter().enumerate() {
            let left = queue.messages.iter().filter(|one| !one.handled).count();
            if left > 0 {
                return Some(format!("A2: {left} messages of queue {at} are stranded"));
            }
        }
        for (at, agent) in self.agents.iter().enumerate() {
            if agent.is_alive && (!agent.workers.is_empty() || agent.machine.active() > 0) {
                return Some(format!("A3: agent {at} has workers, and there is no work"));
            }
        }
        if self.started_at + QUIET > end {
            return Some("A4: a worker was started although there was no work".to_owned());
        }
        None
    }
}

pub(super) fn run(seed: u64, fault: Fault) -> Option<String> {
    World::new(seed, fault, false).run()
}

/// Agents strand no message, and run nothing when there is no work.
#[test]
fn agents_strand_no_message_and_end_all_workers() {
    let kinds = std::sync::Mutex::new(BTreeSet::new());
    let all = SEEDS.run(|seed, fault, print| {
        let mut world = World::new(seed, fault, print);
        if print {
            println!("{:?} {:?}", world.config, world.settings);
        }
        let violation = world.run();
        let kind = (
            world.config.idle.is_some(),
            world.settings.0,
            world.starts > 20,
        );
        kinds.lock().expect("no panic").insert(kind);
        violation
    });
    // What never happens is not tested.
    let kinds = kinds.into_inner().expect("no panic");
    assert!(!all || kinds.len() == 8, "{kinds:?}");
}
