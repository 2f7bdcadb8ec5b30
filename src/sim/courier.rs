//! The hand-over's part of the simulation: machines that exchange messages while they crash, are
//! cut off, lose their files to older copies, and while the network loses, repeats, delays and swaps
//! requests and answers.
//!
//! Each machine is a real queue file (SQLite in memory) with the production schema; the production
//! sessions (`courier::handover`) run on it. Then the troubles end, and each committed message must
//! have been handled once, in order, or be a dead letter with its reason.

mod check;
mod machine;
mod shape;
mod totals;
mod troubles;

use std::{collections::BTreeMap, sync::Arc};

use self::{
    machine::{Id, Machine, QUEUES},
    shape::{Shape, policy},
    totals::Totals,
};
use super::{Seeds, quick_or_full, schedule::Schedule};
use crate::{
    base::fault::{Fault, planted},
    courier::handover::{ReceiverSession, SenderRights, SenderSession},
    wire::proto::{
        HandOverRequest, HandOverResponse, hand_over_response::Kind as Response,
        hand_over_verdict::Kind as Verdict,
    },
};

const SEEDS: Seeds = Seeds {
    test: "no_message_is_lost_or_doubled",
    count: [500, 1_000],
    cost: 5,
};
/// Each kind of event happens at least so often in them.
const OFTEN: [u64; 2] = [150, 200];
const MILLI: i64 = 1_000;
const SECOND: i64 = 1_000 * MILLI;
const DAY: i64 = 24 * 3600 * SECOND;
/// The most by which a machine's clock is ahead: less than the age limit of most runs.
const FORWARD: i64 = 5 * DAY;
/// The time of troubles.
const TROUBLED: i64 = 60 * SECOND;
/// After the troubles: the longest back-off of a connection and of a postponed destination, and the
/// time for the messages.
const QUIET: i64 = 60 * SECOND;
/// A connection without an answer for this long ends.
const ANSWER_TIMEOUT: i64 = 5 * SECOND;
/// A host connects to each machine that it knows this often; in production, once an hour.
const GREETING: i64 = 20 * SECOND;
/// The host reads the file this often without a signal.
const INTERVAL: i64 = SECOND;

/// One run. Times are true microseconds.
struct World {
    rng: fastrand::Rng,
    print: bool,
    shape: Shape,
    now: i64,
    troubled: bool,
    events: Schedule<i64, Event>,
    machines: Vec<Machine>,
    connections: BTreeMap<u64, Connection>,
    /// Connections opened so far.
    opened: u64,
    /// All committed messages, by id.
    sent: Vec<Sent>,
    totals: Totals,
    hash: u64,
}

/// A committed message.
struct Sent {
    from: usize,
    to: usize,
    /// The name of the machine `to`; the order of messages by different names is free.
    name: String,
    queue: &'static str,
    /// A restore of an older copy may have removed it.
    may_be_lost: bool,
}

/// A connection: each side ends on its own.
struct Connection {
    from: usize,
    to: usize,
    /// The name of the machine `to` that the sender uses.
    hop: String,
    sender: Option<SenderSession>,
    receiver: Option<ReceiverSession>,
    /// When the last frame arrives, in each direction.
    arrivals: [i64; 2],
    /// The sender's last request or answer.
    progress: i64,
}

#[derive(Debug, Clone)]
enum Event {
    /// An application commits messages.
    Send,
    /// The host of a machine's life looks for messages to move.
    Host(usize, u32),
    /// A failed connection is tried again.
    Connect(usize, u32, String),
    /// The sender of a connection looks for messages to offer.
    Offer(u64),
    ToReceiver(u64, HandOverRequest),
    ToSender(u64, HandOverResponse),
    /// A side notices that the connection has ended.
    SenderEnds(u64),
    ReceiverEnds(u64),
    Consume(usize),
    Trouble,
    Crash(usize),
    Restart(usize),
}

