//! Leases: one holder at a time among any number of processes, on nothing but a blob store.
//!
//! A [`Lease`] is a name that several want; who gets it has a [`Held`], which renews it in the
//! background and says when it is lost. What may be believed is decided by `tenure`, without I/O;
//! this module carries its questions to the store and its answers back. Knows nothing of what the
//! lease is for: what the holder writes elsewhere is guarded by the token, not by the lease.

mod contender;
mod held;

#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::sync::Mutex;

use self::contender::{Contender, Turn};
pub use self::held::Held;
use crate::{
    error::{Error, Result},
    fault::Fault,
    store::{BlobName, BlobStore},
    tenure::{LONGEST, Record, SHORTEST, Terms, Unreadable},
    words::{Limits, check_text},
};

/// The folder of the leases' blobs. Nothing may sweep it: where a blob is deleted its tokens begin
/// anew, and its holder is robbed.
pub const FOLDER: &str = "leases/";

/// How a lease is held, and how it is waited for.
#[derive(Debug, Clone)]
pub struct LeaseConfig {
    /// For how long a write keeps others away; 1 second to 24 hours, as whole milliseconds. A
    /// holder believes in it for four fifths of that, and renews at a third. A crash costs the
    /// others this much.
    pub duration: Duration,
    /// Who holds it, for people: 1 to 128 bytes without control characters. Two holders may have
    /// the same name.
    pub holder: String,
    /// How often a lease is read that another has, and so how late a release is seen; 10
    /// milliseconds to `duration`. Each read is a transaction.
    pub poll: Duration,
}

/// A name that one of many may hold at a time.
///
/// Clones are one contender: their calls wait in turn. A holding that has ended is no help in the
/// next: whoever lost it waits like anybody.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> reveille::Result<()> {
/// use reveille::lease::{Lease, LeaseConfig};
/// use reveille::store;
///
/// let store = store::open("memory:").await?; // and a store that all nodes share
/// let config = LeaseConfig { holder: "node-7".into(), ..LeaseConfig::default() };
/// let lease = Lease::new(store, "billing", config)?;
///
/// let held = lease.acquire().await?;
/// tokio::select! {
///     lost = held.lost() => return Err(lost),
///     () = bill(held.token()) => held.release().await?,
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
    place: Place,
    terms: Terms,
    contender: Mutex<Contender>,
}

/// What is in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseState {
    /// The holder's, or the last one's.
    pub token: u64,
    /// Who holds it, or did so last.
    pub holder: String,
    /// It was not released. Whether its holder still lives is not known: where `written` is longer
    /// ago than `duration`, whoever waits has it soon.
    pub held: bool,
    /// For how long a write keeps others away.
    pub duration: Duration,
    /// When it was taken, renewed or released last, by the store's clock.
    pub written: SystemTime,
}

/// Where a lease is kept.
#[derive(Debug, Clone)]
struct Place {
    name: Arc<str>,
    blob: BlobName,
    store: Arc<dyn BlobStore>,
}

/// Often enough for people who wait; 2.6 million reads a month.
const POLL: Duration = Duration::from_secs(1);
const SHORTEST_POLL: Duration = Duration::from_millis(10);

impl Default for LeaseConfig {
    fn default() -> Self {
        Self {
            // The shortest that Azure's own leases have: a store's hiccup of 5 s is survived.
            duration: Duration::from_secs(15),
            holder: format!("process-{}-{:08x}", std::process::id(), fastrand::u32(..)),
            poll: POLL,
        }
    }
}

impl LeaseConfig {
    fn terms(self) -> Result<Terms> {
        if !(SHORTEST..=LONGEST).contains(&self.duration) {
            let rule = format_args!("must be 1s to 24h, not {:?}", self.duration);
            return Err(Error::invalid("duration", rule));
        }
        if !(SHORTEST_POLL..=self.duration).contains(&self.poll) {
            let rule = format_args!("must be 10ms to the duration, not {:?}", self.poll);
            return Err(Error::invalid("poll", rule));
        }
        check_text("holder", &self.holder, Limits::TEXT)?;
        if self.holder.is_empty() {
            return Err(Error::invalid("holder", "must not be empty"));
        }
        Ok(Terms {
            holder: self.holder,
            duration: self.duration,
            poll: self.poll,
            fault: Fault::NONE,
        })
    }
}

