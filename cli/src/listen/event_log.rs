//! The events of a listener on stderr: lines for people, or JSON objects.

use std::{
    fmt::Display,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use reveille::{
    QueueAddress,
    duration::Span,
    listener::{Action, Delivery, HandlerError, Hooks, ListenerError, ListenerMode, ListenerStats},
    queue::Message,
    scaling::Idle,
};
use serde_json::{Value, json};

use super::worker::StopHandle;
use crate::{
    causes::Causes,
    output::{self, Format},
};

/// Writes events to stderr, and each mode once when it begins.
#[derive(Debug)]
pub(super) struct EventLog {
    format: Format,
    queue: String,
    /// `None`: the listener has no relay.
    relay: Option<String>,
    modes: Mutex<Modes>,
}

/// The modes in the log.
#[derive(Debug, Default)]
struct Modes {
    /// The event `started` was written, whose mode is the first.
    has_started: bool,
    /// The relay served the listener, or had the time to do so.
    is_settled: bool,
    /// The present mode, and why the listener polls.
    present: Option<(ListenerMode, Option<String>)>,
    written: Option<ListenerMode>,
    causes: Causes,
}

/// Writes the listener's hook calls to the event log.
pub(super) struct ListenHooks {
    pub(super) events: Arc<EventLog>,
    /// Notified when the queue was found empty.
    pub(super) until_empty: Option<StopHandle>,
}

impl EventLog {
    pub(super) fn new(format: Format, queue: &QueueAddress, relay: Option<String>) -> Self {
        Self {
            format,
            queue: queue.to_string(),
            relay,
            modes: Mutex::default(),
        }
    }

    /// Writes an event: the line for people, or its name and fields as JSON.
    pub(super) fn write(&self, event: &str, line: impl Display, mut fields: Value) {
        if self.format == Format::Table {
            return output::note(line);
        }
        fields["event"] = event.into();
        fields["time"] = output::time(SystemTime::now()).into();
        output::note(fields);
    }

    pub(super) fn started(&self) {
        let (queue, relay) = (&self.queue, &self.relay);
        let (mode, shown) = match relay {
            Some(relay) => ("connecting", format!("relay {relay}")),
            None => ("pull-only", "no relay".to_owned()),
        };
        let mut modes = self.lock_modes();
        self.write(
            "started",
            format_args!("listening to {queue}; {shown}, {mode}"),
            json!({ "queue": queue, "relay": relay, "mode": mode }),
        );
        modes.has_started = true;
        self.write_mode(&mut modes);
    }

    /// Writes a line if the message was got before.
    pub(super) fn log_redelivery(&self, message: &Message) {
        let (id, count) = (message.id.to_string(), message.dequeue_count);
        if count > 1 {
            self.write(
                "redelivered",
                format_args!("message `{id}` is redelivered, attempt {count}"),
                json!({ "message_id": id, "dequeue_count": count }),
            );
        }
    }

    /// Writes that no program could be run for these messages.
    pub(super) fn log_not_run(&self, batch: &[Delivery], why: &str, pause: Duration) {
        let first = batch
            .first()
            .map(|delivery| delivery.message.id.to_string());
        let error = format!("{why}; no attempt is counted, next try in {}", Span(pause));
        self.write_error("run", first.as_deref(), &error);
    }

    fn write_error(&self, action: &str, message_id: Option<&str>, error: &str) {
        self.write(
            "error",
            format_args!("{action}: {error}"),
            json!({ "action": action, "message_id": message_id, "error": error }),
        );
    }

    pub(super) fn stopping(&self, running: usize, grace: Duration) {
        let commands = output::count(running as u64, "command");
        self.write(
            "stopping",
            format_args!(
                "stopping: waiting up to {} for {commands}; a second signal kills them",
                Span(grace)
            ),
            json!({ "running": running, "grace_ms": output::millis(grace) }),
        );
    }

    pub(super) fn killed(&self, killed: usize) {
        let commands = output::count(killed as u64, "command");
        self.write(
            "killed",
            format_args!("ended at once, killed {commands}"),
            json!({ "killed": killed }),
        );
    }

    pub(super) fn ended(&self, stats: &ListenerStats) {
        self.write(
            "ended",
            format_args!(
                "handled {}, failed {}, poisoned {}, lost {}; gets {}, empty gets {}",
                stats.handled,
                stats.failed,
                stats.poisoned,
                stats.lost,
                stats.gets,
                stats.empty_gets
            ),
            json!({
                "handled": stats.handled,
                "failed": stats.failed,
                "poisoned": stats.poisoned,
                "lost": stats.lost,
                "gets": stats.gets,
                "empty_gets": stats.empty_gets,
            }),
        );
    }

    pub(super) fn is_settled(&self) -> bool {
        self.lock_modes().is_settled
    }

    /// Ends the time that the relay has to serve a new listener. `cause` is why it cannot be reached.
    pub(super) fn settle(&self, cause: Option<String>) {
        let mut modes = self.lock_modes();
        if std::mem::replace(&mut modes.is_settled, true) {
            return;
        }
        if let Some(cause) = cause {
            // The stream's own words for it say less.
            let known = modes.present.take().and_then(|(_, known)| known);
            if let Some(known) = known {
                modes.causes.is_new(&known, Instant::now());
            }
            modes.present = Some((ListenerMode::Polling, Some(cause)));
        }
        self.write_mode(&mut modes);
    }

    fn lock_modes(&self) -> MutexGuard<'_, Modes> {
        self.modes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn log_mode(&self, mode: ListenerMode, cause: Option<&str>) {
        let mut modes = self.lock_modes();
        modes.is_settled |= mode == ListenerMode::Pushed;
        modes.present = Some((mode, cause.map(str::to_owned)));
        self.write_mode(&mut modes);
    }

    /// Writes a line for the present mode, unless that or its cause was the last one written. The lock is
    /// held until the line is written, so that the last line shows the present mode.
    fn write_mode(&self, modes: &mut Modes) {
        let Some((mode, cause)) = &modes.present else {
            return;
        };
        if !modes.has_started || !modes.is_settled {
            return;
        }
        let is_same = modes.written.replace(*mode) == Some(*mode);
        let relay = self.relay.as_deref().unwrap_or_default();
        let (mode, reason) = match (mode, cause) {
            (ListenerMode::Pushed, _) if !is_same => {
                modes.causes = Causes::default();
                ("pushed", format!("{relay} reports work"))
            }
            (ListenerMode::Polling, Some(cause))
                if modes.causes.is_new(cause, Instant::now()) || !is_same =>
            {
                ("polling", cause.clone())
            }
            (ListenerMode::Polling, None) if !is_same => (
                "polling",
                format!("{relay} cannot report work at the moment"),
            ),
            _ => return,
        };
        self.write(
            "mode",
            format_args!("{mode}: {reason}"),
            json!({ "mode": mode, "reason": reason }),
        );
    }
}

impl Hooks for ListenHooks {
    fn on_queue_empty(&self, _idle_count: u32, proposed: Idle) -> Idle {
        if let Some(stop) = &self.until_empty {
            stop.set_emptied();
        }
        proposed
    }

    fn on_mode_changed(&self, mode: ListenerMode, cause: Option<&str>) {
        self.events.log_mode(mode, cause);
    }

    fn on_poisoned(&self, message: &Message, error: &HandlerError) {
        let (id, count) = (message.id.to_string(), message.dequeue_count);
        self.events.write(
            "poisoned",
            format_args!("message `{id}` went to the poison queue after {count} attempts: {error}"),
            json!({ "message_id": id, "dequeue_count": count, "error": error.to_string() }),
        );
    }

    fn on_error(&self, error: &ListenerError) {
        let id = error.message_id.as_ref();
        let text = error.error.to_string();
        let text = match (error.action, id) {
            // The error of a handler names its message.
            (Action::Handle, _) | (_, None) => text,
            (_, Some(id)) => format!("message `{id}`: {text}"),
        };
        let id = id.map(ToString::to_string);
        self.events
            .write_error(error.action.as_str(), id.as_deref(), &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> EventLog {
        let queue = QueueAddress::new("local", "jobs").expect("a name");
        EventLog::new(Format::Json, &queue, Some("http://relay".to_owned()))
    }

    /// The last line must show the present mode.
    #[test]
    fn a_mode_that_begins_before_the_start_is_written_after_it() {
        let log = log();
        log.log_mode(ListenerMode::Pushed, None);
        assert_eq!(log.lock_modes().written, None);
        log.started();
        assert_eq!(log.lock_modes().written, Some(ListenerMode::Pushed));
        log.log_mode(ListenerMode::Polling, None);
        assert_eq!(log.lock_modes().written, Some(ListenerMode::Polling));
    }

    #[test]
    fn a_relay_that_answered_late_does_not_hide_the_mode() {
        let log = log();
        log.started();
        log.log_mode(ListenerMode::Pushed, None);
        log.settle(Some("it does not answer".to_owned()));
        assert_eq!(log.lock_modes().written, Some(ListenerMode::Pushed));
    }
}