impl World {
    fn new(seed: u64, fault: Fault, print: bool) -> Self {
        fault.plant();
        let mut rng = fastrand::Rng::with_seed(seed);
        let shape = Shape::new(&mut rng);
        let machines = (0..shape.machines).map(|number| {
            let mut machine = Machine::new(number, policy(number, &shape));
            machine.deletes = shape.deletes;
            machine
        });
        let mut world = Self {
            machines: machines.collect(),
            rng,
            print,
            shape,
            now: 0,
            troubled: true,
            events: Schedule::default(),
            connections: BTreeMap::new(),
            opened: 0,
            sent: Vec::new(),
            totals: Totals::default(),
            hash: 0,
        };
        for machine in 0..world.machines.len() {
            world.push(0, Event::Host(machine, 0));
        }
        world.push(10 * MILLI, Event::Send);
        world.push(world.shape.troubles, Event::Trouble);
        world
    }

    fn run(&mut self) -> Result<(), String> {
        self.run_until(TROUBLED)?;
        self.log(|_| "the troubles are over".to_owned());
        self.troubled = false;
        for number in 0..self.machines.len() {
            let config = &mut Arc::make_mut(&mut self.machines[number].policy).config;
            (config.max_queue, config.max_outgoing) = (None, u64::MAX);
            if !self.machines[number].up {
                self.restart(number);
            }
        }
        self.run_until(TROUBLED + QUIET)?;
        self.check_end()
    }

