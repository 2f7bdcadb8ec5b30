//! A store that fails as seeded, around any other one: for tests of what stands on stores.
//!
//! A call fails before it does anything, or after it was done: its answer is lost. Both look alike
//! to the caller, as they do with a service that is cut off. Calls also take their time before and
//! after, so that others come in between. What fails is told from what happened by the counts.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;

use super::{Blob, BlobContent, BlobName, BlobStore, Capabilities, ETag, Page, PageOptions};
use crate::{
    error::{Error, ErrorKind, Result},
    sync::{Mutex, lock},
};

/// What goes wrong; by default nothing.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// Calls of a hundred that fail, and have done nothing.
    pub(crate) before: u32,
    /// Calls of a hundred that are done, and whose answer is lost.
    pub(crate) after: u32,
    /// A call takes up to this before it is done, and again before its answer comes.
    pub(crate) delay: Duration,
}

/// Passes calls on, or does not.
pub(crate) struct FaultyStore {
    inner: Arc<dyn BlobStore>,
    faults: Faults,
    rng: Mutex<fastrand::Rng>,
    written: AtomicU64,
    lost: AtomicU64,
}

impl FaultyStore {
    pub(crate) fn new(inner: Arc<dyn BlobStore>, faults: Faults, seed: u64) -> Self {
        Self {
            inner,
            faults,
            rng: Mutex::new(fastrand::Rng::with_seed(seed)),
            written: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// Returns the store that never fails.
    pub(crate) fn inner(&self) -> Arc<dyn BlobStore> {
        Arc::clone(&self.inner)
    }

    /// Returns how many blobs were made, changed or deleted, whoever was told of it. Calls that were
    /// dropped are not among them.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Returns how many of them were answered by an error.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Lets a read fail, or passes it on.
    async fn read<T>(&self, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.passes(self.faults.before).await?;
        let answer = call.await;
        self.passes(self.faults.after).await?;
        answer
    }

    /// Lets a write fail, or passes it on; counts it where it has `changed` anything.
    async fn write<T>(
        &self,
        call: impl Future<Output = Result<T>> + Send,
        changed: impl Fn(&T) -> bool + Send,
    ) -> Result<T> {
        self.passes(self.faults.before).await?;
        let answer = call.await;
        let changed = u64::from(answer.as_ref().is_ok_and(changed));
        self.written.fetch_add(changed, Ordering::Relaxed);
        let passed = self.passes(self.faults.after).await;
        if passed.is_err() {
            self.lost.fetch_add(changed, Ordering::Relaxed);
        }
        passed?;
        answer
    }

    /// Takes its time, and fails so many times of a hundred.
    async fn passes(&self, percent: u32) -> Result<()> {
        let (fails, wait) = {
            let mut rng = lock(&self.rng);
            let fails = (rng.u32(0..100) < percent).then(|| rng.bool());
            (fails, crate::backoff::jitter(self.faults.delay, &mut rng))
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        match fails {
            None => Ok(()),
            Some(true) => Err(Error::new(ErrorKind::Unavailable, "cut off")),
            Some(false) => Err(Error::new(ErrorKind::Timeout, "no answer in time")),
        }
    }
}

// A method that is added to the trait must go through the faults as well.
#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl BlobStore for FaultyStore {
    async fn get(&self, name: &BlobName) -> Result<Option<Blob>> {
        self.read(self.inner.get(name)).await
    }

    async fn create(&self, name: &BlobName, content: BlobContent) -> Result<ETag> {
        self.write(self.inner.create(name, content), |_| true).await
    }

    async fn update(&self, name: &BlobName, content: BlobContent, etag: &ETag) -> Result<ETag> {
        let call = self.inner.update(name, content, etag);
        self.write(call, |_| true).await
    }

    async fn delete(&self, name: &BlobName, etag: Option<&ETag>) -> Result<bool> {
        self.write(self.inner.delete(name, etag), |there| *there)
            .await
    }

    async fn list(&self, prefix: &str, page: &PageOptions) -> Result<Page> {
        self.read(self.inner.list(prefix, page)).await
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultyStore({:?}, {:?})", self.inner, self.faults)
    }
}

mod tests {
    use super::*;
    use crate::store::{MemoryStore, contract};

    fn faulty(faults: Faults) -> FaultyStore {
        FaultyStore::new(Arc::new(MemoryStore::new()), faults, 7)
    }

    #[tokio::test(start_paused = true)]
    async fn where_nothing_fails_it_keeps_the_contract_however_slow_it_is() {
        for delay in [Duration::ZERO, Duration::from_secs(1)] {
            let faults = Faults {
                delay,
                ..Faults::default()
            };
            contract::check(&faulty(faults)).await;
            let store: Arc<dyn BlobStore> = Arc::new(faulty(faults));
            contract::check_races(&[Arc::clone(&store), store]).await;
        }
    }

    #[tokio::test]
    async fn what_failed_before_was_not_done_and_what_lost_its_answer_was() {
        let blob = BlobName::new("a").expect("a name");
        for (before, after, there) in [(100, 0, false), (0, 100, true)] {
            let faults = Faults {
                before,
                after,
                ..Faults::default()
            };
            let store = faulty(faults);
            let error = store.create(&blob, "1".into()).await.expect_err("a fault");
            assert!(error.is_retryable(), "{error}");
            let found = store.inner.get(&blob).await.expect("get");
            assert_eq!(found.is_some(), there);
            assert_eq!(
                (store.written(), store.lost()),
                (there.into(), there.into())
            );
        }
    }
}
