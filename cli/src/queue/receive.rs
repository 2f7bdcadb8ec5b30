//! `queue receive`: receives messages in one transaction.

use std::time::Duration;

use reveille::courier::{ReceivedMessage, Transaction};

use super::place::{OutputArgs, PlaceArgs};
use crate::{
    exit::{Exit, Failed},
    message::MessageRow,
    settings::Settings,
    usage,
};

pub(super) const AFTER_HELP: &str = "\
Example:
  reveille queue receive queues orders
  reveille queue receive queues orders --max 100 -o jsonl

The messages are committed after they are printed. If they cannot be printed they return to the \
queue. JSON has each body twice: `body` as text, or null if it is not UTF-8, and `body_base64`.";

#[derive(Debug, clap::Args)]
pub(super) struct Receive {
    #[command(flatten)]
    place: PlaceArgs,
    /// The queue's name
    #[arg(value_name = "QUEUE")]
    queue: String,
    /// Maximum number of messages
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 1, value_parser = usage::positive::<usize>)]
    max: usize,
    #[command(flatten)]
    output: OutputArgs,
}

/// Messages of one step of a transaction.
const BATCH: usize = 32;
/// Long enough for a reader of stdout that is slow; after a crash the messages return this late.
const TIMEOUT: Duration = Duration::from_secs(60);

impl Receive {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let manager = self.place.open(settings).await?;
        let mut transaction = manager.begin_with(TIMEOUT)?;
        let messages = self.receive_all(&mut transaction).await?;
        let rows: Vec<_> = messages.iter().map(MessageRow::from).collect();
        if let Err(error) = self.output.format(settings).list(&rows) {
            transaction.roll_back().await?;
            let text = format!("stdout: {error}: the messages are in the queue again");
            return Err(Failed(text).into());
        }
        transaction.commit().await?;
        Ok(Exit::OK)
    }

    async fn receive_all(
        &self,
        transaction: &mut Transaction,
    ) -> reveille::Result<Vec<ReceivedMessage>> {
        let mut messages = Vec::new();
        while messages.len() < self.max {
            let wanted = (self.max - messages.len()).min(BATCH);
            let more = transaction.receive_many(&self.queue, wanted).await?;
            if more.is_empty() {
                break;
            }
            messages.extend(more);
        }
        Ok(messages)
    }
}
