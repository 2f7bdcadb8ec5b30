//! `blob ttl`: marks a blob with its time to live.

use std::time::{Duration, SystemTime};

use clap::Subcommand;
use reveille::{duration, store, sweep};
use serde::Serialize;

use super::{exit::Exit, output::Format, settings::Settings};

/// Mark a blob with its time to live
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille blob ttl az://sessions/tmp/42 --after 10m")]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Set the time after which `sweep` removes a blob
    ///
    /// The time is stored as `TimeToLive` in the blob's metadata, and other metadata stays. A later
    /// write of the blob removes all its metadata, including this.
    #[command(after_help = "\
Example:
  reveille blob ttl az://sessions/tmp/42 --after 10m
  reveille blob ttl az://sessions/tmp/42 --after 1d --dead-container graves/2026/
  reveille blob ttl sqlite:shop.db#claims/7 --after 1h
  reveille blob ttl az://sessions/tmp/42 --clear")]
    Ttl(Ttl),
}

#[derive(Debug, clap::Args)]
struct Ttl {
    /// The blob: az://CONTAINER/BLOB, s3://BUCKET/BLOB, gs://BUCKET/BLOB or sqlite:PATH#BLOB
    #[arg(value_name = "PATH")]
    blob: String,
    /// The time from now
    #[arg(long, value_name = "D", value_parser = duration::parse, required_unless_present = "clear")]
    after: Option<Duration>,
    /// Move the blob there, instead of deleting it: `graves`, `graves/FOLDER/` or `graves/NEW/NAME`
    #[arg(long, value_name = "CONTAINER", requires = "after")]
    dead_container: Option<String>,
    /// Remove the blob's time to live
    #[arg(long, conflicts_with = "after")]
    clear: bool,
    /// The output format [default: table]
    #[arg(short, long, env = "REVEILLE_OUTPUT", value_name = "FORMAT")]
    output: Option<Format>,
}

/// A blob's time to live as a row.
#[derive(Debug, Serialize)]
struct Marked {
    blob: String,
    /// As written to the metadata; `null` if it was removed.
    time_to_live: Option<String>,
}

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let Verb::Ttl(ttl) = self.verb;
        let end = ttl.after.map(|after| SystemTime::now() + after);
        let dead = ttl.dead_container.as_deref();
        let marked = sweep::set_expiry(&ttl.blob, end, dead, &store::environment()).await?;
        // The query may contain a signature.
        let blob = ttl.blob.split('?').next().unwrap_or_default().to_owned();
        let line = match &marked {
            Some(end) => format!("{blob}: time to live ends at {end}"),
            None => format!("{blob}: no time to live"),
        };
        let row = Marked {
            blob,
            time_to_live: marked,
        };
        let format = ttl.output.or(settings.output).unwrap_or_default();
        format.next(&row, line)?;
        Ok(Exit::OK)
    }
}
