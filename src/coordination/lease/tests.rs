//! Holders on real stores, with a paused clock, and on a failing store.

#[cfg(feature = "cloud")]
mod cloud;

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::Instant;

use super::*;
use crate::{
    base::sync::lock,
    error::{ErrorKind, Result},
    store::{Blob, BlobContent, ETag, MemoryStore, Page, PageOptions},
};

const D: Duration = Duration::from_secs(10);

fn lease(store: &Arc<dyn BlobStore>, holder: &str) -> Lease {
    let config = LeaseConfig {
        duration: D,
        holder: holder.to_owned(),
        ..LeaseConfig::default()
    };
    Lease::new(Arc::clone(store), "job", config).expect("a lease")
}

fn memory() -> Arc<dyn BlobStore> {
    Arc::new(MemoryStore::new())
}

fn blob() -> BlobName {
    BlobName::new("leases/job").expect("a name")
}

/// How the store fails.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Failure {
    #[default]
    Sound,
    /// It answers no request.
    Silent,
    /// It executes writes and loses their answers.
    Mute,
    Fails(ErrorKind),
}

#[derive(Debug, Default)]
struct FailingStore {
    inner: MemoryStore,
    failure: Mutex<Failure>,
    asked: AtomicU64,
}

impl FailingStore {
    fn set(&self, failure: Failure) {
        *lock(&self.failure) = failure;
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    async fn answer<T>(&self, write: bool, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let failure = *lock(&self.failure);
        match failure {
            Failure::Silent => std::future::pending().await,
            Failure::Fails(kind) => Err(Error::new(kind, "it fails")),
            Failure::Mute if write => {
                work.await?;
                Err(Error::new(ErrorKind::Unavailable, "cut off"))
            }
            Failure::Sound | Failure::Mute => work.await,
        }
    }
}

impl fmt::Display for FailingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a failing_store store")
    }
}

#[async_trait]
impl BlobStore for FailingStore {
    async fn get(&self, name: &BlobName) -> Result<Option<Blob>> {
        self.answer(false, self.inner.get(name)).await
    }
    async fn create(&self, name: &BlobName, content: BlobContent) -> Result<ETag> {
        self.answer(true, self.inner.create(name, content)).await
    }
    async fn update(&self, name: &BlobName, content: BlobContent, etag: &ETag) -> Result<ETag> {
        self.answer(true, self.inner.update(name, content, etag))
            .await
    }
    async fn delete(&self, name: &BlobName, etag: Option<&ETag>) -> Result<bool> {
        self.inner.delete(name, etag).await
    }
    async fn list(&self, prefix: &str, page: &PageOptions) -> Result<Page> {
        self.inner.list(prefix, page).await
    }
}

fn failing_store() -> (Arc<FailingStore>, Arc<dyn BlobStore>) {
    let store = Arc::<FailingStore>::default();
    (Arc::clone(&store), store)
}

/// Takes the lease if it is free within a moment.
async fn try_acquire(lease: &Lease) -> Option<LeaseGuard> {
    let taken = tokio::time::timeout(Duration::from_millis(300), lease.acquire()).await;
    taken.ok().map(|taken| taken.expect("acquired"))
}

async fn seconds(count: u64) {
    tokio::time::sleep(Duration::from_secs(count)).await;
}

#[tokio::test(start_paused = true)]
async fn after_a_release_the_next_holder_has_a_greater_token() {
    let store = memory();
    let (a, b) = (lease(&store, "a"), lease(&store, "b"));
    assert_eq!(a.state().await.expect("read"), None);
    let held = a.acquire().await.expect("free");
    assert!(try_acquire(&b).await.is_none());
    let state = a.state().await.expect("read").expect("held");
    assert_eq!((state.holder.as_str(), state.held), ("a", true));
    assert_eq!((state.token, state.duration), (held.token(), D));
    let waiting = b.clone();
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    // Longer than the duration, so the lease was renewed.
    seconds(60).await;
    assert!(held.is_held() && !waiting.is_finished());
    let (token, released) = (held.token(), Instant::now());
    held.release().await.expect("released");
    let next = waiting.await.expect("no panic").expect("acquired");
    assert!(next.token() == token + 1 && next.is_held());
    assert!(released.elapsed() < Duration::from_millis(1_200));
    assert!(try_acquire(&a).await.is_none());
    next.release().await.expect("released");
    assert!(!a.state().await.expect("read").expect("a tombstone").held);
    let again = a.acquire().await.expect("free");
    assert_eq!(again.token(), token + 2);
}

