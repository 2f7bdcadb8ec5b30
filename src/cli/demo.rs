//! `reveille demo`: the billing case on one machine, in real processes on free loopback ports.
//!
//! A relay, a fleet of listeners that is parked, released, and stands at zero dequeue tasks; a batch
//! of transactions that is split, put, rated and added up to the cent; back to zero. Beside it the
//! same work by as many pollers; then what both of them cost. Leaves nothing running and nothing on
//! disk.

mod billing;
mod child;
mod figures;
mod fleet;
mod side;
mod stage;
mod story;
mod worker;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

/// The billing case on one machine: a fleet at zero, a batch, exact totals; beside it, polling.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  reveille demo\n  reveille demo --listeners 12 -o json")]
pub(crate) struct DemoArgs {
    /// Listeners of each of the two fleets, each a process of its own.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=25))]
    listeners: u16,
    /// Print the figures as JSON.
    #[arg(short, long, default_value = "table", value_parser = ["table", "json"])]
    output: String,
    #[command(subcommand)]
    part: Option<Part>,
}

/// What the demo's own processes run.
#[derive(Debug, Subcommand)]
enum Part {
    /// The relay.
    #[command(hide = true)]
    Relay {
        #[arg(long)]
        store: String,
    },
    /// One listener of a fleet.
    #[command(hide = true)]
    Worker(WorkerArgs),
}

/// What a listener's process is told.
#[derive(Debug, Args)]
struct WorkerArgs {
    #[arg(long)]
    relay: String,
    /// Where the queues are.
    #[arg(long)]
    home: PathBuf,
    #[arg(long)]
    id: String,
    #[arg(long)]
    way: Way,
}

/// How a fleet hears of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Way {
    /// The relay tells it.
    Pushed,
    /// It looks once a second.
    Polling,
}

/// The flag that all listeners are parked on.
const FLAG: &str = "demo-start";

/// Tells the story, or plays one part in it.
pub(crate) async fn run(args: DemoArgs) -> anyhow::Result<()> {
    match args.part {
        None => story::tell(args.listeners, args.output == "json").await,
        Some(Part::Relay { store }) => child::relay(&store).await,
        Some(Part::Worker(args)) => worker::run(args).await,
    }
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Pushed => "pushed",
            Self::Polling => "polling",
        }
    }
}
