//! What the benchmark needs of two machines. One implementation for each server.

use std::time::Instant;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process};

use crate::usage::Usage;

/// Machines A and B, and a consumer at B that reports each message as [`Handled`].
#[async_trait]
pub(super) trait Machines: Send + Sync {
    /// Sends one message at A. Returns when it is on the disk of A.
    async fn send(&self, target: Target, body: Vec<u8>) -> Result<()>;

    /// Stops B, or lets it go on.
    async fn freeze(&self, frozen: bool) -> Result<()>;

    /// Returns the number of messages of [`Target::Stored`] that a consumer at B would get.
    async fn stored(&self) -> Result<u64>;

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
    /// A queue of machine B that has no consumer.
    Stored,
}

/// Stops a process by SIGSTOP, or lets it go on.
pub(super) fn freeze(pid: u32, frozen: bool) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let signal = if frozen { Signal::STOP } else { Signal::CONT };
    kill_process(pid.context("no process id")?, signal).context("machine B has ended")
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
