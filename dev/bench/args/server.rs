//! The servers that a benchmark compares.

use std::fmt;

use clap::{
    ValueEnum,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};

/// The server of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Server {
    /// The relay. The plain one is measured always.
    Relay(Protection),
    /// nats-server with its official client.
    Nats,
    /// nats-server with minimal clients.
    RawNats,
    /// redis-server with minimal clients.
    Redis,
    /// rabbitmq-server, in `courier` only.
    Rabbitmq,
    /// Several relays and their nats-server, in `cluster` only.
    Cluster,
    /// The same with a nats-server behind a slow link.
    FarCluster,
    /// One relay and its nats-server, in `cluster` only.
    ClusterOfOne,
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

/// What a client shows to be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CredentialKind {
    Token,
    Jwt,
}

impl Server {
    /// The relay without protection, with which the others are compared.
    pub(crate) const RELAY: Self = Self::Relay(Protection::None);
}

impl Protection {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 5] = [
        Self::None,
        Self::Tls,
        Self::Token,
        Self::Jwt,
        Self::TlsToken,
    ];

    pub(crate) const fn has_tls(self) -> bool {
        matches!(self, Self::Tls | Self::TlsToken)
    }

    pub(crate) const fn credential(self) -> Option<CredentialKind> {
        match self {
            Self::None | Self::Tls => None,
            Self::Token | Self::TlsToken => Some(CredentialKind::Token),
            Self::Jwt => Some(CredentialKind::Jwt),
        }
    }
}

impl ValueEnum for Server {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self::Relay(Protection::None),
            Self::Relay(Protection::Tls),
            Self::Relay(Protection::Token),
            Self::Relay(Protection::Jwt),
            Self::Relay(Protection::TlsToken),
            Self::Nats,
            Self::RawNats,
            Self::Redis,
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            // Measured always: as a peer it adds nothing.
            Self::Relay(Protection::None) => {
                return Some(PossibleValue::new("reveille").hide(true));
            }
            Self::Relay(Protection::Tls) => ("tls", "The relay over TLS"),
            Self::Relay(Protection::Token) => ("token", "The relay with rules and a token"),
            Self::Relay(Protection::Jwt) => ("jwt", "The relay with rules and a JWT"),
            Self::Relay(Protection::TlsToken) => {
                ("tls-token", "The relay over TLS, with rules and a token")
            }
            Self::Nats => (
                "nats",
                "nats-server, found on the PATH, with its official client",
            ),
            Self::RawNats => (
                "nats-raw",
                "nats-server with minimal clients, which count frames without parsing them",
            ),
            Self::Redis => (
                "redis",
                "redis-server, found on the PATH, with PUBLISH and SUBSCRIBE and with minimal clients",
            ),
            Self::Rabbitmq | Self::Cluster | Self::FarCluster | Self::ClusterOfOne => return None,
        };
        Some(PossibleValue::new(name).help(help))
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rabbitmq => f.write_str("rabbitmq"),
            Self::Cluster => f.write_str("cluster"),
            Self::FarCluster => f.write_str("far-cluster"),
            Self::ClusterOfOne => f.write_str("cluster-of-one"),
            _ => {
                let value = self.to_possible_value();
                f.write_str(value.as_ref().map_or("", |value| value.get_name()))
            }
        }
    }
}

/// Parses the protected relays only, for benchmarks of calls that no other server has.
pub(super) fn protected_relay() -> impl TypedValueParser<Value = Server> {
    let is_protected = |server: &&Server| matches!(server, Server::Relay(_));
    let relays = Server::value_variants().iter().filter(is_protected);
    let names = relays.filter_map(Server::to_possible_value);
    PossibleValuesParser::new(names).try_map(|name| Server::from_str(&name, false))
}
