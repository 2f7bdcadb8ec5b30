//! `reveille-bench BENCHMARK`: measures the cost and latency of a relay (also with very many queues
//! and subscriptions), of a cluster of relays, of queues, listeners, ids, sweeping, of store and
//! forward, and the release of a parked fleet.
//!
//! The relay, its subscribers and the publisher are three processes, so that processor time is
//! measured for each. With `--peer` the same benchmark runs on a nats-server or a redis-server as
//! well, in alternating runs. The report has the figures of each run, then the medians. The bench
//! uses the library's public API only. The exception is one page of a list, for which it uses the
//! protocol.

mod args;
mod broker;
mod budget;
mod child;
mod cluster;
mod courier;
mod delivery_counter;
mod directory;
mod drain;
mod each;
mod ids;
mod listen;
mod metrics;
mod nats;
mod notify;
mod peers;
mod progress;
mod queue;
mod raw;
mod raw_line;
mod raw_nats;
mod raw_redis;
mod report;
mod scale;
mod security;
mod sender;
mod single_queue;
mod subscriber_process;
mod subscribers;
mod sweep;
mod unary;
mod unleash;
mod usage;
mod wall_nanos;

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _};

use self::{
    args::{Benchmark, Cli, Helper, Relayed, Runs, Server, Servers, Single, Verb},
    broker::Broker,
    progress::Progress,
    report::{Figures, Report},
};

#[tokio::main]
async fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::ERROR)
        .with_writer(std::io::stderr)
        .init();
    let ended = tokio::select! {
        ended = run(cli, full_name(&matches)) => ended,
        // Ends the work in order, so that its temporary files are deleted.
        signal = tokio::signal::ctrl_c() => signal.context("interrupted"),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the name of the benchmark, with its part if it has parts.
fn full_name(matches: &ArgMatches) -> String {
    let Some((name, below)) = matches.subcommand() else {
        return String::new();
    };
    let part = full_name(below);
    let names = [name, &part];
    names[..if part.is_empty() { 1 } else { 2 }].join(" ")
}

async fn run(cli: Cli, name: String) -> Result<()> {
    match cli.verb {
        Verb::Helper(helper) => helper.run().await?,
        // On a worker thread of the runtime, as publishers usually are: from another thread, each
        // notification would first have to wake a worker thread.
        Verb::Benchmark(benchmark) => {
            tokio::spawn(async move { benchmark.measure(&name, cli.runs).await }).await??;
        }
    }
    Ok(())
}

impl Benchmark {
    /// Runs the benchmark `--runs` times on each server in turn, and prints the report.
    async fn measure(&self, name: &str, Runs { runs, output }: Runs) -> Result<()> {
        let (relay, servers) = match self {
            Self::Relayed(benchmark) => benchmark.servers(),
            Self::Single(_) => (None, Servers::default().all()),
            Self::Courier(args) => (None, args.servers()),
            Self::Cluster(args) => (None, args.servers()),
        };
        ensure!(
            relay.is_none() || servers.len() == 1,
            "--peer measures servers of this machine: omit --relay"
        );
        match self {
            Self::Cluster(args) => drop(args.nats_server()?),
            _ => servers
                .iter()
                .try_for_each(|server| broker::check_installed(*server))?,
        }
        let progress = Progress::new(name, runs as usize * servers.len());
        let mut report = Report::new(name);
        for run in 1..=runs {
            for server in &servers {
                progress.begin(&format!("run {run} of {runs}, {server}"));
                report.add(*server, self.once(*server, relay, &progress).await?);
                progress.done();
            }
        }
        progress.finish();
        report.print(output);
        Ok(())
    }

    async fn once(
        &self,
        server: Server,
        relay: Option<&str>,
        progress: &Progress,
    ) -> Result<Figures> {
        match self {
            Self::Relayed(benchmark) => {
                let broker = Broker::start(server, relay).await?;
                let figures = benchmark.once(&broker, progress).await?;
                broker.stop().await;
                Ok(figures)
            }
            Self::Single(benchmark) => benchmark.once(progress).await,
            Self::Courier(args) => courier::once(args, server, progress).await,
            Self::Cluster(args) => cluster::once(args, server, progress).await,
        }
    }
}

impl Relayed {
    /// Returns the relay of `--relay`, and the servers to measure.
    fn servers(&self) -> (Option<&str>, Vec<Server>) {
        let servers = match self {
            Self::Burst(args) => &args.servers,
            Self::Wake(args) => &args.servers,
            Self::WakeAll(args) => &args.servers,
            Self::Each(args) => &args.servers,
            Self::Idle(args) => &args.servers,
            Self::Notify(args) => return (None, args.servers()),
        };
        (servers.relay.as_deref(), servers.all())
    }

    async fn once(&self, broker: &Broker, progress: &Progress) -> Result<Figures> {
        match self {
            Self::Burst(args) => single_queue::burst(args, broker, progress).await,
            Self::Wake(args) => single_queue::wake(args, broker, progress).await,
            Self::WakeAll(args) => single_queue::wake_all(args, broker, progress).await,
            Self::Each(args) => each::each(args, broker, progress).await,
            Self::Idle(args) => single_queue::idle(args, broker, progress).await,
            Self::Notify(args) => notify::notify(args, broker, progress).await,
        }
    }
}

impl Single {
    async fn once(&self, progress: &Progress) -> Result<Figures> {
        match self {
            Self::Scale(args) => scale::once(args, progress).await,
            Self::Queue(args) => queue::once(args, progress).await,
            Self::Listen(args) => listen::once(args, progress).await,
            Self::Drain(args) => drain::once(args, progress).await,
            Self::Budget(args) => budget::once(args, progress).await,
            Self::Ids(args) => ids::once(args, progress).await,
            Self::Sweep(args) => sweep::once(args, progress).await,
            Self::Unleash(args) => unleash::once(args, progress).await,
        }
    }
}

impl Helper {
    async fn run(&self) -> Result<()> {
        match self {
            Self::Relay(args) => broker::serve_relay(args).await,
            Self::QueueHost(args) => courier::queue_manager::serve(args).await,
            Self::Nats(args) => peers::serve_nats(args).await,
            Self::Redis => peers::serve_redis().await,
            Self::Subscribers(args) => subscribers::run(args).await,
            Self::Parked(args) => unleash::run(args).await,
            Self::Subscriptions(args) => scale::subscriptions::run(args).await,
            Self::Wildcard(args) => scale::wildcard::run(args).await,
        }
    }
}
