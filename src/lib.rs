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
mod session;
#[cfg(feature = "server")]
mod sync;
mod task;
mod wire;
mod words;

pub use client::*;
pub use error::{Error, ErrorKind, Result};
pub use words::*;
