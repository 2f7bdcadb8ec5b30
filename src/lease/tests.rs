//! Holders on real stores, with real waits on a paused clock, and on a store that fails.

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
    error::{ErrorKind, Result},
    store::{Blob, BlobContent, ETag, MemoryStore, Page, PageOptions},
    sync::lock,
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

/// How a store misbehaves.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Mood {
    #[default]
    Sound,
    /// It answers nothing.
    Silent,
    /// What it writes it does not tell.
    Mute,
    Fails(ErrorKind),
}

#[derive(Debug, Default)]
struct Moody {
    inner: MemoryStore,
    mood: Mutex<Mood>,
    asked: AtomicU64,
}

impl Moody {
    fn set(&self, mood: Mood) {
        *lock(&self.mood) = mood;
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    async fn answer<T>(&self, write: bool, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mood = *lock(&self.mood);
        match mood {
            Mood::Silent => std::future::pending().await,
            Mood::Fails(kind) => Err(Error::new(kind, "it fails")),
            Mood::Mute if write => {
                work.await?;
                Err(Error::new(ErrorKind::Unavailable, "cut off"))
            }
            Mood::Sound | Mood::Mute => work.await,
        }
    }
}

impl fmt::Display for Moody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a moody store")
    }
}

#[async_trait]
impl BlobStore for Moody {
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

fn moody() -> (Arc<Moody>, Arc<dyn BlobStore>) {
    let store = Arc::<Moody>::default();
    (Arc::clone(&store), store)
}

async fn seconds(count: u64) {
    tokio::time::sleep(Duration::from_secs(count)).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_has_one_holder_and_a_release_hands_it_on_with_a_greater_token() {
    let store = memory();
    let (a, b) = (lease(&store, "a"), lease(&store, "b"));
    assert_eq!(a.state().await.expect("read"), None);
    let held = a.acquire().await.expect("free");
    assert!(b.try_acquire().await.expect("an answer").is_none());
    let state = a.state().await.expect("read").expect("held");
    assert_eq!((state.holder.as_str(), state.held), ("a", true));
    assert_eq!((state.token, state.duration), (held.token(), D));
    let waiting = b.clone();
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    // Long after the first write: it is renewed.
    seconds(60).await;
    assert!(held.is_held() && !waiting.is_finished());
    let (token, released) = (held.token(), Instant::now());
    held.release().await.expect("released");
    let next = waiting.await.expect("no panic").expect("acquired");
    assert!(next.token() == token + 1 && next.is_held());
    assert!(released.elapsed() < Duration::from_millis(1_200));
    assert!(a.try_acquire().await.expect("an answer").is_none());
    next.release().await.expect("released");
    assert!(!a.state().await.expect("read").expect("a tombstone").held);
    let again = a.try_acquire().await.expect("an answer").expect("free");
    assert_eq!(again.token(), token + 2);
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_is_dropped_is_waited_for() {
    let store = memory();
    let (a, b) = (lease(&store, "a"), lease(&store, "b"));
    drop(a.acquire().await.expect("free"));
    let begun = Instant::now();
    let held = b.acquire().await.expect("acquired");
    assert_eq!(begun.elapsed(), D);
    assert!(held.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_wait_in_short_pieces_comes_to_its_end() {
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
    while a.try_acquire().await.expect("an answer").is_none() {
        seconds(1).await;
    }
    assert!(begun.elapsed() <= D + Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_costs_the_lease_before_another_can_have_it() {
    let (moody, store) = moody();
    let (a, b) = (lease(&store, "a"), lease(&memory(), "b"));
    drop(b);
    let held = a.acquire().await.expect("free");
    let taken = Instant::now();
    moody.set(Mood::Silent);
    held.ends_within(Duration::from_secs(2)).await;
    assert_eq!(taken.elapsed(), Duration::from_secs(6));
    assert!(held.is_held());
    let loss = held.lost().await;
    assert_eq!(taken.elapsed(), Duration::from_secs(8));
    assert_eq!(loss.kind(), ErrorKind::Timeout);
    let told = "lease `job` was lost: it was not renewed in time: a moody store did not answer";
    assert!(loss.message().starts_with(told), "{loss}");
    moody.set(Mood::Sound);
    seconds(1).await;
    assert!(!held.is_held(), "for good");
    assert!(held.release().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_hiccup_costs_nothing() {
    let (moody, store) = moody();
    let held = lease(&store, "a").acquire().await.expect("free");
    for mood in [
        Mood::Silent,
        Mood::Fails(ErrorKind::Unavailable),
        Mood::Fails(ErrorKind::Denied),
        Mood::Fails(ErrorKind::Internal),
    ] {
        seconds(2).await;
        moody.set(mood);
        // A third of the duration, less what a retry waits at most.
        seconds(3).await;
        moody.set(Mood::Sound);
        seconds(20).await;
        assert!(held.is_held(), "{mood:?}");
    }
    // Each write succeeds and none is answered: the nonce tells.
    moody.set(Mood::Mute);
    seconds(100).await;
    assert!(held.is_held());
    held.release().await.expect("released");
    let state = lease(&store, "b").state().await.expect("read");
    assert!(!state.expect("a tombstone").held);
}

#[tokio::test(start_paused = true)]
async fn waiting_goes_on_while_the_store_fails_and_not_too_fast() {
    let (moody, store) = moody();
    moody.set(Mood::Fails(ErrorKind::Unavailable));
    let a = lease(&store, "a");
    let error = a.try_acquire().await.expect_err("it fails");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let waiting = tokio::spawn(async move { a.acquire().await });
    seconds(100).await;
    assert!(!waiting.is_finished());
    assert!((50..500).contains(&moody.asked()), "{}", moody.asked());
    moody.set(Mood::Sound);
    let held = waiting.await.expect("no panic").expect("acquired");
    assert!(held.is_held());
}

#[tokio::test(start_paused = true)]
async fn refused_credentials_and_strange_content_are_final() {
    let (moody, store) = moody();
    let a = lease(&store, "a");
    moody.set(Mood::Fails(ErrorKind::Denied));
    let error = a.acquire().await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Denied);
    moody.set(Mood::Sound);
    store.create(&blob(), "my notes".into()).await.expect("new");
    let error = a.acquire().await.expect_err("no lease");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("\"my notes\""), "{error}");
    assert!(a.try_acquire().await.is_err() && a.state().await.is_err());
    let left = store.get(&blob()).await.expect("read").expect("there");
    assert_eq!(&left.content.bytes[..], b"my notes");
    store.delete(&blob(), None).await.expect("deleted");
    assert!(a.acquire().await.expect("mended").is_held());
}

#[tokio::test(start_paused = true)]
async fn a_blob_that_is_deleted_or_written_by_others_is_a_loss_that_is_named() {
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
    let (moody, store) = moody();
    let held = lease(&store, "a").acquire().await.expect("free");
    moody.set(Mood::Silent);
    let begun = Instant::now();
    let error = held.release().await.expect_err("not released");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("it ends by itself"), "{error}");
    assert!(begun.elapsed() <= D / 2, "{:?}", begun.elapsed());
}

#[test]
fn settings_that_break_a_rule_are_refused_by_name() {
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
        assert!(
            lease(others, "b")
                .try_acquire()
                .await
                .expect("read")
                .is_none()
        );
        tokens.push(held.token());
        held.release().await.expect("released");
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}
