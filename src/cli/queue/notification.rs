//! The relay is told of messages that were stored: by `put`, and by `move`.

use std::time::Duration;

use reveille::{Client, Error, Notification, PublisherOptions, QueueAddress};

use crate::cli::{exit::Exit, output, target::Target};

/// Messages that are in a queue by now.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Stored {
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

impl Stored {
    /// Tells the relay; returns how many listeners there are.
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
        let accepted = target.acknowledged(client, notifying).await?;
        Ok(accepted.listeners)
    }

    /// Says what to do where the relay did not acknowledge; `again` is what must not be done twice.
    pub(super) fn not_told(
        self,
        queue: &QueueAddress,
        target: &Target,
        error: &Error,
        again: &str,
    ) -> Exit {
        let (messages, relay) = (self.messages, &target.relay);
        output::note(format_args!(
            "error: the messages are stored, but the relay did not acknowledge the notification: \
             {error}; {again}, say `reveille notify {queue} --messages {messages} --relay {relay}` \
             when it is back"
        ));
        Exit::NOT_TOLD
    }
}
