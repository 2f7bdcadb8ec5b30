//! The gRPC server: services over an accept loop of its own.
//!
//! tonic makes the services; the connections are hyper's HTTP/2 with its limits set, because
//! tonic's own server hides the knobs that long streams to strangers need (see `connection`).
//! Services translate and hand on: what is owed and what is durable is decided below.

mod accept;
mod admin;
mod connection;
mod flags;
mod oversized;
mod preface;
mod relay;
mod services;
mod wake;

pub(crate) use accept::{Server, ServerConfig};
pub(crate) use services::{Health, Services};
