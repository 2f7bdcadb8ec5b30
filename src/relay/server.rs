//! The gRPC server: tonic's services on a custom accept loop.
//!
//! The connections are hyper's HTTP/2 with explicit limits, because tonic's server does not expose
//! the settings that long streams to untrusted peers need (see `connection`). Services only
//! translate; the hub and the flags contain the logic. What a peer can hold is bounded by the windows of
//! its connections, and by the limits of its streams (docs/limits.md).

mod accept;
mod access;
mod activity;
mod addresses;
pub(crate) mod admin;
mod answers;
mod body;
mod callers;
mod calls;
mod certificate;
mod cluster_lists;
mod connection;
#[cfg(feature = "courier")]
mod courier;
mod explain;
mod findings;
pub(crate) mod flags;
mod health;
mod incidents;
mod io;
mod limits;
mod local_calls;
mod memory;
mod own_lists;
mod pages;
#[cfg(feature = "nats")]
mod peers;
mod preface;
mod recent_refusals;
mod relay;
mod requester;
mod response;
#[cfg(feature = "keda")]
mod scaler;
mod service;
mod services;
mod shared;
mod stats;
mod store_calls;
mod store_probe;
mod stored;
mod streams;
mod tls;
mod transport;
mod unconfirmed;
mod wake;

pub(crate) use accept::{Connections, Port, Server, ServerConfig};
pub(crate) use access::Access;
pub use access::AccessFiles;
pub(crate) use health::Health;
pub(crate) use incidents::Incident;
pub use limits::ServerLimits;
pub(crate) use local_calls::{ConsoleDoor, LocalCaller, LocalCalls};
#[cfg(feature = "nats")]
pub(crate) use peers::RelayPeers;
#[cfg(feature = "keda")]
pub(crate) use scaler::Scaler;
pub(crate) use services::Services;
#[cfg(feature = "courier")]
pub(crate) use services::queue_routes;
pub(crate) use stats::StatsSource;
pub(crate) use store_probe::unreadable_store;
pub use tls::ServerTls;
pub(crate) use tls::Tls;
