//! A subscription's client side: its reconnect requests, and the wake-ups it hands over.
//!
//! A request states the relay's newest resume number, so that the relay tells which queues changed
//! since. A number that arrives while the wake-ups before it were not all handed to the application is
//! ignored: a later heartbeat states another one. Undelivered wake-ups are dropped when the stream breaks,
//! because they are newer than the number and the relay reports their queues again.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::reconnect::{Reconnect, ReconnectConfig};
use crate::{
    base::{clock::Tick, fault::planted},
    error::{Error, ErrorKind, Result},
    types::{
        ConnectionState, Limits, LinkState, Report, ResumeNumber, SubscribeEvent, SubscribeOptions,
        Welcome, WorkDetected,
    },
};

/// The subscription's state machine.
#[derive(Debug)]
pub(crate) struct SubscriptionSession {
    /// With the newest resume number in effect. Another relay, or a restarted one, does not take it.
    options: SubscribeOptions,
    pub(crate) reconnect: Reconnect,
    undelivered: VecDeque<WorkDetected>,
    /// The newest stream's; valid while that is open.
    welcome: Option<Welcome>,
    /// Since when the newest stream states that its relay does not receive all publishers' notifications.
    degraded_since: Option<Tick>,
    /// Relays that were left for it since one was not degraded.
    degraded_left: usize,
    /// Number of streams that received a Welcome.
    welcomes: u64,
    /// Number of the newest report.
    last_report: u64,
}

/// A relay that is degraded for longer is left, at its next heartbeat. A restart of the broker is
/// shorter.
const DEGRADED_FOR: Duration = Duration::from_secs(15);

impl SubscriptionSession {
    pub(crate) fn new(options: SubscribeOptions, config: ReconnectConfig) -> Self {
        Self {
            options,
            reconnect: Reconnect::new(config),
            undelivered: VecDeque::new(),
            welcome: None,
            degraded_since: None,
            degraded_left: 0,
            welcomes: 0,
            last_report: 0,
        }
    }

    /// Returns the request of the next stream. Undelivered wake-ups of the previous one are dropped.
    pub(crate) fn request(&mut self) -> SubscribeOptions {
        self.undelivered.clear();
        self.welcome = None;
        self.options.clone()
    }

    /// Returns the newest resume number in effect, empty without one.
    pub(crate) fn resume(&self) -> &ResumeNumber {
        &self.options.resume
    }

    /// Hands over the next wake-up.
    pub(crate) fn next_work(&mut self) -> Option<WorkDetected> {
        self.undelivered.pop_front()
    }

    pub(crate) fn received(&mut self, event: SubscribeEvent, now: Tick, rng: &mut fastrand::Rng) {
        if let SubscribeEvent::Welcome(welcome) = &event {
            self.reconnect.set_heartbeat(welcome.heartbeat);
        }
        self.reconnect.on_message(now);
        match event {
            SubscribeEvent::Welcome(welcome) => {
                self.degraded_since = None;
                self.set_degraded(welcome.degraded, now);
                self.welcomes += 1;
                self.welcome = Some(welcome);
            }
            SubscribeEvent::Wake(work) => self.undelivered.extend(work),
            SubscribeEvent::Goodbye(goodbye) => self.reconnect.goodbye(now, goodbye, rng),
            SubscribeEvent::Heartbeat { degraded, resume } => {
                self.set_degraded(degraded, now);
                let is_valid = !resume.is_empty() && resume.0.len() <= Limits::TOKEN;
                if is_valid && (self.undelivered.is_empty() || planted!(ResumeTakenOnArrival)) {
                    self.options.resume = resume;
                }
                // Another relay is tried, because this one is cut off for long. Where all are, each is tried
                // once.
                let is_long = |since: Tick| now.since(since) >= DEGRADED_FOR;
                let others = self.reconnect.config.others;
                if self.degraded_since.is_some_and(is_long) && self.degraded_left < others {
                    self.degraded_left += 1;
                    let cause = self.cause();
                    self.reconnect.broken(now, None, rng);
                    self.reconnect.cause = cause;
                }
            }
            SubscribeEvent::Unknown => {}
        }
    }

    /// Numbers a report and returns the id of its subscription.
    pub(crate) fn report(&mut self, report: &mut Report) -> Result<Arc<str>> {
        report.check()?;
        let message = "no stream just now: report after the next welcome";
        let missing = || Error::new(ErrorKind::Unavailable, message);
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
        let epoch = self.welcome.as_ref().map(|welcome| &welcome.epoch);
        LinkState {
            connection,
            degraded: self.degraded_since.is_some(),
            welcomes: self.welcomes,
            announced: self.reconnect.announced,
            epoch: epoch.cloned().unwrap_or_default(),
            cause: self.cause(),
        }
    }

    fn set_degraded(&mut self, degraded: bool, now: Tick) {
        if degraded {
            self.degraded_since.get_or_insert(now);
        } else {
            (self.degraded_since, self.degraded_left) = (None, 0);
        }
    }

    /// Returns why wake-ups do not arrive, or do not stand for all notifications.
    fn cause(&self) -> Option<Arc<str>> {
        let degraded = self.degraded_since.is_some();
        let Some(welcome) = self.welcome().filter(|_| degraded) else {
            return self.reconnect.cause.clone();
        };
        let relay = &welcome.relay_id;
        let text = format!(
            "relay `{relay}` is cut off from the other relays of its cluster, or was just now"
        );
        Some(text.into())
    }
}
