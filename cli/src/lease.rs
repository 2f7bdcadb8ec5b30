//! `lease run`, `lease show`: one lease holder at a time, among any number of processes.

mod run;
mod show;

use clap::Subcommand;
use reveille::{
    lease::{Lease, LeaseConfig},
    store,
};

use super::{exit::Exit, log, signals::Interrupts, store::StoreArgs};

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
    Show(show::Args),
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
        let chosen = self.store.resolve()?;
        chosen.announce();
        let store = store::open(&chosen.url).await?;
        Ok(Lease::new(store, &self.name, config)?)
    }

    /// Opens the lease for reading. Creates no file.
    async fn open_existing(&self) -> anyhow::Result<Lease> {
        let chosen = self.store.resolve()?;
        chosen.announce();
        let store = store::open_existing(&chosen.url).await?;
        Ok(Lease::new(store, &self.name, LeaseConfig::default())?)
    }
}