impl Lease {
    /// Makes a contender for the lease of this name, which is the blob `leases/NAME`; nothing is
    /// read yet. A name is what follows [`FOLDER`] in a [`BlobName`].
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a name or a setting that breaks its
    /// rule.
    pub fn new(store: Arc<dyn BlobStore>, name: &str, config: LeaseConfig) -> Result<Self> {
        let terms = config.terms()?;
        let place = Place {
            blob: BlobName::new(&format!("{FOLDER}{name}"))?,
            name: name.into(),
            store,
        };
        let contender = Mutex::new(Contender::new(&place, &terms));
        Ok(Self {
            inner: Arc::new(Inner {
                place,
                terms,
                contender,
            }),
        })
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.inner.place.name
    }

    /// Waits until the lease is free, and takes it. Others are not asked for their place: whoever
    /// writes first has it.
    ///
    /// A store that fails is tried again, for ever, and logged once.
    ///
    /// # Errors
    /// What does not pass by waiting: [`ErrorKind::Denied`](crate::ErrorKind::Denied),
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the store ignores the
    /// conditions of writes, or
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) where the blob is no lease, which is left
    /// as it is.
    ///
    /// # Cancel safety
    /// Safe: the next call goes on where this one was, so that waiting in short pieces comes to its
    /// end, too. A lease that was being taken just then has no holder until the next call finds it,
    /// or it ends by itself.
    pub async fn acquire(&self) -> Result<Held> {
        let mut contender = self.inner.contender.lock().await;
        loop {
            match contender.turn().await? {
                Turn::Wait(until) => contender.rest(until).await,
                Turn::Answered | Turn::Failed(_) | Turn::Ended(_) => {}
            }
            if let Some(held) = self.held(&mut contender) {
                return Ok(held);
            }
        }
    }

    /// Takes the lease where it is free, and returns `None` where it is not: a lease whose holder
    /// died is free to whoever has tried for all of its duration, by this method or by
    /// [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and what kept the store from answering. It may have been taken
    /// all the same, as the next call finds out.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Held>> {
        // Somebody here waits for it already.
        let Ok(mut contender) = self.inner.contender.try_lock() else {
            return Ok(None);
        };
        contender.look_now();
        loop {
            match contender.turn().await? {
                Turn::Wait(_) => return Ok(None),
                Turn::Failed(error) => return Err(error),
                Turn::Answered | Turn::Ended(_) => {}
            }
            if let Some(held) = self.held(&mut contender) {
                return Ok(Some(held));
            }
        }
    }

    /// Reads who holds the lease; `None` where nobody ever did.
    ///
    /// # Errors
    /// Whatever kept the store from answering;
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) where the blob is no lease.
    pub async fn state(&self) -> Result<Option<LeaseState>> {
        let place = &self.inner.place;
        let Some(blob) = place.store.get(&place.blob).await? else {
            return Ok(None);
        };
        let record = Record::read(&blob.content.bytes);
        let record = record.map_err(|unreadable| place.unreadable(&unreadable))?;
        Ok(Some(LeaseState {
            token: record.token,
            held: !record.released,
            duration: record.duration(),
            holder: record.holder,
            written: blob.last_modified,
        }))
    }

    /// Hands a lease over that was taken; the next call begins anew.
    fn held(&self, contender: &mut Contender) -> Option<Held> {
        let (token, until) = contender.believed()?;
        let Inner { place, terms, .. } = &*self.inner;
        let taken = std::mem::replace(contender, Contender::new(place, terms));
        Some(Held::start(place, token, until, taken))
    }
}

impl Place {
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
        let place = &self.inner.place;
        write!(f, "lease `{}` in {}", place.name, place.store)
    }
}