#[tokio::test(start_paused = true)]
async fn a_contender_waits_for_the_duration_of_a_dropped_guard() {
    let store = memory();
    let (a, b) = (lease(&store, "a"), lease(&store, "b"));
    drop(a.acquire().await.expect("free"));
    let begun = Instant::now();
    let held = b.acquire().await.expect("acquired");
    assert_eq!(begun.elapsed(), D);
    assert!(held.is_held());
}

#[tokio::test(start_paused = true)]
async fn several_short_waits_add_up_to_a_long_one() {
    let store = memory();
    let (a, b) = (lease(&store, "a"), lease(&store, "b"));
    drop(a.acquire().await.expect("free"));
    let begun = Instant::now();
    let held = loop {
        let piece = Duration::from_millis(700);
        if let Ok(held) = tokio::time::timeout(piece, b.acquire()).await {
            break held.expect("acquired");
        }
    };
    assert!(held.is_held());
    assert!(begun.elapsed() <= D + Duration::from_secs(1));
    drop(held);
    let begun = Instant::now();
    while try_acquire(&a).await.is_none() {
        seconds(1).await;
    }
    assert!(begun.elapsed() <= D + Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_the_lease_is_lost_before_another_contender_takes_it() {
    let (failing_store, store) = failing_store();
    let (a, b) = (lease(&store, "a"), lease(&memory(), "b"));
    drop(b);
    let held = a.acquire().await.expect("free");
    let taken = Instant::now();
    failing_store.set(Failure::Silent);
    held.ends_within(Duration::from_secs(2)).await;
    assert_eq!(taken.elapsed(), Duration::from_secs(6));
    assert!(held.is_held());
    let loss = held.lost().await;
    assert_eq!(taken.elapsed(), Duration::from_secs(8));
    assert_eq!(loss.kind(), ErrorKind::Timeout);
    let told = "lease `job` was lost: it was not renewed in time";
    assert_eq!(loss.message(), told);
    failing_store.set(Failure::Sound);
    seconds(1).await;
    assert!(!held.is_held(), "a loss is final");
    assert!(held.release().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_short_failure_of_the_store_does_not_lose_the_lease() {
    let (failing_store, store) = failing_store();
    let held = lease(&store, "a").acquire().await.expect("free");
    for failure in [
        Failure::Silent,
        Failure::Fails(ErrorKind::Unavailable),
        Failure::Fails(ErrorKind::Denied),
        Failure::Fails(ErrorKind::Internal),
    ] {
        seconds(2).await;
        failing_store.set(failure);
        // A third of the duration, less the longest wait of a retry.
        seconds(3).await;
        failing_store.set(Failure::Sound);
        seconds(20).await;
        assert!(held.is_held(), "{failure:?}");
    }
    // Each write succeeds and loses its answer. The nonce identifies the writer.
    failing_store.set(Failure::Mute);
    seconds(100).await;
    assert!(held.is_held());
    held.release().await.expect("released");
    let state = lease(&store, "b").state().await.expect("read");
    assert!(!state.expect("a tombstone").held);
}

#[tokio::test(start_paused = true)]
async fn a_failing_store_is_retried_with_a_backoff() {
    let (failing_store, store) = failing_store();
    failing_store.set(Failure::Fails(ErrorKind::Unavailable));
    let a = lease(&store, "a");
    let waiting = tokio::spawn(async move { a.acquire().await });
    seconds(100).await;
    assert!(!waiting.is_finished());
    assert!(
        (50..500).contains(&failing_store.asked()),
        "{}",
        failing_store.asked()
    );
    failing_store.set(Failure::Sound);
    let held = waiting.await.expect("no panic").expect("acquired");
    assert!(held.is_held());
}

#[tokio::test(start_paused = true)]
async fn refused_credentials_and_foreign_content_are_final_errors() {
    let (failing_store, store) = failing_store();
    let a = lease(&store, "a");
    failing_store.set(Failure::Fails(ErrorKind::Denied));
    let error = a.acquire().await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Denied);
    failing_store.set(Failure::Sound);
    store.create(&blob(), "my notes".into()).await.expect("new");
    let error = a.acquire().await.expect_err("no lease");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("\"my notes\""), "{error}");
    assert!(a.state().await.is_err());
    let left = store.get(&blob()).await.expect("read").expect("there");
    assert_eq!(&left.content.bytes[..], b"my notes");
    store.delete(&blob(), None).await.expect("deleted");
    assert!(a.acquire().await.expect("mended").is_held());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_or_overwritten_blob_is_a_loss_with_its_reason() {
    let store = memory();
    let a = lease(&store, "a");
    let held = a.acquire().await.expect("free");
    store.delete(&blob(), None).await.expect("deleted");
    let loss = held.lost().await;
    assert_eq!(loss.kind(), ErrorKind::NotFound);
    assert_eq!(loss.message(), "lease `job` was lost: its blob was deleted");
    let before = held.token();
    let held = a.acquire().await.expect("made anew");
    assert!(held.token() > before);
    store.delete(&blob(), None).await.expect("deleted");
    let other = lease(&store, "b").acquire().await.expect("robbed");
    let loss = held.lost().await;
    assert_eq!(loss.message(), "lease `job` was lost: `b` has it");
    assert!(other.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_release_without_an_answer_ends_in_time() {
    let (failing_store, store) = failing_store();
    let held = lease(&store, "a").acquire().await.expect("free");
    failing_store.set(Failure::Silent);
    let begun = Instant::now();
    let error = held.release().await.expect_err("not released");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("it ends by itself"), "{error}");
    assert!(begun.elapsed() <= D / 2, "{:?}", begun.elapsed());
}

#[test]
fn invalid_settings_are_refused_by_name() {
    let default = LeaseConfig::default;
    for (name, config, words) in [
        ("", default(), "blob: "),
        ("../x", default(), "blob: "),
        (
            "x",
            LeaseConfig {
                duration: Duration::from_millis(999),
                ..default()
            },
            "duration: must be 1s to 24h",
        ),
        (
            "x",
            LeaseConfig {
                duration: Duration::from_secs(86_401),
                ..default()
            },
            "duration: must be 1s to 24h",
        ),
        (
            "x",
            LeaseConfig {
                poll: Duration::ZERO,
                ..default()
            },
            "poll: must be 10ms to the duration",
        ),
        (
            "x",
            LeaseConfig {
                holder: String::new(),
                ..default()
            },
            "holder: must not be empty",
        ),
        (
            "x",
            LeaseConfig {
                holder: "a\nb".to_owned(),
                ..default()
            },
            "holder: must not hold control characters",
        ),
    ] {
        let error = Lease::new(memory(), name, config).expect_err(words);
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().starts_with(words), "{error}");
    }
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn processes_that_share_a_file_share_a_lease() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("shared.db");
    let mut tokens = Vec::new();
    let open = async || {
        let store = crate::store::SqliteStore::open(&path).await;
        let store: Arc<dyn BlobStore> = Arc::new(store.expect("opened"));
        store
    };
    let (one, two) = (open().await, open().await);
    for round in 0..6 {
        let (mine, others) = if round % 2 == 0 {
            (&one, &two)
        } else {
            (&two, &one)
        };
        let held = lease(mine, "a").acquire().await.expect("free");
        assert!(try_acquire(&lease(others, "b")).await.is_none());
        tokens.push(held.token());
        held.release().await.expect("released");
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}
