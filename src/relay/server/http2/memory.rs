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
        clock::{Clock, Tick},
        log_limiter::LimitedCounts,
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
    clock: Clock,
    changes: LimitedCounts<2>,
}

/// Bytes that may arrive in a second, from a fast network. The memory is read again before they could
/// fill the rest.
const INTAKE: u64 = 2 << 30;
/// Shortest and longest time between two readings, each of some microseconds.
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// The allocator is asked to give memory back this often at most.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(5);
const LOG_INTERVAL: Duration = Duration::from_secs(1);

impl MemoryGuard {
    /// Creates a guard; without a limit it does nothing.
    pub(crate) fn new(limit: Option<u64>) -> Self {
        Self {
            limit,
            is_short: AtomicBool::new(false),
            clock: Clock::new(),
            changes: LimitedCounts::new(LOG_INTERVAL),
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
        let (mut used, mut was_short, mut give_back_at) = (0, false, Tick::default());
        loop {
            used = memory.read().unwrap_or(used);
            let is_short = used >= near(limit);
            self.is_short.store(is_short, Relaxed);
            if is_short != was_short {
                self.log(is_short, used);
                changed(is_short);
                was_short = is_short;
            }
            if is_short && self.clock.now() >= give_back_at {
                // Else freed memory would stay resident, and the relay would refuse for ever.
                let _ = blocking(memory::give_back).await;
                give_back_at = self.clock.now() + GIVE_BACK_EVERY;
            } else {
                tokio::time::sleep(pause(limit.saturating_sub(used))).await;
            }
        }
    }

    fn log(&self, is_short: bool, used: u64) {
        let (used, limit) = (used >> 20, self.limit.unwrap_or_default() >> 20);
        let Some(suppressed) = self.changes.note(usize::from(is_short), self.clock.now()) else {
            return;
        };
        match is_short {
            true => tracing::warn!(
                used,
                limit,
                suppressed,
                "near the limit of memory (in MiB): refusing new streams and queues"
            ),
            false => tracing::info!(used, limit, suppressed, "there is memory again (in MiB)"),
        }
    }
}

/// Returns the time until the memory is read again.
fn pause(left: u64) -> Duration {
    let micros = left.saturating_mul(1_000_000) / INTAKE;
    Duration::from_micros(micros).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

/// Returns the memory from which on the relay takes on nothing new.
fn near(limit: u64) -> u64 {
    limit - limit / 8
}
