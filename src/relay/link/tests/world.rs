//! Some links and a broker in memory, on virtual time.
//!
//! The broker keeps the order of each connection, and a broken one loses its messages in flight. A
//! test can drop, delay and copy messages, cut connections, pause and end relays, and part the
//! relays into two sides.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;

use crate::{
    base::{clock::Tick, fault::Fault},
    relay::link::{Action, ClusterLink, FrameDraft, LinkConfig, Output, Resync},
    types::{
        LastEvent, QueueAddress,
        cluster::{FrameEntry, LifeId, queue_hash},
    },
    wire::{ClusterContent, cluster_message_from_wire},
};

pub(super) struct World {
    pub(super) now: Tick,
    pub(super) rng: fastrand::Rng,
    pub(super) nodes: Vec<Node>,
    /// Messages for which this is true are dropped; `to` is `None` on the way to the broker.
    pub(super) drops: Box<dyn Fn(&Passage) -> bool>,
    /// Each delivery comes a second time, up to this much later.
    pub(super) copies: Option<Duration>,
    /// Added to each delivery, at random up to this.
    pub(super) jitter: Duration,
    events: BTreeMap<(Tick, u64), Event>,
    event: u64,
    /// When each frame was made: it covers the causes up to this time.
    pub(super) made_at: BTreeMap<(LifeId, u64), Tick>,
}

pub(super) struct Node {
    pub(super) life: LifeId,
    pub(super) started_at: Tick,
    pub(super) link: Option<ClusterLink>,
    /// The number of the connection, and what the client tells of it.
    connection: u64,
    pub(super) connects: u64,
    pub(super) connected: bool,
    pub(super) events_hidden: bool,
    pub(super) paused_until: Tick,
    /// Relays receive messages from their own side only.
    pub(super) side: u8,
    /// Increments without a frame, by queue.
    pub(super) pending: BTreeMap<u64, u64>,
    pub(super) log: Vec<(Tick, Action)>,
    /// Causes counted here, by queue: the number, and the time of the newest.
    pub(super) counted: BTreeMap<u64, (u64, Tick)>,
    /// Causes in confirmed frames.
    pub(super) confirmed_at: Tick,
    /// Causes applied, by life and queue; and how often each frame was.
    pub(super) applied: BTreeMap<(LifeId, u64), u64>,
    pub(super) frames: BTreeMap<(LifeId, u64), u64>,
    /// Up to when the causes of a queue have woken this relay's subscribers.
    woken: BTreeMap<u64, Tick>,
    all_woken: Tick,
    published: Vec<Bytes>,
    last_sent: Tick,
    last_delivered: Tick,
    tick_at: Tick,
    /// Events that happened while it was paused.
    held: VecDeque<Event>,
}

/// A message on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passage {
    pub(super) from: usize,
    pub(super) to: Option<usize>,
    pub(super) kind: Kind,
    pub(super) at: Tick,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Frame(u64),
    Heartbeat(u64),
}

enum Event {
    Broker {
        from: usize,
        connection: u64,
        bytes: Bytes,
    },
    Deliver {
        from: usize,
        to: usize,
        connection: u64,
        bytes: Bytes,
    },
    Tick(usize),
    Connect(usize),
    Resume(usize),
}

const LATENCY: Duration = Duration::from_micros(200);

pub(super) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(super) fn at(millis: u64) -> Tick {
    Tick::default() + Duration::from_millis(millis)
}

pub(super) fn queue(number: u64) -> QueueAddress {
    QueueAddress::new("acct", &format!("q{number}")).expect("a name")
}

pub(super) fn hash(number: u64) -> u64 {
    queue_hash(&queue(number))
}

pub(super) fn entry(number: u64, causes: u64) -> FrameEntry {
    FrameEntry {
        queue: queue(number),
        causes,
        notifications: causes,
        payload_size: 0,
        messages: causes,
        last_event: LastEvent::default(),
        served_groups: Vec::new(),
        checked: false,
    }
}

impl Node {
    fn new(life: LifeId, now: Tick) -> Self {
        let config = LinkConfig {
            life,
            relay_id: Arc::from(format!("relay-{}", life.0)),
            version: Arc::from("0"),
        };
        Self {
            life,
            started_at: now,
            link: Some(ClusterLink::new(config, now)),
            connection: 0,
            connects: 0,
            connected: false,
            events_hidden: false,
            paused_until: Tick::default(),
            side: 0,
            pending: BTreeMap::new(),
            log: Vec::new(),
            counted: BTreeMap::new(),
            confirmed_at: Tick::default(),
            applied: BTreeMap::new(),
            frames: BTreeMap::new(),
            woken: BTreeMap::new(),
            all_woken: Tick::default(),
            published: Vec::new(),
            last_sent: Tick::default(),
            last_delivered: Tick::default(),
            tick_at: Tick::NEVER,
            held: VecDeque::new(),
        }
    }

