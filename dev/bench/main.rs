//! `reveille-bench BENCHMARK`: measures what a user asks before choosing a relay. How fast is a
//! wake-up, what does an idle subscriber cost, how long is it from a put to the handler?
//!
//! The relay, its subscribers and the publisher are three processes, so that processor time is
//! measured for each. With `--peer` the same benchmark runs on a nats-server or a redis-server as
//! well, in alternating runs. The report has the figures of each run, then the medians. The bench
//! uses the library's public API only. The exception are requests whose notifications must not be
//! conflated (`raw`), for which it uses the protocol.

mod broker;
mod child;
mod cluster;
mod courier;
mod delivery_counter;
mod each;
mod job;
mod latencies;
#[allow(dead_code, reason = "the library's own tests use more of it")]
#[path = "../../tests/it/support/metered.rs"]
mod metered;
mod metrics;
mod notify;
mod peers;
mod queue;
mod raw;
mod report;
mod scale;
mod security;
mod sender;
mod server;
mod single_queue;
mod subscriber_process;
mod subscribers;
mod usage;

use std::{fmt::Display, process::ExitCode, sync::Arc};

use anyhow::{Result, bail};
use clap::{ArgMatches, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use self::{
    broker::Broker,
    report::{Figures, Format, Report},
    server::Server,
};

/// Measures the cost and latency of relays, queues and listeners, and compares relays with
/// nats-server and Redis.
#[derive(Debug, Parser)]
#[command(
    name = "reveille-bench",
    version,
    after_help = "Example:\n  reveille-bench burst --runs 5 --peer nats",
    max_term_width = 100
)]
struct Cli {
    #[command(flatten)]
    runs: Runs,
    #[command(subcommand)]
    verb: Verb,
}

/// The number of runs, and the output format.
#[derive(Debug, Clone, Copy, Args)]
struct Runs {
    /// Number of runs; the report adds their medians.
    #[arg(long, global = true, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// The output format.
    #[arg(long, short, global = true, value_enum, default_value_t)]
    output: Format,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Throughput of many notifications at once, each delivered to all subscribers.
    Burst(single_queue::BurstArgs),
    /// Latency of one notification at a time to one subscriber.
    Wake(single_queue::WakeArgs),
    /// Latency of one notification to a whole fleet, until the last subscriber is awake.
    WakeAll(single_queue::WakeAllArgs),
    /// Throughput of notifications of many queues at once, to subscribers of all queues.
    Each(each::EachArgs),
    /// Processor time of requests with one notification, unary and on a stream.
    Notify(notify::NotifyArgs),
    /// Memory of idle subscribers.
    Idle(single_queue::IdleArgs),
    /// Latency from the put of a job to its handler in a listener, pushed and polling.
    Job(job::JobArgs),
    /// Throughput of a work queue without a relay: put in batches, then get, handle and delete.
    Queue(queue::QueueArgs),
    /// Memory and latency with very many queues, patterns and subscriptions.
    Scale(scale::ScaleArgs),
    /// Durable sends, and the hand-over of messages between two machines.
    Courier(courier::CourierArgs),
    /// Three relays in a cluster, next to one relay and to nats-server.
    Cluster(cluster::ClusterArgs),
    /// A relay for one run.
    #[command(hide = true)]
    Relay(broker::RelayArgs),
    /// The subscribers of one run.
    #[command(hide = true)]
    Subscribers(subscribers::SubscribersArgs),
    /// The host of a queue file, with a relay.
    #[command(hide = true)]
    QueueHost(courier::QueueHostArgs),
    /// The subscriptions of `scale`.
    #[command(hide = true)]
    Subscriptions(scale::SubscriptionsArgs),
}

/// A benchmark with its arguments.
trait Benchmark: Send + Sync + 'static {
    /// Returns the servers to measure in turn, the plain relay first.
    fn servers(&self) -> Vec<Server> {
        vec![Server::RELAY]
    }

    /// Runs the benchmark once.
    fn run(&self, server: Server) -> impl Future<Output = Result<Figures>> + Send;
}

