//! Claim checks on a queue and a store in memory, also with missing or broken blobs.

use std::time::SystemTime;

use super::*;
use crate::{
    queue::MemoryQueue,
    store::{Blob, ETag, MemoryStore, Page, PageOptions},
    testing::{Call, ScriptedQueue, queue_contract as contract},
};

const LONG: Duration = Duration::from_secs(600);

fn small() -> ClaimConfig {
    ClaimConfig {
        max_body: 300_000,
        ..ClaimConfig::default()
    }
}

fn claims() -> (ClaimCheck, MemoryQueue, MemoryStore) {
    let memory = MemoryQueue::new("local/jobs".parse().expect("an address"));
    let store = MemoryStore::new();
    let claims = ClaimCheck::new(Arc::new(memory.clone()), Arc::new(store.clone()), small());
    (claims.expect("a good prefix"), memory, store)
}

fn large() -> Bytes {
    Bytes::from("large ".repeat(10_000))
}

async fn put(queue: &dyn WorkQueue, body: Bytes) {
    queue.put(vec![NewMessage::new(body)]).await.expect("put");
}

async fn get(queue: &dyn WorkQueue) -> Vec<Message> {
    queue.get(32, LONG).await.expect("get")
}

async fn names(store: &dyn BlobStore) -> Vec<BlobName> {
    let page = store.list("", &PageOptions::default()).await.expect("list");
    page.entries.into_iter().map(|entry| entry.name).collect()
}

/// A store without metadata that fails on demand.
#[derive(Debug, Clone, Default)]
struct FaultyStore {
    inner: MemoryStore,
    fails: Arc<std::sync::atomic::AtomicBool>,
    /// A blob whose read hangs.
    stuck: Arc<std::sync::OnceLock<BlobName>>,
}

impl FaultyStore {
    fn fail(&self, fails: bool) {
        self.fails.store(fails, std::sync::atomic::Ordering::SeqCst);
    }

    fn answer(&self) -> Result<()> {
        match self.fails.load(std::sync::atomic::Ordering::SeqCst) {
            false => Ok(()),
            true => Err(Error::new(ErrorKind::Unavailable, "the store is down")),
        }
    }
}

impl Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl BlobStore for FaultyStore {
    async fn get(&self, name: &BlobName) -> Result<Option<Blob>> {
        self.answer()?;
        if self.stuck.get() == Some(name) {
            std::future::pending::<()>().await;
        }
        self.inner.get(name).await
    }

    async fn create(&self, name: &BlobName, content: BlobContent) -> Result<ETag> {
        self.answer()?;
        self.inner.create(name, content).await
    }

    async fn update(&self, name: &BlobName, content: BlobContent, etag: &ETag) -> Result<ETag> {
        self.inner.update(name, content, etag).await
    }

    async fn delete(&self, name: &BlobName, etag: Option<&ETag>) -> Result<bool> {
        self.answer()?;
        self.inner.delete(name, etag).await
    }

    async fn list(&self, prefix: &str, page: &PageOptions) -> Result<Page> {
        self.inner.list(prefix, page).await
    }
}

#[tokio::test(start_paused = true)]
async fn it_keeps_the_contract() {
    contract::check(&claims().0).await;
    // All bodies go by reference.
    let (queue, memory, store) = claims();
    let config = ClaimConfig {
        inline: 0,
        ..small()
    };
    let queue = ClaimCheck::new(queue.inner, Arc::new(store), config).expect("a good prefix");
    contract::check(&queue).await;
    put(&queue, "x".into()).await;
    assert!(is_marked(&get(&memory).await[0].body));
}

#[tokio::test]
async fn a_large_body_is_a_blob_until_its_message_is_deleted() {
    let (queue, memory, store) = claims();
    put(&queue, large()).await;
    let peeked = queue.peek(1).await.expect("peek");
    assert_eq!(peeked[0].body, large());
    let raw = memory.peek(1).await.expect("peek");
    assert!(raw[0].body.len() < 100, "{:?}", raw[0].body);
    let blobs = names(&store).await;
    assert!(blobs[0].as_str().starts_with("claims/"));
    let blob = store.get(&blobs[0]).await.expect("get").expect("a blob");
    assert!(blob.content.bytes.len() < 1_000, "it is compressed");

    let got = get(&queue).await;
    assert_eq!(got[0].payload().expect("the body"), &large());
    let renewed = queue.renew(&got[0].receipt, LONG).await.expect("renew");
    assert_eq!(names(&store).await.len(), 1);
    queue.delete(&renewed).await.expect("delete");
    assert_eq!(names(&store).await, []);
    assert_eq!(queue.depth().await.expect("depth"), 0);
}

