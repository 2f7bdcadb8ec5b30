//! The world of a cluster: virtual time and its events.

use std::{collections::BTreeSet, time::Duration};

use super::{
    broker::{Broker, Packet},
    check::BreakWatch,
    clients::{Conn, ConnId, Down, Up},
    departure::Departure,
    flags::{FlagEvent, FlagWorld},
    groups::OwedLooks,
    hand_over::{TimersCall, TimersResult},
    listener::Listener,
    oracle::Oracle,
    plan::{Plan, Trouble, Work},
    publisher::Attempt,
    quiet::Quiet,
    relay::Relay,
    totals::Totals,
};
use crate::{
    base::{clock::Tick, fault::Fault},
    sim::{
        log::Log,
        queue::{MessageId, Queues},
        schedule::Schedule,
    },
};

pub(super) struct World {
    pub(super) now: Tick,
    pub(super) rng: fastrand::Rng,
    pub(super) log: Log,
    pub(super) plan: Plan,
    pub(super) relays: Vec<Relay>,
    pub(super) broker: Broker,
    pub(super) listeners: Vec<Listener>,
    pub(super) conns: Vec<Conn>,
    pub(super) attempts: Vec<Attempt>,
    pub(super) queues: Queues,
    pub(super) oracle: Oracle,
    /// Messages whose holder or relay has died with all knowledge of them: no wake-up is promised.
    pub(super) excused: BTreeSet<MessageId>,
    /// Publishers prefer this relay for the moment.
    pub(super) aimed_at: Option<usize>,
    pub(super) last_death: Option<Tick>,
    /// No work and no new trouble before this time.
    pub(super) quiet_until: Tick,
    /// Counts the checks, and the troubles so far.
    pub(super) checks: u64,
    pub(super) troubles: u64,
    pub(super) last_trouble: Tick,
    pub(super) break_watch: Option<BreakWatch>,
    pub(super) owed_looks: OwedLooks,
    pub(super) flags: FlagWorld,
    pub(super) quiet: Quiet,
    pub(super) totals: Totals,
    /// Troubles have stopped.
    pub(super) healed: bool,
    violation: Option<String>,
    events: Schedule<Tick, Event>,
}

/// How a run ended.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) violation: Option<String>,
    pub(super) hash: u64,
    pub(super) totals: Totals,
}

/// Something that happens at its time. A relay's number comes before its run.
#[derive(Debug)]
pub(super) enum Event {
    ToRelay(ConnId, Up),
    ToClient(ConnId, Down),
    RelayBroken(ConnId),
    ClientBroken(ConnId),
    Feed(ConnId),
    Timers(usize, u64),
    Fanout(usize, u64),
    Forget(usize, u64),
    Link(usize, u64),
    /// A request waits in vain for its confirmation.
    AnswerDue(usize),
    RelayStarts(usize),
    RelayCrashes(usize),
    /// C15: a drain begins, and goes on; requests to hand timers over, and their results.
    Drain(usize, Duration),
    PutFor(usize, Duration),
    DrainStep(usize, u64),
    TimersCall(usize, Box<TimersCall>),
    TimersResult(Box<TimersResult>),
    TimersLate(usize, u64, u64),
    Departs(Departure),
    LeftSettled(Departure),
    /// A message reaches its sender's server, or a relay by a connection.
    AtServer(Packet),
    AtOtherServer(Vec<usize>, Packet),
    AtRelay(usize, u64, Packet),
    Connects(usize),
    /// An attempt of a publisher arrives, or is answered.
    Notify(usize),
    Answer(usize, bool),
    NotifyAgain(MessageId, Duration),
    /// An event of a listener: its number and its life come first.
    Session(usize, u64),
    App(usize, u64),
    Get(usize, u64, usize),
    Handled(usize, u64, usize),
    Poll(usize, u64),
    ListenerStarts(usize),
    ListenerDies(usize, u64),
    /// A listener's sequences are of its relay's present memory again.
    Forgive(usize, u64),
    Work,
    Operate(Work),
    Trouble,
    /// The next message of a quiet run, one at a relay, and the end of the count of its wake-ups.
    QuietPut,
    QuietPutAt(usize, usize),
    QuietCounted(MessageId),
    /// A step of a trouble that has several.
    Cut(usize, Duration),
    Aim(Option<usize>),
    BreakStreams(usize),
    BreakSettled(u64),
    Heal,
    Check,
    Flag(FlagEvent),
}

