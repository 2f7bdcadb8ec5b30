//! Keeps the process within a limit of memory.
//!
//! Reads the resident memory often. Near the limit the relay takes on nothing new: no connection, no
//! stream, no queue, no more bytes of an unfinished request. At the limit it closes the connections
//! that hold most unread bytes. Both end as soon as there is room again.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{
    base::{clock::Clock, log_limiter::LimitedCounts, sync::lock},
    error::{Error, ErrorKind, Result},
    relay::server::memory_reader::MemoryReader,
};

/// Guards the memory of the process.
#[derive(Debug)]
pub(crate) struct MemoryGuard {
    limit: Option<u64>,
    /// Near the limit.
    is_short: AtomicBool,
    connections: Mutex<Registry>,
    clock: Clock,
    changes: LimitedCounts<2>,
}

/// A connection that holds bytes for its peer.
pub(super) trait Holder: fmt::Debug + Send + Sync {
    /// Returns about how many bytes it holds that its peer could take or complete.
    fn held(&self) -> usize;

    /// Closes it at once.
    fn close(&self);
}

/// The open connections by their number.
#[derive(Default)]
struct Registry {
    next: u64,
    open: HashMap<u64, Weak<dyn Holder>>,
}

/// A registered connection, until dropped.
#[derive(Debug)]
pub(super) struct Registered {
    guard: Arc<MemoryGuard>,
    number: u64,
}

/// Bytes that may arrive in a second, from a fast network. The memory is read again before they could
/// fill the rest.
const INTAKE: u64 = 2 << 30;
/// Shortest and longest time between two readings, each of some microseconds.
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// Time for closed connections to free their memory, and between two searches for them.
const AFTER_CLOSING: Duration = Duration::from_millis(10);
/// From this time near the limit on, connections are closed as at the limit.
const SHORT_FOR: Duration = Duration::from_secs(5);
/// A connection that holds less is not closed: regular ones have as much for moments, and an allocator
/// gives little of it back.
const LEAST_HELD: usize = 64 * 1024;
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// A refused client waits for this long.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl MemoryGuard {
    /// Creates a guard; without a limit it does nothing.
    pub(crate) fn new(limit: Option<u64>) -> Self {
        Self {
            limit,
            is_short: AtomicBool::new(false),
            connections: Mutex::default(),
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
    pub(super) fn check(&self) -> Result<()> {
        match self.is_short() {
            true => Err(self.exhausted()),
            false => Ok(()),
        }
    }

    #[cold]
    fn exhausted(&self) -> Error {
        let limit = self.limit.unwrap_or_default() >> 20;
        let message = format!("max_memory: the relay is near its limit of {limit} MiB");
        Error::new(ErrorKind::Exhausted, message).with_retry_after(RETRY_AFTER)
    }

    /// Registers a connection that may be closed.
    pub(super) fn register(self: &Arc<Self>, connection: Weak<dyn Holder>) -> Option<Registered> {
        self.limit?;
        let mut registry = lock(&self.connections);
        let number = registry.next;
        registry.next += 1;
        registry.open.insert(number, connection);
        Some(Registered {
            guard: Arc::clone(self),
            number,
        })
    }

    /// Reads the memory again and again; `changed` is called with `true` near the limit, and with
    /// `false` when there is room again.
    pub(crate) async fn watch(self: Arc<Self>, changed: impl Fn(bool)) {
        let Some(limit) = self.limit else {
            return;
        };
        let Some(mut memory) = MemoryReader::open(self.clock) else {
            tracing::warn!("the memory of this process cannot be read: its limit is not kept");
            return;
        };
        let mut short_since = None;
        let mut was_short = false;
        loop {
            let mut used = memory.read();
            if used >= near(limit) {
                // Nothing new comes in while the allocator gives memory back.
                self.is_short.store(true, Relaxed);
                used = memory.give_back().await;
            }
            let is_short = used >= near(limit);
            self.is_short.store(is_short, Relaxed);
            if is_short != was_short {
                self.log(is_short, used);
                changed(is_short);
                was_short = is_short;
            }
            let now = self.clock.now();
            short_since = is_short.then(|| short_since.unwrap_or(now));
            // Peers that hold the relay just below its limit must not keep others out.
            let lasts = short_since.is_some_and(|since| now.since(since) >= SHORT_FOR);
            let pause = match used >= limit || lasts {
                true => {
                    if self.close_greediest(used - near(limit)) {
                        memory.expect_free();
                    }
                    AFTER_CLOSING
                }
                false => pause(limit - used),
            };
            tokio::time::sleep(pause).await;
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

    /// Closes the connections that hold most, until they have held `excess` bytes together. Returns
    /// whether there was one.
    fn close_greediest(&self, excess: u64) -> bool {
        let open: Vec<_> = lock(&self.connections).open.values().cloned().collect();
        let held = open.into_iter().filter_map(|connection| {
            let connection = connection.upgrade()?;
            let held = connection.held();
            (held >= LEAST_HELD).then_some((held, connection))
        });
        let mut held: Vec<_> = held.collect();
        held.sort_unstable_by_key(|(held, _)| std::cmp::Reverse(*held));
        let mut freed = 0;
        for (held, connection) in held {
            if freed >= excess {
                break;
            }
            freed += held as u64;
            connection.close();
        }
        freed > 0
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

impl Drop for Registered {
    fn drop(&mut self) {
        lock(&self.guard.connections).open.remove(&self.number);
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} connections", self.open.len())
    }
}