    /// Returns up to when causes of the queue have woken the subscribers.
    pub(super) fn woken(&self, queue: u64) -> Tick {
        let woken = self.woken.get(&hash(queue)).copied().unwrap_or_default();
        woken.max(self.all_woken)
    }

    pub(super) fn last_published(&self) -> Bytes {
        self.published.last().expect("a message").clone()
    }

    pub(super) fn link(&self) -> &ClusterLink {
        self.link.as_ref().expect("the relay runs")
    }

    pub(super) fn is_degraded(&self, now: Tick) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_degraded(now))
    }
}

impl World {
    /// Starts this many relays; they are connected and past their first resyncs after 3 s.
    pub(super) fn settled(count: usize, fault: Fault) -> Self {
        let mut world = Self::new(1, fault);
        for _ in 0..count {
            world.start();
        }
        world.run(3_000);
        world.forget_log();
        world
    }

    pub(super) fn new(seed: u64, fault: Fault) -> Self {
        fault.plant();
        Self {
            now: Tick::default(),
            rng: fastrand::Rng::with_seed(seed),
            nodes: Vec::new(),
            drops: Box::new(|_| false),
            copies: None,
            jitter: Duration::ZERO,
            events: BTreeMap::new(),
            event: 0,
            made_at: BTreeMap::new(),
        }
    }

    /// Starts a relay as a new life, and connects it.
    pub(super) fn start(&mut self) -> usize {
        let life = LifeId(u128::try_from(self.nodes.len()).expect("a number") + 1);
        self.start_as(life)
    }

    pub(super) fn start_as(&mut self, life: LifeId) -> usize {
        self.nodes.push(Node::new(life, self.now));
        let node = self.nodes.len() - 1;
        self.push(self.now, Event::Connect(node));
        node
    }

    /// Counts causes of a queue.
    pub(super) fn notify(&mut self, node: usize, queue: u64, causes: u64) {
        let (now, own) = (self.now, &mut self.nodes[node]);
        *own.pending.entry(queue).or_default() += causes;
        let counted = own.counted.entry(queue).or_default();
        *counted = (counted.0 + causes, now);
        self.drive(node);
    }

    /// Cuts a relay's connection for a time; its messages in flight are lost.
    pub(super) fn cut(&mut self, node: usize, span: Duration) {
        let own = &mut self.nodes[node];
        (own.connected, own.connection) = (false, own.connection + 1);
        self.push(self.now + span, Event::Connect(node));
    }

    /// Ends a relay at once.
    pub(super) fn crash(&mut self, node: usize) {
        let own = &mut self.nodes[node];
        (own.link, own.connected) = (None, false);
        own.connection += 1;
    }

    /// Starts a crashed relay from a copy of its first moment, with its life.
    pub(super) fn restore(&mut self, node: usize) {
        let fresh = Node::new(self.nodes[node].life, self.now);
        let own = &mut self.nodes[node];
        own.link = fresh.link;
        own.pending.clear();
        self.push(self.now, Event::Connect(node));
    }

    pub(super) fn pause(&mut self, node: usize, span: Duration) {
        let until = &mut self.nodes[node].paused_until;
        *until = (*until).max(self.now + span);
        let until = *until;
        self.push(until, Event::Resume(node));
    }

    /// Drops what the filter names, until another is set.
    pub(super) fn drop_if(&mut self, drops: impl Fn(&Passage) -> bool + 'static) {
        self.drops = Box::new(drops);
    }

    pub(super) fn run(&mut self, span: u64) {
        let end = self.now + millis(span);
        self.run_until(end);
    }

    pub(super) fn run_until(&mut self, end: Tick) {
        while let Some(first) = self.events.first_entry() {
            if first.key().0 > end {
                break;
            }
            let ((at, _), event) = first.remove_entry();
            self.now = at;
            self.handle(event);
        }
        self.now = end;
    }

    pub(super) fn forget_log(&mut self) {
        for node in &mut self.nodes {
            node.log.clear();
        }
    }

