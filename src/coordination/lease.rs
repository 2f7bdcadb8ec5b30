//! Leases: one holder at a time among any number of processes, on a blob store alone.
//!
//! A [`Lease`] is a name for which processes contend. The holder has a [`LeaseGuard`], which renews
//! the lease in the background and reports its loss. `machine` decides without I/O how long a lease
//! is valid; this module sends its requests to the store. The purpose of a lease is unknown here.
//! The token, not the lease, guards the holder's writes to other systems.

mod contender;
mod guard;
pub(crate) mod machine;

#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::sync::Mutex;

use self::contender::{Contender, StepOutcome};
pub use self::guard::LeaseGuard;
use self::machine::{ContenderConfig, MAX_DURATION, MIN_DURATION, Record, Unreadable};
use crate::{
    error::{Error, Result},
    store::{BlobName, BlobStore},
    types::{Limits, check_text},
};

/// The folder of the leases' blobs. Never sweep it: after a deletion tokens start again, and the
/// holder loses its lease.
pub const FOLDER: &str = "leases/";

/// How a lease is held and waited for.
#[derive(Debug, Clone)]
pub struct LeaseConfig {
    /// How long a write excludes other processes: 1 second to 24 hours, in whole milliseconds. The
    /// holder relies on the lease for four fifths of it and renews it at a third. After a crash the
    /// others wait this long.
    pub duration: Duration,
    /// The holder's name, for people: 1 to 128 bytes without control characters. Two holders may
    /// have the same name.
    pub holder: String,
    /// Interval of reads while another process holds the lease: 10 milliseconds to `duration`. A
    /// release is seen within it. Each read is a transaction.
    pub poll: Duration,
}

/// A name that one process at a time may hold.
///
/// Clones are one contender: their calls wait in order. A process that lost the lease waits like
/// any other contender.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> reveille::Result<()> {
/// use reveille::lease::{Lease, LeaseConfig};
/// use reveille::store;
///
/// let store = store::open("memory:").await?; // in production: a store that all nodes share
/// let config = LeaseConfig { holder: "node-7".into(), ..LeaseConfig::default() };
/// let lease = Lease::new(store, "billing", config)?;
///
/// let guard = lease.acquire().await?;
/// tokio::select! {
///     lost = guard.lost() => return Err(lost),
///     () = bill(guard.token()) => guard.release().await?,
/// }
/// # Ok(())
/// # }
/// # async fn bill(token: u64) { assert!(token > 1_700_000_000_000_000) }
/// ```
#[derive(Debug, Clone)]
pub struct Lease {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    lease_blob: LeaseBlob,
    config: ContenderConfig,
    contender: Mutex<Contender>,
}

/// The state of a lease in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseState {
    /// The token of the present or last holder.
    pub token: u64,
    /// The name of the present or last holder.
    pub holder: String,
    /// Whether the lease was not released. The holder may have died: if `written` is longer ago
    /// than `duration`, a waiting contender takes the lease soon.
    pub held: bool,
    /// How long a write excludes other processes.
    pub duration: Duration,
    /// When it was last taken, renewed or released, by the store's clock.
    pub written: SystemTime,
}

/// The blob of a lease.
#[derive(Debug, Clone)]
struct LeaseBlob {
    name: Arc<str>,
    blob: BlobName,
    store: Arc<dyn BlobStore>,
}

/// Often enough for people who wait; 2.6 million reads a month.
const POLL: Duration = Duration::from_secs(1);
const MIN_POLL: Duration = Duration::from_millis(10);

impl Default for LeaseConfig {
    fn default() -> Self {
        Self {
            // The shortest duration of Azure's own leases. It survives a failure of the store of 5
            // s.
            duration: Duration::from_secs(15),
            holder: format!("process-{}-{:08x}", std::process::id(), fastrand::u32(..)),
            poll: POLL,
        }
    }
}

impl LeaseConfig {
    fn into_contender_config(self) -> Result<ContenderConfig> {
        if !(MIN_DURATION..=MAX_DURATION).contains(&self.duration) {
            let rule = format_args!("must be 1s to 24h, not {:?}", self.duration);
            return Err(Error::invalid("duration", rule));
        }
        if !(MIN_POLL..=self.duration).contains(&self.poll) {
            let rule = format_args!("must be 10ms to the duration, not {:?}", self.poll);
            return Err(Error::invalid("poll", rule));
        }
        check_text("holder", &self.holder, Limits::MAX_TEXT)?;
        if self.holder.is_empty() {
            return Err(Error::invalid("holder", "must not be empty"));
        }
        Ok(ContenderConfig {
            holder: self.holder,
            duration: self.duration,
            poll: self.poll,
        })
    }
}

