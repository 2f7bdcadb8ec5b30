//! `reveille demo`: the whole story on one machine, in real processes on free loopback ports.
//!
//! A relay, a fleet of parked listeners, notifications that wake them, a listener that was cut off
//! and catches up, an unleash with a late starter; then a table of what was measured. Leaves
//! nothing running and nothing on disk.

mod child;
mod fleet;
mod proxy;
mod stage;
mod story;

use clap::{Args, Subcommand};

/// The whole story on one machine: a relay, a parked fleet, wake-ups, a cut, an unleash.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  reveille demo\n  reveille demo --listeners 20")]
pub(crate) struct DemoArgs {
    /// Listeners in the fleet, each a process of its own.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(2..=50))]
    listeners: u16,
    /// Print the table as JSON.
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
    /// One listener of the fleet.
    #[command(hide = true)]
    Listener {
        #[arg(long)]
        relay: String,
        #[arg(long)]
        id: String,
    },
}

/// The queue that the fleet listens on, and the flag that it is parked on.
const QUEUE: &str = "demo/orders";
const FLAG: &str = "demo-start";

/// Tells the story, or plays one part in it.
pub(crate) async fn run(args: DemoArgs) -> anyhow::Result<()> {
    match args.part {
        None => story::tell(args.listeners, args.output == "json").await,
        Some(Part::Relay { store }) => child::relay(&store).await,
        Some(Part::Listener { relay, id }) => child::listener(&relay, &id).await,
    }
}
