//! One relay of the simulated cluster: the hub, the cluster's machine and the streams, with model
//! drivers in place of tokio, on a separate clock.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex},
    task::{Wake, Waker},
    time::Duration,
};

use super::{
    clients::ConnId,
    drain::Draining,
    link::OwnMessages,
    publisher::Unanswered,
    streams::Stream,
    world::{Event, World},
};
use crate::{
    base::clock::Tick,
    relay::{
        cluster::ClusterNode,
        hub::{Epoch, Hub, HubConfig, StreamConfig, WakeBatch, Walk},
        link::LinkConfig,
    },
    sim::groups,
    types::{
        GroupName,
        cluster::{LifeId, queue_hash},
    },
};

/// A relay's place in the cluster: its machine and its clock stay, its runs come and go.
pub(super) struct Relay {
    pub(super) clock: LocalClock,
    /// Counts its runs; 0 before the first.
    pub(super) life: u64,
    pub(super) epoch: u128,
    /// No other machine runs the life of this one, and no earlier run had it.
    pub(super) epoch_is_alone: bool,
    pub(super) started_at: Tick,
    pub(super) run: Option<Run>,
    pub(super) paused_until: Tick,
    /// It does not start again before this time.
    pub(super) down_until: Tick,
    /// The next run has the epoch of the last one: it continues a copy of its memory.
    pub(super) restore_next: bool,
    /// All frames so far have woken its subscribers from then on, without further troubles.
    pub(super) whole_from: Tick,
    pub(super) cut_until: Tick,
    /// It has missed messages since then, with short pauses, until the end of the last cut.
    pub(super) cuts_since: Tick,
    pub(super) last_cut_end: Tick,
    bell: Arc<Bell>,
}

/// A run of a relay.
pub(super) struct Run {
    pub(super) hub: Arc<Hub>,
    pub(super) node: ClusterNode,
    pub(super) epoch: u128,
    pub(super) since: Tick,
    pub(super) streams: BTreeMap<ConnId, Stream>,
    /// The members that have had a stream here, with their groups.
    pub(super) groups: BTreeMap<usize, GroupName>,
    /// Since when the hub has an entry of a queue, by its hash.
    pub(super) entries: BTreeMap<u64, Tick>,
    pub(super) unanswered: VecDeque<Unanswered>,
    pub(super) own: OwnMessages,
    /// When each other relay, in a run of it, has received the newest message of this run.
    pub(super) heard_by: BTreeMap<(usize, u64), Tick>,
    /// When a timer last fired.
    pub(super) fired_at: Tick,
    pub(super) link_at: Option<Tick>,
    pub(super) draining: Option<Draining>,
    walk: Option<Walk>,
    fanout_at: Option<Tick>,
    timers_at: Option<Tick>,
}

/// A relay's clock: it starts anywhere, and runs too fast or too slow.
#[derive(Debug, Clone, Copy)]
pub(super) struct LocalClock {
    offset: u64,
    per_million: i64,
}

/// The streams and tasks that were woken at a relay.
#[derive(Debug, Default)]
struct Bell {
    rung: Mutex<Vec<Ring>>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Ring {
    Stream(ConnId),
    Timers,
    Fanout,
    Increments,
}

struct Ringer {
    bell: Arc<Bell>,
    ring: Ring,
}

impl Wake for Ringer {
    fn wake(self: Arc<Self>) {
        let mut rung = self.bell.rung.lock().expect("one thread");
        rung.push(self.ring);
    }
}

/// A clock deviates by a hundredth at most.
const DRIFT: i64 = 10_000;
/// A relay's offset: its monotonic clock may have started long ago.
const OFFSET: u64 = 3_600_000_000_000;

impl LocalClock {
    fn new(rng: &mut fastrand::Rng) -> Self {
        Self {
            offset: rng.u64(1_000_000_000..OFFSET),
            per_million: rng.i64(-DRIFT..=DRIFT),
        }
    }

    /// Returns the relay's time at a real time.
    pub(super) fn local(self, real: Tick) -> Tick {
        let real = i128::from(real.as_nanos());
        let run = real + real * i128::from(self.per_million) / 1_000_000;
        Tick::from_nanos(self.offset + u64::try_from(run).expect("not negative"))
    }

