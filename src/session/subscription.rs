//! A subscription's client side: what it asks for on reconnecting, and what it hands over.
//!
//! A token is taken when its wake-up is handed to the application, not when it arrives; what was
//! not handed over when the stream broke is dropped, because the relay tells it again. So counts
//! add up exactly, and nothing that the application has not seen is ever resumed past. A request
//! states the newest positions that it has room for, and fewer after the relay refused its size. For
//! all other queues the relay's resume number stands, which waits in line with the wake-ups before it:
//! it counts when they were handed over.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{
    link::{Link, LinkConfig, Outage, Step},
    positions::Positions,
};
use crate::{
    clock::Tick,
    error::{Error, ErrorKind, Result},
    fault::{Fault, planted},
    words::{
        ConnectionState, Limits, LinkState, ListenerId, Report, SubscribeEvent, SubscribeOptions,
        Token, Welcome, WorkDetected,
    },
};

/// The subscription's state machine.
#[derive(Debug)]
pub(crate) struct SubscriptionSession {
    options: SubscribeOptions,
    link: Link,
    positions: Positions,
    arrived: VecDeque<Arrived>,
    /// The newest resume number that counts, and the life of the relay that it is of.
    resume: Token,
    epoch: Option<Arc<str>>,
    welcome: Option<Welcome>,
    /// The newest stream's relay cannot hear all publishers.
    degraded: bool,
    /// Streams that were welcomed.
    welcomes: u64,
    /// Of the newest report.
    report: u64,
    /// Bytes that a request has left for positions.
    room: usize,
    fault: Fault,
}

/// What arrived, in its order.
#[derive(Debug)]
enum Arrived {
    Work(WorkDetected),
    /// All wake-ups before it were sent: it counts when they were handed over.
    Resume(Token),
}

/// What a driver does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Open a stream with this request; drop the one before.
    Open(SubscribeOptions),
    /// As the link says.
    Link(Step),
}

impl SubscriptionSession {
    pub(crate) fn new(options: SubscribeOptions, config: LinkConfig) -> Self {
        let fault = config.fault;
        let taken = options.encoded_without_positions();
        let room = config.request_bytes.saturating_sub(taken);
        let positions = Positions::starting_with(&options.positions, config.positions);
        let resume = options.resume.clone();
        Self {
            options,
            link: Link::new(config),
            positions,
            arrived: VecDeque::new(),
            resume,
            epoch: None,
            welcome: None,
            degraded: false,
            welcomes: 0,
            report: 0,
            room,
            fault,
        }
    }

    /// Hands over the next wake-up; its token is taken now.
    pub(crate) fn next_work(&mut self) -> Option<WorkDetected> {
        loop {
            match self.arrived.pop_front()? {
                Arrived::Work(work) => {
                    self.positions.keep(&work);
                    return Some(work);
                }
                Arrived::Resume(resume) => self.resume = resume,
            }
        }
    }

    /// Returns what to do next, where nothing is to be handed over.
    pub(crate) fn step(&mut self, now: Tick) -> Action {
        match self.link.step(now) {
            Step::Open => {
                if !planted!(self.fault, BrokenKeepsArrived) {
                    self.arrived.clear();
                }
                Action::Open(self.request())
            }
            step => Action::Link(step),
        }
    }

    /// The stream is open.
    pub(crate) fn opened(&mut self, now: Tick) {
        self.link.opened(now);
    }

    /// A message arrived.
    pub(crate) fn received(&mut self, event: SubscribeEvent, now: Tick, rng: &mut fastrand::Rng) {
        self.link.heard(now);
        match event {
            SubscribeEvent::Welcome(welcome) => {
                self.link.beats(welcome.heartbeat);
                self.degraded = welcome.degraded;
                self.welcomes += 1;
                self.enter(&welcome.epoch);
                self.welcome = Some(welcome);
                self.positions.taken();
            }
            SubscribeEvent::Wake(work) => {
                if planted!(self.fault, TokenTakenOnArrival) {
                    work.iter().for_each(|work| self.positions.keep(work));
                }
                self.arrived.extend(work.into_iter().map(Arrived::Work));
            }
            SubscribeEvent::Goodbye(goodbye) => {
                self.welcome = None;
                self.link.goodbye(now, goodbye, rng);
            }
            SubscribeEvent::Heartbeat { degraded, resume } => {
                self.degraded = degraded;
                self.keep_resume(resume);
            }
            SubscribeEvent::Unknown => {}
        }
    }