    fn run_until(&mut self, end: i64) -> Result<(), String> {
        while let Some(next) = self.events.take_until(end) {
            let (at, event) = (next.at, next.event);
            self.now = at;
            self.log(|_| format!("{event:?}"));
            self.hash =
                self.hash.rotate_left(5) ^ (at.unsigned_abs().wrapping_mul(0x9e37_79b9_7f4a_7c15));
            self.handle(event)?;
        }
        self.now = end;
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Send => self.send(),
            Event::Host(machine, life) => self.host(machine, life),
            Event::Connect(machine, life, hop) => self.connect(machine, life, &hop),
            Event::Offer(connection) => self.offer(connection),
            Event::ToReceiver(connection, frame) => {
                self.arrive_at_receiver(connection, frame)?;
            }
            Event::ToSender(connection, frame) => {
                self.arrive_at_sender(connection, frame)?;
            }
            Event::SenderEnds(connection) => self.sender_ends(connection),
            Event::ReceiverEnds(connection) => {
                if let Some(connection) = self.connections.get_mut(&connection) {
                    connection.receiver = None;
                }
                self.forget_ended();
            }
            Event::Consume(machine) => self.consume(machine)?,
            Event::Trouble => self.trouble(),
            Event::Crash(machine) => {
                if self.troubled {
                    self.crash(machine);
                }
            }
            Event::Restart(machine) => self.restart(machine),
        }
        Ok(())
    }

    fn push(&mut self, after: i64, event: Event) {
        self.events.add(self.now + after.max(0), event);
    }

    fn log(&self, text: impl FnOnce(&Self) -> String) {
        if self.print {
            let seconds = self.now as f64 / SECOND as f64;
            println!("{seconds:9.4} {}", text(self));
        }
    }

    /// One chance in `n` while there are troubles; 0 is never.
    fn happens(&mut self, n: u32) -> bool {
        self.troubled && n > 0 && self.rng.u32(..n) == 0
    }

    /// An application of a random machine commits messages to another one.
    fn send(&mut self) {
        if !self.troubled {
            return;
        }
        let pause = self.rng.i64(1..2 * self.shape.pause);
        self.push(pause, Event::Send);
        let from = self.rng.usize(..self.machines.len());
        if !self.machines[from].up || self.sent.len() >= self.shape.messages {
            return;
        }
        let mut sends = Vec::new();
        for _ in 0..self.rng.usize(1..=self.shape.burst) {
            let (to, name) = self.shape.destination(&mut self.rng, from);
            let queue = match self.rng.u8(..40) {
                0 => "missing",
                13..=32 if self.shape.queue_changes => "missing",
                1..=12 => QUEUES[1],
                _ => QUEUES[0],
            };
            let id = self.sent.len() as Id;
            self.sent.push(Sent {
                from,
                to,
                name: name.clone(),
                queue,
                may_be_lost: false,
            });
            sends.push((id, name, queue));
        }
        self.totals.sent += sends.len() as u64;
        let (now, _) = self.machines[from].times(self.now);
        let ends_at = Some(now + self.shape.max_age);
        self.machines[from].send(now, ends_at, &sends);
        let life = self.machines[from].life;
        self.push(0, Event::Host(from, life));
    }

    /// The host of a machine looks into its file: notifies, expires, connects, offers.
    fn host(&mut self, number: usize, life: u32) {
        let machine = &mut self.machines[number];
        if !machine.up || machine.life != life {
            return;
        }
        let (now, _) = machine.times(self.now);
        machine.expire(now);
        if self.now / GREETING != machine.greeted {
            machine.greeted = self.now / GREETING;
            machine.greet();
        }
        if machine.notify() {
            let pause = self.rng.i64(..2 * self.shape.handling);
            self.push(pause, Event::Consume(number));
        }
        for hop in self.machines[number].hops() {
            match self.open_connection(number, &hop) {
                Some(id) => self.push(0, Event::Offer(id)),
                None => self.push(0, Event::Connect(number, life, hop)),
            }
        }
        let is_look =
            |event: &Event| matches!(*event, Event::Host(at, of) if (at, of) == (number, life));
        let look = self
            .events
            .iter()
            .any(|(at, event)| at > self.now && is_look(event));
        if !look {
            self.push(INTERVAL, Event::Host(number, life));
        }
    }

    /// Returns the open connection of a machine to a next one.
    fn open_connection(&self, from: usize, hop: &str) -> Option<u64> {
        let open = self.connections.iter().find(|(_, connection)| {
            connection.from == from && connection.hop == hop && connection.sender.is_some()
        });
        open.map(|(id, _)| *id)
    }

    fn connect(&mut self, number: usize, life: u32, hop: &str) {
        let to = shape::number(hop);
        self.machines[number].greets.remove(hop);
        let machine = &self.machines[number];
        let open = self.open_connection(number, hop).is_some();
        if !machine.up || machine.life != life || open || !self.machines[to].up {
            return;
        }
        let mut sender = SenderSession::new(hop);
        let hello = self.machines[number].step(true, |transaction| sender.begin(transaction));
        let hello = hello.expect("the file is sound");
        let policy = Arc::clone(&self.machines[to].policy);
        let receiver = ReceiverSession::new(self.rng.u128(..).to_be_bytes(), policy);
        self.opened += 1;
        let id = self.opened;
        let connection = Connection {
            from: number,
            to,
            hop: hop.to_owned(),
            sender: Some(sender),
            receiver: Some(receiver),
            arrivals: [0; 2],
            progress: self.now,
        };
        self.connections.insert(id, connection);
        self.send_to_receiver(id, &hello);
        self.push(0, Event::Offer(id));
    }

    fn offer(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let (from, Some(sender)) = (connection.from, &mut connection.sender) else {
            return;
        };
        if sender.awaits_answer && self.now - connection.progress > ANSWER_TIMEOUT {
            self.push(0, Event::SenderEnds(id));
            self.push(0, Event::ReceiverEnds(id));
            return;
        }
        let machine = &mut self.machines[from];
        let (now, _) = machine.times(self.now);
        let next = machine.step(true, |transaction| sender.next_offer(transaction, now));
        let next = next.expect("the file is sound");
        if next.offer.is_some() {
            connection.progress = self.now;
        }
        if let Some(wait) = next.wait {
            let wait = i64::try_from(wait.as_micros()).expect("short");
            self.push(wait, Event::Offer(id));
        }
        if let Some(offer) = next.offer {
            self.send_to_receiver(id, &offer);
            self.push(ANSWER_TIMEOUT + 1, Event::Offer(id));
        }
    }

    fn arrive_at_receiver(&mut self, id: u64, request: HandOverRequest) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        let to = connection.to;
        let Some(mut receiver) = connection.receiver.take() else {
            return Ok(());
        };
        // Between two offers of one connection, too.
        if self.shape.queue_changes && self.happens(3) {
            self.machines[to].change_queue();
        }
        let crash = self.happens(self.shape.crash_at_step);
        let commit = !crash || self.rng.bool();
        let machine = &mut self.machines[to];
        let (now, wall) = machine.times(self.now);
        let answer = machine.step(commit, |transaction| {
            let rights = SenderRights::default();
            receiver.on_request(transaction, &rights, (now, wall), request)
        });
        if crash {
            // The answer leaves before the step is durable, if the fault is planted.
            if planted!(AcceptedBeforeStored)
                && !commit
                && let Ok(answer) = answer
            {
                self.send_to_sender(id, &answer);
            }
            self.crash(to);
            return Ok(());
        }
        match answer {
            Ok(answer) => {
                let connection = self.connections.get_mut(&id).expect("found above");
                connection.receiver = Some(receiver);
                self.note_answer(&answer);
                if !self.loses_refusal(&answer) {
                    self.send_to_sender(id, &answer);
                }
                let life = self.machines[to].life;
                self.push(0, Event::Host(to, life));
            }
            Err(error) => {
                self.log(|_| format!("the receiver ends: {error}"));
                let after = self.latency();
                self.push(after, Event::SenderEnds(id));
            }
        }
        self.check_pair(id)
    }

    fn note_answer(&mut self, answer: &HandOverResponse) {
        if let Some(Response::Accept(accept)) = &answer.kind {
            let kinds = accept.verdicts.iter().map(|verdict| &verdict.kind);
            let postponed = kinds.filter(|kind| matches!(kind, Some(Verdict::Postponed(_))));
            self.totals.postponed += postponed.count() as u64;
        }
    }

    fn arrive_at_sender(&mut self, id: u64, answer: HandOverResponse) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        let from = connection.from;
        connection.progress = self.now;
        let Some(mut sender) = connection.sender.take() else {
            return Ok(());
        };
        let crash = self.happens(self.shape.crash_at_step);
        let commit = !crash || self.rng.bool();
        let machine = &mut self.machines[from];
        let (now, _) = machine.times(self.now);
        let handled = machine.step(commit, |transaction| {
            sender.on_answer(transaction, now, answer)
        });
        if crash {
            self.crash(from);
            return Ok(());
        }
        match handled {
            Ok(()) => {
                let connection = self.connections.get_mut(&id).expect("found above");
                connection.sender = Some(sender);
                self.push(0, Event::Offer(id));
            }
            // The step is not written, and the session ends with its connection.
            Err(error) => {
                self.log(|_| format!("the sender ends: {error}"));
                let after = self.latency();
                self.push(after, Event::ReceiverEnds(id));
            }
        }
        self.check_pair(id)
    }

    fn sender_ends(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let from = connection.from;
        if let Some(sender) = connection.sender.take() {
            let ended = self.machines[from].step(true, |transaction| sender.end(transaction));
            ended.expect("the file is sound");
            let wait = self.rng.i64(..15 * SECOND);
            let wait = if self.rng.bool() { wait / 200 } else { wait };
            let life = self.machines[from].life;
            self.push(wait, Event::Host(from, life));
        }
    }

    fn forget_ended(&mut self) {
        self.connections
            .retain(|_, connection| connection.sender.is_some() || connection.receiver.is_some());
    }

    fn consume(&mut self, number: usize) -> Result<(), String> {
        if !self.machines[number].up {
            return Ok(());
        }
        let (now, _) = self.machines[number].times(self.now);
        let ids = self.machines[number].receive(now, 4);
        if ids.is_empty() {
            return Ok(());
        }
        self.totals.received += ids.len() as u64;
        for id in ids {
            self.check_received(number, id)?;
        }
        let pause = self.rng.i64(1..=self.shape.handling);
        self.push(pause, Event::Consume(number));
        Ok(())
    }
}

/// Runs a seed with a planted fault, and returns the violation.
pub(super) fn run(seed: u64, fault: Fault) -> Option<String> {
    World::new(seed, fault, false).run().err()
}

/// Each committed message is handled once and in order, under crashes and faults of the network.
#[test]
fn no_message_is_lost_or_doubled() {
    let totals = std::sync::Mutex::new(Totals::default());
    let all = SEEDS.run(|seed, fault, print| {
        let mut world = World::new(seed, fault, print);
        let violation = world.run().err();
        totals.lock().expect("no panic").add(&world.totals);
        if violation.is_none() && seed % 100 == 0 {
            let mut again = World::new(seed, fault, false);
            if again.run().is_err() || again.hash != world.hash {
                return Some("two runs of it differ".to_owned());
            }
        }
        violation
    });
    let totals = totals.into_inner().expect("no panic");
    println!("{totals:?}");
    let rarest = totals.rarest();
    assert!(
        !all || rarest >= quick_or_full(OFTEN),
        "only {rarest}: {totals:?}"
    );
}
