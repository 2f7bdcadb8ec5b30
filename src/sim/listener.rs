//! A simulated listener: the production session, and workers in the simplest form that the
//! protocol allows.
//!
//! On any wake-up a queue is read until empty, one message at a time; a pattern's CATCH_UP reads
//! every existing queue that matches. Frames are read at once; the application takes the wake-ups
//! later.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::{
    net::{Client, ConnId, Down, Up},
    plan::Trouble,
    queue::{Announced, MessageId},
    reports::Released,
    scaled::Scaled,
    world::{Event, World},
};
use crate::{
    base::clock::Tick,
    client::session::{ReconnectConfig, ReconnectStep, SubscriptionSession},
    error::Error,
    types::{
        ConnectionState, LinkState, ListenerId, ReportState, Selector, SubscribeEvent,
        SubscribeOptions, WakeReason, WorkDetected,
    },
};

/// One listener.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) options: SubscribeOptions,
    /// Counts its lives; 0 before the first.
    pub(super) life: u64,
    pub(super) session: Option<SubscriptionSession>,
    pub(super) leaving: bool,
    pub(super) conn: Option<ConnId>,
    /// Its newest stream with a Welcome, and the relay's life of that.
    pub(super) stream: Option<ConnId>,
    pub(super) stream_life: u64,
    pub(super) paused_until: Tick,
    pub(super) partition_until: Tick,
    /// Its application takes no wake-up until this time.
    pub(super) stalled_until: Tick,
    /// Its path to the relay has been healthy since this time.
    pub(super) ok_from: Tick,
    /// It must hold a stream by this time, without further troubles.
    pub(super) connected_by: Tick,
    pub(super) workers: BTreeMap<usize, Worker>,
    /// Its shared connection.
    pub(super) lease: Option<usize>,
    /// The connection that it left because of silence.
    pub(super) left: Option<usize>,
    /// The time of its last Welcome.
    welcomed_at: Tick,
    /// Its newest stream lasted and ended in a Goodbye.
    lasted: bool,
    /// It must try again by this time: its first failure after a stream that lasted.
    tries_by: Option<Tick>,
    /// Its production scalers by queue, if it has them.
    pub(super) scaled: BTreeMap<usize, Scaled>,
    pub(super) link: LinkState,
    /// It has had no stream since this time.
    pub(super) alone_since: Option<Tick>,
    pub(super) started_at: Tick,
    /// The newest wake-up of each queue that was handed over.
    pub(super) told: BTreeMap<usize, Told>,
    /// The newest sequence of each queue that it saw, and in which life of the relay.
    pub(super) seen: BTreeMap<usize, (u64, u64)>,
    pub(super) released: Vec<Released>,
    pub(super) calls: BTreeMap<u64, usize>,
    pub(super) attempts: VecDeque<Tick>,
    tick_at: Option<Tick>,
    app_at: Option<Tick>,
}

/// The worker of one queue.
#[derive(Debug, Default)]
pub(super) struct Worker {
    pub(super) active: bool,
    /// It polls without a wake-up: it reports BUSY before its second get (R8: otherwise the relay
    /// counts it as idle).
    unasked: bool,
    said_busy: bool,
    pub(super) holding: Option<(MessageId, u64)>,
}

/// A wake-up that was handed over: its stream, the relay's life, and its sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told {
    pub(super) stream: Option<ConnId>,
    pub(super) life: u64,
    pub(super) sequence: u64,
}

/// A stream that lived this long was a success: the back-off starts again (I18: retries are
/// bounded).
const LASTING: Duration = Duration::from_secs(10);
/// The first attempt after such a stream follows within this time.
const FIRST_WAIT: Duration = Duration::from_secs(1);

impl Listener {
    pub(super) fn new() -> Self {
        let listener_id = ListenerId::new("listener").expect("a name");
        let nothing: [Selector; 0] = [];
        Self {
            options: SubscribeOptions::new(listener_id, nothing),
            life: 0,
            session: None,
            leaving: false,
            conn: None,
            stream: None,
            stream_life: 0,
            paused_until: Tick::default(),
            partition_until: Tick::default(),
            stalled_until: Tick::default(),
            ok_from: Tick::default(),
            connected_by: Tick::NEVER,
            workers: BTreeMap::new(),
            lease: None,
            left: None,
            welcomed_at: Tick::default(),
            lasted: false,
            tries_by: None,
            scaled: BTreeMap::new(),
            link: LinkState::default(),
            alone_since: None,
            started_at: Tick::default(),
            told: BTreeMap::new(),
            seen: BTreeMap::new(),
            released: Vec::new(),
            calls: BTreeMap::new(),
            attempts: VecDeque::new(),
            tick_at: None,
            app_at: None,
        }
    }

