//! Leases: one holder at a time among any number of processes, on a blob store alone.
//!
//! A [`Lease`] is a name for which processes contend. The holder has a [`LeaseGuard`], which renews
//! the lease in the background and reports its loss. `machine` decides without I/O how long a lease
//! is valid; this module sends its requests to the store. The purpose of a lease is unknown here.
//! The token, not the lease, guards the holder's writes to other systems.

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

pub use self::guard::LeaseGuard;
use self::machine::{
    Action, Answer, Content, EndReason, LeaseMachine, MAX_DURATION, MIN_DURATION, Record,
};
use crate::{
    base::{
        clock::{Clock, Tick, micros, wall},
        duration::Span,
    },
    error::{Error, ErrorKind, Result},
    store::{BlobContent, BlobName, BlobStore, ETag, write_over},
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
    lease_blob: LeaseBlob,
    contender: Arc<Mutex<Contender>>,
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

/// A contender with its store. Sends the machine's requests, each with a time-out.
#[derive(Debug)]
struct Contender {
    lease_blob: LeaseBlob,
    clock: Clock,
    machine: LeaseMachine,
    /// Whether the last request failed and that was logged.
    failing: bool,
    /// Whether the store was read once. A later refusal is a credential that is being changed, and
    /// does not end the wait.
    was_read: bool,
}

/// The outcome of one step.
#[derive(Debug)]
enum StepOutcome {
    /// A request was sent. It may have failed with an error that may pass.
    Sent,
    /// No request is due before this time.
    Wait(Tick),
    Ended(EndReason),
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
    fn check(&self) -> Result<()> {
        if !(MIN_DURATION..=MAX_DURATION).contains(&self.duration) {
            let rule = format_args!("must be 1s to 24h, not {:?}", self.duration);
            return Err(Error::invalid("duration", rule));
        }
        if !(MIN_POLL..=self.duration).contains(&self.poll) {
            let rule = format_args!("must be 10ms to the duration, not {:?}", self.poll);
            return Err(Error::invalid("poll", rule));
        }
        check_text("holder", &self.holder, Limits::MAX_TEXT)?;
        match self.holder.is_empty() {
            true => Err(Error::invalid("holder", "must not be empty")),
            false => Ok(()),
        }
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
        config.check()?;
        let lease_blob = LeaseBlob {
            blob: BlobName::new(&format!("{FOLDER}{name}"))?,
            name: name.into(),
            store,
        };
        let contender = Arc::new(Mutex::new(Contender::new(&lease_blob, config)));
        Ok(Self {
            lease_blob,
            contender,
        })
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.lease_blob.name
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
        let mut contender = self.contender.lock().await;
        loop {
            if let StepOutcome::Wait(until) = contender.run_step().await? {
                contender.sleep_until(until).await;
            }
            let Some((token, until)) = contender.machine.validity(contender.clock.now()) else {
                continue;
            };
            // The next call starts with a new contender.
            let next = Contender::new(&self.lease_blob, contender.machine.config().clone());
            let taken = std::mem::replace(&mut *contender, next);
            return Ok(LeaseGuard::start(taken, token, until));
        }
    }

    /// Reads the state of the lease; `None` if it was never taken.
    ///
    /// # Errors
    /// Any error of the store; [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the blob is no
    /// lease.
    pub async fn state(&self) -> Result<Option<LeaseState>> {
        let lease_blob = &self.lease_blob;
        let Some(blob) = lease_blob.store.get(&lease_blob.blob).await? else {
            return Ok(None);
        };
        let record = Record::read(&blob.content.bytes);
        let record = record.map_err(|start| lease_blob.unreadable(&start))?;
        Ok(Some(LeaseState {
            token: record.token,
            held: !record.released,
            duration: record.duration(),
            holder: record.holder,
            written: blob.last_modified,
        }))
    }
}

impl Contender {
    fn new(lease_blob: &LeaseBlob, config: LeaseConfig) -> Self {
        let seed = getrandom::u64().unwrap_or_else(|_| fastrand::u64(..));
        Self {
            lease_blob: lease_blob.clone(),
            clock: Clock::new(),
            machine: LeaseMachine::new(config, fastrand::Rng::with_seed(seed)),
            failing: false,
            was_read: false,
        }
    }

    async fn sleep_until(&self, until: Tick) {
        tokio::time::sleep_until(self.clock.instant(until)).await;
    }

    /// Sends the request that is due, and passes its answer to the machine.
    ///
    /// # Errors
    /// An error that waiting does not solve.
    ///
    /// # Cancel safety
    /// Safe: the request counts as unanswered.
    async fn run_step(&mut self) -> Result<StepOutcome> {
        let action = match self.machine.step(self.clock.now(), micros(wall())) {
            Action::Wait(until) => return Ok(StepOutcome::Wait(until)),
            Action::Ended(end) => return Ok(StepOutcome::Ended(end)),
            request => request,
        };
        let timeout = self.machine.config().request_timeout();
        let asked = tokio::time::timeout(timeout, self.lease_blob.ask(action)).await;
        let asked = asked.unwrap_or_else(|_| {
            let (store, span) = (&self.lease_blob.store, Span(timeout));
            let message = format!("{store} did not answer within {span}");
            Err(Error::new(ErrorKind::Timeout, message))
        });
        let (answer, failure) = match asked {
            Ok(answer) => (answer, None),
            Err(error) if error.kind() == ErrorKind::Conflict => (Answer::Conflict, None),
            // An error that proves that nothing was written is treated as unknown as well. It costs
            // a read.
            Err(error) => (Answer::Unknown, Some(error)),
        };
        self.was_read |= matches!(answer, Answer::Found(_));
        let taken = self.machine.answered(self.clock.now(), answer);
        taken.map_err(|start| self.lease_blob.unreadable(&start))?;
        self.log_failure(failure.as_ref());
        match failure {
            Some(error) if self.is_final(error.kind()) => Err(error),
            _ => Ok(StepOutcome::Sent),
        }
    }

    /// Returns whether the same call would always fail in the same way.
    fn is_final(&self, kind: ErrorKind) -> bool {
        match kind {
            ErrorKind::Denied | ErrorKind::Invalid | ErrorKind::NotFound => !self.was_read,
            // A store without conditional writes; or another file has taken the place of the store's,
            // with a lease of its own.
            ErrorKind::Unsupported | ErrorKind::Closed => true,
            _ => false,
        }
    }

    /// Logs a failure of the store once until it answers again.
    fn log_failure(&mut self, failure: Option<&Error>) {
        let lease = &*self.lease_blob.name;
        match failure {
            Some(error) if !self.failing => {
                tracing::warn!(lease, %error, "the lease's store fails; retrying");
            }
            None if self.failing => tracing::info!(lease, "the lease's store answers again"),
            _ => {}
        }
        self.failing = failure.is_some();
    }
}

impl LeaseBlob {
    /// Sends a request of the machine.
    async fn ask(&self, action: Action) -> Result<Answer> {
        let (record, before) = match action {
            Action::Create(record) => (record, None),
            Action::Update(record, version) => (record, Some(ETag::new(&version))),
            _ => {
                let found = self.store.get(&self.blob).await?;
                return Ok(Answer::Found(found.map(|blob| Content {
                    version: blob.etag.as_str().into(),
                    bytes: blob.content.bytes,
                })));
            }
        };
        let content = BlobContent::from(record.bytes());
        let written = write_over(&*self.store, &self.blob, content, before.as_ref());
        Ok(Answer::Written(written.await?.as_str().into()))
    }

    fn unreadable(&self, start: &str) -> Error {
        let rule = format_args!(
            "must be a lease's record, but begins with {start:?}; it was left as it is in {}",
            self.store
        );
        Error::invalid(self.blob.as_str(), rule)
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lease_blob = &self.lease_blob;
        write!(f, "lease `{}` in {}", lease_blob.name, lease_blob.store)
    }
}
