//! Flags read and written in a store directly, without a relay (`--store`).

use std::{
    error::Error as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use reveille::{
    Error, ErrorKind, FlagName, GlobalFlag, duration,
    flag::{StoreFlag, StoreFlags},
    store::{self, BlobStore},
};
use tokio::{sync::OnceCell, time::Instant};

use super::{exit::Usage, output};

/// A store that a verb uses instead of a relay.
#[derive(Debug)]
pub(super) struct DirectStore {
    url: String,
    limit: Option<Limit>,
    pub(super) flags: StoreFlags,
}

/// The flag of a parked node, polled in its store. The store may still be missing. A failure is
/// logged once.
#[derive(Debug)]
pub(super) struct PolledFlag {
    url: String,
    name: FlagName,
    /// No relay can release the node: a permanent error ends the command, which prints it.
    alone: bool,
    flag: OnceCell<StoreFlag>,
    /// The last logged line was a failure.
    failing: AtomicBool,
}

/// The deadline of a verb's calls to its store, and the time-out it was computed from.
type Limit = (Instant, Duration);

/// Printed after each direct write to a store.
pub(super) const NO_RELAY_TOLD: &str =
    "no relay was told: nodes that poll this store see the change within their interval";

/// A read that takes longer is logged as a store that does not answer.
const PATIENCE: Duration = Duration::from_secs(2);

impl DirectStore {
    /// Opens the store to set flags, and creates a missing file. The time-out bounds this call and
    /// all later ones together.
    pub(super) async fn open(url: &str, timeout: Option<Duration>) -> anyhow::Result<Self> {
        Self::opened(url, timeout, store::open(url)).await
    }

    /// Opens the store to read or to clear flags. Does not create it.
    pub(super) async fn open_existing(
        url: &str,
        timeout: Option<Duration>,
    ) -> anyhow::Result<Self> {
        Self::opened(url, timeout, store::open_existing(url)).await
    }

    async fn opened(
        url: &str,
        timeout: Option<Duration>,
        opening: impl Future<Output = reveille::Result<Arc<dyn BlobStore>>>,
    ) -> anyhow::Result<Self> {
        refuse_memory(url)?;
        let limit = timeout.map(|span| (Instant::now() + span, span));
        let opened = bounded(url, limit, opening).await?;
        Ok(Self {
            url: url.to_owned(),
            limit,
            flags: StoreFlags::new(opened),
        })
    }

    /// Runs a call of `flags` within the time-out.
    pub(super) async fn within<T>(
        &self,
        call: impl Future<Output = reveille::Result<T>>,
    ) -> reveille::Result<T> {
        bounded(&self.url, self.limit, call).await
    }
}

impl PolledFlag {
    pub(super) fn new(url: &str, name: FlagName, alone: bool) -> Result<Self, Usage> {
        refuse_memory(url)?;
        store::check_url(url).map_err(|error| Usage(error.to_string()))?;
        Ok(Self {
            url: url.to_owned(),
            name,
            alone,
            flag: OnceCell::new(),
            failing: AtomicBool::new(false),
        })
    }

    async fn read(&self) -> reveille::Result<bool> {
        let opening = || async {
            let opened = store::open_existing(&self.url).await?;
            Ok::<_, Error>(StoreFlag::new(opened, self.name.clone()))
        };
        let flag = self.flag.get_or_try_init(opening).await?;
        flag.is_set().await
    }

    /// Logs once that the store cannot be read, and once that it can be read again.
    fn log_change(&self, failure: Option<&Error>) {
        let failing = failure.is_some();
        let before = self.failing.swap(failing, Ordering::Relaxed);
        match failure {
            Some(error) if !before => {
                let permanent = !error.is_retryable() && !self.flag.initialized();
                if permanent && self.alone {
                    return;
                }
                let next = if permanent { "" } else { "; still trying" };
                let cause = error.source().map(|cause| format!(": {cause}"));
                let cause = cause.unwrap_or_default();
                output::note(format_args!("{error}{cause}{next}"));
            }
            None if before => output::note(format_args!("{} can be read again", self.url)),
            _ => {}
        }
    }
}

#[async_trait]
impl GlobalFlag for PolledFlag {
    async fn is_set(&self) -> reveille::Result<bool> {
        let mut reading = std::pin::pin!(self.read());
        let read = match tokio::time::timeout(PATIENCE, &mut reading).await {
            Ok(read) => read,
            Err(_) => {
                let message = format!("store {} does not answer", self.url);
                self.log_change(Some(&Error::new(ErrorKind::Timeout, message)));
                reading.await
            }
        };
        self.log_change(read.as_ref().err());
        read
    }

    async fn set(&self, _set: bool) -> reveille::Result<()> {
        let message = "a parked node sets no flag";
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

/// Adds to the error of an interrupted or late write that the write may have happened, unless the
/// error states its outcome.
pub(super) fn may_have_happened(error: Error) -> Error {
    let text = error.to_string();
    // Where no connection was made, nothing was sent.
    let known = [
        "was not",
        "may or may not",
        "may have happened",
        "Connection refused",
        "dns error",
    ];
    match error.kind() {
        ErrorKind::Timeout | ErrorKind::Unavailable if !known.iter().any(|k| text.contains(k)) => {
            let message = format!("{text}; it may have happened: check with `flag get`");
            Error::new(error.kind(), message)
        }
        _ => error,
    }
}

/// Refuses a store in memory: no other process can read it.
fn refuse_memory(url: &str) -> Result<(), Usage> {
    match url.starts_with("memory:") {
        false => Ok(()),
        true => Err(Usage(
            "store: no other process can read a store in memory: name a shared store".to_owned(),
        )),
    }
}

async fn bounded<T>(
    url: &str,
    limit: Option<Limit>,
    call: impl Future<Output = reveille::Result<T>>,
) -> reveille::Result<T> {
    let Some((until, timeout)) = limit else {
        return call.await;
    };
    let late = |_| {
        let span = duration::Span(timeout);
        let message = format!("store {url}: no answer within {span}");
        // Exit code 3, as for a store that cannot be reached: the cause is the same.
        Err(Error::new(ErrorKind::Unavailable, message))
    };
    tokio::time::timeout_at(until, call)
        .await
        .unwrap_or_else(late)
}
