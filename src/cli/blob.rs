//! `blob ttl`: marks a blob with its time to live.

use std::time::{Duration, SystemTime};

use clap::Subcommand;
use reveille::{duration, store, sweep};

use super::{exit::Exit, output, settings::Settings};

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
    /// Say from when on nobody needs a blob, for `sweep` to remove it then
    ///
    /// Written into its metadata as `TimeToLive`, beside what stands there. A blob that is written
    /// again loses it, as it loses all its metadata.
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
    /// From now on
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, required_unless_present = "clear")]
    after: Option<Duration>,
    /// Move it there then, instead of deleting it: `graves`, `graves/FOLDER/` or `graves/NEW/NAME`
    #[arg(long, value_name = "CONTAINER", requires = "after")]
    dead_container: Option<String>,
    /// Take its time to live off
    #[arg(long, conflicts_with = "after")]
    clear: bool,
}

impl Args {
    pub(super) async fn run(self, _settings: &Settings) -> anyhow::Result<Exit> {
        let Verb::Ttl(ttl) = self.verb;
        let end = ttl.after.map(|after| SystemTime::now() + after);
        let dead = ttl.dead_container.as_deref();
        let marked = sweep::mark(&ttl.blob, end, dead, &store::environment()).await?;
        match marked {
            Some(end) => output::note(format_args!("nobody needs it from {end} on")),
            None => output::note("it stays"),
        }
        Ok(Exit::OK)
    }
}
