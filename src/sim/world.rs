//! The simulated world: its events in the order of time, and their dispatch.

use std::time::Duration;

use super::{
    attempts::Outages,
    limits::FullTable,
    listener::Listener,
    log::Log,
    net::{Client, Conn, ConnId, Down, Up},
    plan::{Plan, Trouble},
    publisher::Publisher,
    queue::{MessageId, Queues},
    relay::RelayNode,
    reports::{Answer, Call},
    scaled::Happens,
    schedule::Schedule,
    shared::Shared,
};
use crate::base::{clock::Tick, fault::Fault};

/// The whole state of a run.
pub(super) struct World {
    pub(super) now: Tick,
    pub(super) rng: fastrand::Rng,
    pub(super) plan: Plan,
    pub(super) log: Log,
    pub(super) relay: RelayNode,
    pub(super) listeners: Vec<Listener>,
    pub(super) publishers: Vec<Publisher>,
    pub(super) queues: Queues,
    pub(super) conns: Vec<Conn>,
    /// The connections that listeners of one client share.
    pub(super) shared: Option<Shared>,
    pub(super) full: FullTable,
    pub(super) outages: Outages,
    pub(super) totals: Totals,
    /// Troubles have stopped.
    pub(super) healed: bool,
    /// The workload waits until every listener has connected to a restored relay.
    pub(super) held: bool,
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

/// The counts of events in a run, or in many (I24: every kind of fault happens).
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Totals {
    pub(super) events: u64,
    pub(super) simulated_seconds: u64,
    pub(super) messages: u64,
    pub(super) unannounced: u64,
    pub(super) troubles: u64,
    pub(super) restarts: u64,
    pub(super) streams: u64,
    /// Streams that resume by a number.
    pub(super) resumed: u64,
    pub(super) wakes: u64,
    pub(super) entries: u64,
    pub(super) heartbeats: u64,
    pub(super) walks: u64,
    pub(super) walks_lost: u64,
    pub(super) timed: u64,
    pub(super) forgotten: u64,
    pub(super) reports: u64,
    pub(super) reassigned: u64,
    pub(super) looks: u64,
    /// Gets without a try, and messages that were poisoned.
    pub(super) spared: u64,
    pub(super) poisoned: u64,
}

/// Something that happens at its time.
#[derive(Debug)]
pub(super) enum Event {
    ToRelay(ConnId, Up),
    ToClient(ConnId, Down),
    /// One end learns that the connection is gone.
    RelayBroken(ConnId),
    ClientBroken(ConnId),
    /// The stream is ready to take a message.
    Feed(ConnId),
    Timers,
    Fanout,
    Forget,
    RelayStarts,
    RelayStops,
    /// A report arrives, is answered, or is dropped.
    Report(Call),
    Reported(Call, Answer),
    ReportLate(Call),
    /// An event of a listener: its number and its life come first.
    Link(usize, u64),
    App(usize, u64),
    Get(usize, u64, usize),
    Handled(usize, u64, usize, MessageId, u64),
    Poll(usize, u64),
    Scaled(usize, u64, usize, Happens),
    ListenerStarts(usize),
    ListenerLeft(usize, u64),
    ListenerCrashes(usize, u64),
    /// An event of a publisher.
    Pump(usize, u64),
    Says(usize, u64, MessageId),
    PublisherStarts(usize),
    /// The workload's next operation, the next trouble, the end of all troubles.
    Work,
    /// One operation, in addition to the workload.
    Operate,
    Steady,
    Trouble,
    Strike(Trouble),
    /// The connection of one stream breaks.
    BreakStream(ConnId),
    Heal,
    /// Checks the invariants.
    Check,
    CauseCheck(usize, u64, u64),
    ListenerCheck(usize, u64),
    /// A member, its stream, the queue, the relay's life, and the sequence that must be assigned.
    RestCheck(usize, ConnId, usize, u64, u64),
    /// A member's stream, the queue, the relay's life, and since when: its lease has ended, its
    /// stream has ended while it was busy, or its group is a new one.
    LapseCheck(ConnId, usize, u64, Tick),
    EndCheck(ConnId, usize, u64, Tick),
    GroupCheck(ConnId, usize, u64, Tick),
}

/// After the last trouble: time for the longest chain of time-outs, twice.
pub(super) const SILENCE: Duration = Duration::from_secs(100);

impl World {
    pub(super) fn new(seed: u64, fault: Fault, print: bool) -> Self {
        fault.plant();
        let mut rng = fastrand::Rng::with_seed(seed);
        let plan = Plan::of(seed, &mut rng);
        let relay = RelayNode::new(&plan, &mut rng);
        let mut world = Self {
            now: Tick::default(),
            rng,
            log: Log::new(print),
            relay,
            listeners: Vec::new(),
            publishers: Vec::new(),
            queues: Queues::default(),
            conns: Vec::new(),
            shared: plan.shared.map(Shared::new),
            full: FullTable::default(),
            outages: Outages::default(),
            totals: Totals::default(),
            healed: false,
            held: false,
            violation: None,
            events: Schedule::default(),
            plan,
        };
        world.log.say(|| format!("{:?}", world.plan));
        world.start();
        world
    }