    pub(super) fn resyncs(&self, node: usize) -> Vec<Resync> {
        let log = self.nodes[node].log.iter();
        log.filter_map(|(_, action)| match action {
            Action::Resync(resync) => Some(resync.clone()),
            _ => None,
        })
        .collect()
    }

    pub(super) fn checks(&self, node: usize) -> usize {
        let log = self.nodes[node].log.iter();
        log.filter(|(_, action)| matches!(action, Action::CheckGroups(_)))
            .count()
    }

    /// Returns when the action was first taken since the log was forgotten.
    pub(super) fn first(&self, node: usize, wanted: &Action) -> Option<Tick> {
        let mut log = self.nodes[node].log.iter();
        log.find(|(_, action)| action == wanted).map(|(at, _)| *at)
    }

    /// Returns the frames that a relay has published with this number, with copies.
    pub(super) fn published(&self, node: usize, number: u64) -> Vec<Bytes> {
        let is_frame = |bytes: &&Bytes| kind(bytes) == Kind::Frame(number);
        self.nodes[node]
            .published
            .iter()
            .filter(is_frame)
            .cloned()
            .collect()
    }

    /// Takes the actions of a relay after a call of the test.
    pub(super) fn wake(&mut self, node: usize) {
        self.drive(node);
    }

    /// Hands a message to a relay, past the broker.
    pub(super) fn hand(&mut self, node: usize, bytes: &Bytes) {
        let connection = self.nodes[node].connection;
        self.deliver(node, node, connection, bytes);
    }

    /// Returns how many heartbeats a relay has published.
    pub(super) fn heartbeats(&self, node: usize) -> usize {
        let kinds = self.kinds_published(node);
        kinds
            .iter()
            .filter(|kind| matches!(kind, Kind::Heartbeat(_)))
            .count()
    }

    pub(super) fn kinds_published(&self, node: usize) -> Vec<Kind> {
        self.nodes[node].published.iter().map(kind).collect()
    }

    fn push(&mut self, at: Tick, event: Event) {
        self.event += 1;
        self.events.insert((at, self.event), event);
    }

    fn handle(&mut self, event: Event) {
        let node = match &event {
            Event::Broker { .. } | Event::Resume(_) => None,
            Event::Deliver { to, .. } => Some(*to),
            Event::Tick(node) | Event::Connect(node) => Some(*node),
        };
        if let Some(node) = node
            && (self.is_paused(node) || !self.nodes[node].held.is_empty())
        {
            return self.nodes[node].held.push_back(event);
        }
        self.act_on(event);
    }

    fn is_paused(&self, node: usize) -> bool {
        self.nodes[node].paused_until > self.now
    }

    /// A paused relay continues: its events come in the order in which they happened.
    fn resume(&mut self, node: usize) {
        while !self.is_paused(node)
            && let Some(event) = self.nodes[node].held.pop_front()
        {
            self.act_on(event);
        }
    }

    fn act_on(&mut self, event: Event) {
        match event {
            Event::Broker {
                from,
                connection,
                bytes,
            } => self.distribute(from, connection, &bytes),
            Event::Deliver {
                from,
                to,
                connection,
                bytes,
            } => {
                self.deliver(from, to, connection, &bytes);
            }
            // An earlier one has taken its place.
            Event::Tick(node) if self.nodes[node].tick_at > self.now => {}
            Event::Tick(node) => {
                self.nodes[node].tick_at = Tick::NEVER;
                self.drive(node);
            }
            Event::Connect(node) => self.connect(node),
            Event::Resume(node) => self.resume(node),
        }
    }

    fn connect(&mut self, node: usize) {
        let own = &mut self.nodes[node];
        if own.link.is_none() || own.connected {
            return;
        }
        own.connected = true;
        own.connection += 1;
        if !own.events_hidden || own.connects == 0 {
            own.connects += 1;
        }
        self.drive(node);
    }

    /// The broker sends a message to all connected relays of the sender's side, in order.
    fn distribute(&mut self, from: usize, connection: u64, bytes: &Bytes) {
        if self.nodes[from].connection != connection || self.drops(from, None, bytes) {
            return;
        }
        for to in 0..self.nodes.len() {
            let (side, sender) = (self.nodes[to].side, self.nodes[from].side);
            if !self.nodes[to].connected || side != sender {
                continue;
            }
            let jitter = self
                .rng
                .u64(0..=u64::try_from(self.jitter.as_nanos()).expect("short"));
            let at = self.now + LATENCY + Duration::from_nanos(jitter);
            let at = at.max(self.nodes[to].last_delivered);
            self.nodes[to].last_delivered = at;
            let connection = self.nodes[to].connection;
            let deliver = || Event::Deliver {
                from,
                to,
                connection,
                bytes: bytes.clone(),
            };
            self.push(at, deliver());
            if let Some(copies) = self.copies {
                let late = self
                    .rng
                    .u64(0..u64::try_from(copies.as_nanos()).expect("short"));
                self.push(at + Duration::from_nanos(late), deliver());
            }
        }
    }

