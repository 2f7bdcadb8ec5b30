//! A listener: the production session, and a worker for each queue in the simplest form that the
//! protocol allows. It connects to any relay, and goes to the next one when its relay sends it away.

use std::{collections::BTreeMap, time::Duration};

use super::{
    clients::{ConnId, Down, Up},
    hidden::Released,
    world::{Event, World},
};
use crate::{
    base::clock::Tick,
    client::session::{ReconnectConfig, ReconnectStep, SubscriptionSession},
    sim::queue::MessageId,
    types::{
        ConnectionState, ListenerId, Report, ReportState, Selector, SubscribeEvent,
        SubscribeOptions, WorkDetected, cluster::queue_hash,
    },
};

/// One listener.
#[derive(Debug, Default)]
pub(super) struct Listener {
    /// Counts its lives; 0 before the first.
    pub(super) life: u64,
    pub(super) session: Option<SubscriptionSession>,
    pub(super) relay: usize,
    pub(super) conn: Option<ConnId>,
    /// The relay's run of its newest Welcome.
    pub(super) welcomed_by: u128,
    /// From then on its relay's wake-ups reach it at once.
    pub(super) ok_from: Tick,
    workers: BTreeMap<usize, Worker>,
    /// Messages that are visible later, or of which no relay knows.
    pub(super) released: Vec<Released>,
    /// The newest sequence of each queue, and the relay's run.
    seen: BTreeMap<usize, (u128, u64)>,
    tick_at: Option<Tick>,
    app_at: Option<Tick>,
    opened: bool,
    /// Its relay was restored: its sequences may be of the memory that is gone.
    pub(super) forgives: bool,
    /// Its sequences are of the present memory from then on.
    pub(super) forgives_until: Tick,
}

/// The worker of one queue.
#[derive(Debug, Default)]
struct Worker {
    active: bool,
    holding: Option<(MessageId, u64)>,
}

/// The wake-ups of a new stream arrive within this time.
const FIRST_WAKES: Duration = Duration::from_secs(2);

impl Listener {
    /// Its relay was restored: nothing is promised before its next Welcome.
    pub(super) fn distrusts_sequences(&mut self) {
        (self.forgives, self.forgives_until) = (true, Tick::NEVER);
    }
}

impl World {
    pub(super) fn listener_starts(&mut self, number: usize) {
        let plan = self.plan.listeners[number].clone();
        let relays = self.relays.len();
        let listener = &mut self.listeners[number];
        if listener.session.is_some() {
            return;
        }
        *listener = Listener {
            life: listener.life + 1,
            relay: self.rng.usize(0..relays),
            ..Listener::default()
        };
        let id = ListenerId::new(&format!("listener-{number}")).expect("a name");
        let options = SubscribeOptions {
            group: plan.group,
            visibility_timeout: plan.visibility,
            heartbeat: plan.heartbeat,
            ..SubscribeOptions::new(id, plan.selectors)
        };
        let config = ReconnectConfig {
            others: if plan.sticky { 0 } else { relays - 1 },
            ..ReconnectConfig::default()
        };
        listener.session = Some(SubscriptionSession::new(options, config));
        let life = listener.life;
        self.log
            .note(self.now, "listener starts", &[number as u64, life]);
        self.at(self.now, Event::Poll(number, life));
        self.drive(number);
    }

    /// Its process dies, and a new one starts soon.
    pub(super) fn listener_crashes(&mut self, number: usize) {
        let away = Duration::from_micros(self.rng.u64(10..=5_000_000));
        self.listener_ends(number, away);
    }

    /// Its process ends, and a new one starts after this time.
    pub(super) fn listener_ends(&mut self, number: usize, away: Duration) {
        let listener = &mut self.listeners[number];
        if listener.session.take().is_none() {
            return;
        }
        let held = std::mem::take(&mut listener.workers);
        let held: Vec<_> = held.values().filter_map(|worker| worker.holding).collect();
        self.excused
            .extend(held.iter().map(|(message, _)| *message));
        if let Some(conn) = self.listeners[number].conn.take() {
            self.conns[conn].hidden.held_by_dead(held);
            self.drop_conn(conn);
        }
        self.log.note(self.now, "listener dies", &[number as u64]);
        self.after(away, Event::ListenerStarts(number));
    }

    /// Runs the session's steps until it waits.
    fn drive(&mut self, number: usize) {
        let now = self.now;
        loop {
            let listener = &mut self.listeners[number];
            let Some(session) = &mut listener.session else {
                return;
            };
            match session.reconnect.step(now) {
                ReconnectStep::Open => {
                    let options = session.request();
                    self.open(number, options);
                }
                ReconnectStep::Wait(at) => {
                    if listener.tick_at.is_none_or(|earlier| at < earlier) {
                        listener.tick_at = Some(at);
                        let life = listener.life;
                        self.at(at, Event::Session(number, life));
                    }
                    return;
                }
                ReconnectStep::Closed => return,
            }
        }
    }

