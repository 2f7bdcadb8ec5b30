//! The `reveille` program.

mod cli;

use std::process::ExitCode;

use clap::Parser;

/// Wakes queue workers the instant there is work.
#[derive(Debug, Parser)]
#[command(name = "reveille", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Measure a relay: a burst, single wake-ups, a whole fleet's wake-up, and idleness.
    Bench(cli::bench::BenchArgs),
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    match Cli::parse().verb {
        Verb::Bench(args) => cli::bench::run(args).await,
    }
}
