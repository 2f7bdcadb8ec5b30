//! The limits of a serving process for all of its clients together.

use std::time::Duration;

use bytesize::ByteSize;
use reveille::{ServerLimits, duration};

use super::{exit::Usage, settings::ServeSettings, usage};

/// The arguments of `serve` and `queue serve`.
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
        allow_hyphen_values = true, value_parser = age
    )]
    max_connection_age: Option<Duration>,
    /// Maximum resident memory, such as 512MiB; near it, what is new is refused; 0 is no limit
    /// [default: three quarters of the machine's or the container's]
    #[arg(
        long,
        env = "REVEILLE_MAX_MEMORY",
        value_name = "SIZE",
        help_heading = "Limits",
        allow_hyphen_values = true, value_parser = size
    )]
    max_memory: Option<ByteSize>,
}

/// The shortest age of a connection: a client needs some round trips to connect again.
const SHORTEST_AGE: Duration = Duration::from_secs(1);

/// Parses the age of a connection.
pub(super) fn age(text: &str) -> Result<Duration, String> {
    let age = duration::parse(text).map_err(|error| error.to_string())?;
    match age >= SHORTEST_AGE {
        true => Ok(age),
        false => Err("must be at least 1s".to_owned()),
    }
}

/// Parses an amount of memory.
pub(super) fn size(text: &str) -> Result<ByteSize, String> {
    let rule = || {
        let least = ByteSize::b(ServerLimits::LEAST_MEMORY).display().iec();
        format!("must be a size such as 512MiB, at least {least}, or 0")
    };
    let size: ByteSize = text.parse().map_err(|_| rule())?;
    match size.as_u64() == 0 || size.as_u64() >= ServerLimits::LEAST_MEMORY {
        true => Ok(size),
        false => Err(rule()),
    }
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
    fn a_size_has_a_unit_or_is_in_bytes() {
        for (text, bytes) in [
            ("512MiB", 512 << 20),
            ("2GiB", 2 << 30),
            ("67108864", 64 << 20),
        ] {
            assert_eq!(size(text).expect(text).as_u64(), bytes);
        }
        assert_eq!(size("0").expect("no limit").as_u64(), 0);
        for text in ["-1", "", "much", "1MiB", "12"] {
            let error = size(text).expect_err(text);
            assert_eq!(
                error,
                "must be a size such as 512MiB, at least 64.0 MiB, or 0"
            );
        }
    }

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
