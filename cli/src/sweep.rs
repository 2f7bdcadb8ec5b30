//! `sweep`: removes blobs whose time to live has ended. `sweep ttl` sets the time to live of a blob.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use clap::Subcommand;
use reveille::{
    duration, store,
    sweep::{self, PlannedBlob, SCHEMA, SweepJob, SweepRound, Sweeper},
};
use serde_json::{Value, json};

use super::{
    exit::{Exit, Failed, Usage},
    log,
    output::{self, Format, OutputArgs},
    program,
    signals::Interrupts,
    values,
};

/// Remove blobs whose time to live has ended
///
/// A blob with the metadata `TimeToLive` (a UTC time, RFC 3339) is deleted after that time, or
/// moved to the container that its `DeadBlobContainer` names. Any number of instances share the
/// work through a document in the store that the job names.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Example:
  reveille sweep sessions.json
  reveille sweep sessions.json --once --dry-run
  reveille sweep --schema > sweep-job.schema.json
  reveille sweep ttl az://sessions/tmp/42 --after 10m

JOB is a JSON file: docs/sweeping.md has one. Ends with 1 if --once failed for a blob or a container.")]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// The job's file
    #[arg(required_unless_present = "schema")]
    job: Option<PathBuf>,
    /// End after one round, or after the rest of a round that has begun
    #[arg(long)]
    once: bool,
    /// With --once: start another round even if this interval had its round
    #[arg(long, requires = "once")]
    again: bool,
    /// Print the actions of a round, and perform none
    #[arg(long)]
    dry_run: bool,
    /// Check the file, and check that every container can be listed
    #[arg(long, conflicts_with_all = ["once", "dry_run"])]
    check: bool,
    /// Print the JSON schema of job files
    #[arg(long, exclusive = true)]
    schema: bool,
    /// Serve /metrics, /livez and /readyz on this HOST:PORT; another one than loopback needs
    /// --insecure
    #[arg(long, value_name = "ADDRESS")]
    admin_listen: Option<SocketAddr>,
    /// Serve other machines there in plain text
    #[arg(long, env = "REVEILLE_INSECURE")]
    insecure: bool,
    /// Host names that requests to that port may use, comma-separated; IP addresses and localhost
    /// are always allowed
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = values::host_name, requires = "admin_listen")]
    admin_host: Vec<String>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Set the time after which `sweep` removes a blob
    ///
    /// The time is stored as `TimeToLive` in the blob's metadata, and other metadata stays. A later
    /// write of the blob removes all its metadata, including this.
    #[command(after_help = "\
Example:
  reveille sweep ttl az://sessions/tmp/42 --after 10m
  reveille sweep ttl az://sessions/tmp/42 --after 1d --dead-container graves/2026/
  reveille sweep ttl az://sessions/tmp/42 --clear")]
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
    #[command(flatten)]
    output: OutputArgs,
}

