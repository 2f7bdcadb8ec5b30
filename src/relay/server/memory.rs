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
    base::{memory::resident, sync::lock},
    error::{Error, ErrorKind, Result},
};

/// Guards the memory of the process.
#[derive(Debug)]
pub(crate) struct MemoryGuard {
    limit: Option<u64>,
    /// Near the limit.
    is_short: AtomicBool,
    connections: Mutex<Registry>,
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
/// Time for closed connections to free their memory.
const AFTER_CLOSING: Duration = Duration::from_millis(50);
/// A connection that holds less is not closed: its memory would change nothing.
const LEAST_HELD: usize = 64 * 1024;
/// A refused client waits for this long.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl MemoryGuard {
    /// Creates a guard; without a limit it does nothing.
    pub(crate) fn new(limit: Option<u64>) -> Self {
        Self {
            limit,
            is_short: AtomicBool::new(false),
            connections: Mutex::default(),
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
        while let Some(used) = resident() {
            let is_short = used >= near(limit);
            if self.is_short.swap(is_short, Relaxed) != is_short {
                let (used, limit) = (used >> 20, limit >> 20);
                match is_short {
                    true => tracing::warn!(
                        used,
                        limit,
                        "near the limit of memory (in MiB): refusing new streams and queues"
                    ),
                    false => tracing::info!(used, limit, "there is memory again (in MiB)"),
                }
                changed(is_short);
            }
            let pause = match used >= limit && self.close_greediest(used - near(limit)) > 0 {
                true => AFTER_CLOSING,
                false => pause(limit.saturating_sub(used)),
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Closes the connections that hold most, until they have held `excess` bytes together. Returns
    /// their number.
    fn close_greediest(&self, excess: u64) -> usize {
        let open: Vec<_> = lock(&self.connections).open.values().cloned().collect();
        let held = open.into_iter().filter_map(|connection| {
            let connection = connection.upgrade()?;
            let held = connection.held();
            (held >= LEAST_HELD).then_some((held, connection))
        });
        let mut held: Vec<_> = held.collect();
        held.sort_unstable_by_key(|(held, _)| std::cmp::Reverse(*held));
        let mut freed = 0;
        let mut closed = 0;
        for (held, connection) in held {
            if freed >= excess {
                break;
            }
            freed += held as u64;
            closed += 1;
            connection.close();
        }
        closed
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
