//! Keeps the process within a limit of memory.
//!
//! Reads the resident memory often. Near the limit the relay takes on nothing new, until there is room
//! again: no connection, no stream, no queue, no large request.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use super::limits::retry_later;
use crate::{
    base::{
        memory::{self, ResidentMemory},
        task::blocking,
    },
    error::{Error, ErrorKind, Result},
};

/// Guards the memory of the process.
#[derive(Debug)]
pub(crate) struct MemoryGuard {
    limit: Option<u64>,
    /// Near the limit.
    is_short: AtomicBool,
}

/// Shortest and longest time between two readings, each of some microseconds.
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// Near the limit the allocator gives memory back this often. Else freed memory would stay resident, and
/// the relay would refuse for ever.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(1);

impl MemoryGuard {
    /// Creates a guard; without a limit it does nothing.
    pub(crate) fn new(limit: Option<u64>) -> Self {
        Self {
            limit,
            is_short: AtomicBool::new(false),
        }
    }

    /// Returns the limit in bytes.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Returns whether the process is near its limit.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short.load(Relaxed)
    }

    /// Checks that there is memory for something new.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] near the limit.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.is_short() {
            return Ok(());
        }
        let limit = self.limit.unwrap_or_default() >> 20;
        let message = format!("max_memory: the relay is near its limit of {limit} MiB");
        Err(retry_later(Error::new(ErrorKind::Exhausted, message)))
    }

    /// Reads the memory again and again; `changed` is called with `true` near the limit, and with
    /// `false` when there is room again.
    pub(crate) async fn watch(self: Arc<Self>, changed: impl Fn(bool)) {
        let Some(limit) = self.limit else {
            return;
        };
        let Some(memory) = ResidentMemory::open() else {
            tracing::warn!("the memory of this process cannot be read: its limit is not kept");
            return;
        };
        let (mut used, mut was_short) = (0, false);
        loop {
            used = memory.read().unwrap_or(used);
            let is_short = used >= limit - limit / 8;
            self.is_short.store(is_short, Relaxed);
            if is_short != was_short {
                let (used, limit) = (used >> 20, limit >> 20);
                tracing::warn!(
                    is_short,
                    used,
                    limit,
                    "memory is short, or no longer (in MiB)"
                );
                changed(is_short);
                was_short = is_short;
            }
            let pause = if is_short {
                let _ = blocking(memory::give_back).await;
                GIVE_BACK_EVERY
            } else {
                // Before an intake of 2 GiB/s could fill the rest.
                let micros = limit.saturating_sub(used) >> 11;
                Duration::from_micros(micros).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
            };
            tokio::time::sleep(pause).await;
        }
    }
}
