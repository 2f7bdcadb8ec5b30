//! What goes wrong on the connection: counted, and logged at most once a minute by kind.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_nats::{ClientError, Event, ServerError};
use tokio::sync::{Notify, mpsc};

use crate::base::{clock::Clock, log_limiter::LimitedCounts};

/// The events of one connection.
#[derive(Debug)]
pub(super) struct Events {
    counts: LimitedCounts<KINDS>,
    clock: Clock,
    /// The servers, for the log.
    servers: String,
    /// The cluster's subjects, for a permission.
    subjects: String,
    /// Takes the first refusals while the start waits for them.
    refusals: mpsc::Sender<String>,
    /// An attempt to connect has failed, and its reason should be logged.
    pub(super) failed: Notify,
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
    /// The server refused a publish or a subscription.
    Refused,
    ServerError,
    /// A message was not published: the client is not connected.
    NotConnected,
    /// A message was not published: the client's channel is full.
    NoRoom,
    /// A message was not published: the server takes only shorter ones.
    TooLarge,
}

const KINDS: usize = 9;
/// One line a minute tells an operator as much as one for each event.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// The words with which NATS begins the refusal of a publish or a subscription.
const REFUSAL: &str = "Permissions Violation";

impl Events {
    /// Creates the events, and the receiver of the refusals during the start.
    pub(super) fn new(servers: String, subjects: String) -> (Self, mpsc::Receiver<String>) {
        // One for each subject of the self-test.
        let (refusals, receiver) = mpsc::channel(4);
        let events = Self {
            counts: LimitedCounts::new(LOG_EVERY),
            clock: Clock::new(),
            servers,
            subjects,
            refusals,
            failed: Notify::new(),
            connected: Arc::new(Notify::new()),
            closed: AtomicBool::new(false),
        };
        (events, receiver)
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
            Event::ServerError(ServerError::Other(text)) if text.starts_with(REFUSAL) => {
                self.on_refusal(text);
            }
            Event::ServerError(error) => {
                self.note(
                    Kind::ServerError,
                    format_args!("NATS reports an error: {}", one_line(error)),
                );
            }
            Event::ClientError(ClientError::Other(_)) => self.on_failed_attempt(),
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

    /// Counts an event that another line of the log explains.
    pub(super) fn count_only(&self, kind: Kind) {
        let _ = self.counts.note(kind as usize, self.clock.now());
    }

    fn on_refusal(&self, text: &str) {
        let text = one_line(text);
        // The start reports the refusals that it waits for.
        if self.refusals.try_send(text.clone()).is_ok() {
            return;
        }
        let subjects = &self.subjects;
        self.note(
            Kind::Refused,
            format_args!("NATS refuses: {text}; permit publish and subscribe on {subjects}"),
        );
    }

    fn on_failed_attempt(&self) {
        let now = self.clock.now();
        let is_due = self
            .counts
            .note(Kind::AttemptFailed as usize, now)
            .is_some();
        if is_due && !self.is_closed() {
            self.failed.notify_one();
        }
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
        assert_eq!(Kind::TooLarge as usize + 1, KINDS);
    }

    #[test]
    fn a_refusal_goes_to_the_start_while_it_waits_and_then_to_the_log() {
        let (events, mut refusals) = Events::new(String::new(), String::new());
        let refused = Event::ServerError(ServerError::Other(format!("{REFUSAL} for\nPublish")));
        events.on_event(&refused);
        let first = refusals.try_recv().expect("told");
        assert_eq!(first, "Permissions Violation for Publish");
        assert_eq!(events.count(Kind::Refused), 0);
        drop(refusals);
        events.on_event(&refused);
        assert_eq!(events.count(Kind::Refused), 1);
    }
}
