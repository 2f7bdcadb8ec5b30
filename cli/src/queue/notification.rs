//! The notification of `queue put` and `queue move`, after their messages are stored.

use std::time::Duration;

use reveille::{Client, Error, ErrorKind, Notification, PublisherOptions, QueueAddress};

use crate::{exit::Exit, output, target::Target};

/// Number and size of messages that a queue has stored.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StoredMessages {
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

impl StoredMessages {
    /// Notifies the relay; returns the number of listeners.
    pub(super) async fn notify(
        self,
        queue: &QueueAddress,
        delay: Duration,
        client: &Client,
        target: &Target,
    ) -> reveille::Result<u32> {
        let options = PublisherOptions {
            name: "reveille-cli".to_owned(),
            deadline: target.timeout.unwrap_or(Duration::MAX),
            ..PublisherOptions::default()
        };
        let publisher = client.publisher_with(options);
        let notification = Notification {
            payload_size: self.bytes,
            messages: self.messages,
            delay,
            ..Notification::new(queue.clone())
        };
        let notifying = publisher.notify(notification);
        let accepted = target
            .acknowledged(client, notifying, || publisher.failure())
            .await?;
        Ok(accepted.listeners)
    }

    /// Prints what to do if the relay did not acknowledge; `advice` is what the user must not
    /// repeat.
    pub(super) fn not_notified(
        self,
        queue: &QueueAddress,
        target: &Target,
        error: &Error,
        advice: &str,
    ) -> Exit {
        let (messages, relay) = (self.messages, &target.relay);
        let (what, once) = match error.kind() {
            ErrorKind::Denied => ("refused", "with a credential that may notify it"),
            _ => ("did not acknowledge", "once the relay is back"),
        };
        output::note(format_args!(
            "error: the messages are stored, but the relay {what} the notification: {error}; \
             {advice}, but run `reveille notify {queue} --messages {messages} --relay {relay}` {once}"
        ));
        Exit::NOT_NOTIFIED
    }
}

/// Returns how a notification ended, as the rest of a sentence.
pub(super) fn notified(listeners: Option<u32>) -> String {
    match listeners {
        None => String::new(),
        Some(0) => "; the relay knows, and no listener is connected yet".to_owned(),
        Some(listeners) => {
            let listeners = output::count(u64::from(listeners), "listener");
            format!(", and notified {listeners}")
        }
    }
}
