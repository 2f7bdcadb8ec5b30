//! `queue requeue`: sends dead letters again.

use reveille::courier::MessageId;
use serde::Serialize;

use super::place::{OutputArgs, PlaceArgs};
use crate::{exit::Exit, output, settings::Settings};

pub(super) const AFTER_HELP: &str = "\
Example:
  reveille queue requeue queues 9f3c1a5e77d04b1c8a2e6f0d4b5c6a7e
  reveille queue requeue queues --all
  reveille queue requeue queues --all --to reveille://berlin:7610/orders

A message to another machine gets a new id. With --all, a dead letter whose queue is missing stays, \
with that reason. The host of DIR finds the messages within a second.";

#[derive(Debug, clap::Args)]
#[group(id = "which", required = true, multiple = false, args = ["message_id", "all"])]
pub(super) struct Which {
    /// The dead letter's id
    #[arg(value_name = "ID")]
    message_id: Option<MessageId>,
    /// All dead letters, the oldest first
    #[arg(long)]
    all: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Requeue {
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    which: Which,
    /// Send to this destination instead: QUEUE, reveille://HOST:PORT/QUEUE or an alias
    #[arg(long, value_name = "DESTINATION")]
    to: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

/// The result of a requeue.
#[derive(Debug, Serialize)]
struct RequeuedRow {
    requeued: u64,
    /// The id from now on; `null` with --all.
    message_id: Option<String>,
    /// The dead letters that are left.
    dead_letters: u64,
}

impl Requeue {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let manager = self.place.open(settings).await?;
        let to = self.to.as_deref().map(|to| manager.destination(to));
        let to = to.transpose()?;
        let (requeued, message_id) = match self.which.message_id {
            Some(id) => {
                let id = manager.requeue(id, to.as_ref()).await?;
                (1, Some(id.to_string()))
            }
            None => (manager.requeue_all(to.as_ref()).await?, None),
        };
        let row = RequeuedRow {
            requeued,
            message_id,
            dead_letters: manager.status().await?.dead_letters,
        };
        self.output.format(settings).next(&row, row.line())?;
        Ok(Exit::OK)
    }
}

impl RequeuedRow {
    /// Returns the result as a line for people.
    fn line(&self) -> String {
        let mut line = match &self.message_id {
            Some(id) => format!("sent again as {id}"),
            None => format!("sent {} again", output::count(self.requeued, "message")),
        };
        if self.dead_letters > 0 {
            let left = output::count(self.dead_letters, "dead letter");
            line.push_str(&format!("; {left} left"));
        }
        line
    }
}
