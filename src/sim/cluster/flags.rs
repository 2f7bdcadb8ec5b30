//! Flags of the simulated cluster (C14): one flag in a store that all relays share.
//!
//! Each relay has the production flags, and the production tasks that read other relays' hints and
//! add their acknowledgements. Clients watch the flag at any relay, acknowledge it and move; others
//! count the acknowledgements. Writes go through any relay, or directly into the store. The store
//! pauses, and fails in some runs. A run has flags or not; the choices have a generator of their
//! own, so that the rest of a run does not depend on them.

mod asks;
mod check;
mod clients;
mod relay;
mod tasks;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

pub(super) use self::asks::{Query, Reply};
use self::{
    asks::Asks,
    check::FlagOracle,
    clients::{Client, Stream},
    relay::{FlagRelay, Outbox},
    tasks::Tasks,
};
use super::world::{Event, World};
use crate::{
    base::clock::Tick,
    sim::{flags::store::ShakyStore, plan::seconds},
    types::{FlagEvent as WatchEvent, FlagName},
};

/// The flag, its store, and its clients.
pub(super) struct FlagWorld {
    plan: FlagPlan,
    rng: fastrand::Rng,
    name: FlagName,
    store: ShakyStore,
    /// Until when the store's clock has advanced.
    clock: Tick,
    tasks: Tasks,
    outbox: Arc<Mutex<Outbox>>,
    relays: Vec<Option<FlagRelay>>,
    clients: Vec<Client>,
    streams: Vec<Stream>,
    asks: Asks,
    oracle: FlagOracle,
}

/// The choices of a seed.
#[derive(Debug)]
struct FlagPlan {
    enabled: bool,
    /// Clients that watch the flag, and those that count acknowledgements.
    watchers: usize,
    observers: usize,
    /// Other programs write the store.
    foreign: bool,
    /// Requests to the store fail now and then.
    failing: bool,
    /// Requests to the store take seconds.
    slow: bool,
    /// Some clients leave when the flag is set.
    releases: bool,
    /// `flag_refresh`; zero turns it off.
    refresh: Duration,
    /// The longest wait between two operations, in milliseconds.
    gap: u64,
    /// The longest wait between two steps of a task, in microseconds.
    step: u64,
    /// How far each relay's wall clock is ahead.
    skews: Vec<Duration>,
}

/// Something that happens to the flag, at its time.
#[derive(Debug)]
pub(super) enum FlagEvent {
    /// A task of a relay goes on.
    Task(usize, u64),
    Alarm(u64),
    Work,
    /// A request to write the flag reaches a relay.
    Write(usize, bool),
    /// Another program writes the store.
    Foreign(bool),
    /// A client opens a stream; it reaches its relay, or ends there.
    Connect(usize),
    Open(usize, usize),
    Close(usize, usize),
    /// A stream's event reaches its client, or its end does.
    Told(usize, WatchEvent),
    Broken(usize),
    /// A client acknowledges a generation: client, generation, attempt.
    Ack(usize, u64, u32),
    AckArrives(usize, usize, u64, u32),
    /// A relay's query for acknowledgements reaches another one, and its reply comes back.
    Ask(usize, Query),
    Reply(usize, Reply),
    AskEnds(u64),
}

/// The largest difference of two wall clocks, in microseconds: five minutes.
const SKEW: u64 = 300_000_000;
/// Pauses of a slow store: at 10 ms each, a request takes 1.5 s, and at most 6 s.
const SLOW: u8 = 150;
/// The first operation: all relays have met.
const WORK: Duration = Duration::from_secs(8);

impl FlagEvent {
    /// Returns the relay that has to run for it.
    pub(super) fn relay(&self) -> Option<usize> {
        match self {
            Self::Task(relay, _)
            | Self::Write(relay, _)
            | Self::Open(relay, _)
            | Self::Close(relay, _)
            | Self::AckArrives(relay, ..)
            | Self::Ask(relay, _)
            | Self::Reply(relay, _) => Some(*relay),
            _ => None,
        }
    }
}

impl FlagPlan {
    fn of(rng: &mut fastrand::Rng, relays: usize) -> Self {
        let skew = [1, 3_000_000, SKEW][rng.usize(0..3)];
        let skews = (0..relays)
            .map(|_| Duration::from_micros(rng.u64(0..skew)))
            .collect();
        let slow = rng.u32(0..6) == 0;
        Self {
            skews,
            slow,
            enabled: rng.u32(0..4) == 0,
            watchers: rng.usize(1..=4),
            observers: rng.usize(0..=1),
            foreign: rng.bool(),
            failing: rng.u32(0..4) == 0 && !slow,
            releases: rng.bool(),
            refresh: match rng.bool() {
                true => seconds(10),
                false => Duration::ZERO,
            },
            gap: [4_000, 16_000][if slow { 1 } else { rng.usize(0..2) }],
            step: [500, 4_000, 20_000][if slow { 2 } else { rng.usize(0..3) }],
        }
    }
}

