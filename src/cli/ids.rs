//! `ids next`: ids that nobody else gets, from a blob that any number of processes share.

use std::time::Duration;

use anyhow::Context as _;
use clap::Subcommand;
use reveille::{
    Error, ErrorKind, duration,
    store::{self, BlobName},
    unique_id::{BlobSyncStore, FOLDER, IdConfig, UniqueIdGenerator},
};
use serde::Serialize;
use tokio::io::AsyncWriteExt as _;

use super::{
    exit::{Exit, Failed},
    output::Format,
    settings::Settings,
    store::StoreArgs,
};

/// Take ids that are unique among all who take them from the same store
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
    /// Ids are taken range by range, with one write of the store for each. What is left of a range
    /// when the command ends is lost, a gap in the numbers; no id is ever printed twice. Unless
    /// --range-size is given, up to 1000 ids come in one range of just that size, without a gap.
    #[command(after_help = "\
Example:
  reveille ids next orders --store sqlite:shop.db
  reveille ids next orders --store sqlite:shop.db --count 1000000 --range-size 10000 > ids
  reveille ids next orders --store sqlite:shop.db --start 100000 -o jsonl
  reveille ids next orders --store az://ids

--start counts only for who comes first: the next free id stands in the blob `ids/NAME`.")]
    Next(Next),
}

#[derive(Debug, clap::Args)]
struct Next {
    /// What the ids are for; each name has numbers of its own
    #[arg(value_parser = blob)]
    name: BlobName,
    /// How many
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = at_least_one)]
    count: u64,
    /// Ids that are taken from the store at once [default: --count, 1000 at most]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one)]
    range_size: Option<u64>,
    /// The first id of all, where none was taken yet
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, value_parser = id)]
    start: u64,
    #[command(flatten)]
    store: StoreArgs,
    /// Give up where no id was had for this long [default: 2m, 10s where the store does not answer]
    #[arg(long, env = "REVEILLE_TIMEOUT", value_name = "D", allow_hyphen_values = true, value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// How data is written [default: table]
    #[arg(short, long, env = "REVEILLE_OUTPUT", value_name = "FORMAT")]
    output: Option<Format>,
}

/// Writes ids as they come, so that none but a few are ever in memory.
struct Printer {
    format: Format,
    out: tokio::io::Stdout,
    /// What is written next.
    text: String,
    first: bool,
}

/// An id as an object.
#[derive(Debug, Serialize)]
struct Shown {
    id: u64,
}

/// Ids of one write: few enough to come at once, so many that a write costs little of each.
const BATCH: u64 = 4096;

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        match self.verb {
            Verb::Next(next) => next.run(settings).await,
        }
    }
}

impl Next {
    async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let config = self.config();
        let batch = BATCH.min(config.range_size);
        let chosen = self.store.resolve(settings)?;
        chosen.announce();
        let opened = self.within(store::open(&chosen.url)).await.map_err(away)?;
        let store = BlobSyncStore::new(opened, self.name.clone());
        let ids = UniqueIdGenerator::new(store, config)?;
        let format = self.output.or(settings.output).unwrap_or_default();
        let mut printer = Printer::new(format);
        let mut left = self.count;
        while left > 0 {
            let count = usize::try_from(left.min(batch)).context("a batch is small")?;
            let taken = self.within(ids.next_ids(count)).await;
            let taken = taken.map_err(what_is_stored)?;
            left -= taken.len() as u64;
            printer.print(&taken).await?;
        }
        printer.finish().await?;
        Ok(Exit::OK)
    }

    /// Runs a call within the time that was given.
    async fn within<T>(
        &self,
        call: impl Future<Output = reveille::Result<T>>,
    ) -> reveille::Result<T> {
        let Some(timeout) = self.timeout else {
            return call.await;
        };
        tokio::time::timeout(timeout, call)
            .await
            .unwrap_or_else(|_| {
                let span = duration::Span(timeout);
                let message = format!("`{}`: no id was had within {span}", self.name);
                Err(Error::new(ErrorKind::Timeout, message))
            })
    }

    fn config(&self) -> IdConfig {
        let defaults = IdConfig::default();
        IdConfig {
            range_size: self
                .range_size
                .unwrap_or_else(|| self.count.min(defaults.range_size)),
            start: self.start,
            retry_for: self.timeout.unwrap_or(defaults.retry_for),
            // It is known how many are wanted: a range beyond them would be a gap.
            fetch_ahead: false,
            ..defaults
        }
    }
}

impl Printer {
    fn new(format: Format) -> Self {
        Self {
            format,
            // Not the blocking one: a reader that does not read must not keep Ctrl-C from us.
            out: tokio::io::stdout(),
            text: String::new(),
            first: true,
        }
    }

    async fn print(&mut self, ids: &[u64]) -> anyhow::Result<()> {
        for id in ids {
            self.add(*id)?;
        }
        self.flush().await
    }

    fn add(&mut self, id: u64) -> anyhow::Result<()> {
        let first = std::mem::take(&mut self.first);
        match self.format {
            Format::Table => self.text.push_str(&id.to_string()),
            Format::Jsonl => self.text.push_str(&serde_json::to_string(&Shown { id })?),
            // One document, as it is one answer; the end of each line waits for what follows.
            Format::Json => {
                self.text.push_str(if first { "[\n  " } else { ",\n  " });
                self.text.push_str(&serde_json::to_string(&Shown { id })?);
                return Ok(());
            }
        }
        self.text.push('\n');
        Ok(())
    }

    async fn finish(mut self) -> anyhow::Result<()> {
        if self.format == Format::Json {
            self.text.push_str("\n]\n");
        }
        self.flush().await
    }

    async fn flush(&mut self) -> anyhow::Result<()> {
        self.out.write_all(self.text.as_bytes()).await?;
        self.out.flush().await?;
        self.text.clear();
        Ok(())
    }
}

/// A store that is not opened in time cannot be reached, and ends with that exit code.
fn away(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Timeout => Error::new(ErrorKind::Unavailable, error.message()),
        _ => error,
    }
}

/// What breaks a rule now was not typed: it is stored.
fn what_is_stored(error: Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::Invalid => Failed(error.message().to_owned()).into(),
        _ => error.into(),
    }
}

/// Reads a name, which is a part of its blob's.
fn blob(name: &str) -> Result<BlobName, String> {
    const RULE: &str = "must be 1 to 1020 bytes in parts with `/` between them, none empty, `.` \
                        or `..`, without control characters and `\\`";
    BlobName::new(&format!("{FOLDER}{name}")).map_err(|_| RULE.to_owned())
}

fn at_least_one(text: &str) -> Result<u64, String> {
    number(text, 1)
}

fn id(text: &str) -> Result<u64, String> {
    number(text, 0)
}

/// Reads what ids can be: they fit a signed number of 64 bits.
fn number(text: &str, least: u64) -> Result<u64, String> {
    const MOST: u64 = i64::MAX as u64;
    let number = text.parse().ok();
    number
        .filter(|number| (least..=MOST).contains(number))
        .ok_or_else(|| format!("must be a whole number from {least} to {MOST}"))
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
            output: None,
        }
    }

    #[test]
    fn what_is_taken_at_once_is_what_is_wanted_unless_that_is_much() {
        for (count, stated, range_size) in [
            (1, None, 1),
            (1000, None, 1000),
            (1_000_000, None, 1000),
            (5, Some(50), 50),
        ] {
            let config = next(count, stated).config();
            assert_eq!((config.range_size, config.fetch_ahead), (range_size, false));
        }
    }
}
