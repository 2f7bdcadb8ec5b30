//! What all connections of a server share.

use std::{sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::{incidents::Incidents, memory::MemoryGuard};
use crate::error::{Error, ErrorKind, Result};

/// What all connections of a server share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) incidents: Arc<Incidents>,
    pub(crate) draining: CancellationToken,
    pub(super) lifetimes: Lifetimes,
    pub(crate) memory: Arc<MemoryGuard>,
    streams: Arc<Semaphore>,
    /// Streams of callers that are not known: watches of the health.
    open_to_all: Arc<Semaphore>,
    /// Requests in progress of callers that are not known yet.
    unknown: Arc<Semaphore>,
    max_streams: usize,
}

/// How long a connection may last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lifetimes {
    /// Give or take a tenth. It then takes no more streams.
    pub(crate) max_age: Duration,
    /// Time for its streams to end afterwards.
    pub(crate) grace: Duration,
}

/// Streams of callers without a credential. They must not take those of the others.
const OPEN_TO_ALL: usize = 1000;
/// Requests of callers that are not known yet, which are received at one time. With
/// [`UNKNOWN_BYTES`](super::body::UNKNOWN_BYTES) each they take 64 MiB.
const UNKNOWN: usize = 4096;
/// A refused stream is tried again after this time.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Shared {
    pub(crate) fn new(
        incidents: Arc<Incidents>,
        draining: CancellationToken,
        lifetimes: Lifetimes,
        memory: Arc<MemoryGuard>,
        max_streams: usize,
    ) -> Self {
        let max_streams = max_streams.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            incidents,
            draining,
            lifetimes,
            memory,
            streams: Arc::new(Semaphore::new(max_streams)),
            open_to_all: Arc::new(Semaphore::new(OPEN_TO_ALL)),
            unknown: Arc::new(Semaphore::new(UNKNOWN)),
            max_streams,
        }
    }

    /// Takes one of the relay's streams.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] if all are open, or if the process is short of memory.
    pub(crate) fn take_stream(&self) -> Result<OwnedSemaphorePermit> {
        self.memory.check()?;
        let permit = Arc::clone(&self.streams).try_acquire_owned();
        permit.map_err(|_| too_many(self.max_streams, "this relay"))
    }

    /// Takes one of the streams that are open to all, and one of those of the connection.
    ///
    /// # Errors
    /// As [`Shared::take_stream`].
    pub(super) fn take_open_stream(
        &self,
        of_connection: &Arc<Semaphore>,
    ) -> Result<[OwnedSemaphorePermit; 2]> {
        self.memory.check()?;
        let own = Arc::clone(of_connection).try_acquire_owned();
        let own = own.map_err(|_| too_many_open("a connection"))?;
        let shared = Arc::clone(&self.open_to_all).try_acquire_owned();
        Ok([shared.map_err(|_| too_many_open("this relay"))?, own])
    }

    /// Takes one of the requests of callers that are not known yet, until the service has received it.
    /// Their sum is small, so checks of the health are answered while memory is short.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] if so many are being received.
    pub(crate) fn take_unknown(&self) -> Result<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.unknown).try_acquire_owned();
        permit.map_err(|_| {
            let message = format!(
                "requests: the limit is {UNKNOWN} at one time of callers that are not known"
            );
            Error::new(ErrorKind::Exhausted, message).with_retry_after(RETRY_AFTER)
        })
    }

    /// Returns the number of open streams, and the maximum.
    pub(crate) fn streams(&self) -> (usize, usize) {
        let open = self.max_streams - self.streams.available_permits();
        (open, self.max_streams)
    }
}

#[cold]
fn too_many(limit: usize, of: &str) -> Error {
    let message = format!("streams: the limit of {limit} streams of {of} is reached");
    Error::new(ErrorKind::Exhausted, message).with_retry_after(RETRY_AFTER)
}

#[cold]
fn too_many_open(of: &str) -> Error {
    let message = format!("streams: the limit of watches of the health of {of} is reached");
    Error::new(ErrorKind::Exhausted, message).with_retry_after(RETRY_AFTER)
}

#[cfg(test)]
impl Shared {
    /// Returns the state of a server without limits.
    pub(super) fn for_test(incidents: Arc<Incidents>, draining: CancellationToken) -> Arc<Self> {
        let lifetimes = Lifetimes {
            max_age: Duration::from_secs(3600),
            grace: Duration::from_secs(60),
        };
        let memory = Arc::new(MemoryGuard::new(None));
        Arc::new(Self::new(incidents, draining, lifetimes, memory, 1000))
    }
}
