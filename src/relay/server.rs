//! The gRPC server: tonic's services on a custom accept loop.
//!
//! The connections are hyper's HTTP/2 with explicit limits, because tonic's server does not expose
//! the settings that long streams to untrusted peers need (see `connection`). Services only
//! translate; the hub and the flags contain the logic. What a peer can hold is bounded by the windows of
//! its connections, and by the limits of its streams (docs/limits.md).

mod access;
mod http2;
pub(crate) mod lists;
pub(crate) mod services;

pub use self::access::AccessFiles;
pub(crate) use self::access::{
    Access,
    local_calls::{ConsoleDoor, LocalCaller, LocalCalls},
};
pub(crate) use self::http2::{
    accept::{Port, Server, ServerConfig},
    all_connections::Connections,
    tls::Tls,
};
pub use self::http2::{server_limits::ServerLimits, tls::ServerTls};
pub(crate) use self::lists::LISTS_AT_ONCE;
#[cfg(feature = "courier")]
pub(crate) use self::services::queue_routes;
pub(crate) use self::services::{
    Services,
    flags::MAX_CALLS,
    stats::{StatsSource, unreadable_store},
};
