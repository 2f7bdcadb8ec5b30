//! reveille
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)
)]

mod backoff;
mod client;
mod clock;
pub mod duration;
mod error;
mod fault;
#[cfg(feature = "server")]
mod hub;
#[cfg(feature = "server")]
mod relay;
#[cfg(feature = "server")]
mod server;
mod session;
#[cfg(test)]
mod sim;
#[cfg(feature = "server")]
mod sync;
mod task;
mod wire;
mod words;

pub use client::*;
pub use error::{Error, ErrorKind, Result};
#[cfg(feature = "server")]
pub use relay::{LocalPublisher, LocalSubscription, Relay, RelayConfig};
pub use words::*;
