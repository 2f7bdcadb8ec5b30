//! `ids next`: unique ids, from a blob that any number of processes share.

use std::time::Duration;

use anyhow::Context as _;
use clap::Subcommand;
use reveille::{
    Error, ErrorKind, duration,
    store::{self, BlobName},
    unique_id::{BlobSyncStore, FOLDER, IdConfig, UniqueIdGenerator},
};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use super::{
    exit::{Exit, Failed},
    output::{Format, OutputArgs},
    program,
    store::StoreArgs,
};

/// Take ids that are unique among all callers that share a store
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille ids next orders --store sqlite:shop.db
  reveille ids next orders --store az://ids --count 5")]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print the next ids, one a line
    ///
    /// The command reserves ids in ranges, with one write to the store for each range. Unused ids
    /// of a range are lost when the command ends, which leaves a gap. No id is ever printed twice.
    /// Without --range-size, up to 1000 ids come in one range of exactly that size, without a gap.
    #[command(after_help = "\
Example:
  reveille ids next orders --store sqlite:shop.db
  reveille ids next orders --store sqlite:shop.db --count 1000000 --range-size 10000 > ids
  reveille ids next orders --store sqlite:shop.db --start 100000 -o jsonl
  reveille ids next orders --store az://ids

--start applies only to the first call for a name. The blob `ids/NAME` holds the next free id.")]
    Next(Next),
}

#[derive(Debug, clap::Args)]
struct Next {
    /// The name of the id sequence; each name counts separately
    #[arg(value_parser = blob)]
    name: BlobName,
    /// Number of ids
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=MOST))]
    count: u64,
    /// Number of ids that one write to the store reserves [default: --count, at most 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST))]
    range_size: Option<u64>,
    /// The first id of a name that has no ids yet
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=MOST))]
    start: u64,
    #[command(flatten)]
    store: StoreArgs,
    /// Give up after this long without an id [default: 2m; 10s if the store does not answer]
    #[arg(long, env = "REVEILLE_TIMEOUT", value_name = "D", value_parser = duration::parse)]
    timeout: Option<Duration>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Ids of one write to stdout: few enough to appear promptly, enough to share the cost of a write.
const BATCH: u64 = 4096;
/// An id fits a signed number of 64 bits.
const MOST: u64 = i64::MAX as u64;

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        match self.verb {
            Verb::Next(next) => next.run().await,
        }
    }
}

impl Next {
    async fn run(self) -> anyhow::Result<Exit> {
        let config = self.config();
        let batch = BATCH.min(config.range_size);
        let late = || format!("`{}`: got no id", self.name);
        let url = self.store.resolve()?;
        let opened = program::within(self.timeout, late(), store::open(&url)).await?;
        let store = BlobSyncStore::new(opened, self.name.clone());
        let ids = UniqueIdGenerator::new(store, config)?;
        let format = self.output.format;
        // Not std's blocking stdout: a reader that stalls must not delay Ctrl-C.
        let mut out = tokio::io::stdout();
        let (mut left, mut document) = (self.count, Vec::new());
        while left > 0 {
            let count = usize::try_from(left.min(batch)).context("a batch is small")?;
            let taken = program::within(self.timeout, late(), ids.next_ids(count)).await;
            let taken = taken.map_err(invalid_as_failed)?;
            left -= taken.len() as u64;
            let mut lines = String::new();
            for id in taken {
                match format {
                    Format::Table => lines.push_str(&format!("{id}\n")),
                    Format::Jsonl => lines.push_str(&format!("{}\n", json!({ "id": id }))),
                    Format::Json => document.push(json!({ "id": id })),
                }
            }
            out.write_all(lines.as_bytes()).await?;
            out.flush().await?;
        }
        if format == Format::Json {
            let text = format!("{}\n", serde_json::to_string_pretty(&document)?);
            out.write_all(text.as_bytes()).await?;
            out.flush().await?;
        }
        Ok(Exit::OK)
    }

    fn config(&self) -> IdConfig {
        let defaults = IdConfig::default();
        IdConfig {
            range_size: self
                .range_size
                .unwrap_or_else(|| self.count.min(defaults.range_size)),
            start: self.start,
            retry_for: self.timeout.unwrap_or(defaults.retry_for),
        }
    }
}

/// Converts an error about an invalid value to exit code 1: the value is stored, not typed.
fn invalid_as_failed(error: Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::Invalid => Failed(error.message().to_owned()).into(),
        _ => error.into(),
    }
}

/// Parses a name, which is a part of its blob's name.
fn blob(name: &str) -> Result<BlobName, String> {
    const RULE: &str = "must be 1 to 1020 bytes in parts with `/` between them, none empty, `.` \
                        or `..`, without control characters and `\\`";
    BlobName::new(&format!("{FOLDER}{name}")).map_err(|_| RULE.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(count: u64, range_size: Option<u64>) -> Next {
        Next {
            name: blob("orders").expect("a name"),
            count,
            range_size,
            start: 0,
            store: StoreArgs::default(),
            timeout: None,
            output: OutputArgs::default(),
        }
    }

    #[test]
    fn one_range_holds_the_count_up_to_the_default_size() {
        for (count, stated, range_size) in [
            (1, None, 1),
            (1000, None, 1000),
            (1_000_000, None, 1000),
            (5, Some(50), 50),
        ] {
            let config = next(count, stated).config();
            assert_eq!(config.range_size, range_size);
        }
    }
}
