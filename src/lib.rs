//! reveille
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)
)]

mod backoff;
mod clock;
pub mod duration;
mod error;
mod fault;
#[cfg(feature = "server")]
pub mod flag;
#[cfg(feature = "server")]
mod hub;
pub mod release;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "server")]
pub mod store;
#[cfg(feature = "server")]
mod sync;
mod task;
mod words;

pub use error::{Error, ErrorKind, Result};
pub use words::*;
