//! The limits of a server's connections, streams and memory, from the configuration and the limit of
//! open files.
//!
//! [`MemoryGuard`] keeps the process within its limit of memory: it reads the resident memory often. Near the
//! limit the relay takes on nothing new, until there is room again: no connection, no stream, no queue, no large
//! request.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tonic::Status;

use crate::{
    base::{
        memory::{self, ResidentMemory},
        task::blocking,
    },
    error::{Error, ErrorKind, Result},
    wire::to_status,
};

/// The limits of a server for all of its clients together. Those of a principal are in the file of
/// rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerLimits {
    /// Maximum connections; further ones wait until one ends. Reduced if the process may not open
    /// as many files: 128 files are reserved, and a quarter of the rest, at most 256, is for
    /// connections that have not sent their preface yet. `None` is 100,000 if the server listens on
    /// loopback, and otherwise 10,000.
    pub max_connections: Option<usize>,
    /// Maximum connections of one peer address, or of one IPv6 /64 network; further ones are
    /// closed.
    /// `Some(0)` is no limit. `None` is no limit if the server listens on loopback, and otherwise
    /// 256 without a limit for peers on this machine.
    pub max_connections_per_address: Option<usize>,
    /// Maximum open streams of all connections (subscriptions, watches, publishers' streams,
    /// hand-overs); further ones are refused.
    pub max_streams: usize,
    /// Age of a connection, give or take a tenth, from which on it takes no more streams, so that its
    /// client connects again. Its streams end at their own age.
    pub max_connection_age: Duration,
    /// Maximum resident memory of this process in bytes, at least [`ServerLimits::LEAST_MEMORY`];
    /// `None` is no limit. From seven eighths on, new connections, streams, queues and timers are
    /// refused, and requests of more than 64 KiB. Only on Linux.
    pub max_memory: Option<u64>,
}

/// File descriptors reserved for other uses: the store's files, the admin port, the log and the
/// runtime.
const RESERVE: usize = 128;
/// A regular client sends its preface within a round trip. This number allows 256 / 0.1 s = 2,560
/// new connections a second at a latency of 100 ms.
pub(super) const HANDSHAKES: usize = 256;

/// Room is there again when a stream ends or a queue is idle.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// A server on loopback serves its own machine only.
const MAX_CONNECTIONS_ON_LOOPBACK: usize = 100_000;
const MAX_CONNECTIONS: usize = 10_000;
/// A client needs some round trips to connect again.
const SHORTEST_AGE: Duration = Duration::from_secs(1);

impl ServerLimits {
    /// The least [`ServerLimits::max_memory`]: some times what an idle relay takes.
    pub const LEAST_MEMORY: u64 = 64 << 20;

    /// Returns the memory that this process may use in bytes: that of the machine, or of its control
    /// group if that has less. `None` on other systems than Linux.
    pub fn memory_of_machine() -> Option<u64> {
        memory::available()
    }

    /// Returns the connections that the configuration allows.
    pub(crate) fn connections(&self, listen: SocketAddr) -> usize {
        let default = match listen.ip().is_loopback() {
            true => MAX_CONNECTIONS_ON_LOOPBACK,
            false => MAX_CONNECTIONS,
        };
        self.max_connections.unwrap_or(default)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.max_connection_age < SHORTEST_AGE {
            return Err(Error::invalid("max_connection_age", "must be at least 1s"));
        }
        let least = Self::LEAST_MEMORY;
        match self.max_memory.filter(|max| *max < least) {
            Some(max) => {
                let rule = format_args!("must be at least {} MiB, not {max} bytes", least >> 20);
                Err(Error::invalid("max_memory", rule))
            }
            None => Ok(()),
        }
    }
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            max_connections: None,
            max_connections_per_address: None,
            max_streams: 200_000,
            max_connection_age: Duration::from_secs(3600),
            max_memory: None,
        }
    }
}

/// Limits the stated number of connections to the number that `open_files` allow. Returns the most that
/// have sent their preface, and the most that have not; each is at least one.
pub(super) fn connection_limits(stated: usize, open_files: Option<usize>) -> (usize, usize) {
    let available = open_files.map_or(usize::MAX, |files| files.saturating_sub(RESERVE));
    let handshakes = (available / 4).clamp(1, HANDSHAKES);
    let established = available.saturating_sub(handshakes).max(1);
    (stated.clamp(1, established), handshakes)
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        to_status(error)
    }
}

/// Adds the time after which a request at a limit of the relay is tried again. Not for a `Notify`, nor for the
/// contents of a `Subscribe`: of those, such a time says that the request came too soon, and none that it is
/// too large.
pub(in super::super) fn retry_later(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Exhausted if error.retry_after().is_none() => {
            error.with_retry_after(RETRY_AFTER)
        }
        _ => error,
    }
}

/// Returns the number of files that this process may have open, or `None` if it is unlimited or
/// unknown.
pub(super) fn open_files() -> Option<usize> {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, getrlimit};
        let limit = getrlimit(Resource::Nofile).current?;
        Some(usize::try_from(limit).unwrap_or(usize::MAX))
    }
    #[cfg(not(unix))]
    None
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{from_status, proto, subscribe_from_wire};

    #[test]
    fn a_subscription_with_too_many_names_has_no_time_to_wait() {
        let selector = proto::Selector {
            storage_account: "acct".to_owned(),
            queue_name: "orders".to_owned(),
        };
        let request = proto::SubscribeRequest {
            listener_id: "worker".to_owned(),
            selectors: vec![selector; 4097],
            ..proto::SubscribeRequest::default()
        };
        let refused = || subscribe_from_wire(request.clone()).expect_err("too many");
        assert_eq!(refused().kind(), ErrorKind::Exhausted);
        assert_eq!(from_status(refused().into()).retry_after(), None);
        let later = from_status(retry_later(refused()).into());
        assert_eq!(later.retry_after(), Some(RETRY_AFTER));
    }

    #[test]
    fn connections_leave_the_reserve_and_the_handshakes_their_files() {
        for (stated, files, established, handshakes) in [
            (100_000, None, 100_000, 256),
            (100_000, Some(20_000), 20_000 - 128 - 256, 256),
            (1_000, Some(20_000), 1_000, 256),
            (100_000, Some(300), 129, 43),
            // Too few for anything: it still serves one.
            (100_000, Some(64), 1, 1),
            (0, None, 1, 256),
        ] {
            let limits = connection_limits(stated, files);
            let expected = (established, handshakes);
            assert_eq!(limits, expected, "{stated} of {files:?} files");
        }
    }
}
