//! The limits of a serving process for all of its clients together.

use std::time::Duration;

use bytesize::ByteSize;
use reveille::ServerLimits;

use super::{exit::Usage, settings::ServeSettings, usage, values};

/// The arguments of `serve` and `courier serve`.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub(super) struct LimitArgs {
    /// Maximum number of connections; further ones wait [default: 100000 on loopback, else 10000]
    #[arg(
        long,
        env = "REVEILLE_MAX_CONNECTIONS",
        value_name = "N",
        help_heading = "Limits",
        allow_negative_numbers = true, value_parser = usage::positive::<usize>
    )]
    max_connections: Option<usize>,
    /// Maximum number of connections of one address; further ones are closed; 0 is no limit
    /// [default: no limit on loopback, else 256]
    #[arg(
        long,
        env = "REVEILLE_MAX_CONNECTIONS_PER_ADDRESS",
        value_name = "N",
        help_heading = "Limits",
        allow_negative_numbers = true
    )]
    max_connections_per_address: Option<usize>,
    /// Maximum number of open streams of all connections; further ones are refused [default: 200000]
    #[arg(
        long,
        env = "REVEILLE_MAX_STREAMS",
        value_name = "N",
        help_heading = "Limits",
        allow_negative_numbers = true, value_parser = usage::positive::<usize>
    )]
    max_streams: Option<usize>,
    /// Age of a connection, give or take a tenth, after which its client connects again [default: 1h]
    #[arg(
        long,
        env = "REVEILLE_MAX_CONNECTION_AGE",
        value_name = "D",
        help_heading = "Limits",
        allow_hyphen_values = true, value_parser = values::connection_age
    )]
    max_connection_age: Option<Duration>,
    /// Maximum resident memory, such as 512MiB; near it, new streams and queues are refused; 0 is no limit
    /// [default: three quarters of the machine's or the container's]
    #[arg(
        long,
        env = "REVEILLE_MAX_MEMORY",
        value_name = "SIZE",
        help_heading = "Limits",
        allow_hyphen_values = true, value_parser = values::memory_size
    )]
    max_memory: Option<ByteSize>,
}

impl LimitArgs {
    /// Merges the arguments with the configuration file and the defaults.
    pub(super) fn resolve(&self, file: &ServeSettings) -> Result<ServerLimits, Usage> {
        let defaults = ServerLimits::default();
        let of_machine = || {
            ServerLimits::memory_of_machine()
                .map(|all| (all - all / 4).max(ServerLimits::LEAST_MEMORY))
        };
        let max_memory = match self.max_memory.or(file.max_memory) {
            Some(ByteSize(0)) => None,
            Some(ByteSize(stated)) => Some(stated),
            None => of_machine(),
        };
        Ok(ServerLimits {
            max_connections: self.max_connections.or(file.max_connections),
            max_connections_per_address: self
                .max_connections_per_address
                .or(file.max_connections_per_address),
            max_streams: self
                .max_streams
                .or(file.max_streams)
                .unwrap_or(defaults.max_streams),
            max_connection_age: self
                .max_connection_age
                .or(file.max_connection_age)
                .unwrap_or(defaults.max_connection_age),
            max_memory,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_the_machine_is_the_default_limit() {
        let stated = |max_memory| LimitArgs {
            max_memory,
            ..LimitArgs::default()
        };
        let resolve = |args: LimitArgs| args.resolve(&ServeSettings::default()).expect("good");
        let default = resolve(stated(None)).max_memory;
        let machine = ServerLimits::memory_of_machine();
        assert_eq!(default, machine.map(|all| all - all / 4));
        assert_eq!(resolve(stated(Some(ByteSize(0)))).max_memory, None);
        let half = resolve(stated(Some(ByteSize::gib(1)))).max_memory;
        assert_eq!(half, Some(1 << 30));
    }
}
