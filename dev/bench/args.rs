//! The arguments of `reveille-bench`.

mod child;
mod cluster;
mod courier;
mod no_peers;
mod server;

use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use reveille::duration;

use crate::report::Format;

pub(super) use self::{
    child::{
        NatsArgs, ParkedArgs, QueueHostArgs, RelayArgs, SubscribersArgs, SubscriptionsArgs,
        WildcardArgs,
    },
    cluster::{
        ClusterArgs, ClusterBurstArgs, ClusterGroupArgs, ClusterIdleArgs, ClusterKillsArgs,
        ClusterNotifyArgs, ClusterPart, ClusterRestartsArgs, ClusterSentinelArgs, ClusterWakeArgs,
    },
    courier::CourierArgs,
    no_peers::{
        BudgetArgs, DrainArgs, IdsArgs, ListenArgs, QueueArgs, QueueTarget, SweepArgs, UnleashArgs,
    },
    server::{CredentialKind, Protection, Server},
};

/// Measures the cost and latency of relays, queues, listeners, ids and sweeping, and compares
/// relays with nats-server and Redis, and store and forward with RabbitMQ.
#[derive(Debug, Parser)]
#[command(
    name = "reveille-bench",
    version,
    after_help = "Example:\n  reveille-bench burst --runs 5 --peer nats",
    max_term_width = 100
)]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) runs: Runs,
    #[command(subcommand)]
    pub(super) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    #[command(flatten)]
    Benchmark(Benchmark),
    #[command(flatten)]
    Helper(Helper),
}

#[derive(Debug, Subcommand)]
pub(super) enum Benchmark {
    #[command(flatten)]
    Relayed(Relayed),
    #[command(flatten)]
    Single(Single),
    /// Durable sends, and the hand-over of messages between two machines.
    Courier(CourierArgs),
    /// Three relays in a cluster, next to one relay and to nats-server.
    Cluster(ClusterArgs),
}

/// The benchmarks of a relay or of a peer.
#[derive(Debug, Subcommand)]
pub(super) enum Relayed {
    /// Throughput of many notifications at once, each delivered to all subscribers.
    Burst(BurstArgs),
    /// Latency of one notification at a time to one subscriber.
    Wake(WakeArgs),
    /// Latency of one notification to a whole fleet, until the last subscriber is awake.
    WakeAll(WakeAllArgs),
    /// Throughput of notifications of many queues at once, to subscribers of all queues.
    Each(EachArgs),
    /// Processor time of requests with one notification, unary and on a stream.
    Notify(NotifyArgs),
    /// Memory of idle subscribers.
    Idle(IdleArgs),
}

/// The benchmarks without peers.
#[derive(Debug, Subcommand)]
pub(super) enum Single {
    /// Latency of one queue's notifications with many queues, patterns and subscriptions.
    Scale(ScaleArgs),
    /// Throughput of a work queue without a relay: put in batches, then get, handle and delete.
    Queue(QueueArgs),
    /// Latency from put to handler in a listener, pushed and polling.
    Listen(ListenArgs),
    /// Throughput and memory of one listener with very many messages.
    Drain(DrainArgs),
    /// Cost of a message with very many queues whose listeners share a budget of tasks.
    Budget(BudgetArgs),
    /// Throughput and writes of one generator of unique ids.
    Ids(IdsArgs),
    /// Throughput and requests of sweepers that share a container of expired blobs.
    Sweep(SweepArgs),
    /// Latency of the release of a parked fleet, through a relay and by polling.
    Unleash(UnleashArgs),
}

/// The child processes of a benchmark.
#[derive(Debug, Subcommand)]
pub(super) enum Helper {
    /// A relay for one run.
    #[command(hide = true)]
    Relay(RelayArgs),
    /// The host of a queue file, with a relay.
    #[command(hide = true)]
    QueueHost(QueueHostArgs),
    /// A nats-server for one run.
    #[command(hide = true)]
    Nats(NatsArgs),
    /// A redis-server for one run.
    #[command(hide = true)]
    Redis,
    /// The subscribers of one run.
    #[command(hide = true)]
    Subscribers(SubscribersArgs),
    /// The parked nodes of one run.
    #[command(hide = true)]
    Parked(ParkedArgs),
    /// The pattern and exact subscriptions of `scale`.
    #[command(hide = true)]
    Subscriptions(SubscriptionsArgs),
    /// The `*/*` subscription of `scale`.
    #[command(hide = true)]
    Wildcard(WildcardArgs),
}