    /// Returns the first real time at which the relay's clock shows this time or a later one.
    pub(super) fn real(self, local: Tick) -> Tick {
        if local == Tick::NEVER {
            return Tick::NEVER;
        }
        let run = i128::from(local.as_nanos().saturating_sub(self.offset));
        let real = run * 1_000_000 / i128::from(1_000_000 + self.per_million);
        let mut real = Tick::from_nanos(u64::try_from(real).expect("not negative"));
        while self.local(real) < local {
            real += Duration::from_nanos(1);
        }
        real
    }
}

impl Relay {
    pub(super) fn new(rng: &mut fastrand::Rng) -> Self {
        Self {
            clock: LocalClock::new(rng),
            life: 0,
            epoch: 0,
            epoch_is_alone: true,
            started_at: Tick::default(),
            run: None,
            paused_until: Tick::default(),
            down_until: Tick::default(),
            restore_next: false,
            whole_from: Tick::default(),
            cut_until: Tick::default(),
            cuts_since: Tick::default(),
            last_cut_end: Tick::default(),
            bell: Arc::default(),
        }
    }

    /// Returns the run of this number, if it has not ended.
    pub(super) fn run_of(&mut self, life: u64) -> Option<&mut Run> {
        self.run.as_mut().filter(|_| self.life == life)
    }

    pub(super) fn waker(&self, ring: Ring) -> Waker {
        let bell = Arc::clone(&self.bell);
        Waker::from(Arc::new(Ringer { bell, ring }))
    }

    pub(super) fn increments_waker(&self) -> Waker {
        self.waker(Ring::Increments)
    }
}

impl Run {
    pub(super) fn life_id(&self) -> LifeId {
        LifeId(self.epoch)
    }
}

impl World {
    pub(super) fn local(&self, relay: usize) -> Tick {
        self.relays[relay].clock.local(self.now)
    }

    pub(super) fn stream_config(&self, relay: usize, epoch: u128) -> StreamConfig {
        StreamConfig {
            relay_id: format!("relay-{relay}").into(),
            epoch: Epoch(epoch).to_string().into(),
            version: "0".into(),
            max_age: self.plan.max_age,
            throttle_from: StreamConfig::THROTTLE_FROM,
        }
    }

    pub(super) fn relay_starts(&mut self, number: usize) {
        let now = self.local(number);
        let relay = &mut self.relays[number];
        if relay.run.is_some() {
            return;
        }
        if relay.down_until > self.now {
            let until = relay.down_until;
            return self.at(until, Event::RelayStarts(number));
        }
        if !std::mem::take(&mut relay.restore_next) {
            relay.epoch = self.rng.u128(..);
            relay.epoch_is_alone = true;
        } else {
            relay.epoch_is_alone = false;
        }
        relay.started_at = self.now;
        relay.life += 1;
        relay.bell = Arc::default();
        let hub = Arc::new(Hub::new(HubConfig {
            epoch: Epoch(relay.epoch),
            seed: self.rng.u64(..),
            forget_after: self.plan.forget_after,
            inline: self.plan.inline,
            cluster: true,
            ..groups::pace(self.plan.sentinel, self.plan.group_keep)
        }));
        hub.timers().waker.register(&relay.waker(Ring::Timers));
        hub.fanout.waker.register(&relay.waker(Ring::Fanout));
        let config = LinkConfig {
            life: LifeId(relay.epoch),
            relay_id: format!("relay-{number}").into(),
            version: "0".into(),
        };
        relay.run = Some(Run {
            node: ClusterNode::new(Arc::clone(&hub), config, now),
            hub,
            epoch: relay.epoch,
            since: self.now,
            streams: BTreeMap::new(),
            groups: BTreeMap::new(),
            entries: BTreeMap::new(),
            unanswered: VecDeque::new(),
            own: OwnMessages::default(),
            heard_by: BTreeMap::new(),
            fired_at: Tick::default(),
            link_at: None,
            draining: None,
            walk: None,
            fanout_at: None,
            timers_at: None,
        });
        let life = relay.life;
        self.log.note(self.now, "starts", &[number as u64, life]);
        self.broker.ports[number].connects = 0;
        self.within_millis(1_000, Event::Connects(number));
        self.at(self.now + self.forget_every(), Event::Forget(number, life));
        self.link_soon(number);
        if !self.relays[number].epoch_is_alone {
            let epoch = self.relays[number].epoch;
            self.forgive_listeners_with(epoch);
        }
        self.relay_has_started(number);
        self.start_flags_of(number);
    }

    /// The relay's process dies.
    pub(super) fn relay_crashes(&mut self, number: usize) {
        if self.relays[number].run.is_none() {
            return;
        }
        let life = self.relays[number].life;
        self.log.note(self.now, "crashes", &[number as u64, life]);
        self.ends(number);
        self.forget_delayed_of(number, life);
        self.relay_has_died(number);
    }

