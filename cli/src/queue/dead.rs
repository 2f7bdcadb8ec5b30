//! `queue dead`: messages that could not be delivered.

use std::time::SystemTime;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use reveille::courier::{DeadLetter, MessageId};
use serde::Serialize;

use super::place::{OutputArgs, PlaceArgs};
use crate::{
    exit::Exit,
    output::{self, Row},
    settings::Settings,
    usage,
};

pub(super) const AFTER_HELP: &str = "\
Example:
  reveille queue dead queues
  reveille queue dead queues -o jsonl
  reveille queue dead queues 9f3c1a5e77d04b1c8a2e6f0d4b5c6a7e --raw > body
  reveille queue dead queues 9f3c1a5e77d04b1c8a2e6f0d4b5c6a7e --remove

The newest is first. With ID, one is shown with its body. `queue requeue` sends them again, also to \
another destination. --remove deletes them; their messages are lost then.";

#[derive(Debug, clap::Args)]
pub(super) struct Dead {
    #[command(flatten)]
    place: PlaceArgs,
    /// Show this one, with its body
    #[arg(value_name = "ID")]
    message_id: Option<MessageId>,
    /// Maximum number of messages
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 100, value_parser = usage::positive::<usize>)]
    max: usize,
    /// Print only the body of ID, as it is
    #[arg(long, requires = "message_id", conflicts_with_all = ["remove", "output"])]
    raw: bool,
    /// Delete ID, or with --all all dead letters
    #[arg(long)]
    remove: bool,
    /// With --remove: all dead letters
    #[arg(long, requires = "remove", conflicts_with = "message_id")]
    all: bool,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Serialize)]
struct DeadRow {
    message_id: String,
    destination: String,
    reason: String,
    bytes: u64,
    #[serde(serialize_with = "output::serialize_time")]
    stored_at: Option<SystemTime>,
    #[serde(serialize_with = "output::serialize_time")]
    died_at: Option<SystemTime>,
}

/// One dead letter with its body.
#[derive(Debug, Serialize)]
struct ShownRow {
    #[serde(flatten)]
    letter: DeadRow,
    /// `null` if it is not UTF-8.
    body: Option<String>,
    body_base64: String,
}

#[derive(Debug, Serialize)]
struct RemovedRow {
    removed: u64,
}

impl Dead {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let manager = self.place.open(settings).await?;
        let format = self.output.format(settings);
        match (self.message_id, self.remove) {
            (Some(id), true) => {
                manager.remove_dead_letter(id).await?;
                format.next(&RemovedRow { removed: 1 }, format!("removed {id}"))?;
            }
            (None, true) if self.all => {
                let removed = manager.remove_dead_letters().await?;
                let line = format!("removed {}", output::count(removed, "dead letter"));
                format.next(&RemovedRow { removed }, line)?;
            }
            (None, true) => {
                let text = "--remove: name the dead letter, or pass --all";
                return Err(crate::exit::Usage(text.to_owned()).into());
            }
            (Some(id), false) => {
                let (letter, body) = manager.dead_letter(id).await?;
                match self.raw {
                    true => output::bytes(&body)?,
                    false => format.one(&ShownRow::new(letter, &body))?,
                }
            }
            (None, false) => {
                let letters = manager.dead_letters(self.max).await?;
                let rows: Vec<_> = letters.into_iter().map(DeadRow::from).collect();
                format.list(&rows)?;
            }
        }
        Ok(Exit::OK)
    }
}

impl From<DeadLetter> for DeadRow {
    fn from(letter: DeadLetter) -> Self {
        Self {
            message_id: letter.id.to_string(),
            destination: letter.destination.to_string(),
            reason: letter.reason,
            bytes: letter.size,
            stored_at: Some(letter.stored_at),
            died_at: Some(letter.died_at),
        }
    }
}

impl ShownRow {
    fn new(letter: DeadLetter, body: &[u8]) -> Self {
        Self {
            letter: letter.into(),
            body: String::from_utf8(body.to_vec()).ok(),
            body_base64: STANDARD.encode(body),
        }
    }
}

impl Row for DeadRow {
    const HEADERS: &'static [&'static str] = &["ID", "DESTINATION", "BYTES", "DIED", "REASON"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.message_id.clone(),
            self.destination.clone(),
            self.bytes.to_string(),
            self.died_at.map(output::time).unwrap_or_default(),
            self.reason.clone(),
        ]
    }
}

impl Row for ShownRow {
    const HEADERS: &'static [&'static str] =
        &["ID", "DESTINATION", "BYTES", "DIED", "REASON", "BODY"];

    fn cells(&self) -> Vec<String> {
        let mut cells = self.letter.cells();
        cells.push(self.body.clone().unwrap_or_else(|| "(not text)".to_owned()));
        cells
    }
}