/// The number of runs, and the output format.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Runs {
    /// Number of runs; the report adds their medians.
    #[arg(long, global = true, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) runs: u32,
    /// The output format.
    #[arg(long, short, global = true, value_enum, default_value_t)]
    pub(super) output: Format,
}

/// The servers of a benchmark.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct Servers {
    /// Measure this relay instead of starting one. Its processor time and memory are unknown then.
    /// For TLS and a token: REVEILLE_CA, REVEILLE_CERT, REVEILLE_KEY, REVEILLE_TOKEN_FILE.
    /// REVEILLE_RELAY is ignored, so that a bench never loads a relay by accident.
    #[arg(long, value_name = "URL")]
    pub(super) relay: Option<String>,
    /// Run the same benchmark on another server, or on a protected relay, in turn with the plain
    /// relay; may be repeated.
    #[arg(long, value_name = "SERVER")]
    pub(super) peer: Vec<Server>,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench burst --peer nats")]
pub(super) struct BurstArgs {
    /// Number of notifications.
    #[arg(long, default_value_t = 200_000, value_parser = positive())]
    pub(super) notifications: u64,
    /// Number of subscribers, each on a separate connection.
    #[arg(long, default_value_t = 100, value_parser = positive())]
    pub(super) subscribers: u64,
    /// Number of notifications of one request.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) batch: u16,
    #[command(flatten)]
    pub(super) servers: Servers,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench wake --notifications 1000")]
pub(super) struct WakeArgs {
    /// Number of measured notifications.
    #[arg(long, default_value_t = 5_000, value_parser = positive())]
    pub(super) notifications: u64,
    /// Number of notifications before them, which are not measured.
    #[arg(long, default_value_t = 500, value_parser = positive())]
    pub(super) warm_up: u64,
    /// Pause before each notification; timers round it up to the next millisecond.
    #[arg(long, default_value = "500us", value_parser = duration::parse)]
    pub(super) pause: Duration,
    #[command(flatten)]
    pub(super) servers: Servers,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench wake-all --subscribers 1000 --rounds 20")]
pub(super) struct WakeAllArgs {
    /// Number of subscribers, each on a separate connection.
    #[arg(long, default_value_t = 4_000, value_parser = positive())]
    pub(super) subscribers: u64,
    /// Number of notifications, each of which wakes all subscribers.
    #[arg(long, default_value_t = 10, value_parser = positive())]
    pub(super) rounds: u64,
    #[command(flatten)]
    pub(super) servers: Servers,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench each --peer nats --peer redis")]
pub(super) struct EachArgs {
    /// Number of queues; each request has one event for each of them.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) queues: u16,
    /// Number of subscribers to all queues, each on a separate connection.
    #[arg(long, default_value_t = 100, value_parser = positive())]
    pub(super) subscribers: u64,
    /// Number of events in each of the two modes, rounded up to whole requests.
    #[arg(long, default_value_t = 100_000, value_parser = positive())]
    pub(super) events: u64,
    #[command(flatten)]
    pub(super) servers: Servers,
}

#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Example:\n  reveille-bench notify --peer token --peer jwt --peer tls-token"
)]
pub(super) struct NotifyArgs {
    /// Number of measured unary notifications.
    #[arg(long, default_value_t = 200_000, value_parser = positive())]
    pub(super) notifications: u64,
    /// Number of measured notifications on the stream, each of which takes less time.
    #[arg(long, default_value_t = 1_000_000, value_parser = positive())]
    pub(super) streamed: u64,
    /// Number of notifications before them in each mode, which are not measured.
    #[arg(long, default_value_t = 2_000, value_parser = positive())]
    pub(super) warm_up: u64,
    /// Number of subscribers, each on a separate connection.
    #[arg(long, default_value_t = 1, value_parser = positive())]
    pub(super) subscribers: u64,
    /// Run the same benchmark on a protected relay, in turn with the plain one; may be repeated.
    #[arg(long, value_name = "SERVER", value_parser = server::protected_relay())]
    pub(super) peer: Vec<Server>,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example:
  reveille-bench scale --queues 1000000 --patterns 10000 --subscriptions 100000 --runs 1")]
pub(super) struct ScaleArgs {
    /// Number of queues that the relay has in memory.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=9_000_000))]
    pub(super) queues: u32,
    /// Number of pattern subscriptions, each with a different pattern.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) patterns: u32,
    /// Number of subscriptions to one of the queues.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) subscriptions: u32,
    /// Number of subscriptions on one connection.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) per_connection: u32,
    /// Duration of each idle or open-ended phase.
    #[arg(long, default_value = "5s", value_parser = duration::parse)]
    pub(super) hold: Duration,
    /// The relay's --sentinel; 0 turns it off [default: the relay's default].
    #[arg(long, value_parser = duration::parse)]
    pub(super) sentinel: Option<Duration>,
    /// Interval of the notifications of the measured queue; timers round it up to the next
    /// millisecond.
    #[arg(long, default_value = "2ms", value_parser = duration::parse)]
    pub(super) pause: Duration,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench idle --subscribers 100000 --per-connection 100")]
pub(super) struct IdleArgs {
    /// Number of subscribers.
    #[arg(long, default_value_t = 8_000, value_parser = positive())]
    pub(super) subscribers: u64,
    /// Number of subscribers on one connection; a client has at most 256 streams on a connection.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=256))]
    pub(super) per_connection: u64,
    /// How long the subscribers stay connected.
    #[arg(long, default_value = "5s", value_parser = duration::parse)]
    pub(super) hold: Duration,
    #[command(flatten)]
    pub(super) servers: Servers,
}

impl Servers {
    /// Returns the servers to measure, the relay first, each once.
    pub(super) fn all(&self) -> Vec<Server> {
        with_relay(&self.peer)
    }
}

impl NotifyArgs {
    /// Returns the servers to measure, the relay first, each once.
    pub(super) fn servers(&self) -> Vec<Server> {
        with_relay(&self.peer)
    }
}

fn with_relay(peers: &[Server]) -> Vec<Server> {
    let mut servers = vec![Server::RELAY];
    for server in peers {
        if !servers.contains(server) {
            servers.push(*server);
        }
    }
    servers
}

fn positive() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn each(args: &[&str]) -> EachArgs {
        let typed = ["reveille-bench", "each"].iter().chain(args);
        let cli = Cli::try_parse_from(typed).expect("parsed");
        match cli.verb {
            Verb::Benchmark(Benchmark::Relayed(Relayed::Each(args))) => args,
            other => panic!("not each: {other:?}"),
        }
    }