/// The relays start within this time, and their listeners.
const START: u64 = 2_000;
/// The work begins when all relays have met.
const WORK: Duration = Duration::from_secs(8);
/// After the last trouble: the longest bound of the promise, and the end of a delay.
pub(super) const SILENCE: Duration = Duration::from_secs(110);

impl World {
    pub(super) fn new(seed: u64, fault: Fault, print: bool) -> Self {
        fault.plant();
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x636c_7573_7465_7200);
        let mut plan = Plan::of(&mut rng);
        if rng.u32(0..8) == 0 {
            plan = plan.into_quiet(&mut rng);
        }
        let relays = (0..plan.relays).map(|_| Relay::new(&mut rng)).collect();
        let mut world = Self {
            now: Tick::default(),
            log: Log::new(print),
            relays,
            broker: Broker::new(plan.relays, plan.servers, plan.copies),
            listeners: plan.listeners.iter().map(|_| Listener::default()).collect(),
            conns: Vec::new(),
            attempts: Vec::new(),
            queues: Queues::default(),
            oracle: Oracle::default(),
            excused: BTreeSet::new(),
            aimed_at: None,
            last_death: None,
            quiet_until: Tick::default(),
            checks: 0,
            troubles: 0,
            last_trouble: Tick::default(),
            break_watch: None,
            owed_looks: OwedLooks::new(),
            flags: FlagWorld::new(seed, plan.relays),
            quiet: Quiet::default(),
            totals: Totals::default(),
            healed: false,
            violation: None,
            events: Schedule::default(),
            rng,
            plan,
        };
        world.log.say(|| format!("{:?}", world.plan));
        world.start();
        world
    }

    fn start(&mut self) {
        for address in self.plan.queues.clone() {
            self.queues.add(address, false);
        }
        for relay in 0..self.relays.len() {
            self.within_millis(START, Event::RelayStarts(relay));
        }
        for listener in 0..self.listeners.len() {
            self.within_millis(START, Event::ListenerStarts(listener));
        }
        self.quiet_starts();
        self.after(WORK, Event::Work);
        let first = WORK + Duration::from_millis(self.rng.u64(0..5_000));
        self.after(first, Event::Trouble);
        self.after(self.plan.active, Event::Heal);
        self.at(self.now, Event::Check);
        self.start_flags();
    }

    /// Runs to the end, or to the first violation.
    pub(super) fn run(mut self) -> Outcome {
        let silence = if self.plan.heals {
            SILENCE
        } else {
            Duration::ZERO
        };
        let end = self.now + self.plan.active + silence;
        while self.violation.is_none()
            && let Some(next) = self.events.take_until(end)
        {
            if let Some(until) = self.paused_until(&next.event).filter(|at| *at > next.at) {
                self.events.put_off(next, until);
                continue;
            }
            self.now = next.at;
            self.handle(next.event);
            self.relay_wakers();
            self.flag_wakers();
        }
        if self.violation.is_none() && self.plan.heals {
            self.now = end;
            self.check_the_end();
        }
        for relay in 0..self.relays.len() {
            self.stop_relay(relay);
        }
        Outcome {
            violation: self.violation,
            hash: self.log.hash(),
            totals: self.totals,
        }
    }

    /// Records a violation; only the first one counts.
    pub(super) fn violate(&mut self, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            let text = format!("at {:.3} s: {}", seconds(self.now), what());
            self.log.say(|| text.clone());
            self.violation = Some(text);
        }
    }

    pub(super) fn at(&mut self, at: Tick, event: Event) {
        self.events.add(at.max(self.now), event);
    }

    pub(super) fn after(&mut self, span: Duration, event: Event) {
        self.at(self.now + span, event);
    }

    pub(super) fn after_millis(&mut self, millis: u64, event: Event) {
        self.after(Duration::from_millis(millis), event);
    }

    /// Schedules an event within this many milliseconds, at a random time.
    pub(super) fn within_millis(&mut self, millis: u64, event: Event) {
        let micros = self.rng.u64(10..=(millis * 1_000).max(10));
        self.after(Duration::from_micros(micros), event);
    }

    /// Returns until when the event's relay is paused.
    fn paused_until(&self, event: &Event) -> Option<Tick> {
        let relay = match event {
            Event::ToRelay(conn, _) | Event::RelayBroken(conn) | Event::Feed(conn) => {
                self.conns[*conn].relay
            }
            Event::Timers(relay, _)
            | Event::Fanout(relay, _)
            | Event::Forget(relay, _)
            | Event::Link(relay, _)
            | Event::AnswerDue(relay)
            | Event::AtRelay(relay, ..)
            | Event::Drain(relay, _)
            | Event::DrainStep(relay, _)
            | Event::TimersCall(relay, _)
            | Event::TimersLate(relay, ..)
            | Event::Connects(relay) => *relay,
            Event::Notify(attempt) => self.attempts[*attempt].relay,
            Event::TimersResult(result) => result.relay(),
            Event::Departs(departure) => departure.relay,
            Event::Flag(event) => event.relay()?,
            _ => return None,
        };
        Some(self.relays[relay].paused_until)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::ToRelay(conn, message) => self.relay_hears(conn, message),
            Event::ToClient(conn, message) if !self.conns[conn].reset => {
                self.listener_hears(conn, message);
            }
            Event::ToClient(..) => {}
            Event::RelayBroken(conn) => self.stream_ends(conn),
            Event::ClientBroken(conn) => self.listener_hears(conn, Down::Closed(None)),
            Event::Feed(conn) => self.feed(conn),
            Event::Timers(relay, life) => self.fire_timers(relay, life),
            Event::Fanout(relay, life) => self.fan_out(relay, life),
            Event::Forget(relay, life) => self.forget(relay, life),
            Event::Link(relay, life) => self.link_ticks(relay, life),
            Event::AnswerDue(relay) => self.answer_publishers(relay),
            Event::RelayStarts(relay) => self.relay_starts(relay),
            Event::RelayCrashes(relay) => self.relay_crashes(relay),
            Event::Drain(relay, span) => self.drain_begins(relay, span),
            Event::PutFor(relay, delay) => self.put_for(relay, delay),
            Event::DrainStep(relay, life) => self.drain_step(relay, life),
            Event::TimersCall(relay, call) => self.timers_asked(relay, *call),
            Event::TimersResult(result) => self.timers_answered(&result),
            Event::TimersLate(relay, life, number) => self.timers_late(relay, life, number),
            Event::Departs(departure) => self.departs(departure),
            Event::LeftSettled(departure) => self.check_left(departure),
            Event::AtServer(packet) => self.at_server(&packet),
            Event::AtOtherServer(relays, packet) => self.at_other_server(&relays, &packet),
            Event::AtRelay(relay, connection, packet) => {
                self.at_relay(relay, connection, &packet);
            }
            Event::Connects(relay) => self.connects(relay),
            Event::Notify(attempt) => self.notified(attempt),
            Event::Answer(attempt, ok) => self.answered(attempt, ok),
            Event::NotifyAgain(message, delay) => self.notify_again(message, delay),
            Event::Session(listener, life) => self.session_elapsed(listener, life),
            Event::App(listener, life) => self.app(listener, life),
            Event::Get(listener, life, queue) => self.get(listener, life, queue),
            Event::Handled(listener, life, queue) => self.handled(listener, life, queue),
            Event::Poll(listener, life) => self.poll(listener, life),
            Event::ListenerStarts(listener) => self.listener_starts(listener),
            Event::ListenerDies(listener, life) => {
                if self.listeners[listener].life == life {
                    self.listener_crashes(listener);
                }
            }
            Event::Forgive(listener, life) => self.forgive(listener, life),
            Event::Work => self.work(),
            Event::Operate(work) => self.operate(work),
            Event::Trouble => self.trouble(),
            Event::QuietPut => self.quiet_put(),
            Event::QuietPutAt(queue, relay) => self.quiet_put_at(queue, relay),
            Event::QuietCounted(message) => self.check_counted(message),
            Event::Cut(relay, span) => self.cut(relay, span, Trouble::Break),
            Event::Aim(relay) => self.aimed_at = relay,
            Event::BreakStreams(relay) => self.break_streams(relay),
            Event::BreakSettled(number) => self.check_break(number),
            Event::Heal => self.heal(),
            Event::Check => self.check(),
            Event::Flag(event) => self.flag_event(event),
        }
    }
}

/// Returns a time in seconds, for a message.
pub(super) fn seconds(at: Tick) -> f64 {
    at.as_nanos() as f64 / 1e9
}