/// Logs failures and blobs that are left alone.
const LOG: &str = "error,reveille::coordination=warn";

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        if let Some(Verb::Ttl(ttl)) = &self.verb {
            return program::until_interrupted(ttl.run()).await;
        }
        if self.schema {
            output::write(SCHEMA)?;
            return Ok(Exit::OK);
        }
        values::check_open("admin-listen", self.admin_listen, self.insecure)?;
        log::start(LOG, false);
        let mut interrupts = Interrupts::listen()?;
        let sweeper = Arc::new(self.sweeper().await?);
        let format = self.output.format;
        if self.check {
            sweeper.check().await?;
            output::note("the file is valid, and its containers can be listed");
            return Ok(Exit::OK);
        }
        if self.dry_run {
            return tokio::select! {
                planned = dry_run(&sweeper, format) => planned,
                signal = interrupts.next() => Ok(signal.exit()),
            };
        }
        let _console = match self.admin_listen {
            Some(listen) => {
                let sweeper = Arc::clone(&sweeper);
                let console = sweeper.serve(listen, &self.admin_host).await?;
                let address = console.address();
                output::note(format_args!("health and metrics at http://{address}"));
                Some(console)
            }
            None => None,
        };
        tokio::select! {
            worked = self.work(&sweeper, format) => worked,
            // A stopped service has succeeded; an interrupted round has not. The page that it works on
            // is left to the next round.
            signal = interrupts.next() => Ok(if self.once { signal.exit() } else { Exit::OK }),
        }
    }

    async fn sweeper(&self) -> anyhow::Result<Sweeper> {
        let path = self.job.as_deref().context("JOB is missing")?;
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Usage(format!("job: `{shown}` cannot be read: {error}")))?;
        let job = SweepJob::parse(&text)
            .map_err(|error| Usage(format!("job: `{shown}`: {}", error.message())))?;
        let sweeper = Sweeper::new(job, &store::environment()).await?;
        if sweeper.is_alone() && !self.dry_run && !self.check {
            let rule =
                "state: a store in memory is lost when this command ends: name a durable one";
            return Err(Usage(rule.to_owned()).into());
        }
        Ok(sweeper)
    }

    async fn work(&self, sweeper: &Sweeper, format: Format) -> anyhow::Result<Exit> {
        if !self.once {
            sweeper
                .run(|round| {
                    // A closed stdout does not stop the sweeping.
                    let _ = format.next(&row(round), line(round));
                })
                .await;
            return Ok(Exit::OK);
        }
        let round = sweeper.sweep_once(self.again).await?;
        let number = round.round;
        if !round.finished {
            output::note(format_args!(
                "round {number} is not finished: other instances work on it, or a container was not listed"
            ));
        } else if round.pages == 0 {
            output::note(format_args!(
                "round {number} is already done: wait for the next interval, or pass --again"
            ));
        }
        format.row(COLUMNS, &row(&round))?;
        match round.done.failed {
            0 => Ok(Exit::OK),
            failed => Err(Failed(format!("{failed} blobs or containers failed")).into()),
        }
    }
}

impl Ttl {
    async fn run(&self) -> anyhow::Result<Exit> {
        let end = self.after.map(|after| SystemTime::now() + after);
        let dead = self.dead_container.as_deref();
        let marked = sweep::set_expiry(&self.blob, end, dead, &store::environment()).await?;
        // The query may contain a signature.
        let blob = self.blob.split('?').next().unwrap_or_default();
        let line = match &marked {
            Some(end) => format!("{blob}: time to live ends at {end}"),
            None => format!("{blob}: no time to live"),
        };
        let format = self.output.format;
        // As written to the metadata; null if it was removed.
        format.next(&json!({ "blob": blob, "time_to_live": marked }), line)?;
        Ok(Exit::OK)
    }
}

async fn dry_run(sweeper: &Sweeper, format: Format) -> anyhow::Result<Exit> {
    let mut written = Ok(());
    let planned = sweeper.dry_run(|blob| {
        if written.is_ok() {
            written = print_planned(&blob, format);
        }
    });
    let counts = planned.await?;
    written?;
    output::note(format_args!(
        "would check {}, delete {}, move {}, leave {}",
        counts.seen, counts.deleted, counts.moved, counts.left
    ));
    if counts.failed > 0 {
        let failed = output::count(counts.failed, "container");
        return Err(Failed(format!("{failed} could not be listed")).into());
    }
    Ok(Exit::OK)
}

const COLUMNS: &str = "round seen unmarked alive deleted moved changed left failed finished";

fn row(round: &SweepRound) -> Value {
    let mut row = json!(round.done);
    row["round"] = round.round.into();
    row["pages"] = round.pages.into();
    row["finished"] = round.finished.into();
    row["of_all"] = json!(round.of_all);
    row
}

fn line(round: &SweepRound) -> String {
    let counts = round.done.named();
    let counts = counts.map(|(name, count)| format!("{name} {count}"));
    format!("round {}: {}", round.round, counts.join(", "))
}

fn print_planned(planned: &PlannedBlob, format: Format) -> std::io::Result<()> {
    let (action, detail) = (planned.action, &planned.detail);
    let (container, blob) = (&planned.container, &planned.blob);
    let line = match action {
        "delete" => format!("delete {container}/{blob}"),
        "move" => format!("move {container}/{blob} to {detail}"),
        _ => format!("leave {container}/{blob}: {detail}"),
    };
    let row = json!({ "action": action, "container": container, "blob": blob, "detail": detail });
    format.next(&row, line)
}
