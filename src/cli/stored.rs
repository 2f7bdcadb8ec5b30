//! Flags straight in a store: for who has no relay, and for who does not rely on one.

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

/// A store that was asked for instead of a relay.
#[derive(Debug)]
pub(super) struct Stored {
    url: String,
    limit: Option<Limit>,
    flags: StoreFlags,
}

/// The flag of a parked node: its store need not be there yet, and what fails is said once.
#[derive(Debug, Clone)]
pub(super) struct Parked {
    url: String,
    name: FlagName,
    /// No relay releases the node: an error that stays ends the command, which tells of it.
    alone: bool,
    shared: Arc<Shared>,
}

/// Until when a verb waits for its store, and the span that was given.
type Limit = (Instant, Duration);

#[derive(Debug, Default)]
struct Shared {
    flag: OnceCell<StoreFlag>,
    /// What was said of the store last.
    failing: AtomicBool,
}

/// Said after each write of a store itself.
pub(super) const NOBODY_TOLD: &str =
    "nobody was told at once: who polls this store sees it at its next reading, within an interval";

/// How long a reading may take before it is said that the store does not answer.
const PATIENCE: Duration = Duration::from_secs(2);

impl Stored {
    /// Opens the store to set flags, and makes it where it is a file that is missing. The time that
    /// is given is for this and all that follows.
    pub(super) async fn open(url: &str, timeout: Option<Duration>) -> anyhow::Result<Self> {
        Self::opened(url, timeout, store::open(url)).await
    }

    /// Opens the store to read or to clear flags, and makes none.
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
        shared(url)?;
        let limit = timeout.map(|span| (Instant::now() + span, span));
        let opened = bounded(url, limit, opening).await?;
        Ok(Self {
            url: url.to_owned(),
            limit,
            flags: StoreFlags::new(opened),
        })
    }

    /// Runs a reading within the time that was given.
    pub(super) async fn read<T>(
        &self,
        call: impl AsyncFnOnce(&StoreFlags) -> reveille::Result<T>,
    ) -> reveille::Result<T> {
        bounded(&self.url, self.limit, call(&self.flags)).await
    }

    /// Runs a write within the time that was given: one that is given up may have happened.
    pub(super) async fn write<T>(
        &self,
        call: impl AsyncFnOnce(&StoreFlags) -> reveille::Result<T>,
    ) -> reveille::Result<T> {
        let done = bounded(&self.url, self.limit, call(&self.flags)).await;
        done.map_err(may_have_happened)
    }
}

impl Parked {
    pub(super) fn new(url: &str, name: FlagName, alone: bool) -> Result<Self, Usage> {
        shared(url)?;
        Ok(Self {
            url: url.to_owned(),
            name,
            alone,
            shared: Arc::default(),
        })
    }

    async fn read(&self) -> reveille::Result<bool> {
        let opening = || async {
            let opened = store::open_existing(&self.url).await?;
            Ok::<_, Error>(StoreFlags::new(opened).global(self.name.clone()))
        };
        let flag = self.shared.flag.get_or_try_init(opening).await?;
        flag.is_set().await
    }

    /// Says once that the store cannot be read, and once that it can again.
    fn tell(&self, trouble: Option<&Error>) {
        let failing = trouble.is_some();
        let before = self.shared.failing.swap(failing, Ordering::Relaxed);
        match trouble {
            Some(error) if !before => {
                let lasts = !error.is_retryable() && !self.shared.flag.initialized();
                if lasts && self.alone {
                    return;
                }
                let next = if lasts { "" } else { "; still trying" };
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
impl GlobalFlag for Parked {
    async fn is_set(&self) -> reveille::Result<bool> {
        let mut reading = std::pin::pin!(self.read());
        let read = match tokio::time::timeout(PATIENCE, &mut reading).await {
            Ok(read) => read,
            Err(_) => {
                let message = format!("store {} does not answer", self.url);
                self.tell(Some(&Error::new(ErrorKind::Timeout, message)));
                reading.await
            }
        };
        self.tell(read.as_ref().err());
        read
    }

    async fn set(&self, _set: bool) -> reveille::Result<()> {
        let message = "a parked node sets no flag";
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

/// Adds to an error of a write that was cut off or ran out of time that it may have happened, where it
/// does not say how that is.
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
            let message = format!("{text}; it may have happened: `flag get` tells");
            Error::new(error.kind(), message)
        }
        _ => error,
    }
}

/// Refuses a store that no other process can see.
fn shared(url: &str) -> Result<(), Usage> {
    match url.starts_with("memory:") {
        false => Ok(()),
        true => Err(Usage(
            "store: a store in memory is this command's alone: name one that others see".to_owned(),
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
        // Exit code 3, as where it cannot be reached: the cause is the same.
        Err(Error::new(ErrorKind::Unavailable, message))
    };
    tokio::time::timeout_at(until, call)
        .await
        .unwrap_or_else(late)
}