impl Lease {
    /// Makes a contender for the lease of this name, which is the blob `leases/NAME`. Reads nothing
    /// yet. A name is the part after [`FOLDER`] in a [`BlobName`].
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a malformed name or a setting out of
    /// range.
    pub fn new(store: Arc<dyn BlobStore>, name: &str, config: LeaseConfig) -> Result<Self> {
        let config = config.into_contender_config()?;
        let lease_blob = LeaseBlob {
            blob: BlobName::new(&format!("{FOLDER}{name}"))?,
            name: name.into(),
            store,
        };
        let contender = Mutex::new(Contender::new(&lease_blob, &config));
        Ok(Self {
            inner: Arc::new(Inner {
                lease_blob,
                config,
                contender,
            }),
        })
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.inner.lease_blob.name
    }

    /// Waits until the lease is free, and takes it. Contenders are not queued: the first one to
    /// write takes it.
    ///
    /// A failing store is retried for ever and logged once.
    ///
    /// # Errors
    /// Errors that waiting does not solve: [`ErrorKind::Denied`](crate::ErrorKind::Denied),
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the store ignores conditions of
    /// writes, and [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the blob is no lease; such
    /// a blob is left as it is.
    ///
    /// # Cancel safety
    /// Safe: the next call continues this one, so that several short waits add up to a long one. If
    /// a call is dropped while it takes the lease, the lease has no holder until the next call
    /// finds it or it ends by itself.
    pub async fn acquire(&self) -> Result<LeaseGuard> {
        let mut contender = self.inner.contender.lock().await;
        loop {
            match contender.run_step().await? {
                StepOutcome::Wait(until) => contender.sleep_until(until).await,
                StepOutcome::Answered | StepOutcome::Failed(_) | StepOutcome::Ended(_) => {}
            }
            if let Some(held) = self.held(&mut contender) {
                return Ok(held);
            }
        }
    }

    /// Takes the lease if it is free; returns `None` if it is not. After a holder's death the lease
    /// is free for a contender that has tried for all of its duration, with this method or with
    /// [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and any error of the store. The lease may have been taken
    /// nevertheless; the next call finds it.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<LeaseGuard>> {
        // Another call in this process already waits for it.
        let Ok(mut contender) = self.inner.contender.try_lock() else {
            return Ok(None);
        };
        contender.read_now();
        loop {
            match contender.run_step().await? {
                StepOutcome::Wait(_) => return Ok(None),
                StepOutcome::Failed(error) => return Err(error),
                StepOutcome::Answered | StepOutcome::Ended(_) => {}
            }
            if let Some(held) = self.held(&mut contender) {
                return Ok(Some(held));
            }
        }
    }

    /// Reads the state of the lease; `None` if it was never taken.
    ///
    /// # Errors
    /// Any error of the store; [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the blob is no
    /// lease.
    pub async fn state(&self) -> Result<Option<LeaseState>> {
        let lease_blob = &self.inner.lease_blob;
        let Some(blob) = lease_blob.store.get(&lease_blob.blob).await? else {
            return Ok(None);
        };
        let record = Record::read(&blob.content.bytes);
        let record = record.map_err(|unreadable| lease_blob.unreadable(&unreadable))?;
        Ok(Some(LeaseState {
            token: record.token,
            held: !record.released,
            duration: record.duration(),
            holder: record.holder,
            written: blob.last_modified,
        }))
    }

    /// Makes the guard of a lease that was taken. The next call starts with a new contender.
    fn held(&self, contender: &mut Contender) -> Option<LeaseGuard> {
        let (token, until) = contender.validity()?;
        let Inner {
            lease_blob, config, ..
        } = &*self.inner;
        let taken = std::mem::replace(contender, Contender::new(lease_blob, config));
        Some(LeaseGuard::start(lease_blob, token, until, taken))
    }
}

impl LeaseBlob {
    fn unreadable(&self, unreadable: &Unreadable) -> Error {
        let rule = format_args!(
            "must be a lease's record, but is {unreadable}; it was left as it is in {}",
            self.store
        );
        Error::invalid(self.blob.as_str(), rule)
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lease_blob = &self.inner.lease_blob;
        write!(f, "lease `{}` in {}", lease_blob.name, lease_blob.store)
    }
}
