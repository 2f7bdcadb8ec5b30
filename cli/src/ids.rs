//! `ids next`: unique ids, from a blob that any number of processes share.

use std::time::Duration;

use clap::Subcommand;
use reveille::{
    ErrorKind, duration,
    store::{self, BlobName},
    unique_id::{BlobSyncStore, FOLDER, IdConfig, UniqueIdGenerator},
};
use serde_json::json;

use super::{
    exit::{Exit, failed_if},
    output::{self, Format, OutputArgs},
    program,
    store::StoreArgs,
};

/// Take ids that are unique among all callers that share a store
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  reveille ids next orders --store sqlite:shop.db
  reveille ids next orders --store az://ids --count 5")]
pub(super) enum Verb {
    /// Print the next ids, one a line
    ///
    /// The command reserves ids in ranges, with one write to the store for each range. Unused ids
    /// of a range are lost when the command ends, which leaves a gap. No id is ever printed twice.
    /// Without --range-size, the ids come in one range of exactly that size, without a gap.
    #[command(after_help = "\
Example:
  reveille ids next orders --store sqlite:shop.db
  reveille ids next orders --store sqlite:shop.db --start 100000 -o jsonl

--start applies only to the first call for a name. The blob `ids/NAME` holds the next free id.")]
    Next(Next),
}

#[derive(Debug, clap::Args)]
pub(super) struct Next {
    /// The name of the id sequence; each name counts separately
    #[arg(value_parser = blob)]
    name: BlobName,
    /// Number of ids, at most 10,000
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MAX_COUNT))]
    count: u32,
    /// Number of ids that one write to the store reserves [default: --count]
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

/// All ids are in memory before the first one is printed.
const MAX_COUNT: i64 = 10_000;
/// An id fits a signed number of 64 bits.
const MOST: u64 = i64::MAX as u64;

impl Verb {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let Self::Next(next) = self;
        next.run().await
    }
}

impl Next {
    async fn run(self) -> anyhow::Result<Exit> {
        let late = || (ErrorKind::Timeout, format!("`{}`: got no id", self.name));
        let opened =
            program::within(self.timeout, late(), store::open(self.store.resolve()?)).await?;
        let store = BlobSyncStore::new(opened, self.name.clone());
        let ids = UniqueIdGenerator::new(store, self.config())?;
        let taken = ids.next_ids(self.count as usize);
        let taken = program::within(self.timeout, late(), taken).await;
        // An invalid value is stored, not typed.
        let taken = taken.map_err(failed_if(ErrorKind::Invalid))?;
        match self.output.format {
            Format::Table => {
                let lines: String = taken.iter().map(|id| format!("{id}\n")).collect();
                output::write(lines)?;
            }
            format => {
                let rows: Vec<_> = taken.iter().map(|id| json!({ "id": id })).collect();
                format.rows("id", &rows)?;
            }
        }
        Ok(Exit::OK)
    }

    fn config(&self) -> IdConfig {
        let defaults = IdConfig::default();
        IdConfig {
            range_size: self.range_size.unwrap_or_else(|| self.count.into()),
            start: self.start,
            retry_for: self.timeout.unwrap_or(defaults.retry_for),
        }
    }
}

/// Parses a name, which is a part of its blob's name.
fn blob(name: &str) -> Result<BlobName, String> {
    const RULE: &str = "must be 1 to 1020 bytes in parts with `/` between them, none empty, `.` \
                        or `..`, without control characters and `\\`";
    BlobName::new(&format!("{FOLDER}{name}")).map_err(|_| RULE.to_owned())
}