    /// Runs to the end of the silence, or to the first violation.
    pub(super) fn run(mut self) -> Outcome {
        let end = self.now + self.plan.active + SILENCE;
        while self.violation.is_none()
            && let Some(next) = self.events.take_until(end)
        {
            if let Some(until) = self
                .frozen_until(&next.event)
                .filter(|until| *until > next.at)
            {
                // After a pause a node first reads all input, then checks its time-outs.
                let judges = matches!(next.event, Event::Link(..));
                let after = Duration::from_millis(u64::from(judges));
                self.events.put_off(next, until + after);
                continue;
            }
            self.now = next.at;
            self.totals.events += 1;
            self.handle(next.event);
            self.relay_wakers();
        }
        if self.violation.is_none() {
            self.now = end;
            self.check_the_end();
        }
        self.stop_relay();
        self.totals.simulated_seconds += self.now.as_nanos() / 1_000_000_000;
        self.totals.messages += self.queues.messages.len() as u64;
        Outcome {
            violation: self.violation,
            hash: self.log.hash(),
            totals: self.totals,
        }
    }

    /// Records a violation; only the first one counts.
    pub(super) fn violate(&mut self, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            let text = format!("at {:.3} s: {}", self.now.as_nanos() as f64 / 1e9, what());
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
        let micros = self.rng.u64(10..=(millis * 1000).max(10));
        self.after(Duration::from_micros(micros), event);
    }

    fn start(&mut self) {
        for address in self.plan.queues.clone() {
            self.queues.add(address, false);
        }
        self.queues.add(super::plan::address("forbidden"), true);
        for number in 0..self.plan.listeners.len() {
            self.listeners.push(Listener::new());
            self.within_millis(2_000, Event::ListenerStarts(number));
        }
        for number in 0..self.plan.publishers {
            self.publishers.push(Publisher::new(&self.plan));
            self.at(self.now, Event::PublisherStarts(number));
        }
        self.at(self.now, Event::RelayStarts);
        self.within_millis(5_000, Event::Work);
        if self.plan.steady.is_some() {
            self.at(self.now, Event::Steady);
        }
        let gap = self.plan.trouble_gap;
        self.within_millis(gap, Event::Trouble);
        self.after(self.plan.active, Event::Heal);
        self.at(self.now, Event::Check);
    }

