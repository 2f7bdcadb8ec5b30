//! What the benchmark needs of two machines. One implementation for each server.

use std::time::Instant;

use anyhow::{Context as _, Result};
use async_trait::async_trait;

use crate::usage::Usage;

/// Machines A and B, and a consumer at B that reports each message as [`Handled`].
#[async_trait]
pub(super) trait Machines: Send + Sync {
    /// Sends one message at A. Returns when it is on the disk of A.
    async fn send(&self, target: Target, body: Vec<u8>) -> Result<()>;

    /// Returns the usage of A, of B, and of this process.
    async fn usage(&self) -> [Usage; 3];

    /// Ends all processes.
    async fn stop(&self);
}

/// The queue of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// A queue of machine A that has no consumer.
    Local,
    /// The queue of machine B.
    Remote,
}

/// A message that the consumer at B has received.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handled {
    pub(super) number: u64,
    /// The start of the handler.
    pub(super) at: Instant,
}

impl Handled {
    /// Returns the number in the body of a message that is handled now.
    pub(super) fn now(body: &[u8]) -> Result<Self> {
        let at = Instant::now();
        let number = std::str::from_utf8(body)?.parse();
        let number = number.context("a message is not from the bench")?;
        Ok(Self { number, at })
    }
}
