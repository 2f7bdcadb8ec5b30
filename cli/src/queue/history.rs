//! `queue history`: messages that were received or handed over.

use std::time::SystemTime;

use reveille::courier::HistoryEntry;
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
  reveille queue history queues
  reveille queue history queues --max 1000 -o jsonl

The newest is first. `received`: by a transaction, from a queue of DIR. `confirmed`: visible at the \
next machine. The table [queues] of the configuration file sets how long history is kept.";

#[derive(Debug, clap::Args)]
pub(super) struct History {
    #[command(flatten)]
    place: PlaceArgs,
    /// Maximum number of messages
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 20, value_parser = usage::positive::<usize>)]
    max: usize,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Serialize)]
struct HistoryRow {
    message_id: String,
    state: &'static str,
    destination: String,
    bytes: u64,
    #[serde(serialize_with = "output::serialize_time")]
    stored_at: Option<SystemTime>,
    #[serde(serialize_with = "output::serialize_time")]
    settled_at: Option<SystemTime>,
}

impl History {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let manager = self.place.open(settings).await?;
        let entries = manager.history(self.max, None).await?;
        let rows: Vec<_> = entries.iter().map(HistoryRow::from).collect();
        self.output.format(settings).list(&rows)?;
        Ok(Exit::OK)
    }
}

impl From<&HistoryEntry> for HistoryRow {
    fn from(entry: &HistoryEntry) -> Self {
        let is_local = entry.destination.authority().is_none();
        Self {
            message_id: entry.id.to_string(),
            state: if is_local { "received" } else { "confirmed" },
            destination: entry.destination.to_string(),
            bytes: entry.size,
            stored_at: Some(entry.stored_at),
            settled_at: Some(entry.settled_at),
        }
    }
}

impl Row for HistoryRow {
    const HEADERS: &'static [&'static str] =
        &["ID", "STATE", "DESTINATION", "BYTES", "STORED", "SETTLED"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.message_id.clone(),
            self.state.to_owned(),
            self.destination.clone(),
            self.bytes.to_string(),
            self.stored_at.map(output::time).unwrap_or_default(),
            self.settled_at.map(output::time).unwrap_or_default(),
        ]
    }
}
