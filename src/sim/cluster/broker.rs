//! The model broker: one or two servers, at most once.
//!
//! A server passes messages on in the order of their arrival, to each connection and to the other
//! server. A broken connection loses its messages in flight, in both directions or in one. The other server forwards a message
//! from 0 to 500 ms after a relay's connect on: until then it does not know of the interest.

use std::{collections::BTreeMap, rc::Rc, time::Duration};

use bytes::Bytes;

use super::world::{Event, World};
use crate::{
    base::clock::Tick,
    types::{
        GroupName, QueueAddress,
        cluster::{LifeId, queue_hash},
    },
    wire::{ClusterContent, cluster_message_from_wire},
};

#[derive(Debug)]
pub(super) struct Broker {
    pub(super) ports: Vec<Port>,
    /// When each server is up again.
    pub(super) up_from: Vec<Tick>,
    pub(super) parted_until: Tick,
    pub(super) drops_between_until: Tick,
    pub(super) copies_until: Tick,
    copies: Duration,
    connections: u64,
    /// When the newest message of each receiving connection arrives.
    arrivals: BTreeMap<u64, Tick>,
    /// When the newest message between two servers arrives, by its first server.
    routed: Vec<Tick>,
}

/// A relay's client of the broker.
#[derive(Debug, Default)]
pub(super) struct Port {
    pub(super) server: usize,
    pub(super) connected: bool,
    /// The number of the present connection; each has another one.
    pub(super) connection: u64,
    /// The count of connects that the client tells.
    pub(super) connects: u64,
    /// Nothing arrives any more in this direction, until the next connect.
    pub(super) cut_up: bool,
    pub(super) cut_down: bool,
    pub(super) drops_up_until: Tick,
    pub(super) drops_down_until: Tick,
    pub(super) late_until: Tick,
    /// From then on the other server forwards messages.
    interest_from: Tick,
    /// No reconnect before this time.
    pub(super) back_at: Tick,
    up_at: Tick,
    /// The queues of frames that a break has lost for this relay (J9).
    pub(super) missed: Vec<u64>,
}

/// A message on its way.
#[derive(Debug, Clone)]
pub(super) struct Packet {
    pub(super) from: usize,
    connection: u64,
    pub(super) bytes: Bytes,
    pub(super) content: Rc<Content>,
}

/// The part of a message that the model reads.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) life: LifeId,
    pub(super) kind: Kind,
    /// The hashes of a frame's queues.
    pub(super) queues: Vec<u64>,
    /// The groups that a frame states as served, each with its queue.
    pub(super) served: Vec<(GroupName, QueueAddress)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Frame(u64),
    Heartbeat(u64),
}

/// The way between a relay and its server, and between the servers, in microseconds.
const LATENCY: std::ops::Range<u64> = 100..600;
/// How late a server may know of a relay's interest at the other one.
const INTEREST: Duration = Duration::from_millis(500);
/// The longest delay of a late message.
const LATE: u64 = 3_000_000;

impl Broker {
    pub(super) fn new(relays: usize, servers: usize, copies: Option<Duration>) -> Self {
        Self {
            ports: (0..relays).map(|_| Port::default()).collect(),
            up_from: vec![Tick::default(); servers],
            parted_until: Tick::default(),
            drops_between_until: Tick::default(),
            copies_until: match copies {
                Some(_) => Tick::NEVER,
                None => Tick::default(),
            },
            copies: copies.unwrap_or(Duration::from_millis(400)),
            connections: 0,
            arrivals: BTreeMap::new(),
            routed: vec![Tick::default(); servers],
        }
    }
}

impl Port {
    /// Returns when the newest message of the relay is at its server.
    pub(super) fn written_at(&self) -> Tick {
        self.up_at
    }
}

impl Content {
    pub(super) fn read(bytes: &Bytes) -> Self {
        let message = cluster_message_from_wire(bytes).expect("a message of a relay");
        let (kind, entries) = match &message.content {
            ClusterContent::Frame(frame) => (Kind::Frame(frame.number), &frame.entries[..]),
            ClusterContent::Heartbeat(own) => (Kind::Heartbeat(own.heartbeat), &[][..]),
            ClusterContent::Unknown => unreachable!("relays send what they know"),
        };
        let served = entries.iter().flat_map(|entry| {
            let groups = entry.served_groups.iter().cloned();
            groups.map(|group| (group, entry.queue.clone()))
        });
        Self {
            life: message.life,
            kind,
            queues: entries
                .iter()
                .map(|entry| queue_hash(&entry.queue))
                .collect(),
            served: served.collect(),
        }
    }
}

impl World {
    /// Returns how long a request takes from one relay to another one; `None` where it is lost.
    pub(super) fn request_way(&mut self, from: usize, to: usize) -> Option<Duration> {
        let unlucky = self.rng.bool();
        let (sender, receiver) = (&self.broker.ports[from], &self.broker.ports[to]);
        let drops = self.now < sender.drops_up_until || self.now < receiver.drops_down_until;
        let cut = sender.cut_up || receiver.cut_down;
        let away = !sender.connected || !receiver.connected;
        let unknown = self.now < receiver.interest_from;
        let apart = sender.server != receiver.server;
        let lost = cut || away || (drops && unlucky);
        let lost_between = apart && (unknown || self.is_lost_between());
        (!lost && !lost_between).then(|| self.way(from) + self.way(to))
    }

