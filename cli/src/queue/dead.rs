//! `queue dead`: messages that could not be delivered.

use std::time::SystemTime;

use reveille::courier::DeadLetter;
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

The newest is first. `queue requeue` sends them again.";

#[derive(Debug, clap::Args)]
pub(super) struct Dead {
    #[command(flatten)]
    place: PlaceArgs,
    /// Maximum number of messages
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 100, value_parser = usage::positive::<usize>)]
    max: usize,
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

impl Dead {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let manager = self.place.open(settings).await?;
        let letters = manager.dead_letters(self.max).await?;
        let rows: Vec<_> = letters.into_iter().map(DeadRow::from).collect();
        self.output.format(settings).list(&rows)?;
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
