//! Connections: sockets, TLS, HTTP/2 by hyper with limits for long streams, and their ends.
//!
//! The memory that a peer can hold is bounded by the windows of its connections and by its streams
//! (docs/limits.md).

pub(super) mod accept;
pub(super) mod activity;
pub(super) mod all_connections;
pub(super) mod body;
pub(super) mod connection;
pub(super) mod incidents;
pub(super) mod server_limits;
pub(super) mod service;
pub(super) mod tls;