    pub(super) fn works_on(&self, queue: usize) -> bool {
        self.workers.get(&queue).is_some_and(|worker| worker.active)
    }

    /// An attempt to open a stream failed, or a stream broke. The first failure after a stream that
    /// lasted is followed by a short wait.
    fn failed(&mut self, now: Tick, asked: Option<Duration>) {
        if std::mem::take(&mut self.lasted) {
            self.tries_by = Some(now + asked.unwrap_or_default() + FIRST_WAIT);
        }
    }

    pub(super) fn is_alive(&self, life: u64) -> bool {
        self.life == life && self.session.is_some()
    }

    pub(super) fn wants(&self, queue: &crate::types::QueueAddress) -> bool {
        let mut selectors = self.options.selectors.iter();
        selectors.any(|selector| selector.matches(queue))
    }
}

impl World {
    pub(super) fn listener_starts(&mut self, number: usize) {
        let plan = &self.plan.listeners[number];
        let id = ListenerId::new(&format!("listener-{number}")).expect("a name");
        let options = self.as_member(number, SubscribeOptions::new(id, plan.selectors.clone()));
        let listener = &mut self.listeners[number];
        if listener.session.is_some() {
            return;
        }
        let (life, attempts) = (listener.life + 1, std::mem::take(&mut listener.attempts));
        *listener = Listener {
            life,
            attempts,
            started_at: self.now,
            alone_since: Some(self.now),
            ok_from: listener.ok_from,
            paused_until: listener.paused_until,
            partition_until: listener.partition_until,
            options: SubscribeOptions {
                visibility_timeout: plan.visibility,
                heartbeat: plan.heartbeat,
                ..options
            },
            ..Listener::new()
        };
        let options = listener.options.clone();
        listener.session = Some(SubscriptionSession::new(
            options,
            ReconnectConfig::default(),
        ));
        self.log
            .note(self.now, "listener starts", &[number as u64, life]);
        if self.plan.listeners[number].scaled {
            self.scaled_starts(number);
        }
        if self.plan.listeners[number].polls {
            self.at(self.now, Event::Poll(number, life));
        }
        self.impair(number, self.now);
        self.drive(number);
    }

    /// Crashes: its kernel closes its connections, or its machine is gone.
    pub(super) fn listener_crashes(&mut self, number: usize, life: u64) {
        if !self.listeners[number].is_alive(life) {
            return;
        }
        let gone = self.rng.u32(0..4) == 0 && !self.listeners[number].leaving;
        self.log.note(
            self.now,
            "listener dies",
            &[number as u64, life, u64::from(gone)],
        );
        self.scaled_lost(number);
        self.listeners[number].session = None;
        self.release_connection(number);
        if let Some(conn) = self.listeners[number].conn.take() {
            if gone {
                self.silence(conn, true, true);
                self.conns[conn].client_gone = true;
            } else {
                self.drop_conn(conn);
            }
        }
        self.listener_was_lost(number, life);
        let wait = if self.healed { 10 } else { 15_000 };
        self.within_millis(wait, Event::ListenerStarts(number));
    }

    /// Leaves in good order: shows the messages that it holds, reports them, and closes (R10: a
    /// listener reports what becomes visible again).
    pub(super) fn listener_leaves(&mut self, number: usize) {
        let listener = &mut self.listeners[number];
        if listener.session.is_none() || std::mem::replace(&mut listener.leaving, true) {
            return;
        }
        let life = listener.life;
        self.log
            .note(self.now, "listener leaves", &[number as u64, life]);
        self.scaled_leaves(number);
        let listener = &mut self.listeners[number];
        let held: Vec<_> = listener
            .workers
            .iter_mut()
            .filter_map(|(_, worker)| worker.holding.take())
            .collect();
        for (message, receipt) in held {
            if !self.plan.listeners[number].mute {
                self.release(number, message, receipt, self.now);
            }
        }
        self.after_millis(1_500, Event::ListenerLeft(number, life));
    }