    #[test]
    fn every_benchmark_has_an_example_and_reads_no_environment() {
        let command = Cli::command();
        command.clone().debug_assert();
        let is_shown = |verb: &&clap::Command| !verb.is_hide_set();
        let benchmarks: Vec<_> = command.get_subcommands().filter(is_shown).collect();
        let parts = benchmarks.iter().flat_map(|verb| verb.get_subcommands());
        let verbs: Vec<_> = parts.chain([&command]).chain(benchmarks.clone()).collect();
        assert_eq!(verbs.len(), 25);
        for verb in verbs {
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
        let args = each(&["--peer", "redis", "--peer", "nats-raw", "--peer", "redis"]);
        let servers = [Server::RELAY, Server::Redis, Server::RawNats];
        assert_eq!(args.servers.all(), servers);
        assert_eq!(each(&[]).servers.all(), [Server::RELAY]);
    }

    #[test]
    fn a_protected_relay_is_a_peer_of_the_plain_one() {
        let peers =
            Protection::ALL.map(|protection| format!("--peer={}", Server::Relay(protection)));
        let args = each(&peers.each_ref().map(String::as_str));
        assert_eq!(args.servers.all(), Protection::ALL.map(Server::Relay));
        assert_eq!(peers[4], "--peer=tls-token");
    }

    #[test]
    fn unary_calls_are_measured_on_relays_only() {
        let notify = |peer: &str| {
            let typed = ["reveille-bench", "notify", "--peer", peer];
            Cli::try_parse_from(typed).map(|cli| match cli.verb {
                Verb::Benchmark(Benchmark::Relayed(Relayed::Notify(args))) => args.servers(),
                other => panic!("not notify: {other:?}"),
            })
        };
        let jwt = Server::Relay(Protection::Jwt);
        assert_eq!(notify("jwt").expect("parsed"), [Server::RELAY, jwt]);
        for peer in ["nats", "nats-raw", "redis"] {
            assert!(notify(peer).is_err(), "{peer}");
        }
    }

    #[test]
    fn a_request_holds_at_most_1024_queues() {
        let refused = |value: &str| {
            let typed = ["reveille-bench", "each", "--queues", value];
            Cli::try_parse_from(typed).is_err()
        };
        assert!(refused("0") && refused("1025") && !refused("1024"));
    }
}
