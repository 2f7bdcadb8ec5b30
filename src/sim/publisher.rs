//! A simulated publisher: the production session, driven as the network client drives it.
//!
//! Each message has one bit in the payload size of its queue, so a conflated request still shows
//! which messages it stands for.

use std::{collections::BTreeMap, time::Duration};

use futures_channel::oneshot;

use super::{
    net::{Client, ConnId, Down, Up},
    plan::Plan,
    queue::{Announced, MessageId},
    world::{Event, World},
};
use crate::{
    base::clock::Tick,
    client::session::{PublisherConfig, PublisherSession},
    error::{Error, ErrorKind, Result},
    types::{Accepted, Notification},
};

/// One publisher.
#[derive(Debug)]
pub(super) struct Publisher {
    pub(super) session: PublisherSession,
    pub(super) life: u64,
    pub(super) alive: bool,
    pub(super) conn: Option<ConnId>,
    pub(super) paused_until: Tick,
    pub(super) partition_until: Tick,
    pub(super) ok_from: Tick,
    /// Its messages by queue, in the order of their bits.
    bits: BTreeMap<usize, Vec<MessageId>>,
    /// Messages that the next notification of their queue includes.
    pub(super) along: Vec<MessageId>,
    /// The answers for which callers wait.
    answers: Vec<oneshot::Receiver<Result<Accepted>>>,
    config: PublisherConfig,
    /// Its stream is open.
    open: bool,
    opening_since: Tick,
    pump_at: Option<Tick>,
}

/// Bits that a payload size has room for.
const BITS: usize = 60;
/// An attempt to open a stream that takes longer has failed.
const OPEN: Duration = Duration::from_secs(5);

impl Publisher {
    pub(super) fn new(plan: &Plan) -> Self {
        let config = PublisherConfig {
            batch: plan.batch,
            ..PublisherConfig::default()
        };
        Self {
            session: PublisherSession::new(config.clone()),
            life: 0,
            alive: false,
            conn: None,
            paused_until: Tick::default(),
            partition_until: Tick::default(),
            ok_from: Tick::default(),
            bits: BTreeMap::new(),
            along: Vec::new(),
            answers: Vec::new(),
            config,
            open: false,
            opening_since: Tick::default(),
            pump_at: None,
        }
    }

    /// Returns the messages that a payload size stands for.
    pub(super) fn told(&self, queue: usize, payload: u64) -> Vec<MessageId> {
        let messages = self.bits.get(&queue).into_iter().flatten().copied();
        messages
            .enumerate()
            .filter(|(bit, _)| payload & (1 << bit) != 0)
            .map(|(_, message)| message)
            .collect()
    }
}

impl World {
    pub(super) fn publisher_starts(&mut self, number: usize) {
        let publisher = &mut self.publishers[number];
        if publisher.alive {
            return;
        }
        publisher.alive = true;
        publisher.life += 1;
        publisher.session = PublisherSession::new(publisher.config.clone());
        publisher.answers.clear();
        publisher.along.clear();
        (publisher.conn, publisher.open, publisher.pump_at) = (None, false, None);
    }

    pub(super) fn publisher_crashes(&mut self, number: usize) {
        let publisher = &mut self.publishers[number];
        if !std::mem::replace(&mut publisher.alive, false) {
            return;
        }
        let life = publisher.life;
        self.log
            .note(self.now, "publisher dies", &[number as u64, life]);
        if let Some(conn) = publisher.conn.take() {
            self.drop_conn(conn);
        }
        for message in &mut self.queues.messages {
            if message.announced == Announced::Publisher(number, life) {
                message.announced = Announced::Unannounced;
            }
        }
        self.within_millis(10_000, Event::PublisherStarts(number));
    }

    /// The publisher sends a notification for a message that it has put.
    pub(super) fn says(&mut self, number: usize, life: u64, message: MessageId) {
        let now = self.now;
        let publisher = &mut self.publishers[number];
        let (queue, visible_at) = {
            let message = &self.queues.messages[message];
            (message.queue, message.visible_at)
        };
        if !publisher.alive || publisher.life != life {
            return;
        }
        let bits = publisher.bits.entry(queue).or_default();
        if bits.len() == BITS {
            self.queues.messages[message].announced = Announced::Unannounced;
            for along in publisher.along.drain(..) {
                self.queues.messages[along].announced = Announced::Unannounced;
            }
            return;
        }
        let delay = visible_at.since(now);
        let (mut payload_size, mut messages) = (1 << bits.len(), 1);
        bits.push(message);
        let all = &self.queues.messages;
        let room = BITS - bits.len();
        let told = |along: &mut MessageId| delay.is_zero() && all[*along].queue == queue;
        for along in publisher.along.extract_if(.., told).take(room) {
            payload_size |= 1 << bits.len();
            messages += 1;
            bits.push(along);
        }
        if bits.len() == BITS {
            for along in publisher.along.drain(..) {
                self.queues.messages[along].announced = Announced::Unannounced;
            }
        }
        let notification = Notification {
            payload_size,
            messages,
            delay,
            ..Notification::new(self.queues.list[queue].address.clone())
        };
        let answers = publisher.session.notify(vec![notification], now);
        let answers = answers.expect("little is pending");
        // Some callers do not wait.
        if self.rng.u32(0..3) != 0 {
            publisher.answers.extend(answers);
        }
        self.pump_now(number);
    }

