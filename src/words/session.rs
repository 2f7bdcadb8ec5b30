//! A subscription's life on its stream: what it asks for, and what it is sent.

use std::{sync::Arc, time::Duration};

use super::{
    GroupName, Limits, ListenerId, Position, Selector, Token, WorkDetected,
    notification::check_delay,
};
use crate::error::{Error, ErrorKind, Result};

/// What a subscriber asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscribeOptions {
    /// Who listens.
    pub listener_id: ListenerId,
    /// Which queues; at least one.
    pub selectors: Vec<Selector>,
    /// Shares wake-ups with the other members of a group; `None`: told of every one.
    pub group: Option<GroupName>,
    /// Messages taken on at once; 0 counts as 1.
    pub capacity: u32,
    /// For how long the queue hides a message that this listener has got; at most 14 days.
    pub visibility_timeout: Duration,
    /// Where it stands; absence is never wrong. Two that differ on a queue count as none.
    pub positions: Vec<Position>,
    /// Silence after which a heartbeat is sent; clamped to 1..60 s.
    pub heartbeat: Duration,
    /// Stands for the positions of all queues that have none of their own, as the relay's newest
    /// heartbeat stated it. The client's `Subscription` fills it in.
    pub resume: Token,
}

/// What arrives on a subscription's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubscribeEvent {
    /// The first message.
    Welcome(Welcome),
    /// Something is owed: at most one entry per queue.
    Wake(Vec<WorkDetected>),
    /// Nothing is owed; the relay is alive.
    Heartbeat {
        /// The relay cannot hear all publishers just now.
        degraded: bool,
        /// To resume all queues of the stream with; empty where the relay states none.
        resume: Token,
    },
    /// The relay ends the stream.
    Goodbye(Goodbye),
    /// Something that this version does not know: a sign of life.
    Unknown,
}

/// The relay's greeting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The relay's name.
    pub relay_id: Arc<str>,
    /// The relay's life: another one after each restart.
    pub epoch: Arc<str>,
    /// To report with.
    pub subscription_id: Arc<str>,
    /// The heartbeat in force.
    pub heartbeat: Duration,
    /// The relay cannot hear all publishers just now.
    pub degraded: bool,
    /// The relay's version.
    pub version: Arc<str>,
}

/// The relay's last word.
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
    /// None was named, or one that this version does not know.
    #[default]
    Unspecified,
    /// The relay shuts down.
    Draining,
    /// The stream is old.
    Rotation,
    /// Another stream took this one's place.
    Replaced,
    /// The right to listen was taken away.
    Revoked,
}

/// Whether a subscription or a watch holds a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ConnectionState {
    /// No stream yet, or none any more: trying.
    #[default]
    Reconnecting,
    /// A stream that has been welcomed; wake-ups arrive.
    Connected,
    /// Ended for good: the relay refused it, or it was closed.
    Closed,
}

/// How a subscription stands with its relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LinkState {
    /// Whether it holds a stream.
    pub connection: ConnectionState,
    /// The relay cannot hear all publishers just now.
    pub degraded: bool,
    /// The streams that were welcomed so far: another one is a new subscription to the relay, which
    /// knows nothing of what was reported before.
    pub welcomes: u64,
    /// The relay has announced the end of its stream, to be opened again within seconds, and no
    /// attempt to do so has failed: what is notified meanwhile is told on the next stream.
    pub announced: bool,
}

impl LinkState {
    /// Returns whether every notification becomes a wake-up just now.
    pub fn is_pushed(&self) -> bool {
        self.connection == ConnectionState::Connected && !self.degraded
    }
}

impl SubscribeOptions {
    /// Makes the options of a listener on the given queues, with the protocol's defaults.
    pub fn new(
        listener_id: ListenerId,
        selectors: impl IntoIterator<Item = impl Into<Selector>>,
    ) -> Self {
        Self {
            listener_id,
            selectors: selectors.into_iter().map(Into::into).collect(),
            group: None,
            capacity: 1,
            visibility_timeout: Limits::VISIBILITY,
            positions: Vec::new(),
            heartbeat: Limits::HEARTBEAT,
            resume: Token::default(),
        }
    }

    /// Checks the rules that the types do not.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where there is no selector or a span is out of range,
    /// [`ErrorKind::Exhausted`] where there are too many selectors or positions.
    pub fn check(&self) -> Result<()> {
        if self.selectors.is_empty() {
            return Err(Error::invalid("selectors", "must hold at least one"));
        }
        let patterns = self.selectors.iter().filter(|one| one.is_pattern()).count();
        for (field, count, limit) in [
            ("selectors", self.selectors.len(), Limits::SELECTORS),
            ("selectors: patterns", patterns, Limits::PATTERNS),
            ("positions", self.positions.len(), Limits::POSITIONS),
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
pub(crate) fn clamp_heartbeat(heartbeat: Duration) -> Duration {
    match heartbeat {
        Duration::ZERO => Limits::HEARTBEAT,
        stated => stated.clamp(Limits::HEARTBEAT_MIN, Limits::HEARTBEAT_MAX),
    }
}