    fn open(&mut self, number: usize, options: SubscribeOptions) {
        let relays = self.relays.len();
        let listener = &mut self.listeners[number];
        let session = listener.session.as_ref().expect("it opens a stream");
        if listener.opened && session.reconnect.leaves_relay {
            listener.relay = (listener.relay + 1) % relays;
        }
        listener.opened = true;
        let (by, relay) = ((number, listener.life), listener.relay);
        if let Some(old) = listener.conn.take() {
            self.drop_conn(old);
        }
        let id = self.open_conn(by, relay);
        self.listeners[number].conn = Some(id);
        self.log
            .note(self.now, "opens", &[number as u64, relay as u64, id as u64]);
        self.send_up(id, Up::Subscribe(Box::new(options)));
    }

    pub(super) fn session_elapsed(&mut self, number: usize, life: u64) {
        let (now, listener) = (self.now, &mut self.listeners[number]);
        if listener.life != life {
            return;
        }
        listener.tick_at = None;
        let Some(session) = &mut listener.session else {
            return;
        };
        if session.reconnect.elapsed(now, &mut self.rng)
            && let Some(conn) = listener.conn.take()
        {
            self.drop_conn(conn);
        }
        self.drive(number);
    }

    pub(super) fn listener_hears(&mut self, id: ConnId, message: Down) {
        let (now, (number, life)) = (self.now, self.conns[id].listener);
        let listener = &mut self.listeners[number];
        if listener.life != life || listener.conn != Some(id) {
            return;
        }
        let Some(session) = &mut listener.session else {
            return;
        };
        match message {
            Down::Opened => session.reconnect.opened(now),
            Down::Event(event) => {
                let welcome = matches!(*event, SubscribeEvent::Welcome(_));
                session.received(*event, now, &mut self.rng);
                if session.reconnect.state() != ConnectionState::Connected {
                    listener.conn = None;
                    self.drop_conn(id);
                } else if welcome {
                    self.welcomed(number, id);
                }
            }
            Down::Closed(error) => {
                listener.conn = None;
                self.conns[id].client_gone = true;
                let refusal = session.reconnect.broken(now, error.as_ref(), &mut self.rng);
                if let Some(refusal) = refusal {
                    self.violate(|| format!("a listener is refused for good: {refusal}"));
                }
            }
        }
        self.app_soon(number);
        self.drive(number);
    }

    /// A new stream: its relay does not know the listener's work.
    fn welcomed(&mut self, number: usize, id: ConnId) {
        let relay = self.conns[id].relay;
        let epoch = self.relays[relay].run.as_ref().map(|run| run.epoch);
        let listener = &mut self.listeners[number];
        listener.welcomed_by = epoch.unwrap_or_default();
        listener.ok_from = self.now + FIRST_WAKES;
        if listener.forgives {
            let (life, until) = (listener.life, self.now + FIRST_WAKES + FIRST_WAKES / 2);
            listener.forgives_until = until;
            self.at(until, Event::Forgive(number, life));
        }
        let listener = &mut self.listeners[number];
        let busy = listener
            .workers
            .iter()
            .filter(|(_, worker)| worker.active)
            .map(|(queue, _)| *queue);
        for queue in busy.collect::<Vec<_>>() {
            self.report(number, queue, ReportState::Busy);
        }
        self.report_released(number);
    }

    /// The application takes the next wake-up.
    pub(super) fn app(&mut self, number: usize, life: u64) {
        let (now, listener) = (self.now, &mut self.listeners[number]);
        if listener.life != life || listener.app_at.is_none_or(|at| at > now) {
            return;
        }
        listener.app_at = None;
        let Some(session) = listener.session.as_mut() else {
            return;
        };
        let Some(work) = session.next_work() else {
            return;
        };
        self.takes(number, &work);
        self.app_soon(number);
    }

    fn app_soon(&mut self, number: usize) {
        let soon = Duration::from_micros(self.rng.u64(1..1_000));
        let listener = &mut self.listeners[number];
        if listener.app_at.is_none() {
            let (at, life) = (self.now + soon, listener.life);
            listener.app_at = Some(at);
            self.at(at, Event::App(number, life));
        }
    }

    fn takes(&mut self, number: usize, work: &WorkDetected) {
        let noted = [number as u64, work.sequence, work.reason as u64];
        self.log.note(self.now, "takes", &noted);
        let Some(address) = work.queue.as_address() else {
            let pattern = work.queue.clone();
            return self.look_at(number, Some(&pattern));
        };
        let queue = self.queues.find(&address).expect("all queues are known");
        let listener = &mut self.listeners[number];
        let seen = (listener.welcomed_by, work.sequence);
        listener.seen.insert(queue, seen);
        self.work_on(number, queue);
    }

