//! `courier send`: sends messages in one transaction.

use std::{path::PathBuf, sync::Arc, time::Duration};

use reveille::queue::WorkQueue as _;
use serde_json::json;

use super::open;
use crate::{
    exit::{Exit, Usage},
    message::Bodies,
    output,
    settings::Settings,
    target::{PUBLISHER, TargetArgs},
};

/// Send messages to a queue of this or another machine, in one transaction
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  seq 1000 | reveille courier send queues orders@berlin --config queues.toml
  reveille courier send queues orders --create --relay http://127.0.0.1:7600 'an order'

A destination is a queue of DIR, reveille://HOST:PORT/QUEUE on another machine, or an alias of the \
configuration file. All messages are sent, or none is. Prints their ids, one per line.

The host of DIR finds the messages within a second. With --relay it is woken at once, and so are \
listeners of a queue of DIR. Ends with 8 if the messages are sent but the relay did not acknowledge \
the notification.")]
pub(crate) struct Send {
    /// The directory of the queues, or their file
    #[arg(value_name = "DIR")]
    place: PathBuf,
    /// Where the messages go: QUEUE, reveille://HOST:PORT/QUEUE, ALIAS or QUEUE@ALIAS
    #[arg(value_name = "DESTINATION")]
    destination: String,
    #[command(flatten)]
    bodies: Bodies,
    /// Create the queue file, and a destination in it, if they are missing
    #[arg(long)]
    create: bool,
    #[command(flatten)]
    target: TargetArgs,
}

/// Long enough for any number of messages.
const TIMEOUT: Duration = Duration::from_secs(10 * 60);

impl Send {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let target = self.target.resolve();
        let names_relay = self.target.relay.relay.is_some();
        // A bad relay URL fails here, before any message is sent.
        let publisher = names_relay.then(|| target.publisher(PUBLISHER));
        let publisher = publisher.transpose()?;
        let manager = open(&self.place, settings, self.create).await?;
        let destination = manager.destination(&self.destination)?;
        if self.create && destination.authority().is_none() {
            manager.queue(destination.queue())?.create().await?;
        }
        let bodies = self.bodies.read().await?;
        if bodies.is_empty() {
            return Err(Usage("BODY: the standard input has no line".to_owned()).into());
        }
        let mut transaction = manager.begin_with(TIMEOUT)?;
        let mut ids = Vec::new();
        for body in bodies {
            ids.push(transaction.send(&destination, body)?.to_string());
        }
        transaction.commit().await?;
        let notified = match publisher {
            Some(publisher) => {
                // Set after the commit, so that this call, and no task beside it, has the outcome.
                let manager = manager.with_notifier(Arc::new(publisher.clone()));
                let notifying = manager.notify_pending();
                Some(target.acknowledged(&publisher, notifying).await)
            }
            None => None,
        };
        let row = json!({
            "destination": destination.to_string(),
            "message_ids": ids,
            "notified": notified.as_ref().map(Result::is_ok),
        });
        target.format.next(&row, ids.join("\n"))?;
        let Some(Err(error)) = notified else {
            return Ok(Exit::OK);
        };
        output::note(format_args!(
            "error: the messages are sent, but the relay did not acknowledge the notification: \
             {error}; do not send them again: the host of the queues finds them within a second"
        ));
        Ok(Exit::NOT_NOTIFIED)
    }
}
