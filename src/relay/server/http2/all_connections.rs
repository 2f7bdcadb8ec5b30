//! All connections of a server: what they share, and the bounds of their number and of their streams.

use std::{sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::{
    accept::ServerConfig,
    incidents::Incidents,
    limits::{ConnectionLimits, open_files, retry_later},
    memory::MemoryGuard,
    tls::Tls,
};
use crate::{
    base::eviction::EvictingPool,
    error::{Error, ErrorKind, Result},
};

/// What all connections of a server share.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) incidents: Arc<Incidents>,
    pub(crate) memory: Arc<MemoryGuard>,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(super) draining: CancellationToken,
    /// Age from which on a connection takes no more streams, give or take a tenth.
    pub(super) max_age: Duration,
    /// Time for its streams to end afterwards.
    pub(super) grace: Duration,
    max: usize,
    /// One permit for each connection that may still be established.
    pub(super) permits: Arc<Semaphore>,
    /// Connections before their preface.
    pub(crate) handshakes: EvictingPool,
    max_streams: usize,
    streams: Arc<Semaphore>,
    /// Requests in progress of callers that are not known yet.
    unknown: Arc<Semaphore>,
}

/// Requests of callers that are not known yet, which are received at one time: 72 MiB.
const UNKNOWN: usize = 4096;
/// Time beyond the age of the longest streams, in which an old connection may end by itself.
const LAST_ANSWERS: Duration = Duration::from_secs(60);
impl Connections {
    pub(super) fn new(
        config: &ServerConfig,
        draining: CancellationToken,
        tls: Option<Arc<Tls>>,
    ) -> Self {
        let stated = config.limits.connections(config.listen);
        let limits = ConnectionLimits::new(stated, open_files());
        let max = limits.established.min(Semaphore::MAX_PERMITS);
        let max_streams = config.limits.max_streams.clamp(1, Semaphore::MAX_PERMITS);
        let streams_end = config
            .stream_max_age
            .saturating_add(config.stream_max_age / 5);
        Self {
            incidents: Arc::new(Incidents::new()),
            memory: Arc::new(MemoryGuard::new(config.limits.max_memory)),
            tls,
            draining,
            max_age: config.limits.max_connection_age,
            grace: streams_end.saturating_add(LAST_ANSWERS),
            max,
            permits: Arc::new(Semaphore::new(max)),
            handshakes: EvictingPool::new(limits.handshakes),
            max_streams,
            streams: Arc::new(Semaphore::new(max_streams)),
            unknown: Arc::new(Semaphore::new(UNKNOWN)),
        }
    }

    /// Returns the number of established connections.
    pub(crate) fn open(&self) -> usize {
        self.max - self.permits.available_permits()
    }

    /// Returns the maximum of established connections.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Takes one of the relay's streams.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] if all are open, or if the process is short of memory.
    pub(crate) fn take_stream(&self) -> Result<OwnedSemaphorePermit> {
        self.memory.check()?;
        let permit = Arc::clone(&self.streams).try_acquire_owned();
        permit.map_err(|_| {
            let limit = self.max_streams;
            let message = format!("streams: the limit of {limit} streams of this relay is reached");
            retry_later(Error::new(ErrorKind::Exhausted, message))
        })
    }

    /// Takes the place of a request of a caller that is not known yet.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] if so many are being received.
    pub(crate) fn take_unknown(&self) -> Result<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.unknown).try_acquire_owned();
        permit.map_err(|_| {
            let message = format!(
                "requests: the limit is {UNKNOWN} at one time of callers that are not known"
            );
            retry_later(Error::new(ErrorKind::Exhausted, message))
        })
    }

    /// Returns the number of open streams, and the maximum.
    pub(crate) fn streams(&self) -> (usize, usize) {
        let open = self.max_streams - self.streams.available_permits();
        (open, self.max_streams)
    }
}