    /// Returns until when the event's receiver is frozen.
    fn frozen_until(&self, event: &Event) -> Option<Tick> {
        use Event as E;
        let listener = |number: &usize| Some(self.listeners[*number].paused_until);
        match event {
            E::ToRelay(..) | E::Feed(_) | E::Timers | E::Fanout | E::Forget | E::Report(_) => {
                Some(self.relay.paused_until)
            }
            E::ToClient(conn, _) | E::ClientBroken(conn) => match self.conns[*conn].client {
                Client::Listener(number, _) => listener(&number),
                Client::Publisher(number, _) => Some(self.publishers[number].paused_until),
            },
            E::Link(number, _) | E::App(number, _) | E::Get(number, ..) | E::Poll(number, _) => {
                listener(number)
            }
            E::Handled(number, ..) | E::Scaled(number, ..) => listener(number),
            E::Reported(call, _) | E::ReportLate(call) => listener(&call.listener),
            E::Pump(number, _) | E::Says(number, ..) => Some(self.publishers[*number].paused_until),
            _ => None,
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::ToRelay(conn, message) => self.relay_hears(conn, message),
            Event::ToClient(conn, message) => self.client_hears(conn, message),
            Event::RelayBroken(conn) => self.stream_ends(conn),
            Event::ClientBroken(conn) => self.client_hears(conn, Down::Closed(None)),
            Event::Feed(conn) => self.feed(conn),
            Event::Timers => self.fire_timers(),
            Event::Fanout => self.fan_out(),
            Event::Forget => self.forget(),
            Event::RelayStarts => self.relay_starts(),
            Event::RelayStops => self.relay_crashes(),
            Event::Report(call) => self.take_report(call),
            Event::Reported(call, answer) => self.reported(&call, answer),
            Event::ReportLate(call) => self.reported(&call, Answer::Late),
            Event::Link(listener, life) => self.link_elapsed(listener, life),
            Event::App(listener, life) => self.app(listener, life),
            Event::Get(listener, life, queue) => self.get(listener, life, queue),
            Event::Handled(listener, life, queue, message, receipt) => {
                self.handled(listener, life, queue, message, receipt);
            }
            Event::Poll(listener, life) => self.poll(listener, life),
            Event::Scaled(listener, life, queue, happens) => {
                self.scaled_event(listener, life, queue, happens);
            }
            Event::ListenerStarts(listener) => self.listener_starts(listener),
            Event::ListenerLeft(listener, life) | Event::ListenerCrashes(listener, life) => {
                self.listener_crashes(listener, life);
            }
            Event::Pump(publisher, life) => self.pump(publisher, life),
            Event::Says(publisher, life, message) => self.says(publisher, life, message),
            Event::PublisherStarts(publisher) => self.publisher_starts(publisher),
            Event::Work => self.work(),
            Event::Operate => self.operate(),
            Event::Steady => self.steady(),
            Event::Trouble => self.trouble(),
            Event::Strike(trouble) => self.strike(trouble),
            Event::BreakStream(conn) => self.break_stream(conn),
            Event::Heal => self.heal(),
            Event::Check => self.check(),
            Event::CauseCheck(queue, life, sequence) => self.check_cause(queue, life, sequence),
            Event::ListenerCheck(listener, life) => self.check_listener(listener, life),
            Event::RestCheck(listener, conn, queue, life, head) => {
                self.check_rest(listener, conn, queue, life, head);
            }
            Event::LapseCheck(conn, queue, life, end) => self.check_lapse(conn, queue, life, end),
            Event::EndCheck(conn, queue, life, end) => self.check_end(conn, queue, life, end),
            Event::GroupCheck(conn, queue, life, at) => self.check_new_group(conn, queue, life, at),
        }
    }

    fn client_hears(&mut self, conn: ConnId, message: Down) {
        let broken = matches!(message, Down::Closed(_));
        let state = &mut self.conns[conn];
        if state.client_gone || (state.reset && !broken) {
            return;
        }
        match state.client {
            Client::Listener(number, life) => self.listener_hears(number, life, conn, message),
            Client::Publisher(number, life) => self.publisher_hears(number, life, conn, message),
        }
    }
}

impl Totals {
    /// Returns the count of the rarest event that a test run must contain.
    pub(super) fn rarest(&self) -> u64 {
        let kinds = [
            self.messages,
            self.restarts,
            self.streams,
            self.resumed,
            self.heartbeats,
            self.walks_lost,
            self.timed,
            self.forgotten,
            self.reports,
            self.reassigned,
            self.looks,
            self.spared,
            self.poisoned,
        ];
        kinds.into_iter().min().unwrap_or_default()
    }

    /// Adds the counts of another run.
    pub(super) fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.simulated_seconds += other.simulated_seconds;
        self.messages += other.messages;
        self.unannounced += other.unannounced;
        self.troubles += other.troubles;
        self.restarts += other.restarts;
        self.streams += other.streams;
        self.resumed += other.resumed;
        self.wakes += other.wakes;
        self.entries += other.entries;
        self.heartbeats += other.heartbeats;
        self.walks += other.walks;
        self.walks_lost += other.walks_lost;
        self.timed += other.timed;
        self.forgotten += other.forgotten;
        self.reports += other.reports;
        self.reassigned += other.reassigned;
        self.looks += other.looks;
        self.spared += other.spared;
        self.poisoned += other.poisoned;
    }
}
