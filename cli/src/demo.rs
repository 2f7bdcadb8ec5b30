//! `reveille demo`: the billing case on one machine, in real processes on free loopback ports.
//!
//! The demo starts a relay and a fleet of parked listeners, and releases them. The idle fleet has
//! zero dequeue tasks. A batch of transactions is split, put, rated and added up to the cent. Then
//! the fleet is at zero again. A fleet of as many polling listeners does the same work, and a table
//! compares the costs. With the console, the woken fleet then works on until Ctrl-C. With `--agents`
//! three agents do the work instead, and start worker processes for it. The demo leaves no process and
//! no file behind.

mod agents;
mod billing;
mod courier;
mod figures;
mod fleet;
mod fleet_run;
mod home;
mod progress;
mod protocol;
mod script;
mod worker;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

/// Run a billing example on one machine, with woken and with polling listeners.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  reveille demo\n  reveille demo --console\n  \
                  reveille demo --listeners 12 -o json\n  reveille demo --agents\n  \
                  reveille demo courier"
)]
pub(crate) struct DemoArgs {
    /// Number of listeners of each of the two fleets; each is a separate process.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=25))]
    listeners: u16,
    /// Print the figures as JSON.
    #[arg(short, long, default_value = "table", value_parser = ["table", "json"])]
    output: String,
    /// Show the relay's console, and go on with one batch after another until Ctrl-C.
    #[arg(long)]
    console: bool,
    /// Three agents start workers for the same work; no worker runs while there is none.
    #[arg(long, conflicts_with_all = ["listeners", "console"])]
    agents: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

/// Another demo, and the verbs of the demos' child processes.
#[derive(Debug, Subcommand)]
enum Part {
    Courier(courier::CourierArgs),
    /// One machine of the demo of the courier.
    #[command(hide = true)]
    CourierMachine(courier::machine::MachineArgs),
    /// The relay.
    #[command(hide = true)]
    Relay {
        #[arg(long)]
        store: String,
        /// With the console.
        #[arg(long)]
        console: bool,
    },
    /// One listener of a fleet, or one worker of an agent.
    #[command(hide = true)]
    Worker(WorkerArgs),
}

/// The arguments of a listener's or a worker's process.
#[derive(Debug, Args)]
struct WorkerArgs {
    #[arg(long)]
    relay: String,
    /// The directory of the queues.
    #[arg(long)]
    home: PathBuf,
    #[arg(long)]
    id: String,
    #[arg(long)]
    mode: Mode,
}

/// How a fleet finds work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    /// The relay wakes the listeners.
    Pushed,
    /// The listeners poll their queue once a second.
    Polling,
    /// The relay wakes agents, which start workers.
    Agents,
}

/// The flag that all listeners are parked on.
const FLAG: &str = "demo-start";

/// Runs the demo, or one of its child processes.
pub(crate) async fn run(args: DemoArgs) -> anyhow::Result<()> {
    let json = args.output == "json";
    match args.part {
        None if args.agents => agents::run(json).await,
        None => script::run(args.listeners, json, args.console).await,
        Some(Part::Courier(courier)) => courier::run(courier, json).await,
        Some(Part::CourierMachine(machine)) => courier::machine::run(machine).await,
        Some(Part::Relay { store, console }) => protocol::serve_relay(&store, console).await,
        Some(Part::Worker(args)) => worker::run(args).await,
    }
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Pushed => "pushed",
            Self::Polling => "polling",
            Self::Agents => "agents",
        }
    }
}
