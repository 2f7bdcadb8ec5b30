//! `lease run`, `lease show`: one lease holder at a time, among any number of processes.

mod run;

use std::time::SystemTime;

use clap::Subcommand;
use reveille::{
    Error, ErrorKind,
    lease::{Lease, LeaseConfig, LeaseState},
    store,
};
use serde::Serialize;

use super::{
    exit::Exit,
    log,
    output::{self, OutputArgs, Row},
    signals::Interrupts,
    store::StoreArgs,
};

/// Let one process at a time run a command
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille lease run billing --store sqlite:/srv/shared.db -- ./bill
  reveille lease show billing --store sqlite:/srv/shared.db")]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Run(run::Args),
    Show(Show),
}

/// Show the holder of a lease, or its last holder
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille lease show billing --store az://leases
  reveille lease show billing --store sqlite:/srv/shared.db -o json

AGE is the time since the lease was last acquired, renewed or released. A held lease that is older \
than its duration has lost its holder: the next waiting process acquires it soon. Ends with 5 if the \
lease was never held.")]
struct Show {
    #[command(flatten)]
    named: Named,
    #[command(flatten)]
    output: OutputArgs,
}

/// A lease as a row.
#[derive(Debug, Serialize)]
struct LeaseRow {
    lease: String,
    held: bool,
    token: u64,
    holder: String,
    duration_ms: u64,
    #[serde(serialize_with = "output::serialize_time")]
    written_at: Option<SystemTime>,
    age_ms: u64,
    state: &'static str,
}

/// A lease's name and store.
#[derive(Debug, clap::Args)]
struct Named {
    /// The name of the lease
    name: String,
    #[command(flatten)]
    store: StoreArgs,
}

/// Logs failures of the store, and nothing else of the library.
const LOG: &str = "error,reveille::coordination::lease=warn";

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        log::to_stderr(LOG);
        let mut interrupts = Interrupts::listen()?;
        match self.verb {
            Verb::Run(args) => args.run(&mut interrupts).await,
            Verb::Show(args) => tokio::select! {
                outcome = args.run() => outcome,
                signal = interrupts.next() => Ok(signal.exit()),
            },
        }
    }
}

impl Named {
    /// Opens the lease, and creates a missing store file.
    async fn open(&self, config: LeaseConfig) -> anyhow::Result<Lease> {
        let url = self.store.resolve()?;
        let store = store::open(&url).await?;
        Ok(Lease::new(store, &self.name, config)?)
    }

    /// Opens the lease for reading. Creates no file.
    async fn open_existing(&self) -> anyhow::Result<Lease> {
        let url = self.store.resolve()?;
        let store = store::open_existing(&url).await?;
        Ok(Lease::new(store, &self.name, LeaseConfig::default())?)
    }
}

impl Show {
    async fn run(self) -> anyhow::Result<Exit> {
        let lease = self.named.open_existing().await?;
        let Some(state) = lease.state().await? else {
            let message = format!("{lease} was never held");
            return Err(Error::new(ErrorKind::NotFound, message).into());
        };
        let format = self.output.format;
        format.one(&LeaseRow::new(lease.name(), state, SystemTime::now()))?;
        Ok(Exit::OK)
    }
}

impl LeaseRow {
    fn new(name: &str, state: LeaseState, now: SystemTime) -> Self {
        // The store's clock may be ahead of this machine's: the age is 0 then.
        let age = now.duration_since(state.written).unwrap_or_default();
        let shown = match state.held {
            true if age <= state.duration => "held",
            // Its holder has not renewed it for its duration: the next contender has it.
            true => "expired",
            false => "released",
        };
        Self {
            lease: name.to_owned(),
            held: state.held,
            state: shown,
            token: state.token,
            holder: state.holder,
            duration_ms: output::millis(state.duration),
            written_at: Some(state.written),
            age_ms: output::millis(age),
        }
    }
}

impl Row for LeaseRow {
    const COLUMNS: &'static [&'static str] =
        &["lease", "state", "token", "holder", "duration_ms", "age_ms"];
}