    /// The relay's process ends, with all connections.
    pub(super) fn ends(&mut self, number: usize) {
        let life = self.relays[number].life;
        for id in 0..self.conns.len() {
            let conn = &mut self.conns[id];
            if conn.relay == number && conn.life == Some(life) && !conn.relay_gone {
                conn.relay_gone = true;
                conn.reset = true;
                self.within_millis(50, Event::ClientBroken(id));
            }
        }
        self.excuse_unheard(number);
        self.stop_relay(number);
        self.break_connection(number, Duration::ZERO);
        self.relays[number].paused_until = self.now;
    }

    /// Takes a run down, so that nothing of it stays in memory.
    pub(super) fn stop_relay(&mut self, number: usize) {
        let now = self.local(number);
        let Some(mut run) = self.relays[number].run.take() else {
            return;
        };
        self.count_stats(&run);
        self.stop_flags_of(number);
        for stream in run.streams.values_mut() {
            stream.feed.close(now);
        }
        for waiting in std::mem::take(&mut run.unanswered) {
            self.send_answer(waiting.attempt, false);
        }
    }

    pub(super) fn fire_timers(&mut self, number: usize, life: u64) {
        let (real, now) = (self.now, self.local(number));
        let Some(run) = self.relays[number].run_of(life) else {
            return;
        };
        if run.timers_at.is_none_or(|at| at > real) {
            return;
        }
        run.timers_at = None;
        let before = run.hub.stats().timed;
        run.hub.fire(now);
        if run.hub.stats().timed > before {
            run.fired_at = real;
        }
        self.arm_timers(number);
    }

    /// Takes one step of a walk, or the next walk.
    pub(super) fn fan_out(&mut self, number: usize, life: u64) {
        let (real, now) = (self.now, self.local(number));
        let waker = self.relays[number].waker(Ring::Fanout);
        let Some(run) = self.relays[number].run_of(life) else {
            return;
        };
        if run.fanout_at.is_none_or(|at| at > real) {
            return;
        }
        run.fanout_at = None;
        let more = run.hub.detach_some(now);
        let walk = run.walk.take().or_else(|| run.hub.fanout.pop());
        match walk {
            Some(mut walk) => {
                if walk.step(&mut WakeBatch::default()) {
                    run.walk = Some(walk);
                }
            }
            None => {
                run.hub.fanout.waker.register(&waker);
                if !more {
                    return;
                }
            }
        }
        self.arm_fanout(number);
    }

    pub(super) fn forget(&mut self, number: usize, life: u64) {
        let (now, every) = (self.local(number), self.forget_every());
        if let Some(run) = self.relays[number].run_of(life) {
            run.hub.forget(now);
            let left = run.hub.queues("", usize::MAX, now);
            let left = left.iter().map(|view| queue_hash(&view.address));
            let left: BTreeSet<u64> = left.collect();
            run.entries.retain(|hash, _| left.contains(hash));
            self.at(self.now + every, Event::Forget(number, life));
        }
    }

    /// Schedules the streams and tasks that were woken at the relays.
    pub(super) fn relay_wakers(&mut self) {
        for number in 0..self.relays.len() {
            loop {
                let bell = &self.relays[number].bell;
                let rung = std::mem::take(&mut *bell.rung.lock().expect("one thread"));
                if rung.is_empty() {
                    break;
                }
                for ring in rung {
                    match ring {
                        Ring::Stream(id) => {
                            let soon = Duration::from_micros(self.rng.u64(1..5_000));
                            self.poll_stream(number, id, self.now + soon);
                        }
                        Ring::Timers => self.arm_timers(number),
                        Ring::Fanout => self.arm_fanout(number),
                        Ring::Increments => self.link_soon(number),
                    }
                }
            }
        }
    }

    fn arm_timers(&mut self, number: usize) {
        let relay = &mut self.relays[number];
        let (life, clock, waker) = (relay.life, relay.clock, relay.waker(Ring::Timers));
        let Some(run) = &mut relay.run else { return };
        run.hub.timers().waker.register(&waker);
        let Some(next) = run.hub.next_timer() else {
            return;
        };
        let next = clock.real(next).max(self.now);
        if run.timers_at.is_none_or(|earlier| next < earlier) {
            run.timers_at = Some(next);
            self.at(next, Event::Timers(number, life));
        }
    }

    fn arm_fanout(&mut self, number: usize) {
        let at = self.now + Duration::from_micros(self.rng.u64(10..300));
        let life = self.relays[number].life;
        let Some(run) = &mut self.relays[number].run else {
            return;
        };
        if run.fanout_at.is_none() {
            run.fanout_at = Some(at);
            self.at(at, Event::Fanout(number, life));
        }
    }

    fn forget_every(&self) -> Duration {
        let longest = Duration::from_secs(60);
        (self.plan.forget_after / 10).clamp(Duration::from_millis(100), longest)
    }
}
