//! The arguments of `cluster`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use reveille::duration;

use super::{Server, positive};

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example:
  reveille-bench cluster wake --runs 5
  reveille-bench cluster kills --runs 1 --relay-kills 100 --broker-kills 50")]
pub(crate) struct ClusterArgs {
    /// The nats-server to start [default: the one on the PATH, or that of the tests below the
    /// target directory].
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) nats_server: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) part: ClusterPart,
}

/// The parts of the benchmark.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ClusterPart {
    /// Latency of one notification at a time, to a subscriber of another relay.
    Wake(ClusterWakeArgs),
    /// Latency of acknowledgements, and throughput of a stream of notifications.
    Notify(ClusterNotifyArgs),
    /// Throughput of many notifications at once, to subscribers of all relays.
    Burst(ClusterBurstArgs),
    /// Processor time, bytes and storage requests of idle relays.
    Idle(ClusterIdleArgs),
    /// Wake-ups of a group whose members are on all relays.
    Group(ClusterGroupArgs),
    /// Checks that the sentinel asks for, of one queue with listeners on all relays.
    Sentinel(ClusterSentinelArgs),
    /// Restarts the relays in turn, under listeners: wake-ups and checks.
    Restarts(ClusterRestartsArgs),
    /// Kills relays and the broker under load, and checks that no wake-up is lost.
    Kills(ClusterKillsArgs),
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench cluster wake --runs 5")]
pub(crate) struct ClusterWakeArgs {
    /// Number of measured notifications.
    #[arg(long, default_value_t = 3_000, value_parser = positive())]
    pub(crate) notifications: u64,
    /// Number of notifications before them, which are not measured.
    #[arg(long, default_value_t = 500, value_parser = positive())]
    pub(crate) warm_up: u64,
    /// Pause before each notification; timers round it up to the next millisecond.
    #[arg(long, default_value = "500us", value_parser = duration::parse)]
    pub(crate) pause: Duration,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench cluster notify --runs 5 --delay 5ms")]
pub(crate) struct ClusterNotifyArgs {
    /// Number of notifications that are acknowledged one at a time.
    #[arg(long, default_value_t = 2_000, value_parser = positive())]
    pub(crate) notifications: u64,
    /// Number of notifications on the stream, sent as fast as they are acknowledged.
    #[arg(long, default_value_t = 200_000, value_parser = positive())]
    pub(crate) streamed: u64,
    /// Number of requests in flight on the stream, each with one notification. A relay of a cluster
    /// lets 2,048 answers wait.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) in_flight: u16,
    /// Number of notifications a second that are sent without waiting for acknowledgements.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) rate: u64,
    /// How long they are sent.
    #[arg(long, default_value = "5s", value_parser = duration::parse)]
    pub(crate) hold: Duration,
    /// Number of queues that they are for, in turn.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) queues: u16,
    /// Delay of the link between each relay and the far broker, each way; timers round it up to the
    /// next millisecond.
    #[arg(long, default_value = "5ms", value_parser = duration::parse)]
    pub(crate) delay: Duration,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench cluster burst --runs 5")]
pub(crate) struct ClusterBurstArgs {
    /// Number of notifications.
    #[arg(long, default_value_t = 200_000, value_parser = positive())]
    pub(crate) notifications: u64,
    /// Number of subscribers, each on a separate connection, spread over the relays.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(3..))]
    pub(crate) subscribers: u64,
    /// Number of notifications of one request.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) batch: u16,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example:
  reveille-bench cluster idle --hold 60s
  reveille-bench cluster idle --hold 60s --store az://bench --azurite-log azurite.log")]
pub(crate) struct ClusterIdleArgs {
    /// Number of queues, each with a subscriber on each relay.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) queues: u16,
    /// How long the relays are idle.
    #[arg(long, default_value = "30s", value_parser = duration::parse)]
    pub(crate) hold: Duration,
    /// The relays' --sentinel; 0 turns it off [default: the relay's default].
    #[arg(long, value_parser = duration::parse)]
    pub(crate) sentinel: Option<Duration>,
    /// The store of the flags [default: a SQLite file in the temporary directory].
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The output of Azurite, for a store in it, in which storage requests are counted.
    #[arg(long, value_name = "FILE")]
    pub(crate) azurite_log: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench cluster group --members 30")]
pub(crate) struct ClusterGroupArgs {
    /// Number of members, spread over the relays.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(3..=3_000))]
    pub(crate) members: u64,
    /// Number of single messages.
    #[arg(long, default_value_t = 200, value_parser = positive())]
    pub(crate) messages: u64,
    /// Number of bursts, each with a message for each member.
    #[arg(long, default_value_t = 10, value_parser = positive())]
    pub(crate) bursts: u64,
    /// Handling time of a message.
    #[arg(long, default_value = "5ms", value_parser = duration::parse)]
    pub(crate) handling: Duration,
    /// Pause after each single message, in which its wake-ups are counted. It is longer than the
    /// handling time, so that all members are idle again.
    #[arg(long, default_value = "20ms", value_parser = duration::parse)]
    pub(crate) pause: Duration,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench cluster sentinel --sentinel 10s --hold 60s")]
pub(crate) struct ClusterSentinelArgs {
    /// Number of listeners of one queue, spread over the relays.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(3..=3_000))]
    pub(crate) listeners: u64,
    /// The relays' --sentinel.
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    pub(crate) sentinel: Duration,
    /// How long the checks are counted.
    #[arg(long, default_value = "60s", value_parser = duration::parse)]
    pub(crate) hold: Duration,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example:
  reveille-bench cluster restarts --runs 1 --listeners 3000

Each acknowledged notification must wake each listener of its queue within 5 s. Otherwise the bench ends \
with exit code 1.")]
pub(crate) struct ClusterRestartsArgs {
    /// Number of listeners, each on a separate connection.
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) listeners: u32,
    /// Number of queues. One after the other is notified, until the last restart is over.
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u32).range(3..=100_000))]
    pub(crate) queues: u32,
    /// Number of notifications a second, through any relay.
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) rate: u32,
    /// The relays' --drain.
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    pub(crate) drain: Duration,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example:
  reveille-bench cluster kills --runs 1 --relay-kills 100 --broker-kills 50

Each acknowledged notification must reach each subscriber as NOTIFIED or CATCH_UP in time. Otherwise \
the bench prints the time line of the notification, and ends with exit code 1.")]
pub(crate) struct ClusterKillsArgs {
    /// Number of kills of a relay.
    #[arg(long, default_value_t = 100)]
    pub(crate) relay_kills: u32,
    /// Number of kills of the nats-server.
    #[arg(long, default_value_t = 50)]
    pub(crate) broker_kills: u32,
    /// Number of notifications a second, from a publisher at each relay.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(3..=100_000))]
    pub(crate) rate: u64,
    /// Added to the longest permitted delays, for a busy machine.
    #[arg(long, default_value = "500ms", value_parser = duration::parse)]
    pub(crate) slack: Duration,
    /// The seed of the kills' order and times [default: a random one, which is printed].
    #[arg(long)]
    pub(crate) seed: Option<u64>,
}

impl ClusterArgs {
    /// Returns the servers to measure, the single relay first where it is compared.
    pub(crate) fn servers(&self) -> Vec<Server> {
        match self.part {
            ClusterPart::Wake(_) => {
                let relays = [Server::RELAY, Server::ClusterOfOne, Server::Cluster];
                relays.into_iter().chain([Server::Nats]).collect()
            }
            ClusterPart::Burst(_) => vec![Server::RELAY, Server::Cluster, Server::Nats],
            ClusterPart::Notify(_) => vec![Server::RELAY, Server::Cluster, Server::FarCluster],
            ClusterPart::Idle(_) | ClusterPart::Group(_) | ClusterPart::Sentinel(_) => {
                vec![Server::RELAY, Server::Cluster]
            }
            ClusterPart::Restarts(_) | ClusterPart::Kills(_) => vec![Server::Cluster],
        }
    }
}
