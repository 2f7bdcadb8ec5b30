//! A wrapper of any store that fails by a seed, for tests of users of stores.
//!
//! A call fails before its effect, or after it with a lost answer. Both look alike to the caller,
//! as on a broken connection. Calls also wait before and after, so that other callers run in
//! between. The counts tell whether a failed call had an effect.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;

use super::{Blob, BlobContent, BlobName, BlobStore, ETag, Page, PageOptions};
use crate::{
    base::sync::{Mutex, lock},
    error::{Error, ErrorKind, Result},
};

/// What fails; by default nothing.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// Percentage of calls that fail before their effect.
    pub(crate) before: u32,
    /// Percentage of calls that fail after their effect.
    pub(crate) after: u32,
    /// Longest wait of a call before its effect, and again before its answer.
    pub(crate) delay: Duration,
}

/// Passes calls on, or fails.
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

    /// Returns the wrapped store, which never fails.
    pub(crate) fn inner(&self) -> Arc<dyn BlobStore> {
        Arc::clone(&self.inner)
    }

    /// Returns the number of blobs that were created, changed or deleted, with or without an
    /// answer. Dropped calls are not counted.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Returns how many of them were answered with an error.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Fails a read, or passes it on.
    async fn read<T>(&self, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.wait_or_fail(self.faults.before).await?;
        let answer = call.await;
        self.wait_or_fail(self.faults.after).await?;
        answer
    }

    /// Fails a write, or passes it on. Counts it if it `changed` a blob.
    async fn write<T>(
        &self,
        call: impl Future<Output = Result<T>> + Send,
        changed: impl Fn(&T) -> bool + Send,
    ) -> Result<T> {
        self.wait_or_fail(self.faults.before).await?;
        let answer = call.await;
        let changed = u64::from(answer.as_ref().is_ok_and(changed));
        self.written.fetch_add(changed, Ordering::Relaxed);
        let passed = self.wait_or_fail(self.faults.after).await;
        if passed.is_err() {
            self.lost.fetch_add(changed, Ordering::Relaxed);
        }
        passed?;
        answer
    }

    /// Waits, and fails with this probability in percent.
    async fn wait_or_fail(&self, percent: u32) -> Result<()> {
        let (fails, wait) = {
            let mut rng = lock(&self.rng);
            let fails = (rng.u32(0..100) < percent).then(|| rng.bool());
            (
                fails,
                crate::base::backoff::jitter(self.faults.delay, &mut rng),
            )
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

// A method that is added to the trait must fail by the seed as well.
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

    fn conditional_delete(&self) -> bool {
        self.inner.conditional_delete()
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
    async fn without_faults_it_keeps_the_contract_at_any_speed() {
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
    async fn an_early_failure_has_no_effect_and_a_lost_answer_has() {
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
