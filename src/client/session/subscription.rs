//! A subscription's client side: its reconnect requests, and the wake-ups it hands over.
//!
//! A token is recorded when its wake-up is handed to the application, not on arrival. Undelivered
//! wake-ups are dropped when the stream breaks, because the relay sends them again. So counts add
//! up exactly, and a request never resumes past a wake-up that the application has not seen. A
//! request states the newest positions that fit, and fewer after the relay refused its size. The
//! relay's resume number covers all other queues. It queues behind the wake-ups before it, and
//! takes effect when they were handed over.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{
    positions::Positions,
    reconnect::{Reconnect, ReconnectConfig},
};
use crate::{
    base::{clock::Tick, fault::planted},
    error::{Error, ErrorKind, Result},
    types::{
        ConnectionState, Goodbye, GoodbyeReason, Limits, LinkState, Report, SubscribeEvent,
        SubscribeOptions, Token, Welcome, WorkDetected,
    },
};

/// The subscription's state machine.
#[derive(Debug)]
pub(crate) struct SubscriptionSession {
    options: SubscribeOptions,
    pub(crate) reconnect: Reconnect,
    positions: Positions,
    undelivered: VecDeque<Undelivered>,
    /// The newest resume number in effect.
    resume: Token,
    /// The epoch of the relay that issued it.
    epoch: Option<Arc<str>>,
    /// The newest stream's; valid while that is open.
    welcome: Option<Welcome>,
    /// The newest stream's relay does not receive all publishers' notifications.
    degraded: bool,
    /// Since when the open stream says so.
    degraded_since: Option<Tick>,
    /// Relays that were left for it since one was not degraded.
    degraded_left: usize,
    /// Number of streams that received a Welcome.
    welcomes: u64,
    /// Number of the newest report.
    last_report: u64,
    /// Bytes of a request that are available for positions.
    position_bytes: usize,
}

/// An arrived item that was not handed over yet.
#[derive(Debug)]
enum Undelivered {
    Work(WorkDetected),
    /// A resume number. It takes effect when all wake-ups before it were handed over.
    Resume(Token),
}

/// A relay that is degraded for longer is left, at its next heartbeat. A restart of the broker is
/// shorter.
const DEGRADED_FOR: Duration = Duration::from_secs(15);

impl SubscriptionSession {
    pub(crate) fn new(options: SubscribeOptions, config: ReconnectConfig) -> Self {
        let taken = options.encoded_without_positions();
        let position_bytes = config.request_bytes.saturating_sub(taken);
        let positions = Positions::restore(&options.positions, config.positions);
        let resume = options.resume.clone();
        Self {
            options,
            reconnect: Reconnect::new(config),
            positions,
            undelivered: VecDeque::new(),
            resume,
            epoch: None,
            welcome: None,
            degraded: false,
            degraded_since: None,
            degraded_left: 0,
            welcomes: 0,
            last_report: 0,
            position_bytes,
        }
    }

    /// Returns the request of the next stream. Undelivered wake-ups of the previous one are dropped.
    pub(crate) fn request(&mut self) -> SubscribeOptions {
        self.undelivered.clear();
        self.welcome = None;
        SubscribeOptions {
            positions: self.positions.newest(self.position_bytes),
            resume: self.resume.clone(),
            ..self.options.clone()
        }
    }

    /// Hands over the next wake-up and records its token.
    pub(crate) fn next_work(&mut self) -> Option<WorkDetected> {
        loop {
            match self.undelivered.pop_front()? {
                Undelivered::Work(work) => {
                    self.positions.record(&work);
                    return Some(work);
                }
                Undelivered::Resume(resume) => self.resume = resume,
            }
        }
    }

    pub(crate) fn received(&mut self, event: SubscribeEvent, now: Tick, rng: &mut fastrand::Rng) {
        self.reconnect.on_message(now);
        match event {
            SubscribeEvent::Welcome(welcome) => {
                self.reconnect.set_heartbeat(welcome.heartbeat);
                self.degraded_since = None;
                self.set_degraded(welcome.degraded, now);
                self.welcomes += 1;
                self.set_epoch(&welcome.epoch);
                self.welcome = Some(welcome);
                self.positions.grow_request();
            }
            SubscribeEvent::Wake(work) => {
                if planted!(TokenTakenOnArrival) {
                    work.iter().for_each(|work| self.positions.record(work));
                }
                self.undelivered
                    .extend(work.into_iter().map(Undelivered::Work));
            }
            SubscribeEvent::Goodbye(goodbye) => self.reconnect.goodbye(now, goodbye, rng),
            SubscribeEvent::Heartbeat { degraded, resume } => {
                self.set_degraded(degraded, now);
                self.keep_resume(resume);
                if self.may_leave_degraded(now) {
                    self.degraded_left += 1;
                    let cause = self.cause();
                    let goodbye = Goodbye {
                        reason: GoodbyeReason::Draining,
                        reconnect_after: Duration::ZERO,
                    };
                    self.reconnect.goodbye(now, goodbye, rng);
                    self.reconnect.set_cause_of_leaving(cause);
                }
            }
            SubscribeEvent::Unknown => {}
        }
    }

