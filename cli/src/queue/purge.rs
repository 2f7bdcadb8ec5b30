//! `queue purge`: deletes the messages of a queue, or those that wait for another machine.

use std::path::Path;

use serde::Serialize;

use super::{
    NoResult, QueueRow, open,
    place::{self, OutputArgs},
};
use crate::{exit::Exit, output, settings::Settings};

#[derive(Debug, clap::Args)]
pub(super) struct Purge {
    /// The queue: `sqlite:PATH?queue=NAME` or `azure://ACCOUNT/QUEUE`; with --destination the
    /// directory of the queues
    #[arg(value_name = "QUEUE_URL|DIR")]
    place: String,
    /// Delete the messages that wait for this destination: reveille://HOST:PORT/QUEUE or an alias
    #[arg(long, value_name = "DESTINATION")]
    destination: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

/// The result of a purge of messages to another machine.
#[derive(Debug, Serialize)]
struct PurgedRow {
    destination: String,
    deleted: u64,
    pending: u64,
}

impl Purge {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let format = self.output.format(settings);
        let Some(destination) = self.destination else {
            let queue = open(&self.place).await?;
            queue.purge().await?;
            let row = QueueRow::new(&*queue, NoResult {});
            let line = format!("deleted all messages of {}", row.queue);
            format.next(&row, line)?;
            return Ok(Exit::OK);
        };
        let manager = place::open_existing(Path::new(&self.place), settings).await?;
        let destination = manager.destination(&destination)?;
        let purged = manager.purge(&destination).await?;
        let row = PurgedRow {
            destination: destination.to_string(),
            deleted: purged.removed,
            pending: purged.pending,
        };
        format.next(&row, row.line())?;
        Ok(Exit::OK)
    }
}

impl PurgedRow {
    /// Returns the result as a line for people.
    fn line(&self) -> String {
        let deleted = output::count(self.deleted, "message");
        let mut line = format!("deleted {deleted} to {}", self.destination);
        if self.pending > 0 {
            let pending = output::count(self.pending, "message");
            line.push_str(&format!(
                "; {pending} more will go unless the next machine has them already"
            ));
        }
        line
    }
}