impl FlagWorld {
    pub(super) fn new(seed: u64, relays: usize) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x666c_6167_7300);
        let plan = FlagPlan::of(&mut rng, relays);
        let name = FlagName::new("go").expect("a name");
        let store = ShakyStore::new(&name, rng.fork());
        if !plan.failing {
            store.stop_failing();
        }
        if plan.slow {
            store.slow_down(SLOW);
        }
        let clients = (0..plan.watchers + plan.observers)
            .map(|number| Client::new(number, number >= plan.watchers))
            .collect();
        Self {
            rng,
            name,
            store,
            clock: Tick::default(),
            tasks: Tasks::default(),
            outbox: Arc::default(),
            relays: (0..relays).map(|_| None).collect(),
            clients,
            streams: Vec::new(),
            asks: Asks::default(),
            oracle: FlagOracle::default(),
            plan,
        }
    }

    /// Returns a random time, in microseconds.
    fn micros(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_micros(self.rng.u64(range))
    }

    /// Returns the time of a message between a client and a relay.
    fn transit(&mut self) -> Duration {
        self.micros(100..20_000)
    }
}

impl World {
    pub(super) fn start_flags(&mut self) {
        if !self.flags.plan.enabled {
            return;
        }
        self.log.say(|| format!("{:?}", self.flags.plan));
        for client in 0..self.flags.clients.len() {
            self.flag_after(2_000, FlagEvent::Connect(client));
        }
        self.after(WORK, Event::Flag(FlagEvent::Work));
    }

    pub(super) fn flag_event(&mut self, event: FlagEvent) {
        self.flag_clock();
        match event {
            FlagEvent::Task(_, id) => self.poll_flag_task(id),
            FlagEvent::Alarm(id) => self.flags.tasks.alarm(id),
            FlagEvent::Work => self.flag_work(),
            FlagEvent::Write(relay, set) => self.write_flag(relay, set),
            FlagEvent::Foreign(set) => self.write_foreign(set),
            FlagEvent::Connect(client) => self.flag_connects(client),
            FlagEvent::Open(relay, stream) => self.flag_opens(relay, stream),
            FlagEvent::Close(_, stream) => self.flag_closes(stream),
            FlagEvent::Told(stream, event) => self.flag_told(stream, &event),
            FlagEvent::Broken(stream) => self.flag_broken(stream),
            FlagEvent::Ack(client, generation, attempt) => {
                self.flag_acks(client, generation, attempt);
            }
            FlagEvent::AckArrives(relay, client, generation, attempt) => {
                self.flag_acked(relay, client, generation, attempt);
            }
            FlagEvent::Ask(relay, query) => self.answer_query(relay, &query),
            FlagEvent::Reply(_, reply) => self.take_reply(reply),
            FlagEvent::AskEnds(number) => self.flags.asks.end(number),
        }
        self.take_outbox();
    }

    /// Lets the store's clock follow.
    fn flag_clock(&mut self) {
        let span = self.now.since(self.flags.clock);
        self.flags.store.advance(span);
        self.flags.clock = self.now;
    }

    /// Schedules an event within this many milliseconds.
    fn flag_after(&mut self, millis: u64, event: FlagEvent) {
        let span = self.flags.micros(10..millis * 1_000 + 11);
        self.after(span, Event::Flag(event));
    }

    /// The store does not fail any more.
    pub(super) fn heal_flags(&mut self) {
        self.flags.store.stop_failing();
    }

    /// The next operation.
    fn flag_work(&mut self) {
        if self.healed {
            return;
        }
        let gap = self.flags.plan.gap;
        self.flag_after(gap, FlagEvent::Work);
        let relay = self.flags.rng.usize(0..self.relays.len());
        let set = self.flags.rng.bool();
        match self.flags.rng.u32(0..20) {
            0..=8 => self.flag_after(20, FlagEvent::Write(relay, set)),
            9..=12 => {
                // Two writes in quick succession, through any relays.
                let other = self.flags.rng.usize(0..self.relays.len());
                let longest = [5, 100, 2_000][self.flags.rng.usize(0..3)];
                self.flag_after(5, FlagEvent::Write(relay, true));
                self.flag_after(longest, FlagEvent::Write(other, false));
            }
            13..=16 => {
                let client = self.flags.rng.usize(0..self.flags.clients.len());
                self.flag_moves(client);
            }
            _ if self.flags.plan.foreign => self.flag_after(20, FlagEvent::Foreign(set)),
            _ => {}
        }
    }
}