    /// The stream broke or could not be opened. Returns the error where it is final.
    pub(crate) fn broken(
        &mut self,
        now: Tick,
        error: Option<&Error>,
        rng: &mut fastrand::Rng,
    ) -> Option<Error> {
        let opening = self.welcome.take().is_none();
        if let Some(refusal) = error.filter(|_| opening)
            && refusal.kind() == ErrorKind::Exhausted
            && !planted!(self.fault, PositionsNotCut)
            && !planted!(self.fault, ExhaustedSendsAll)
            && self.positions.refused()
        {
            self.link.too_large(now, refusal, rng);
            return None;
        }
        self.link.broken(now, error, rng)
    }

    /// Has a subscription that was refused for good ask again after about `after`; returns whether
    /// it was.
    pub(crate) fn ask_again(
        &mut self,
        now: Tick,
        after: Duration,
        rng: &mut fastrand::Rng,
    ) -> bool {
        self.link.ask_again(now, after, rng)
    }

    /// Ends the stream until it is called with `false`; returns whether that changes anything.
    pub(crate) fn pause(&mut self, paused: bool, now: Tick) -> bool {
        let changes = self.link.pause(paused, now);
        if changes {
            self.welcome = None;
        }
        changes
    }

    /// Returns an outage that is to be logged now.
    pub(crate) fn outage(&mut self, now: Tick) -> Option<Outage> {
        self.link.outage(now)
    }

    /// The time has come that the last step named. Returns whether to drop the stream.
    pub(crate) fn elapsed(&mut self, now: Tick, rng: &mut fastrand::Rng) -> bool {
        let dead = self.link.elapsed(now, rng);
        if dead {
            self.welcome = None;
        }
        dead
    }

    /// Numbers a report and names the subscription that it belongs to.
    pub(crate) fn report(&mut self, report: &mut Report) -> Result<Arc<str>> {
        report.check()?;
        let missing = || {
            Error::new(
                ErrorKind::Unavailable,
                "no stream just now: report after the next welcome",
            )
        };
        let welcome = self.welcome.as_ref().ok_or_else(missing)?;
        self.report += 1;
        report.number = self.report;
        Ok(Arc::clone(&welcome.subscription_id))
    }

    pub(crate) fn listener_id(&self) -> &ListenerId {
        &self.options.listener_id
    }

    pub(crate) fn welcome(&self) -> Option<&Welcome> {
        self.welcome.as_ref()
    }

    pub(crate) fn state(&self) -> ConnectionState {
        self.link.state()
    }

    /// Returns how it stands with the relay. A stream counts as one when it was welcomed: before
    /// that nothing can be reported on it.
    pub(crate) fn link(&self) -> LinkState {
        let connection = match self.link.state() {
            ConnectionState::Connected if self.welcome.is_none() => ConnectionState::Reconnecting,
            state => state,
        };
        LinkState {
            connection,
            degraded: self.degraded,
            welcomes: self.welcomes,
            announced: self.link.is_announced(),
        }
    }

    /// A relay's number says nothing to its next life, nor to another relay.
    fn enter(&mut self, epoch: &Arc<str>) {
        let before = self.epoch.replace(Arc::clone(epoch));
        if before.is_some_and(|before| before != *epoch) {
            self.resume = Token::default();
        }
    }

    fn keep_resume(&mut self, resume: Token) {
        if resume.is_empty() || resume.0.len() > Limits::TOKEN {
            return;
        }
        if self.arrived.is_empty() || planted!(self.fault, ResumeBeforeHandOver) {
            self.resume = resume;
            return;
        }
        // Of several with no wake-up in between the newest counts.
        self.arrived
            .pop_back_if(|newest| matches!(newest, Arrived::Resume(_)));
        self.arrived.push_back(Arrived::Resume(resume));
    }

    fn request(&mut self) -> SubscribeOptions {
        let cuts = !planted!(self.fault, PositionsNotCut);
        let room = if cuts { self.room } else { usize::MAX };
        SubscribeOptions {
            positions: self.positions.newest(room),
            resume: self.resume.clone(),
            ..self.options.clone()
        }
    }
}
