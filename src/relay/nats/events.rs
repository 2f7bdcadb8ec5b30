//! What goes wrong on the connection: counted, and logged at most once a minute by kind.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_nats::{ClientError, Event};
use tokio::sync::Notify;

use crate::base::{clock::Clock, log_limiter::LimitedCounts};

/// The events of one connection.
#[derive(Debug)]
pub(super) struct Events {
    counts: LimitedCounts<KINDS>,
    clock: Clock,
    /// The servers, for the log.
    servers: String,
    /// The client has connected.
    pub(super) connected: Arc<Notify>,
    closed: AtomicBool,
}

/// The kinds of events that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Connected,
    Disconnected,
    /// An attempt to connect has failed.
    AttemptFailed,
    /// The client has dropped received messages: the relay takes them too slowly.
    SlowConsumer,
    /// Also the refusal of a publish or a subscription.
    ServerError,
    /// A message was not published: the client's channel is full.
    NoRoom,
    /// A message was not published: the server takes only shorter ones.
    TooLarge,
    /// A message of another relay breaks a rule.
    BadMessage,
}

const KINDS: usize = 8;
/// One line a minute tells an operator as much as one for each event.
const LOG_EVERY: Duration = Duration::from_secs(60);

impl Events {
    pub(super) fn new(servers: String) -> Self {
        Self {
            counts: LimitedCounts::new(LOG_EVERY),
            clock: Clock::new(),
            servers,
            connected: Arc::new(Notify::new()),
            closed: AtomicBool::new(false),
        }
    }

    /// Returns the number of events of a kind.
    pub(super) fn count(&self, kind: Kind) -> u64 {
        self.counts.count(kind as usize)
    }

    /// Stops the log and the attempts to connect.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Takes an event of the client.
    pub(super) fn on_event(&self, event: &Event) {
        match event {
            Event::Connected => {
                self.connected.notify_one();
                self.note(Kind::Connected, format_args!("connected to NATS"));
            }
            Event::Disconnected => self.note(
                Kind::Disconnected,
                format_args!("the connection to NATS is broken; the relay tries again"),
            ),
            Event::SlowConsumer(_) => self.note(
                Kind::SlowConsumer,
                format_args!("messages of NATS are dropped: the relay takes them too slowly"),
            ),
            Event::ServerError(error) => self.note(
                Kind::ServerError,
                format_args!("NATS reports an error: {}", one_line(error)),
            ),
            Event::ClientError(ClientError::Other(reason)) => self.on_failed_attempt(reason),
            Event::ClientError(_) | Event::LameDuckMode | Event::Draining | Event::Closed => {
                tracing::debug!(servers = %self.servers, %event, "NATS");
            }
        }
    }

    /// Counts an event, and logs it unless a line of its kind is younger than a minute.
    pub(super) fn note(&self, kind: Kind, text: fmt::Arguments<'_>) {
        let Some(suppressed) = self.counts.note(kind as usize, self.clock.now()) else {
            return;
        };
        if self.is_closed() {
            return;
        }
        let servers = &self.servers;
        match kind {
            Kind::Connected => tracing::info!(%servers, suppressed, "{text}"),
            _ => tracing::warn!(%servers, suppressed, "{text}"),
        }
    }

    /// An attempt to connect has failed; the client tries again.
    pub(super) fn on_failed_attempt(&self, reason: impl fmt::Display) {
        self.note(
            Kind::AttemptFailed,
            format_args!(
                "NATS cannot be reached; the relay tries again: {}",
                one_line(reason)
            ),
        );
    }
}

/// Returns a server's text for the log.
pub(super) fn one_line(text: impl fmt::Display) -> String {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    text.to_string().chars().take(200).map(printable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_place() {
        assert_eq!(Kind::BadMessage as usize + 1, KINDS);
    }
}
