//! The arguments of `reveille bench`.

mod child;
mod no_peers;

use std::{fmt, time::Duration};

use clap::{Args, Subcommand, ValueEnum};
use reveille::duration;

pub(super) use self::{
    child::{ParkedArgs, RelayArgs, SubscribersArgs, SubscriptionsArgs, WildcardArgs},
    no_peers::{BudgetArgs, DrainArgs, IdsArgs, ListenArgs, QueueArgs, SweepArgs, UnleashArgs},
};

/// Measure the cost and latency of relays, queues, listeners, ids and sweeping, and compare relays
/// with nats-server and Redis.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  reveille bench burst --runs 5 --peer nats")]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(super) benchmark: Benchmark,
}

#[derive(Debug, Subcommand)]
pub(super) enum Benchmark {
    /// Throughput of many notifications at once, each delivered to all subscribers.
    Burst(BurstArgs),
    /// Latency of one notification at a time to one subscriber.
    Wake(WakeArgs),
    /// Latency of one notification to a whole fleet, until the last subscriber is awake.
    WakeAll(WakeAllArgs),
    /// Throughput of notifications of many queues at once, to subscribers of all queues.
    Each(EachArgs),
    /// Memory of idle subscribers.
    Idle(IdleArgs),
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
    /// A relay for one run.
    #[command(hide = true)]
    Relay(RelayArgs),
    /// A nats-server for one run.
    #[command(hide = true)]
    Nats,
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
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) runs: u32,
    /// The output format.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    pub(super) output: Output,
}

/// The arguments of all benchmarks with peers.
#[derive(Debug, Clone, Args)]
pub(super) struct Common {
    /// Measure this relay instead of starting one. Its processor time and memory are unknown then.
    /// REVEILLE_RELAY is ignored, so that a bench never loads a relay by accident.
    #[arg(long, value_name = "URL")]
    pub(super) relay: Option<String>,
    /// Run the same benchmark on another server, in turn with the relay; may be repeated.
    #[arg(long, value_name = "SERVER")]
    pub(super) peer: Vec<Peer>,
    #[command(flatten)]
    pub(super) runs: Runs,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench burst --peer nats")]
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
    pub(super) common: Common,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench wake --notifications 1000")]
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
    pub(super) common: Common,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench wake-all --subscribers 1000 --rounds 20")]
pub(super) struct WakeAllArgs {
    /// Number of subscribers, each on a separate connection.
    #[arg(long, default_value_t = 4_000, value_parser = positive())]
    pub(super) subscribers: u64,
    /// Number of notifications, each of which wakes all subscribers.
    #[arg(long, default_value_t = 10, value_parser = positive())]
    pub(super) rounds: u64,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench each --peer nats --peer redis")]
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
    pub(super) common: Common,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example:
  reveille bench scale --queues 1000000 --patterns 10000 --subscriptions 100000 --runs 1")]
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
    #[command(flatten)]
    pub(super) runs: Runs,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench idle --subscribers 100000 --per-connection 100")]
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
    pub(super) common: Common,
}

/// A server to compare the relay with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Peer {
    /// nats-server, found on the PATH, with its official client.
    Nats,
    /// nats-server with minimal clients, which count frames without parsing them.
    #[value(name = "nats-raw")]
    RawNats,
    /// redis-server, found on the PATH, with PUBLISH and SUBSCRIBE and with minimal clients.
    Redis,
}

/// The server of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Server {
    Reveille,
    Nats,
    #[value(name = "nats-raw")]
    RawNats,
    Redis,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    Table,
    Json,
}

impl Common {
    /// Returns the servers to measure, the relay first, each once.
    pub(super) fn servers(&self) -> Vec<Server> {
        let mut servers = vec![Server::Reveille];
        for peer in &self.peer {
            let server = Server::from(*peer);
            if !servers.contains(&server) {
                servers.push(server);
            }
        }
        servers
    }
}

impl From<Peer> for Server {
    fn from(peer: Peer) -> Self {
        match peer {
            Peer::Nats => Self::Nats,
            Peer::RawNats => Self::RawNats,
            Peer::Redis => Self::Redis,
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reveille => "reveille",
            Self::Nats => "nats",
            Self::RawNats => "nats-raw",
            Self::Redis => "redis",
        })
    }
}

fn positive() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Typed {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn each(args: &[&str]) -> EachArgs {
        let typed = ["bench", "each"].iter().chain(args);
        let typed = Typed::try_parse_from(typed).expect("parsed");
        match typed.bench.benchmark {
            Benchmark::Each(args) => args,
            other => panic!("not each: {other:?}"),
        }
    }

    #[test]
    fn peers_may_be_repeated_and_each_server_is_measured_once() {
        let args = each(&["--peer", "redis", "--peer", "nats-raw", "--peer", "redis"]);
        let servers = [Server::Reveille, Server::Redis, Server::RawNats];
        assert_eq!(args.common.servers(), servers);
        assert_eq!(each(&[]).common.servers(), [Server::Reveille]);
    }

    #[test]
    fn a_server_is_typed_as_it_is_printed() {
        for server in Server::value_variants() {
            let named = server.to_possible_value().expect("none is hidden");
            assert_eq!(named.get_name(), server.to_string());
        }
    }

    #[test]
    fn a_request_holds_at_most_1024_queues() {
        let refused = |value: &str| {
            let typed = ["bench", "each", "--queues", value];
            Typed::try_parse_from(typed).is_err()
        };
        assert!(refused("0") && refused("1025") && !refused("1024"));
    }
}
