//! The limits of a serving process for all of its clients together.

use std::num::NonZeroUsize;

use bytesize::ByteSize;
use reveille::{NodeConfig, ServerLimits, duration::Span};

use super::{
    settings::{Text, table},
    values,
};

const HEADING: &str = "Limits";

/// The arguments of the verbs that serve.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct LimitArgs {
    /// Maximum number of connections; further ones wait [default: 100000 on loopback, else 10000]
    #[arg(long, env = "REVEILLE_MAX_CONNECTIONS", value_name = "N", value_parser = values::positive::<usize>, help_heading = HEADING, hide_short_help = true)]
    max_connections: Option<usize>,
    /// Maximum number of connections of one address; further ones are closed; 0 is no limit
    /// [default: no limit on loopback, else 256]
    #[arg(long, env = "REVEILLE_MAX_CONNECTIONS_PER_ADDRESS", value_name = "N", help_heading = HEADING, hide_short_help = true)]
    max_connections_per_address: Option<usize>,
    /// Maximum resident memory, such as 512MiB; near it, new streams and queues are refused; 0 is no limit
    /// [default: three quarters of the machine's or the container's]
    #[arg(long, env = "REVEILLE_MAX_MEMORY", value_name = "SIZE", help_heading = HEADING)]
    max_memory: Option<ByteSize>,
}

table! {
    /// The table `[serve.limits]`.
    struct Limits for NodeConfig {
        max_queues: NonZeroUsize => relay.max_queues,
        max_cursors: NonZeroUsize => relay.max_cursors,
        max_cursors_per_stream: NonZeroUsize => relay.max_cursors_per_stream,
        max_timers: NonZeroUsize => relay.max_timers,
        max_groups: NonZeroUsize => relay.max_groups,
        max_flags: NonZeroUsize => max_flags,
        max_watched_flags: NonZeroUsize => max_watched_flags,
        max_streams: NonZeroUsize => limits.max_streams,
        max_connection_age: Text<Span> => limits.max_connection_age,
        forget_after: Text<Span> => relay.forget_after,
        flag_refresh: Text<Span> => flag_refresh,
        reflection: bool => reflection,
    }
}

impl LimitArgs {
    /// Adds these limits to those of the file.
    pub(super) fn apply(&self, limits: &mut ServerLimits) {
        limits.max_connections = self.max_connections;
        limits.max_connections_per_address = self.max_connections_per_address;
        limits.max_memory = match self.max_memory {
            Some(ByteSize(0)) => None,
            Some(ByteSize(stated)) => Some(stated),
            None => ServerLimits::memory_of_machine()
                .map(|all| (all - all / 4).max(ServerLimits::LEAST_MEMORY)),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_the_machine_is_the_default_limit() {
        let applied = |max_memory| {
            let args = LimitArgs {
                max_memory,
                ..LimitArgs::default()
            };
            let mut limits = ServerLimits::default();
            args.apply(&mut limits);
            limits.max_memory
        };
        let machine = ServerLimits::memory_of_machine();
        assert_eq!(applied(None), machine.map(|all| all - all / 4));
        assert_eq!(applied(Some(ByteSize(0))), None);
        assert_eq!(applied(Some(ByteSize::gib(1))), Some(1 << 30));
    }
}
