//! A subscription's request and the events of its stream.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{GroupName, Limits, ListenerId, Selector, WorkDetected, notification::check_delay};
use crate::error::{Error, ErrorKind, Result};

/// A subscriber's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscribeOptions {
    /// The listener's id.
    pub listener_id: ListenerId,
    /// Selectors of the queues; at least one.
    pub selectors: Vec<Selector>,
    /// The group whose members share wake-ups; `None`: the listener gets every wake-up.
    pub group: Option<GroupName>,
    /// Number of messages handled at one time; 0 counts as 1.
    pub capacity: u32,
    /// How long the queue hides a message after this listener's get; at most 14 days.
    pub visibility_timeout: Duration,
    /// Silence after which the relay sends a heartbeat; clamped to 1..60 s.
    pub heartbeat: Duration,
    /// The newest resume number of an earlier stream with the same listener and selectors; the
    /// queues that did not change since then get no CATCH_UP. Empty: all get one. A client's
    /// subscription replaces it by newer ones.
    pub resume: ResumeNumber,
    /// The listener starts workers in place of reading its queues: the sentinel sends it no check.
    pub agent: bool,
}

/// An event of a subscription's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubscribeEvent {
    /// The first message.
    Welcome(Welcome),
    /// Wake-ups: at most one entry per queue.
    Wake(Vec<WorkDetected>),
    /// No wake-up is pending; the relay is alive.
    Heartbeat {
        /// The relay does not receive all publishers' notifications at present.
        degraded: bool,
        /// Resume number of the stream; empty if the relay states none.
        resume: ResumeNumber,
    },
    /// The relay ends the stream.
    Goodbye(Goodbye),
    /// An event that this version does not know; it counts as a heartbeat.
    Unknown,
}

/// The first message of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The relay's name.
    pub relay_id: Arc<str>,
    /// The relay's epoch: a new one after each restart.
    pub epoch: Arc<str>,
    /// The subscription's id, for reports.
    pub subscription_id: Arc<str>,
    /// The effective heartbeat.
    pub heartbeat: Duration,
    /// The relay does not receive all publishers' notifications at present.
    pub degraded: bool,
    /// The relay's version.
    pub version: Arc<str>,
}

/// The last message of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Goodbye {
    /// Why the stream ends.
    pub reason: GoodbyeReason,
    /// Wait this long before subscribing again.
    pub reconnect_after: Duration,
}

/// Why a relay ends a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum GoodbyeReason {
    /// No reason, or a reason unknown to this version.
    #[default]
    Unspecified,
    /// The relay shuts down.
    Draining,
    /// The stream has reached its maximum age.
    Rotation,
    /// The permission to listen was withdrawn.
    Revoked,
}

/// Whether a subscription or a watch has an open stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ConnectionState {
    /// No stream; attempts go on.
    #[default]
    Reconnecting,
    /// An open stream, after its first message; wake-ups arrive.
    Connected,
    /// Ended for good: the relay refused it, or it was closed.
    Closed,
}

/// The state of a subscription's connection to its relay.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LinkState {
    /// Whether it has an open stream.
    pub connection: ConnectionState,
    /// The relay does not receive all publishers' notifications at present.
    pub degraded: bool,
    /// Number of streams that received a Welcome. For the relay each is a new subscription, without
    /// the reports of earlier ones.
    pub welcomes: u64,
    /// The relay announced the end of its stream, to be reopened within seconds, and no attempt has
    /// failed since. Notifications until then arrive as wake-ups on the next stream.
    pub announced: bool,
    /// The epoch of the relay of the open stream: a restarted relay has another one. Empty without a
    /// stream.
    pub epoch: Arc<str>,
    /// Why notifications do not arrive as wake-ups at present, for people: in the relay's words where
    /// it gave any. `None` while they do, and where nothing is known yet.
    pub cause: Option<Arc<str>>,
}

impl LinkState {
    /// Returns whether every notification becomes a wake-up at present.
    pub fn is_pushed(&self) -> bool {
        self.connection == ConnectionState::Connected && !self.degraded
    }
}

/// A subscriber has all wake-ups up to here. Opaque: the subscriber keeps the newest one, and the
/// relay that issued it reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ResumeNumber(pub Bytes);

impl ResumeNumber {
    /// Returns whether there is no number.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl SubscribeOptions {
    /// Creates the options of a listener on the given queues, with the protocol's defaults.
    pub fn new(
        listener_id: ListenerId,
        selectors: impl IntoIterator<Item = impl Into<Selector>>,
    ) -> Self {
        Self {
            listener_id,
            selectors: selectors.into_iter().map(Into::into).collect(),
            group: None,
            capacity: 1,
            visibility_timeout: Limits::DEFAULT_VISIBILITY_TIMEOUT,
            heartbeat: Limits::HEARTBEAT,
            resume: ResumeNumber::default(),
            agent: false,
        }
    }

    /// Checks the rules that the types do not enforce.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if there is no selector or a duration is out of range,
    /// [`ErrorKind::Exhausted`] if there are too many selectors.
    pub fn check(&self) -> Result<()> {
        if self.selectors.is_empty() {
            return Err(Error::invalid("selectors", "must hold at least one"));
        }
        let patterns = self.selectors.iter().filter(|one| one.is_pattern()).count();
        for (field, count, limit) in [
            ("selectors", self.selectors.len(), Limits::SELECTORS),
            ("selectors: patterns", patterns, Limits::PATTERNS),
        ] {
            if count > limit {
                let message =
                    format!("{field}: the limit is {limit} per subscription, got {count}");
                return Err(Error::new(ErrorKind::Exhausted, message));
            }
        }
        check_delay("visibility_timeout", self.visibility_timeout)
    }

    /// Returns the heartbeat within its limits; zero is the default.
    pub fn clamped_heartbeat(&self) -> Duration {
        clamp_heartbeat(self.heartbeat)
    }
}

/// Returns a heartbeat within its limits; zero is the default.
pub(super) fn clamp_heartbeat(heartbeat: Duration) -> Duration {
    match heartbeat {
        Duration::ZERO => Limits::HEARTBEAT,
        stated => stated.clamp(Limits::HEARTBEAT_MIN, Limits::HEARTBEAT_MAX),
    }
}