    /// A relay's client publishes a message, or drops it while it has no connection.
    pub(super) fn publish(&mut self, relay: usize, bytes: Bytes, content: Rc<Content>) {
        let now = self.now;
        let latency = self.way(relay);
        let unlucky = self.rng.bool();
        let port = &mut self.broker.ports[relay];
        if !port.connected || (now < port.drops_up_until && unlucky) {
            return;
        }
        port.up_at = port.up_at.max(now + latency);
        let (at, connection) = (port.up_at, port.connection);
        let packet = Packet {
            from: relay,
            connection,
            bytes,
            content,
        };
        self.at(at, Event::AtServer(packet));
    }

    /// A server sends a message to all relays.
    pub(super) fn at_server(&mut self, packet: &Packet) {
        let sender = &self.broker.ports[packet.from];
        if sender.connection != packet.connection || sender.cut_up || !sender.connected {
            return;
        }
        let server = sender.server;
        let mut others = Vec::new();
        for to in 0..self.relays.len() {
            let port = &self.broker.ports[to];
            match () {
                () if !port.connected => self.note_missed(to, packet),
                () if port.server == server => self.forward(packet, to),
                () if self.now < port.interest_from => self.note_missed(to, packet),
                () if !self.is_lost_between() => others.push(to),
                () => {}
            }
        }
        if !others.is_empty() {
            let way = self.way(packet.from);
            let newest = &mut self.broker.routed[server];
            *newest = (*newest).max(self.now + way);
            let at = *newest;
            self.at(at, Event::AtOtherServer(others, packet.clone()));
        }
    }

    /// A message reaches the other server, with the relays that it is for.
    pub(super) fn at_other_server(&mut self, relays: &[usize], packet: &Packet) {
        for to in relays {
            self.forward(packet, *to);
        }
    }

    fn is_lost_between(&mut self) -> bool {
        let now = self.now;
        let unlucky = self.rng.bool();
        let drops = now < self.broker.drops_between_until;
        now < self.broker.parted_until || (drops && unlucky)
    }

    fn forward(&mut self, packet: &Packet, to: usize) {
        let way = self.way(to);
        let connection = self.broker.ports[to].connection;
        let newest = self.broker.arrivals.entry(connection).or_default();
        let at = (*newest).max(self.now + way);
        *newest = at;
        self.at(at, Event::AtRelay(to, connection, packet.clone()));
        if self.now < self.broker.copies_until {
            let late = self.rng.u64(1_000..=micros(self.broker.copies).max(1_001));
            let at = at + Duration::from_micros(late);
            self.totals.count("copies", 1);
            self.at(at, Event::AtRelay(to, connection, packet.clone()));
        }
    }

    /// A message reaches a relay's client.
    pub(super) fn at_relay(&mut self, to: usize, connection: u64, packet: &Packet) {
        let unlucky = self.rng.bool();
        let port = &self.broker.ports[to];
        if port.connection != connection || port.cut_down || !port.connected {
            return self.note_missed(to, packet);
        }
        if self.now < port.drops_down_until && unlucky {
            return;
        }
        self.link_receives(to, packet);
    }

    /// Ends a relay's connection; the next one follows after `span`.
    pub(super) fn break_connection(&mut self, relay: usize, span: Duration) {
        let port = &mut self.broker.ports[relay];
        port.connected = false;
        port.back_at = port.back_at.max(self.now + span);
        self.broker.connections += 1;
        port.connection = self.broker.connections;
        let at = port.back_at;
        self.at(at, Event::Connects(relay));
    }

    /// A relay's client connects to a server.
    pub(super) fn connects(&mut self, relay: usize) {
        let now = self.now;
        if self.relays[relay].run.is_none() || now < self.broker.ports[relay].back_at {
            return;
        }
        let port = &self.broker.ports[relay];
        if port.connected && !port.cut_up && !port.cut_down {
            return;
        }
        let servers = self.broker.up_from.len();
        let first = self.rng.usize(0..servers);
        let mut all = (0..servers).map(|step| (first + step) % servers);
        let Some(server) = all.find(|server| self.broker.up_from[*server] <= now) else {
            let next = self.broker.up_from.iter().copied().min();
            return self.at(next.unwrap_or(now), Event::Connects(relay));
        };
        let interest = self.rng.u64(0..=micros(INTEREST));
        self.broker.connections += 1;
        let port = &mut self.broker.ports[relay];
        (port.cut_up, port.cut_down, port.connected) = (false, false, true);
        (port.server, port.connection) = (server, self.broker.connections);
        port.interest_from = now + Duration::from_micros(interest);
        port.up_at = now;
        if !self.plan.events_hidden || port.connects == 0 {
            port.connects += 1;
            self.link_soon(relay);
        }
        self.log
            .note(now, "connects", &[relay as u64, server as u64]);
    }

    /// A frame that does not arrive because of a break.
    fn note_missed(&mut self, to: usize, packet: &Packet) {
        let missed = &mut self.broker.ports[to].missed;
        missed.extend(&packet.content.queues);
    }

    fn way(&mut self, relay: usize) -> Duration {
        let mut way = self.rng.u64(LATENCY) + self.rng.u64(0..=self.plan.jitter * 1_000);
        if self.now < self.broker.ports[relay].late_until && self.rng.u32(0..3) == 0 {
            way += self.rng.u64(0..LATE);
        }
        Duration::from_micros(way)
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).expect("a short time")
}