    /// Every caller is answered, at the latest when nothing is unsent (R19: each event has a result).
    fn answers_come(&mut self, number: usize) {
        let publisher = &mut self.publishers[number];
        let is_told = |answer: &mut oneshot::Receiver<_>| matches!(answer.try_recv(), Ok(Some(_)));
        publisher.answers.retain_mut(|answer| !is_told(answer));
        if !publisher.session.has_work() && !publisher.answers.is_empty() {
            self.violate(|| format!("R19: a caller of publisher {number} is never answered"));
        }
    }

    pub(super) fn publisher_hears(&mut self, number: usize, life: u64, id: ConnId, message: Down) {
        let now = self.now;
        let publisher = &mut self.publishers[number];
        if publisher.life != life || publisher.conn != Some(id) {
            return;
        }
        match message {
            Down::Opened => publisher.open = true,
            Down::Answer(answer) => {
                let refused = answer.results.iter().filter(|one| one.is_err()).count();
                publisher.session.answered(answer, now, &mut self.rng);
                self.log
                    .note(now, "answered", &[number as u64, refused as u64]);
                self.answers_come(number);
            }
            Down::Closed(_) => self.publisher_loses(number),
            Down::Event(_) => unreachable!("publishers do not subscribe"),
        }
        self.pump_now(number);
    }

    pub(super) fn pump(&mut self, number: usize, life: u64) {
        let publisher = &mut self.publishers[number];
        if publisher.life != life || !publisher.alive || publisher.pump_at.is_none() {
            return;
        }
        publisher.pump_at = None;
        self.pump_now(number);
    }

    /// Sends pending requests, detects time-outs, and schedules the next call.
    fn pump_now(&mut self, number: usize) {
        let now = self.now;
        let publisher = &mut self.publishers[number];
        let opening_late =
            publisher.conn.is_some() && !publisher.open && publisher.opening_since + OPEN <= now;
        if publisher.session.is_overdue(now) || opening_late {
            self.publisher_loses(number);
        }
        let publisher = &mut self.publishers[number];
        let life = publisher.life;
        if publisher.session.has_work()
            && publisher.conn.is_none()
            && publisher.session.retry_at() <= now
        {
            publisher.opening_since = now;
            let id = self.connect(Client::Publisher(number, life));
            self.publishers[number].conn = Some(id);
            self.send_up(id, Up::OpenNotify);
        }
        let publisher = &mut self.publishers[number];
        let mut requests = Vec::new();
        while publisher.open
            && let Some(request) = publisher.session.request(now)
        {
            requests.push(request);
        }
        let conn = publisher.conn;
        for request in requests {
            self.send_up(conn.expect("it is open"), Up::Notify(request));
        }
        self.pump_later(number);
    }

    fn pump_later(&mut self, number: usize) {
        let publisher = &mut self.publishers[number];
        let (session, life) = (&publisher.session, publisher.life);
        let mut next = session.next_at();
        if !publisher.open && session.has_work() {
            let wait = match publisher.conn {
                Some(_) => publisher.opening_since + OPEN,
                None => session.retry_at(),
            };
            next = next.max(self.now + Duration::from_millis(100)).min(wait);
        }
        if next != Tick::NEVER && publisher.pump_at.is_none_or(|at| next < at) {
            publisher.pump_at = Some(next);
            self.at(next, Event::Pump(number, life));
        }
    }

    fn publisher_loses(&mut self, number: usize) {
        let error = Error::new(ErrorKind::Unavailable, "the stream broke");
        let publisher = &mut self.publishers[number];
        publisher.open = false;
        publisher.session.broken(&error, self.now, &mut self.rng);
        if let Some(conn) = publisher.conn.take() {
            self.drop_conn(conn);
        }
    }
}
