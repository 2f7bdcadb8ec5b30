//! `courier dead|requeue`: messages that could not be delivered.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use reveille::courier::{DeadLetter, MessageId};
use serde_json::{Value, json};

use super::Dir;
use crate::{
    exit::Usage,
    output::{self, time},
    settings::Settings,
    values,
};

/// List, show or delete messages that could not be delivered
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille courier dead queues
  reveille courier dead queues 9f3c1a5e77d04b1c8a2e6f0d4b5c6a7e --remove

The newest is first. With ID, one is shown with its body. `courier requeue` sends them again, also to \
another destination. --remove deletes them; their messages are lost then.")]
pub(crate) struct Dead {
    #[command(flatten)]
    dir: Dir,
    /// Show this one, with its body
    #[arg(value_name = "ID")]
    message_id: Option<MessageId>,
    /// Maximum number of messages
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = values::positive::<usize>)]
    max: usize,
    /// Delete ID, or with --all all dead letters
    #[arg(long)]
    remove: bool,
    /// With --remove: all dead letters
    #[arg(long, requires = "remove", conflicts_with = "message_id")]
    all: bool,
}

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

/// Send dead letters again
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille courier requeue queues 9f3c1a5e77d04b1c8a2e6f0d4b5c6a7e
  reveille courier requeue queues --all --to reveille://berlin:7610/orders

A message to another machine gets a new id. With --all, a dead letter whose queue is missing stays. \
The host of DIR finds the messages within a second.")]
pub(crate) struct Requeue {
    #[command(flatten)]
    dir: Dir,
    #[command(flatten)]
    which: Which,
    /// Send to this destination instead: QUEUE, reveille://HOST:PORT/QUEUE or an alias
    #[arg(long, value_name = "DESTINATION")]
    to: Option<String>,
}

const COLUMNS: &str = "message_id destination bytes died_at reason";

impl Dead {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<()> {
        let manager = self.dir.open(settings).await?;
        let format = self.dir.output.format;
        match self.message_id {
            Some(id) if self.remove => {
                manager.remove_dead_letter(id).await?;
                format.next(&json!({ "removed": 1 }), format!("removed {id}"))?;
            }
            Some(id) => {
                let (letter, body) = manager.dead_letter(id).await?;
                let mut row = row(&letter);
                // `null` if it is not UTF-8.
                row["body"] = String::from_utf8(body.to_vec()).ok().into();
                row["body_base64"] = STANDARD.encode(&body).into();
                format.row(&format!("{COLUMNS} body"), &row)?;
            }
            None if self.all => {
                let removed = manager.remove_dead_letters().await?;
                let line = format!("removed {}", output::count(removed, "dead letter"));
                format.next(&json!({ "removed": removed }), line)?;
            }
            None if self.remove => {
                let text = "--remove: name the dead letter, or pass --all";
                return Err(Usage(text.to_owned()).into());
            }
            None => {
                let letters = manager.dead_letters(self.max).await?;
                let rows: Vec<_> = letters.iter().map(row).collect();
                format.rows(COLUMNS, &rows)?;
            }
        }
        Ok(())
    }
}

impl Requeue {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<()> {
        let manager = self.dir.open(settings).await?;
        let to = self.to.as_deref().map(|to| manager.destination(to));
        let to = to.transpose()?;
        let (requeued, id) = match self.which.message_id {
            Some(id) => (1, Some(manager.requeue(id, to.as_ref()).await?.to_string())),
            None => (manager.requeue_all(to.as_ref()).await?, None),
        };
        let left = manager.status().await?.dead_letters;
        let mut line = match &id {
            Some(id) => format!("sent again as {id}"),
            None => format!("sent {} again", output::count(requeued, "message")),
        };
        if left > 0 {
            line.push_str(&format!("; {} left", output::count(left, "dead letter")));
        }
        // The id from now on is null with --all.
        let row = json!({ "requeued": requeued, "message_id": id, "dead_letters": left });
        Ok(self.dir.output.format.next(&row, line)?)
    }
}

fn row(letter: &DeadLetter) -> Value {
    json!({
        "message_id": letter.id.to_string(),
        "destination": letter.destination.to_string(),
        "reason": letter.reason,
        "bytes": letter.size,
        "stored_at": time(letter.stored_at),
        "died_at": time(letter.died_at),
    })
}
