//! The hand-over's part of the simulation: machines that exchange messages while they crash, are
//! cut off, lose their files to older copies, and while the network loses, repeats, delays and swaps
//! frames.
//!
//! Each machine is a real queue file (SQLite in memory) with the production schema; the production
//! sessions (`courier::handover`) run on it. Then the troubles end, and each committed message must
//! have been handled once, in order, or be a dead letter with its reason.

mod machine;
mod shape;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use self::{
    machine::{Id, Machine, QUEUES, file_id},
    shape::{Shape, authority, policy},
};
use super::{first, number_from_env, table};
use crate::{
    base::fault::Fault,
    courier::handover::{ReceiverFrame, ReceiverSession, SenderFrame, SenderSession},
};

/// Seeds of a plain run.
const SEEDS: u64 = 1_000;
const MILLI: i64 = 1_000;
const SECOND: i64 = 1_000 * MILLI;
const DAY: i64 = 24 * 3600 * SECOND;
/// The time of troubles.
const TROUBLED: i64 = 60 * SECOND;
/// After the troubles: the longest back-off of a connection and of a postponed destination, and the
/// time for the messages.
const QUIET: i64 = 60 * SECOND;
/// A connection without an answer for this long ends.
const ANSWER_TIMEOUT: i64 = 5 * SECOND;
/// The host reads the file this often without a signal.
const INTERVAL: i64 = SECOND;

/// One run. Times are true microseconds.
struct World {
    rng: fastrand::Rng,
    fault: Fault,
    print: bool,
    shape: Shape,
    now: i64,
    troubled: bool,
    events: BinaryHeap<Reverse<(i64, u64, Event)>>,
    count: u64,
    machines: Vec<Machine>,
    connections: BTreeMap<u64, Connection>,
    /// All committed messages, by id.
    sent: Vec<Sent>,
    totals: Totals,
    hash: u64,
}

/// A committed message.
struct Sent {
    from: usize,
    to: usize,
    queue: &'static str,
    /// A restore of an older copy may have removed it.
    may_be_lost: bool,
}

/// A connection: each side ends on its own.
struct Connection {
    from: usize,
    to: usize,
    sender: Option<SenderSession>,
    receiver: Option<ReceiverSession>,
    /// When the last frame arrives, in each direction.
    arrivals: [i64; 2],
    /// The sender's last answer, or its first offer since then.
    progress: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// An application commits messages.
    Send,
    /// The host of a machine's life looks for messages to move.
    Host(usize, u32),
    /// A failed connection is tried again.
    Connect(usize, u32, String),
    /// The sender of a connection looks for messages to offer.
    Offer(u64),
    ToReceiver(u64, Frame<SenderFrame>),
    ToSender(u64, Frame<ReceiverFrame>),
    /// A side notices that the connection has ended.
    SenderEnds(u64),
    ReceiverEnds(u64),
    Consume(usize),
    Trouble,
    Restart(usize),
}

/// A frame in an event; frames have no order.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Frame<T>(T);

impl<T: Eq> PartialOrd for Frame<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Eq> Ord for Frame<T> {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

/// Counts over all seeds: an event that never happens is not tested.
#[derive(Debug, Default, Clone, Copy)]
struct Totals {
    sent: u64,
    received: u64,
    crashes: u64,
    restores: u64,
    cuts: u64,
    late: u64,
    repeated: u64,
    swapped: u64,
    lost: u64,
    postponed: u64,
    dead: u64,
    passed_on: u64,
}

impl Totals {
    fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.crashes += other.crashes;
        self.restores += other.restores;
        self.cuts += other.cuts;
        self.late += other.late;
        self.repeated += other.repeated;
        self.swapped += other.swapped;
        self.lost += other.lost;
        self.postponed += other.postponed;
        self.dead += other.dead;
        self.passed_on += other.passed_on;
    }

    fn rarest(&self) -> u64 {
        let counts = [
            self.received,
            self.crashes,
            self.restores,
            self.cuts,
            self.late,
            self.repeated,
            self.swapped,
            self.lost,
            self.postponed,
            self.dead,
            self.passed_on,
        ];
        counts.into_iter().min().unwrap_or_default()
    }
}