#[tokio::test]
async fn ordinary_bodies_are_unchanged_and_none_is_mistaken_for_a_reference() {
    let (queue, memory, store) = claims();
    put(&queue, "ordinary".into()).await;
    assert_eq!(get(&memory).await[0].body, "ordinary");
    assert_eq!(names(&store).await, []);

    // A body that looks like a reference to another body is returned as plain text.
    put(&queue, large()).await;
    let reference = memory.peek(1).await.expect("peek").remove(0).body;
    let forged = get(&queue).await.remove(0);
    put(&queue, reference.clone()).await;
    let got = get(&queue).await;
    assert_eq!(got[0].body, reference);
    queue.delete(&got[0].receipt).await.expect("delete");
    assert_eq!(names(&store).await.len(), 1, "the other one's stays");
    queue.delete(&forged.receipt).await.expect("delete");
    assert_eq!(names(&store).await, []);
}

#[tokio::test]
async fn a_message_without_its_blob_comes_with_a_fault_beside_the_others() {
    let (queue, memory, store) = claims();
    put(&queue, large()).await;
    put(&queue, "whole".into()).await;
    let gone = names(&store).await.remove(0);
    store.delete(&gone, None).await.expect("delete");
    let peeked = queue.peek(32).await.expect("peek");
    assert!(peeked[0].fault.is_some() && peeked[1].fault.is_none());
    let got = get(&queue).await;
    let error = got[0].payload().expect_err("it has no body");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains(gone.as_str()), "{error}");
    assert!(is_marked(&got[0].body), "the reference");
    assert_eq!((got[0].dequeue_count, &got[1].body[..]), (1, &b"whole"[..]));
    queue.delete(&got[0].receipt).await.expect("it is deleted");
    assert_eq!(memory.depth().await.expect("depth"), 1);
}