    /// Polls all its queues now and then while its relay does not push all wake-ups.
    pub(super) fn poll(&mut self, number: usize, life: u64) {
        let listener = &self.listeners[number];
        let Some(session) = listener.session.as_ref().filter(|_| listener.life == life) else {
            return;
        };
        if !session.link_state().is_pushed() {
            self.totals.count("polls", 1);
            self.look_at(number, None);
        }
        let wait = self.rng.u64(24_000..36_000);
        self.after_millis(wait, Event::Poll(number, life));
    }

    /// Reads all its queues that the pattern matches, or all.
    fn look_at(&mut self, number: usize, pattern: Option<&Selector>) {
        for queue in 0..self.queues.list.len() {
            let address = &self.queues.list[queue].address;
            let matches = pattern.is_none_or(|pattern| pattern.matches(address));
            if matches && self.wants(number, queue) {
                self.work_on(number, queue);
            }
        }
    }

    fn work_on(&mut self, number: usize, queue: usize) {
        let listener = &mut self.listeners[number];
        let life = listener.life;
        let worker = listener.workers.entry(queue).or_default();
        if !std::mem::replace(&mut worker.active, true) {
            self.within_millis(5, Event::Get(number, life, queue));
        }
    }

    pub(super) fn get(&mut self, number: usize, life: u64, queue: usize) {
        let now = self.now;
        let visibility = self.plan.listeners[number].visibility;
        let listener = &mut self.listeners[number];
        if listener.life != life || listener.session.is_none() {
            return;
        }
        let by = (number, life);
        self.looked(number, queue);
        self.quiet_looked(queue);
        let got = self.queues.get(queue, by, now, now + visibility);
        let worker = self.listeners[number].workers.entry(queue).or_default();
        worker.holding = got;
        worker.active = got.is_some();
        let (state, noted) = match got {
            Some((message, _)) => (ReportState::Busy, message as u64 + 1),
            None => (ReportState::Drained, 0),
        };
        self.log
            .note(now, "gets", &[number as u64, queue as u64, noted]);
        self.report(number, queue, state);
        if got.is_some() {
            // A busy listener keeps its queue in memory.
            let hash = queue_hash(&self.queues.list[queue].address);
            self.oracle.caused_at.insert(hash, now);
            let handling = self.plan.listeners[number].handling;
            self.within_millis(handling, Event::Handled(number, life, queue));
        }
    }

    pub(super) fn handled(&mut self, number: usize, life: u64, queue: usize) {
        let listener = &mut self.listeners[number];
        if listener.life != life || listener.session.is_none() {
            return;
        }
        let worker = listener.workers.entry(queue).or_default();
        if let Some((message, receipt)) = worker.holding.take() {
            match self.plan.fails && self.rng.u32(0..4) == 0 {
                true => self.releases(number, (message, receipt)),
                false => _ = self.queues.delete(message, receipt),
            }
        }
        self.within_millis(2, Event::Get(number, life, queue));
    }

    fn report(&mut self, number: usize, queue: usize, state: ReportState) {
        let listener = &mut self.listeners[number];
        let seen = listener.seen.get(&queue);
        let seen = seen.filter(|(epoch, _)| *epoch == listener.welcomed_by);
        let report = Report {
            state,
            sequence: seen.map_or(0, |(_, sequence)| *sequence),
            ..Report::new(self.queues.list[queue].address.clone())
        };
        self.send_report(number, report);
    }

    /// Sends a report. Without a stream it is lost: after the next Welcome all valid ones follow.
    pub(super) fn send_report(&mut self, number: usize, mut report: Report) {
        let listener = &mut self.listeners[number];
        let (Some(session), Some(conn)) = (&mut listener.session, listener.conn) else {
            return;
        };
        if session.report(&mut report).is_ok() {
            self.send_up(conn, Up::Report(Box::new(report)));
        }
    }

    /// Returns whether the listener has a stream at a relay that runs, and reads it.
    pub(super) fn is_well(&self, number: usize) -> bool {
        let listener = &self.listeners[number];
        let Some(id) = listener.conn else {
            return false;
        };
        let (conn, relay) = (&self.conns[id], &self.relays[self.conns[id].relay]);
        let session = listener.session.as_ref();
        let welcomed = session.is_some_and(|session| session.welcome().is_some());
        let stream = relay.run.as_ref().and_then(|run| run.streams.get(&id));
        let reads = stream.is_some_and(|stream| stream.blocked_until <= self.now);
        let broken = conn.reset || conn.client_gone || conn.relay_gone;
        welcomed && reads && !broken && relay.paused_until <= self.now
    }
}