impl World {
    fn new(seed: u64, fault: Fault, print: bool) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let shape = Shape::new(&mut rng);
        let machines =
            (0..shape.machines).map(|number| Machine::new(number, policy(number, &shape)));
        let mut world = Self {
            machines: machines.collect(),
            rng,
            fault,
            print,
            shape,
            now: 0,
            troubled: true,
            events: BinaryHeap::new(),
            count: 0,
            connections: BTreeMap::new(),
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
            self.machines[number].policy.max_queue = u64::MAX;
            if !self.machines[number].up {
                self.restart(number);
            }
        }
        // Longer than any wait that a failed attempt has begun before.
        self.run_until(TROUBLED + QUIET)?;
        self.check_end()
    }

    fn run_until(&mut self, end: i64) -> Result<(), String> {
        while let Some(Reverse((at, ..))) = self.events.peek() {
            if *at > end {
                break;
            }
            let Some(Reverse((at, _, event))) = self.events.pop() else {
                break;
            };
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
            Event::ToReceiver(connection, Frame(frame)) => self.to_receiver(connection, frame)?,
            Event::ToSender(connection, Frame(frame)) => self.to_sender(connection, frame)?,
            Event::SenderEnds(connection) => self.sender_ends(connection),
            Event::ReceiverEnds(connection) => {
                if let Some(connection) = self.connections.get_mut(&connection) {
                    connection.receiver = None;
                }
                self.forget_ended();
            }
            Event::Consume(machine) => self.consume(machine)?,
            Event::Trouble => self.trouble(),
            Event::Restart(machine) => self.restart(machine),
        }
        Ok(())
    }

    fn push(&mut self, after: i64, event: Event) {
        self.count += 1;
        let at = self.now + after.max(0);
        self.events.push(Reverse((at, self.count, event)));
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
                1..=12 => QUEUES[1],
                _ => QUEUES[0],
            };
            let id = self.sent.len() as Id;
            sends.push((id, name, queue));
            self.sent.push(Sent {
                from,
                to,
                queue,
                may_be_lost: false,
            });
        }
        self.totals.sent += sends.len() as u64;
        let (now, _) = self.machines[from].times(self.now);
        let ends_at = self.shape.max_age.map(|age| now + age);
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
        machine.expire(now, self.fault);
        if machine.notify() {
            let pause = self.rng.i64(..2 * self.shape.handling);
            self.push(pause, Event::Consume(number));
        }
        for hop in self.machines[number].hops() {
            let to = shape::number(&hop);
            let open = self.connections.iter().find(|(_, connection)| {
                connection.from == number && connection.to == to && connection.sender.is_some()
            });
            match open {
                Some((id, _)) => {
                    let id = *id;
                    self.push(0, Event::Offer(id));
                }
                None => self.push(0, Event::Connect(number, life, hop)),
            }
        }
        let look = self
            .events
            .iter()
            .any(|Reverse((at, _, event))| *at > self.now && *event == Event::Host(number, life));
        if !look {
            self.push(INTERVAL, Event::Host(number, life));
        }
    }

    fn connect(&mut self, number: usize, life: u32, hop: &str) {
        let to = shape::number(hop);
        let machine = &self.machines[number];
        let open = self.connections.values().any(|connection| {
            connection.from == number && connection.to == to && connection.sender.is_some()
        });
        if !machine.up || machine.life != life || open || !self.machines[to].up {
            return;
        }
        let mut sender = SenderSession::new(hop, "machine", self.rng.u64(..), self.fault);
        let hello = self.machines[number].step(true, |transaction| sender.begin(transaction));
        let policy = self.machines[to].policy.clone();
        let receiver = ReceiverSession::new(self.rng.u128(..).to_be_bytes(), policy, self.fault);
        let id = self.count;
        let connection = Connection {
            from: number,
            to,
            sender: Some(sender),
            receiver: Some(receiver),
            arrivals: [0; 2],
            progress: self.now,
        };
        self.connections.insert(id, connection);
        self.send_to_receiver(id, hello);
        self.push(0, Event::Offer(id));
    }

    fn offer(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let (from, Some(sender)) = (connection.from, &mut connection.sender) else {
            return;
        };
        let awaited = sender.awaits_answer();
        if awaited && self.now - connection.progress > ANSWER_TIMEOUT {
            self.push(0, Event::SenderEnds(id));
            self.push(0, Event::ReceiverEnds(id));
            return;
        }
        let machine = &mut self.machines[from];
        let (now, _) = machine.times(self.now);
        let next = sender
            .next_offer(&machine.file, now)
            .expect("the file is sound");
        if next.offer.is_some() && !awaited {
            connection.progress = self.now;
        }
        if let Some(wait) = next.wait {
            self.push(
                i64::try_from(wait.as_micros()).expect("short"),
                Event::Offer(id),
            );
        }
        if let Some(frame) = next.offer {
            self.send_to_receiver(id, frame);
            self.push(0, Event::Offer(id));
        }
    }

    fn to_receiver(&mut self, id: u64, frame: SenderFrame) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        let to = connection.to;
        let Some(mut receiver) = connection.receiver.take() else {
            return Ok(());
        };
        let crash = self.happens(self.shape.crash_at_step);
        let commit = !crash || self.rng.bool();
        let machine = &mut self.machines[to];
        let (now, wall) = machine.times(self.now);
        let answers = machine.step(commit, |transaction| {
            receiver.on_frame(transaction, now, wall, frame)
        });
        if crash {
            // The answers leave before the step is durable, if the fault is planted.
            if self.fault == Fault::AcceptedBeforeStored && !commit {
                for answer in answers.into_iter().flatten() {
                    self.send_to_sender(id, answer);
                }
            }
            self.crash(to);
            return Ok(());
        }
        match answers {
            Ok(answers) => {
                let connection = self.connections.get_mut(&id).expect("found above");
                connection.receiver = Some(receiver);
                for answer in answers {
                    self.note_answer(&answer);
                    self.send_to_sender(id, answer);
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

    fn note_answer(&mut self, answer: &ReceiverFrame) {
        if let crate::courier::handover::ReceiverContent::Accept(accept) = &answer.content {
            self.totals.postponed += accept.postponed.len() as u64;
        }
    }

    fn to_sender(&mut self, id: u64, frame: ReceiverFrame) -> Result<(), String> {
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
        let replies = machine.step(commit, |transaction| {
            sender.on_frame(transaction, now, frame)
        });
        if crash {
            self.crash(from);
            return Ok(());
        }
        let connection = self.connections.get_mut(&id).expect("found above");
        connection.sender = Some(sender);
        match replies {
            Ok(replies) => {
                for reply in replies {
                    self.send_to_receiver(id, reply);
                }
                self.push(0, Event::Offer(id));
            }
            Err(error) => {
                self.log(|_| format!("the sender ends: {error}"));
                self.push(0, Event::SenderEnds(id));
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
        if let Some(mut sender) = connection.sender.take() {
            self.machines[from].step(true, |transaction| sender.end(transaction));
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

    fn latency(&mut self) -> i64 {
        self.rng.i64(MILLI / 5..self.shape.latency)
    }

    fn send_to_receiver(&mut self, id: u64, frame: SenderFrame) {
        for (at, frame) in self.travel(id, 0, frame) {
            self.push(at - self.now, Event::ToReceiver(id, Frame(frame)));
        }
    }

    fn send_to_sender(&mut self, id: u64, frame: ReceiverFrame) {
        for (at, frame) in self.travel(id, 1, frame) {
            self.push(at - self.now, Event::ToSender(id, Frame(frame)));
        }
    }

    /// Returns when a frame arrives, if at all, and perhaps twice.
    fn travel<T: Clone>(&mut self, id: u64, direction: usize, frame: T) -> Vec<(i64, T)> {
        if self.happens(self.shape.lost) {
            self.totals.lost += 1;
            return Vec::new();
        }
        let late = self.happens(self.shape.late);
        let swapped = self.happens(self.shape.swapped);
        let repeated = self.happens(self.shape.repeated);
        let mut latency = self.latency();
        if late {
            self.totals.late += 1;
            latency += self.rng.i64(..5 * SECOND);
            if self.rng.bool() {
                // Its connection is replaced before it arrives.
                let ends = self.rng.i64(..100 * MILLI);
                self.push(ends, Event::SenderEnds(id));
                self.push(latency + SECOND, Event::ReceiverEnds(id));
            }
        }
        let mut at = self.now + latency;
        if swapped {
            // The next frames overtake it.
            self.totals.swapped += 1;
            at += self.shape.latency;
        } else if let Some(connection) = self.connections.get_mut(&id) {
            at = at.max(connection.arrivals[direction] + 1);
            connection.arrivals[direction] = at;
        }
        let mut arrivals = vec![(at, frame.clone())];
        if repeated {
            self.totals.repeated += 1;
            let again = at + self.rng.i64(1..SECOND);
            arrivals.push((again, frame));
        }
        arrivals
    }

    fn trouble(&mut self) {
        if !self.troubled {
            return;
        }
        let pause = self.rng.i64(1..2 * self.shape.troubles);
        self.push(pause, Event::Trouble);
        let number = self.rng.usize(..self.machines.len());
        match self.rng.u8(..8) {
            0 | 1 if self.shape.crashes => self.crash(number),
            2 if self.shape.restores => self.machines[number].copy_file(),
            3 if self.shape.restores && self.machines[number].copy.is_some() => {
                self.crash(number);
                self.restore(number);
            }
            4 if self.shape.clock_jumps => {
                let jump = [-DAY, DAY, -SECOND, 3600 * SECOND][self.rng.usize(..4)];
                self.machines[number].offset += jump;
            }
            _ => self.cut(),
        }
    }

    /// A connection breaks; each side notices at its own time, and frames still arrive.
    fn cut(&mut self) {
        let open = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.sender.is_some());
        let open: Vec<u64> = open.map(|(id, _)| *id).collect();
        if open.is_empty() {
            return;
        }
        self.totals.cuts += 1;
        let id = open[self.rng.usize(..open.len())];
        let (sender, receiver) = (self.rng.i64(..100 * MILLI), self.rng.i64(..10 * SECOND));
        self.push(sender, Event::SenderEnds(id));
        self.push(receiver, Event::ReceiverEnds(id));
    }

    fn crash(&mut self, number: usize) {
        if !self.machines[number].up {
            return;
        }
        self.totals.crashes += 1;
        self.log(|_| format!("machine {number} crashes"));
        self.machines[number].up = false;
        self.machines[number].life += 1;
        let mut ended = Vec::new();
        for (id, connection) in &mut self.connections {
            if connection.from == number {
                connection.sender = None;
            }
            if connection.to == number {
                connection.receiver = None;
                ended.push(*id);
            }
        }
        self.forget_ended();
        for id in ended {
            let after = self.latency();
            self.push(after, Event::SenderEnds(id));
        }
        let away = match self.rng.u8(..4) {
            0 => self.rng.i64(..30 * SECOND),
            _ => self.rng.i64(..SECOND),
        };
        self.push(away, Event::Restart(number));
    }

    fn restart(&mut self, number: usize) {
        if self.machines[number].up {
            return;
        }
        self.machines[number].up = true;
        self.machines[number].opened();
        let life = self.machines[number].life;
        self.push(0, Event::Host(number, life));
        // A consumer reads once when it starts.
        self.push(MILLI, Event::Consume(number));
    }

    fn restore(&mut self, number: usize) {
        self.totals.restores += 1;
        self.log(|_| format!("machine {number} is restored"));
        for id in self.machines[number].restore() {
            let index = usize::try_from(id).expect("a number");
            self.sent[index].may_be_lost = true;
        }
    }

    /// A handled message arrived where it was sent to, once, and in order.
    fn check_received(&self, number: usize, id: Id) -> Result<(), String> {
        let index = usize::try_from(id).expect("a number");
        let message = &self.sent[index];
        if message.to != number {
            return Err(format!(
                "a message is handled at the wrong machine: {id} at {number}"
            ));
        }
        let received = &self.machines[number].received;
        let times = received.iter().filter(|other| **other == id).count();
        if times != 1 {
            return Err(format!("a message is handled twice: {id}"));
        }
        let before = received.iter().take_while(|other| **other != id);
        let mut before = before.copied();
        let overtaken = before.any(|other| {
            let other_message = &self.sent[usize::try_from(other).expect("a number")];
            other > id && other_message.from == message.from && other_message.queue == message.queue
        });
        match overtaken {
            true => Err(format!("a message is out of order: {id}")),
            false => Ok(()),
        }
    }

    /// No message is ready at the sender and visible at the receiver.
    fn check_pair(&self, id: u64) -> Result<(), String> {
        let Some(connection) = self.connections.get(&id) else {
            return Ok(());
        };
        let (from, to) = (
            &self.machines[connection.from],
            &self.machines[connection.to],
        );
        for id in from.ids("SELECT uid FROM outgoing WHERE status = 1 LIMIT 20") {
            let sent = &self.sent[usize::try_from(id).expect("a number")];
            if sent.may_be_lost || self.shape.restores {
                continue;
            }
            let visible = to.count("messages WHERE 1", id) + to.count("received WHERE 1", id);
            let dead = to.count("dead_letters WHERE 1", id);
            if visible + dead > 0 {
                return Err(format!("a message is on both sides: {id}"));
            }
        }
        Ok(())
    }

    /// Each message was handled once, or is a dead letter for a reason.
    fn check_end(&mut self) -> Result<(), String> {
        for (number, machine) in self.machines.iter().enumerate() {
            // A sender that was restored without a message connects only for its next one.
            let mut held = machine.ids("SELECT uid FROM inbound");
            held.retain(|id| !self.sent[usize::try_from(*id).expect("a number")].may_be_lost);
            if !held.is_empty() {
                return Err(format!("a message stays invisible: {held:?} at {number}"));
            }
            let waiting = machine.ids("SELECT uid FROM outgoing WHERE status IN (1, 2)");
            if !waiting.is_empty() {
                return Err(format!(
                    "a message is not handed over: {waiting:?} at {number}"
                ));
            }
            let unhandled = machine.ids("SELECT uid FROM messages");
            if !unhandled.is_empty() {
                return Err(format!(
                    "a consumer was not woken: {unhandled:?} at {number}"
                ));
            }
        }
        for id in 0..self.sent.len() {
            self.check_message(id)?;
        }
        Ok(())
    }

    fn check_message(&mut self, index: usize) -> Result<(), String> {
        let id = index as Id;
        let message = &self.sent[index];
        let handled = self.machines[message.to].received.contains(&id);
        let letters = self
            .machines
            .iter()
            .filter_map(|machine| machine.dead_letter(id));
        let letters: Vec<String> = letters.collect();
        if handled && !letters.is_empty() && !self.shape.restores {
            return Err(format!(
                "a handled message is a dead letter: {id} {letters:?}"
            ));
        }
        if handled || message.may_be_lost {
            self.totals.passed_on += u64::from(self.shape.is_routed(message.from, message.to));
            return Ok(());
        }
        let Some(reason) = letters.first() else {
            return Err(format!("a message is lost: {id}"));
        };
        self.totals.dead += 1;
        let expected = (message.queue == "missing" && reason.contains("does not exist"))
            || (self.shape.is_loop(message.from, message.to) && reason.contains("loop"))
            || (self.shape.max_age.is_some() && reason.contains("age limit"));
        match expected {
            true => Ok(()),
            false => Err(format!(
                "a message is a dead letter without a cause: {reason} {id}"
            )),
        }
    }
}

/// Runs a seed with a planted fault, and returns the violation.
pub(super) fn run(seed: u64, fault: Fault) -> Option<String> {
    World::new(seed, fault, false).run().err()
}

/// Each committed message is handled once and in order, whatever crashes, is lost or comes twice.
#[test]
fn no_message_is_lost_or_doubled() {
    if let Some(seed) = number_from_env("REVEILLE_SEED") {
        let violation = World::new(seed, table::fault_from_env(), true).run().err();
        assert_eq!(violation, None, "seed {seed}");
        return;
    }
    let seeds = number_from_env("REVEILLE_SEEDS")
        .unwrap_or(SEEDS)
        .min(20_000);
    let totals = std::sync::Mutex::new(Totals::default());
    let broken = first(seeds, |seed| {
        let mut world = World::new(seed, Fault::None, false);
        let violation = world.run().err();
        totals.lock().expect("no panic").add(&world.totals);
        if violation.is_none() && seed % 100 == 0 {
            let mut again = World::new(seed, Fault::None, false);
            if again.run().is_err() || again.hash != world.hash {
                return Some("two runs of it differ".to_owned());
            }
        }
        violation
    });
    let totals = totals.into_inner().expect("no panic");
    println!("{seeds} seeds: {totals:?}");
    if let Some((seed, violation)) = broken {
        panic!(
            "seed {seed}: {violation}\nreplay it: REVEILLE_SEED={seed} cargo test --lib no_message_is_lost_or_doubled -- --nocapture"
        );
    }
    let rarest = totals.rarest();
    assert!(seeds < SEEDS || rarest >= 200, "only {rarest}: {totals:?}");
}
