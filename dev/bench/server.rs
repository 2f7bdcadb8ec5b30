//! The servers that a benchmark compares.

use std::fmt;

use anyhow::Result;
use clap::{ValueEnum, builder::PossibleValue};

use crate::peers;

/// The server of a run, in the order of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Server {
    /// A relay. The plain one is measured always.
    Relay(Protection),
    /// nats-server with async-nats.
    Nats,
    /// redis-server with the crate redis.
    Redis,
    /// This many relays and their nats-server, in `cluster` only.
    Cluster(usize),
}

/// How a relay and its clients are protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protection {
    /// Plain text, and every caller may do everything.
    None,
    Tls,
    /// Rules and a token, in plain text.
    Token,
    /// Rules and a JWT, in plain text.
    Jwt,
    TlsToken,
}

impl Server {
    /// The relay without protection, with which the others are compared.
    pub(crate) const RELAY: Self = Self::Relay(Protection::None);

    /// Fails if the server's program is not installed.
    pub(crate) fn check_installed(self) -> Result<()> {
        match self {
            Self::Relay(_) => Ok(()),
            Self::Nats | Self::Cluster(_) => peers::program("nats-server").map(drop),
            Self::Redis => peers::program("redis-server").map(drop),
        }
    }
}

impl Protection {
    pub(crate) const fn has_tls(self) -> bool {
        matches!(self, Self::Tls | Self::TlsToken)
    }
}

impl ValueEnum for Server {
    fn value_variants<'a>() -> &'a [Self] {
        const PEERS: [Server; 6] = [
            Server::Relay(Protection::Tls),
            Server::Relay(Protection::Token),
            Server::Relay(Protection::Jwt),
            Server::Relay(Protection::TlsToken),
            Server::Nats,
            Server::Redis,
        ];
        &PEERS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Self::Relay(Protection::Tls) => "The relay over TLS",
            Self::Relay(Protection::Token) => "The relay with rules and a token",
            Self::Relay(Protection::Jwt) => "The relay with rules and a JWT",
            Self::Relay(Protection::TlsToken) => "The relay over TLS, with rules and a token",
            Self::Nats => "nats-server, found on the PATH, with its client async-nats",
            Self::Redis => "redis-server, found on the PATH, with PUBLISH and SUBSCRIBE",
            Self::Relay(Protection::None) | Self::Cluster(_) => return None,
        };
        Some(PossibleValue::new(self.name()).help(help))
    }
}

impl Server {
    const fn name(self) -> &'static str {
        match self {
            Self::Relay(Protection::None) => "reveille",
            Self::Relay(Protection::Tls) => "tls",
            Self::Relay(Protection::Token) => "token",
            Self::Relay(Protection::Jwt) => "jwt",
            Self::Relay(Protection::TlsToken) => "tls-token",
            Self::Nats => "nats",
            Self::Redis => "redis",
            Self::Cluster(1) => "cluster-of-one",
            Self::Cluster(_) => "cluster",
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