    /// The stream broke or could not be opened. Returns the error if it is final.
    pub(crate) fn broken(
        &mut self,
        now: Tick,
        error: Option<&Error>,
        rng: &mut fastrand::Rng,
    ) -> Option<Error> {
        let opening = self.welcome().is_none();
        if let Some(refusal) = error.filter(|_| opening)
            && refusal.kind() == ErrorKind::Exhausted
            // With a time, the relay has no room for the stream, however small its request is.
            && refusal.retry_after().is_none()
            && self.positions.shrink_request()
        {
            self.reconnect.request_too_large(now, refusal, rng);
            return None;
        }
        self.reconnect.broken(now, error, rng)
    }

    /// Numbers a report and returns the id of its subscription.
    pub(crate) fn report(&mut self, report: &mut Report) -> Result<Arc<str>> {
        report.check()?;
        let missing = || {
            Error::new(
                ErrorKind::Unavailable,
                "no stream just now: report after the next welcome",
            )
        };
        let id = Arc::clone(&self.welcome().ok_or_else(missing)?.subscription_id);
        self.last_report += 1;
        report.number = self.last_report;
        Ok(id)
    }

    /// Returns the Welcome of the open stream.
    pub(crate) fn welcome(&self) -> Option<&Welcome> {
        let connected = self.reconnect.state() == ConnectionState::Connected;
        self.welcome.as_ref().filter(|_| connected)
    }

    /// Returns the state of the connection to the relay. A stream counts as connected from its
    /// Welcome on, because no report can be sent earlier.
    pub(crate) fn link_state(&self) -> LinkState {
        let connection = match self.reconnect.state() {
            ConnectionState::Connected if self.welcome.is_none() => ConnectionState::Reconnecting,
            state => state,
        };
        LinkState {
            connection,
            degraded: self.degraded,
            welcomes: self.welcomes,
            announced: self.reconnect.is_announced(),
            epoch: match &self.welcome {
                Some(welcome) => Arc::clone(&welcome.epoch),
                None => Arc::default(),
            },
            cause: self.cause(),
        }
    }

    fn set_degraded(&mut self, degraded: bool, now: Tick) {
        self.degraded = degraded;
        if degraded {
            self.degraded_since.get_or_insert(now);
        } else {
            (self.degraded_since, self.degraded_left) = (None, 0);
        }
    }

    /// Returns whether another relay should be tried, because this one is cut off for long. Where all
    /// are, each is tried once.
    fn may_leave_degraded(&self, now: Tick) -> bool {
        let long = |since: Tick| now.since(since) >= DEGRADED_FOR;
        self.degraded_since.is_some_and(long) && self.degraded_left < self.reconnect.others()
    }

    /// Returns why wake-ups do not arrive, or do not stand for all notifications.
    fn cause(&self) -> Option<Arc<str>> {
        let Some(welcome) = self.welcome().filter(|_| self.degraded) else {
            return self.reconnect.cause().cloned();
        };
        let relay = &welcome.relay_id;
        let text = format!(
            "relay `{relay}` is cut off from the other relays of its cluster, or was just now"
        );
        Some(text.into())
    }

    /// Stores the epoch. A new epoch (a restart or another relay) invalidates the resume number.
    fn set_epoch(&mut self, epoch: &Arc<str>) {
        let before = self.epoch.replace(Arc::clone(epoch));
        if before.is_some_and(|before| before != *epoch) {
            self.resume = Token::default();
        }
    }

    fn keep_resume(&mut self, resume: Token) {
        if resume.is_empty() || resume.0.len() > Limits::TOKEN {
            return;
        }
        if self.undelivered.is_empty() {
            self.resume = resume;
            return;
        }
        // It replaces an earlier number with no wake-up in between.
        self.undelivered
            .pop_back_if(|newest| matches!(newest, Undelivered::Resume(_)));
        self.undelivered.push_back(Undelivered::Resume(resume));
    }
}