    /// Runs the session's steps until it waits.
    pub(super) fn drive(&mut self, number: usize) {
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
                    if listener.tries_by.take().is_some_and(|by| at > by) {
                        self.violate(|| {
                            format!("I18: listener {number} waits until {at:?} after one failure")
                        });
                    }
                    self.scaled_linked(number);
                    let listener = &mut self.listeners[number];
                    if listener.tick_at.is_none_or(|earlier| at < earlier) {
                        listener.tick_at = Some(at);
                        let life = listener.life;
                        self.at(at, Event::Link(number, life));
                    }
                    return;
                }
                ReconnectStep::Closed => return,
            }
        }
    }

    pub(super) fn link_elapsed(&mut self, number: usize, life: u64) {
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
            listener.failed(now, None);
            self.log
                .note(now, "silence noticed", &[number as u64, conn as u64]);
            self.drop_conn(conn);
            self.leave_connection(number);
        }
        self.drive(number);
    }

    pub(super) fn listener_hears(&mut self, number: usize, life: u64, id: ConnId, message: Down) {
        let now = self.now;
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
                    listener.lasted |= now.since(listener.welcomed_at) >= LASTING;
                    listener.conn = None;
                    self.drop_conn(id);
                } else if welcome {
                    (listener.welcomed_at, listener.lasted) = (now, false);
                    self.welcomed(number, id);
                }
            }
            Down::Closed(error) => {
                listener.conn = None;
                self.conns[id].client_gone = true;
                let asked = error.as_ref().and_then(Error::retry_after);
                let refusal = session.reconnect.broken(now, error.as_ref(), &mut self.rng);
                listener.failed(now, asked);
                if let Some(refusal) = refusal {
                    self.violate(|| format!("a listener is refused for good: {refusal}"));
                }
            }
            Down::Answer(_) => unreachable!("listeners do not notify"),
        }
        self.app_soon(number);
        self.drive(number);
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
        if listener.stalled_until > now {
            let until = listener.stalled_until;
            listener.app_at = Some(until);
            self.at(until, Event::App(number, life));
            return;
        }
        let Some(work) = session.next_work() else {
            return;
        };
        self.takes(number, &work);
        let soon = now + Duration::from_micros(self.rng.u64(1..1_000));
        self.listeners[number].app_at = Some(soon);
        self.at(soon, Event::App(number, life));
    }

    pub(super) fn get(&mut self, number: usize, life: u64, queue: usize) {
        let listener = &mut self.listeners[number];
        if !listener.is_alive(life) || listener.leaving {
            return;
        }
        let (now, plan) = (self.now, &self.plan.listeners[number]);
        let got = self
            .queues
            .get(queue, (number, life), now, now + plan.visibility);
        let worker = listener.workers.entry(queue).or_default();
        let Some((message, receipt)) = got else {
            worker.active = false;
            self.log.note(now, "empty", &[number as u64, queue as u64]);
            self.report(number, queue, ReportState::Drained);
            return;
        };
        worker.holding = Some((message, receipt));
        let says_busy = !worker.said_busy && (worker.unasked || !plan.terse);
        worker.said_busy |= says_busy;
        self.queues.messages[message].announced = Announced::Listener(number, life);
        self.log
            .note(now, "got", &[number as u64, queue as u64, message as u64]);
        if says_busy {
            self.report(number, queue, ReportState::Busy);
        }
        let long = !self.healed && self.rng.u32(0..6) == 0;
        let handling = if long {
            self.plan.listeners[number].handling
        } else {
            20
        };
        self.within_millis(
            handling,
            Event::Handled(number, life, queue, message, receipt),
        );
        if self.may(Trouble::CrashHolding) && self.rng.u32(0..6) == 0 {
            self.within_millis(handling, Event::ListenerCrashes(number, life));
        }
    }

    pub(super) fn handled(
        &mut self,
        number: usize,
        life: u64,
        queue: usize,
        message: MessageId,
        receipt: u64,
    ) {
        let mute = self.plan.listeners[number].mute;
        let listener = &mut self.listeners[number];
        if !listener.is_alive(life) {
            return;
        }
        let worker = listener.workers.entry(queue).or_default();
        if worker.holding != Some((message, receipt)) {
            return;
        }
        worker.holding = None;
        let fails = !mute && self.rng.u32(0..8) == 0 && !self.healed;
        if fails {
            let delay = Duration::from_millis(self.rng.u64(0..3_000));
            self.release(number, message, receipt, self.now + delay);
        } else {
            self.queues.delete(message, receipt);
            self.log
                .note(self.now, "done", &[number as u64, message as u64]);
        }
        self.within_millis(2, Event::Get(number, life, queue));
    }

    /// Polls all its queues now and then while it has no stream.
    pub(super) fn poll(&mut self, number: usize, life: u64) {
        let listener = &self.listeners[number];
        let Some(session) = listener.session.as_ref().filter(|_| listener.life == life) else {
            return;
        };
        if session.reconnect.state() != ConnectionState::Connected {
            self.look_at(number, |_| true);
        }
        let wait = self.rng.u64(24_000..36_000);
        self.after_millis(wait, Event::Poll(number, life));
    }

    fn open(&mut self, number: usize, options: SubscribeOptions) {
        let (now, life) = (self.now, self.listeners[number].life);
        if let Some(old) = self.listeners[number].conn.take() {
            self.drop_conn(old);
        }
        let id = self.connect(Client::Listener(number, life));
        self.share(number, id);
        let listener = &mut self.listeners[number];
        listener.conn = Some(id);
        listener.attempts.push_back(now);
        listener.attempts.retain(|at| now.since(*at).as_secs() < 60);
        if listener.attempts.len() > 60 {
            self.violate(|| format!("I18: listener {number} tries more than once a second"));
        }
        self.log.note(now, "opens", &[number as u64, id as u64]);
        self.send_up(id, Up::Subscribe(Box::new(options)));
    }

    /// Takes a wake-up, and polls.
    fn takes(&mut self, number: usize, work: &WorkDetected) {
        let Some(address) = work.queue.as_address() else {
            let selector = work.queue.clone();
            self.look_at(number, |address| selector.matches(address));
            return;
        };
        let queue = self.queues.find(&address).expect("all queues are known");
        let listener = &mut self.listeners[number];
        let told = Told {
            stream: listener.stream,
            life: listener.stream_life,
            sequence: work.sequence,
        };
        listener.told.insert(queue, told);
        if self.listeners[number].is_scaled() {
            let noted = [number as u64, queue as u64, work.sequence];
            self.log.note(self.now, "takes", &noted);
            self.scaled_linked(number);
            return self.scaled_woken(number, queue, work.sequence);
        }
        let life = self.listeners[number].stream_life;
        let listener = &mut self.listeners[number];
        listener.seen.insert(queue, (life, work.sequence));
        self.log.note(
            self.now,
            "takes",
            &[number as u64, queue as u64, work.sequence],
        );
        let unasked = work.reason == WakeReason::Unspecified;
        self.work_on(number, queue, unasked);
    }

    fn look_at(&mut self, number: usize, which: impl Fn(&crate::types::QueueAddress) -> bool) {
        for queue in 0..self.queues.list.len() {
            let address = &self.queues.list[queue].address;
            if which(address) && self.listeners[number].wants(address) {
                self.work_on(number, queue, true);
            }
        }
    }

    fn work_on(&mut self, number: usize, queue: usize, unasked: bool) {
        let listener = &mut self.listeners[number];
        let life = listener.life;
        let worker = listener.workers.entry(queue).or_default();
        if worker.active {
            return;
        }
        *worker = Worker {
            active: true,
            unasked,
            ..Worker::default()
        };
        self.within_millis(5, Event::Get(number, life, queue));
    }

    fn app_soon(&mut self, number: usize) {
        let latency = self.plan.listeners[number].latency;
        let soon = Duration::from_micros(self.rng.u64(1..=latency * 1000));
        let listener = &mut self.listeners[number];
        if listener.app_at.is_none() {
            let (at, life) = (self.now + soon, listener.life);
            listener.app_at = Some(at);
            self.at(at, Event::App(number, life));
        }
    }
}