/// The servers of a benchmark.
#[derive(Debug, Clone, Default, Args)]
struct Servers {
    /// Measure this relay instead of starting one. Its processor time and memory are unknown then.
    /// For TLS and a token: REVEILLE_CA, REVEILLE_CERT, REVEILLE_KEY, REVEILLE_TOKEN_FILE.
    #[arg(long, value_name = "URL", conflicts_with = "peer")]
    relay: Option<String>,
    /// Run the same benchmark on another server, or on a protected relay, in turn with the plain
    /// relay; may be repeated.
    #[arg(long, value_name = "SERVER")]
    peer: Vec<Server>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::ERROR)
        .with_writer(std::io::stderr)
        .init();
    let ended = tokio::select! {
        ended = cli.verb.run(cli.runs, full_name(&matches)) => ended,
        // Ends the work in order, so that its processes and temporary files go with it.
        ended = interrupted() => ended,
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn interrupted() -> Result<()> {
    tokio::signal::ctrl_c().await?;
    bail!("interrupted")
}

/// Returns the name of the benchmark, with its part if it has parts.
fn full_name(matches: &ArgMatches) -> String {
    let Some((name, below)) = matches.subcommand() else {
        return String::new();
    };
    format!("{name} {}", full_name(below)).trim_end().to_owned()
}

impl Verb {
    async fn run(self, runs: Runs, name: String) -> Result<()> {
        match self {
            Self::Burst(args) => measure(args, runs, name).await,
            Self::Wake(args) => measure(args, runs, name).await,
            Self::WakeAll(args) => measure(args, runs, name).await,
            Self::Each(args) => measure(args, runs, name).await,
            Self::Notify(args) => measure(args, runs, name).await,
            Self::Idle(args) => measure(args, runs, name).await,
            Self::Job(args) => measure(args, runs, name).await,
            Self::Queue(args) => measure(args, runs, name).await,
            Self::Scale(args) => measure(args, runs, name).await,
            Self::Courier(args) => measure(args, runs, name).await,
            Self::Cluster(args) => measure(args, runs, name).await,
            Self::Relay(args) => broker::serve_relay(&args).await,
            Self::Subscribers(args) => subscribers::run(&args).await,
            Self::QueueHost(args) => courier::serve_host(&args).await,
            Self::Subscriptions(args) => scale::run_subscriptions(&args).await,
        }
    }
}

/// Runs the benchmark `--runs` times on each server in turn, and prints the report.
async fn measure(benchmark: impl Benchmark, runs: Runs, name: String) -> Result<()> {
    let servers = benchmark.servers();
    for server in &servers {
        server.check_installed()?;
    }
    let benchmark = Arc::new(benchmark);
    let mut report = Report::new(&name);
    for run in 1..=runs.runs {
        for server in servers.iter().copied() {
            eprintln!("{name}: run {run} of {}, {server}", runs.runs);
            // On a worker thread of the runtime, as publishers usually are: from another thread,
            // each notification would first have to wake a worker thread.
            let benchmark = Arc::clone(&benchmark);
            let once = tokio::spawn(async move { benchmark.run(server).await });
            report.add(server, once.await??);
        }
    }
    report.print(runs.output);
    Ok(())
}

/// Shows the next step of a run.
fn step(step: impl Display) {
    eprintln!("  {step}");
}

impl Servers {
    /// Returns the servers to measure, the relay first, each once.
    fn all(&self) -> Vec<Server> {
        let mut servers = vec![Server::RELAY];
        for server in &self.peer {
            if !servers.contains(server) {
                servers.push(*server);
            }
        }
        servers
    }

    /// Starts a server, or uses the relay of `--relay`.
    async fn start(&self, server: Server) -> Result<Broker> {
        match &self.relay {
            Some(relay) => Broker::given(relay).await,
            None => Broker::start(server).await,
        }
    }
}

fn positive() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_benchmark_has_an_example_and_reads_no_environment() {
        let command = Cli::command();
        command.clone().debug_assert();
        let benchmarks: Vec<_> = command
            .get_subcommands()
            .filter(|verb| !verb.is_hide_set())
            .collect();
        let parts = benchmarks.iter().flat_map(|verb| verb.get_subcommands());
        let verbs: Vec<_> = benchmarks.iter().copied().chain(parts).collect();
        assert_eq!(verbs.len(), 14);
        for verb in verbs.into_iter().chain([&command]) {
            let help = verb.clone().render_long_help().to_string();
            assert!(help.contains("Example:\n  reveille-bench "), "{help}");
            for argument in verb.get_arguments() {
                let id = argument.get_id();
                assert_eq!(argument.get_env(), None, "{} {id}", verb.get_name());
            }
        }
    }

    #[test]
    fn peers_may_be_repeated_and_each_server_is_measured_once() {
        let typed = "reveille-bench each --peer redis --peer jwt --peer redis --peer tls-token";
        let cli = Cli::try_parse_from(typed.split(' ')).expect("parsed");
        let Verb::Each(args) = cli.verb else {
            panic!("not each: {:?}", cli.verb);
        };
        let servers = args
            .servers()
            .iter()
            .map(Server::to_string)
            .collect::<Vec<_>>();
        assert_eq!(servers, ["reveille", "redis", "jwt", "tls-token"]);
    }
}