#[tokio::test]
async fn a_body_above_the_limit_is_an_error_of_its_message_and_its_blob_is_kept() {
    let (queue, _, store) = claims();
    put(&queue, large()).await;
    let config = ClaimConfig {
        max_body: 50_000,
        ..small()
    };
    let stricter = ClaimCheck::new(queue.inner, Arc::new(store.clone()), config);
    let stricter = stricter.expect("a good prefix");
    let got = get(&stricter).await;
    let error = got[0].payload().expect_err("too large");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("at most 50000"), "{error}");
    stricter.delete(&got[0].receipt).await.expect("delete");
    assert_eq!(names(&store).await.len(), 1, "kept for an analysis");
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_a_temporary_fault() {
    let memory = MemoryQueue::new("local/jobs".parse().expect("an address"));
    let store = FaultyStore::default();
    let queue = ClaimCheck::new(Arc::new(memory.clone()), Arc::new(store.clone()), small());
    let queue = queue.expect("a good prefix");
    put(&queue, large()).await;
    store.fail(true);
    let got = get(&queue).await;
    let error = got[0].payload().expect_err("not now");
    assert!(error.is_retryable(), "{error:?}");
    let released = queue.release(&got[0].receipt, Duration::ZERO).await;
    released.expect("release");
    let put_now = queue.put(vec![NewMessage::new(large())]).await;
    let refused = put_now.expect_err("the store is down");
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert_eq!(memory.depth().await.expect("depth"), 1);

    store.fail(false);
    let got = get(&queue).await;
    assert_eq!(got[0].payload().expect("the store is back"), &large());
    store.fail(true);
    let deleted = queue.delete(&got[0].receipt).await;
    deleted.expect("the blob stays until its expiry");
    assert_eq!(names(&store).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_blob_whose_read_hangs_delays_a_get_for_a_limited_time() {
    let memory = MemoryQueue::new("local/jobs".parse().expect("an address"));
    let store = FaultyStore::default();
    let queue = ClaimCheck::new(Arc::new(memory), Arc::new(store.clone()), small());
    let queue = queue.expect("a good prefix");
    put(&queue, large()).await;
    let blobs = names(&store).await;
    store.stuck.set(blobs[0].clone()).expect("once");
    put(&queue, large()).await;
    let got = tokio::time::timeout(Duration::from_secs(60), queue.get(9, LONG)).await;
    let got = got.expect("in time").expect("got");
    let error = got[0].payload().expect_err("stuck");
    assert_eq!(
        (error.kind(), error.is_retryable()),
        (ErrorKind::Timeout, true)
    );
    assert_eq!(got[1].payload().expect("the other body"), &large());
    let peeked = tokio::time::timeout(Duration::from_secs(60), queue.peek(9)).await;
    assert!(peeked.expect("in time").is_ok());
}

#[tokio::test]
async fn a_failed_put_deletes_no_blob() {
    let scripted = ScriptedQueue::new("local/jobs".parse().expect("an address"));
    let store = MemoryStore::new();
    let queue = ClaimCheck::new(Arc::new(scripted.clone()), Arc::new(store.clone()), small());
    let queue = queue.expect("a good prefix");
    let missing = Error::new(ErrorKind::NotFound, "no such queue");
    scripted.fail(Call::Put, 1, missing);
    let messages = || vec![NewMessage::new("small"), NewMessage::new(large())];
    queue.put(messages()).await.expect_err("as scripted");
    assert_eq!(names(&store).await.len(), 1, "kept until its expiry");
    let lost = Error::new(ErrorKind::Timeout, "no answer");
    scripted.lose_answers(Call::Put, 1, lost);
    queue.put(messages()).await.expect_err("as scripted");
    let got = get(&queue).await;
    assert_eq!(got[1].payload().expect("it was put"), &large());

    let gone = Error::new(ErrorKind::Conflict, "another consumer has it");
    scripted.fail(Call::Delete, 1, gone);
    queue
        .delete(&got[1].receipt)
        .await
        .expect_err("as scripted");
    assert_eq!(names(&store).await.len(), 2, "another listener needs it");
}

#[tokio::test]
async fn every_blob_has_an_expiry() {
    let (queue, _, store) = claims();
    let before = SystemTime::now();
    let messages = vec![
        NewMessage::new(large()),
        NewMessage::new(large()).after(Duration::from_secs(3600)),
    ];
    queue.put(messages).await.expect("put");
    let mut lives = Vec::new();
    for name in names(&store).await {
        let blob = store.get(&name).await.expect("get").expect("a blob");
        let text = &blob.content.metadata["timetolive"];
        assert!(text.ends_with('Z') && text.len() == 20, "{text}");
        let end: Timestamp = text.parse().expect("RFC 3339");
        let end = SystemTime::try_from(end).expect("a time");
        lives.push(end.duration_since(before).expect("later").as_secs_f64());
    }
    lives.sort_by(f64::total_cmp);
    let day = 24.0 * 3600.0;
    let expected = [90.0 * day, 90.0 * day + 3600.0];
    for (life, expected) in lives.iter().zip(expected) {
        assert!((life - expected).abs() < 60.0, "{life} is not {expected}");
    }
}

#[tokio::test]
async fn an_invalid_prefix_is_refused_and_a_foreign_receipt_is_invalid() {
    let (queue, memory, store) = claims();
    let long = "x".repeat(1_000);
    for prefix in ["", "/", "a//", "..\\", &long] {
        let config = ClaimConfig {
            prefix: prefix.to_owned(),
            ..small()
        };
        let refused = ClaimCheck::new(Arc::new(memory.clone()), Arc::new(store.clone()), config);
        assert_eq!(refused.expect_err(prefix).kind(), ErrorKind::Invalid);
    }
    put(&queue, "small".into()).await;
    let foreign = get(&memory).await.remove(0).receipt;
    let lost = queue.delete(&foreign).await.expect_err("not its own");
    assert_eq!(lost.kind(), ErrorKind::Conflict);
}
