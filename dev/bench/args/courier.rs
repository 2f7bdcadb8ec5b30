//! The arguments of `courier`.

use std::time::Duration;

use clap::{Args, ValueEnum};
use reveille::duration;

use super::{Server, positive};

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench courier --peer rabbitmq")]
pub(crate) struct CourierArgs {
    /// Number of messages that are sent one at a time into a local queue.
    #[arg(long, default_value_t = 2_000, value_parser = positive())]
    pub(crate) sends: u64,
    /// Number of messages that are sent concurrently, into a local queue and then to the other
    /// machine.
    #[arg(long, default_value_t = 20_000, value_parser = positive())]
    pub(crate) messages: u64,
    /// Number of messages that wait for the other machine when it goes on.
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(20_000..))]
    pub(crate) backlog: u64,
    /// Number of concurrent transactions, or of messages that RabbitMQ has not confirmed yet.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) tasks: u16,
    /// Size of a message in bytes.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u16).range(8..=32_768))]
    pub(crate) size: u16,
    /// Number of single messages to the other machine whose latency is measured.
    #[arg(long, default_value_t = 500, value_parser = positive())]
    pub(crate) singles: u64,
    /// Pause before each single message.
    #[arg(long, default_value = "2ms", value_parser = duration::parse)]
    pub(crate) pause: Duration,
    /// Run the same benchmark on two nodes of this server, in turn.
    #[arg(long, value_name = "SERVER")]
    pub(crate) peer: Option<CourierPeer>,
}

/// A server with queues that forwards messages to another machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CourierPeer {
    /// rabbitmq-server, found on the PATH, with durable queues, publisher confirms and a shovel.
    Rabbitmq,
}

impl CourierArgs {
    /// Returns the servers to measure, ours first.
    pub(crate) fn servers(&self) -> Vec<Server> {
        let peer = self.peer.map(|peer| match peer {
            CourierPeer::Rabbitmq => Server::Rabbitmq,
        });
        [Server::RELAY].into_iter().chain(peer).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::{
        super::{Benchmark, Cli, Verb},
        *,
    };

    fn servers(args: &[&str]) -> Vec<Server> {
        let typed = ["reveille-bench", "courier"].iter().chain(args);
        match Cli::try_parse_from(typed).expect("parsed").verb {
            Verb::Benchmark(Benchmark::Courier(args)) => args.servers(),
            other => panic!("not courier: {other:?}"),
        }
    }

    #[test]
    fn rabbitmq_is_measured_on_request() {
        assert_eq!(servers(&[]), [Server::RELAY]);
        let both = [Server::RELAY, Server::Rabbitmq];
        assert_eq!(servers(&["--peer", "rabbitmq"]), both);
    }

    #[test]
    fn rabbitmq_relays_no_notifications() {
        let typed = ["reveille-bench", "burst", "--peer", "rabbitmq"];
        assert!(Cli::try_parse_from(typed).is_err());
        let typed = ["reveille-bench", "courier", "--peer", "nats"];
        assert!(Cli::try_parse_from(typed).is_err());
    }
}