    fn deliver(&mut self, from: usize, to: usize, connection: u64, bytes: &Bytes) {
        if self.nodes[to].connection != connection || self.drops(from, Some(to), bytes) {
            return;
        }
        let own = &mut self.nodes[to];
        if let Some(link) = &mut own.link {
            link.on_message(bytes, own.connects, self.now)
                .expect("a message of a relay");
            self.drive(to);
        }
    }

    fn drops(&self, from: usize, to: Option<usize>, bytes: &Bytes) -> bool {
        let (kind, at) = (kind(bytes), self.now);
        (self.drops)(&Passage { from, to, kind, at })
    }

    /// Does the work that is due at a relay, and takes its actions.
    fn drive(&mut self, node: usize) {
        let now = self.now;
        let own = &mut self.nodes[node];
        let Some(link) = own.link.as_mut().filter(|_| own.paused_until <= now) else {
            return;
        };
        link.on_tick(own.connects, now, &mut self.rng);
        if !own.pending.is_empty() && link.frame_due_at().is_some_and(|at| at <= now) {
            let mut draft = FrameDraft::default();
            while draft.has_room()
                && let Some((queue, causes)) = own.pending.pop_first()
            {
                draft.push_entry(entry(queue, causes));
            }
            let number = link.send_frame(draft, now).expect("it is due");
            self.made_at.insert((own.life, number), now);
        }
        let mut next = link.deadline();
        if let Some(due) = link.frame_due_at().filter(|_| !own.pending.is_empty()) {
            next = next.min(due);
        }
        while let Some(action) = self.nodes[node]
            .link
            .as_mut()
            .and_then(ClusterLink::next_action)
        {
            self.act(node, action);
        }
        let next = next.max(now + Duration::from_nanos(1));
        if next < self.nodes[node].tick_at {
            self.nodes[node].tick_at = next;
            self.push(next, Event::Tick(node));
        }
    }

    fn act(&mut self, node: usize, action: Action) {
        let now = self.now;
        let own = &mut self.nodes[node];
        own.log.push((now, action.clone()));
        match action {
            Action::Output(Output::Publish(bytes)) => {
                if !own.connected {
                    if let Some(link) = &mut own.link {
                        link.unsent(&bytes, now);
                    }
                } else {
                    own.published.push(bytes.clone());
                    let at = own.last_sent.max(now + LATENCY);
                    own.last_sent = at;
                    let connection = own.connection;
                    self.push(
                        at,
                        Event::Broker {
                            from: node,
                            connection,
                            bytes,
                        },
                    );
                }
            }
            Action::Apply { life, frame, .. } => {
                *own.frames.entry((life, frame.number)).or_default() += 1;
                let made_at = self.made_at[&(life, frame.number)];
                for entry in frame.entries {
                    let number = entry.queue.queue_name()[1..].parse().expect("a number");
                    *own.applied.entry((life, number)).or_default() += entry.causes;
                    let woken = own.woken.entry(queue_hash(&entry.queue)).or_default();
                    *woken = made_at.max(*woken);
                }
            }
            Action::Resync(Resync::All) => own.all_woken = now,
            Action::Resync(Resync::Queues(hashes)) => {
                own.woken.extend(hashes.into_iter().map(|hash| (hash, now)));
            }
            Action::Confirmed(frame) => {
                let made_at = self.made_at[&(own.life, frame)];
                own.confirmed_at = own.confirmed_at.max(made_at);
            }
            Action::Output(Output::End) => self.crash(node),
            Action::CheckGroups(_) | Action::Degraded(_) => {}
            Action::Output(_) => {}
        }
    }
}

pub(super) fn kind(bytes: &Bytes) -> Kind {
    match cluster_message_from_wire(bytes).expect("valid").content {
        ClusterContent::Frame(frame) => Kind::Frame(frame.number),
        ClusterContent::Heartbeat(heartbeat) => Kind::Heartbeat(heartbeat.heartbeat),
        ClusterContent::Unknown => panic!("an unknown kind"),
    }
}
