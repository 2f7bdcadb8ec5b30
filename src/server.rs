//! The gRPC server: services over an accept loop of its own.
//!
//! tonic makes the services; the connections are hyper's HTTP/2 with its limits set, because
//! tonic's own server hides the knobs that long streams to strangers need (see `connection`).
//! Services translate and hand on: what is owed and what is durable is decided below. Everything
//! that a peer begins has a deadline, and everything that it can hold has a bound.

mod accept;
mod activity;
mod addresses;
mod admin;
mod answers;
mod body;
mod budget;
mod calls;
mod connection;
mod flags;
mod frames;
mod health;
mod incidents;
mod io;
mod limits;
mod preface;
mod relay;
mod requests;
mod service;
mod services;
mod streams;
mod wake;

pub(crate) use accept::{Connections, Server, ServerConfig};
pub(crate) use activity::IDLE;
pub(crate) use health::Health;
pub(crate) use incidents::Incident;
pub(crate) use services::Services;
