//! Failures in a round: concurrent writes, a dead instance, a malformed document.

use super::*;
use crate::{
    ErrorKind,
    store::{
        BlobEntry, MemoryStore,
        tests::faulty::{Faults, FaultyStore},
    },
};

fn name(name: &str) -> BlobName {
    BlobName::new(name).expect("a name")
}

#[tokio::test]
async fn a_blob_that_changes_during_the_work_is_kept() {
    let files = Files::new();
    let source = files.store("source").await;
    let marks = [("TimeToLive", EXPIRED), ("DeadBlobContainer", "grave")];
    put(&*source, "moved", &marks).await;
    put(&*source, "deleted", &marks[..1]).await;
    let sweeper = files.sweeper("").await;
    let container = sweeper.sources[0].clone().expect("it is on");
    let page = container
        .list("", &PageOptions::default())
        .await
        .expect("a list");
    let mut heads = Vec::new();
    for head in page.entries {
        heads.extend(with_metadata(&*container, head).await.expect("a head"));
    }
    // After the metadata was read, and before the blob is moved or deleted.
    for blob in ["moved", "deleted"] {
        let now = source.get(&name(blob)).await.expect("get").expect("there");
        let fresh = BlobContent::from("fresh");
        source
            .update(&name(blob), fresh, &now.etag)
            .await
            .expect("update");
    }
    let page = Page {
        entries: heads,
        ..Default::default()
    };
    let counts = sweeper.remover.work(&*container, page, wall()).await;
    assert_eq!((counts.changed, counts.removed()), (2, 0), "{counts:?}");
    for blob in ["moved", "deleted"] {
        let now = source.get(&name(blob)).await.expect("get").expect("there");
        assert_eq!(&now.content.bytes[..], b"fresh");
    }
}

#[tokio::test]
async fn a_page_that_was_taken_and_not_worked_is_left_to_the_next_round() {
    let files = Files::new();
    let source = files.store("source").await;
    for number in 0..10 {
        put(&*source, &format!("{number}"), &[("TimeToLive", EXPIRED)]).await;
    }
    let more = r#", "page_size": 4"#;
    let (dead, alive) = (files.sweeper(more).await, files.sweeper(more).await);
    let taken = dead.take_page(None, false, &Counts::default()).await;
    let (_, taken) = taken.expect("a page");
    assert!(matches!(taken, Some((0, Ok(_)))), "{taken:?}");
    drop(dead);
    let round = alive.sweep_once(false).await.expect("a round");
    assert_eq!((round.done.deleted, round.finished), (6, true));
    let next = alive.sweep_once(true).await.expect("a round");
    assert_eq!(next.done.deleted, 4);
}

#[tokio::test]
async fn a_malformed_document_stops_the_job_and_is_left_unchanged() {
    let files = Files::new();
    let state = files.store("state").await;
    put(&*state, "sweeps/job", &[]).await;
    let sweeper = files.sweeper("").await;
    let error = sweeper.sweep_once(false).await.expect_err("nonsense");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(
        error.message().contains("it begins with \"sweeps/job\""),
        "{error}"
    );
    let blob = state
        .get(&name("sweeps/job"))
        .await
        .expect("get")
        .expect("there");
    assert_eq!(&blob.content.bytes[..], b"sweeps/job");
    assert!(
        state
            .delete(&name("sweeps/job"), None)
            .await
            .expect("deleted")
    );
    sweeper
        .sweep_once(false)
        .await
        .expect("the next round begins at once");
}

#[tokio::test]
async fn a_container_that_cannot_be_listed_is_counted_and_the_others_are_swept() {
    let files = Files::new();
    let source = files.store("source").await;
    put(&*source, "a", &[("TimeToLive", EXPIRED)]).await;
    let refused = r#"{"AZURE_STORAGE_CONNECTION_STRING":
        "BlobEndpoint=http://127.0.0.1:1/acct;AccountName=acct;AccountKey=a2V5"}"#;
    let text = format!(
        r#"{{"name": "job", "state": "memory:", "containers": [
            {{"url": "az://nowhere", "environment": {refused}}}, {{"url": "{}"}}]}}"#,
        files.url("source")
    );
    let job = SweepJob::parse(&text).expect("a job");
    let sweeper = Sweeper::new(job, &BTreeMap::new())
        .await
        .expect("a sweeper");
    let round = sweeper.sweep_once(false).await.expect("a round");
    assert_eq!((round.done.failed, round.done.deleted), (1, 1));
    assert!(round.finished, "it is left out of the round");
    let next = sweeper.sweep_once(true).await.expect("another round");
    assert_eq!((next.done.failed, next.done.seen), (1, 0));
}

#[test]
fn other_metadata_is_another_blob_even_where_an_etag_is_a_hash() {
    let head = |marks: &[(&str, &str)]| BlobEntry {
        name: name("a"),
        etag: store::ETag::new("hash"),
        last_modified: SystemTime::UNIX_EPOCH,
        metadata: Some(
            marks
                .iter()
                .map(|(k, v)| ((*k).into(), (*v).into()))
                .collect(),
        ),
    };
    let (seen, later) = (
        head(&[(TIME_TO_LIVE, EXPIRED)]),
        head(&[(TIME_TO_LIVE, "2999")]),
    );
    assert!(later.differs_from(&seen));
    assert!(!seen.differs_from(&seen.clone()));
}

/// After a crash between copy and deletion both blobs exist. The next round finishes the move.
#[tokio::test]
async fn a_blob_that_was_copied_and_not_deleted_is_copied_again_and_deleted() {
    let files = Files::new();
    let (source, dead) = (files.store("source").await, files.store("dead").await);
    put(
        &*source,
        "a",
        &[("TimeToLive", EXPIRED), ("DeadBlobContainer", "grave")],
    )
    .await;
    put(
        &*dead,
        "grave/a",
        &[("sweptfrom", &format!("{}/a", files.url("source")))],
    )
    .await;
    let sweeper = files.sweeper("").await;
    let round = sweeper.sweep_once(false).await.expect("a round");
    assert_eq!(round.done.moved, 1);
    assert!(names(&*source).await.is_empty());
    let copy = dead
        .get(&name("grave/a"))
        .await
        .expect("get")
        .expect("there");
    assert_eq!(&copy.content.bytes[..], b"a");
    assert!(copy.content.metadata[SWEPT_FROM].ends_with("/a"));
}

#[tokio::test]
async fn another_blob_at_the_destination_is_not_overwritten() {
    let files = Files::new();
    let (source, dead) = (files.store("source").await, files.store("dead").await);
    for blob in ["one", "two"] {
        let marks = [
            ("TimeToLive", EXPIRED),
            ("DeadBlobContainer", "grave/same/name"),
        ];
        put(&*source, blob, &marks).await;
    }
    let marks = [("TimeToLive", EXPIRED), ("DeadBlobContainer", "grave")];
    put(&*source, "alive", &marks).await;
    put(&*dead, "grave/alive", &[]).await;
    let sweeper = files.sweeper("").await;
    let round = sweeper.sweep_once(false).await.expect("a round");
    // Of two concurrent moves, the later one counts its blob as changed.
    assert_eq!(
        (round.done.moved, round.done.left + round.done.changed),
        (1, 2)
    );
    let kept = dead
        .get(&name("grave/alive"))
        .await
        .expect("get")
        .expect("there");
    assert!(kept.content.metadata.is_empty(), "{kept:?}");
    assert_eq!(names(&*source).await.len(), 2);
    let again = sweeper.sweep_once(true).await.expect("a round");
    assert_eq!((again.done.left, again.done.moved), (2, 0));
}

#[tokio::test]
async fn a_store_in_memory_is_refused_for_dead_blobs() {
    let text = r#"{"name": "job", "state": "memory:", "containers": [{"url": "memory:"}],
        "dead": {"account": "env:DEAD"}}"#;
    let job = SweepJob::parse(text).expect("a job");
    let environment = [("DEAD".to_owned(), "memory:".to_owned())].into();
    let error = Sweeper::new(job, &environment).await.expect_err("memory");
    assert!(
        error
            .message()
            .starts_with("dead.account: must not be a store in memory"),
        "{error}"
    );
}

#[tokio::test]
async fn an_unusable_account_for_dead_blobs_is_reported_at_once() {
    let text = r#"{"name": "job", "state": "memory:", "containers": [{"url": "memory:"}],
        "dead": {"account": "az:", "environment": {"AZURE_STORAGE_CONNECTION_STRING": "nonsense"}}}"#;
    let job = SweepJob::parse(text).expect("a job");
    let error = Sweeper::new(job, &BTreeMap::new())
        .await
        .expect_err("nonsense");
    assert!(
        error.message().contains("AZURE_STORAGE_CONNECTION_STRING"),
        "{error}"
    );
}

/// Makes a sweeper of `files` whose document is in this store.
async fn with_state(files: &Files, more: &str, state: Arc<dyn BlobStore>) -> Sweeper {
    Sweeper {
        lease: job_lease(&state, "job").expect("a lease"),
        state,
        ..files.sweeper(more).await
    }
}

#[tokio::test]
async fn a_sweeper_with_a_wrong_clock_removes_nothing() {
    let files = Files::new();
    let source = files.store("source").await;
    put(&*source, "gone", &[("TimeToLive", EXPIRED)]).await;
    let sweeper_at = |now: fn() -> SystemTime| {
        let state = Arc::new(MemoryStore::with_wall(now));
        with_state(&files, "", state)
    };
    for now in [
        (|| wall() - Duration::from_secs(150)) as fn() -> SystemTime,
        || wall() + Duration::from_secs(90),
    ] {
        let sweeper = sweeper_at(now).await;
        // The lease was released each time.
        for _ in 0..2 {
            let error = sweeper.sweep_once(false).await.expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            for words in ["this machine's clock is at", "that of memory: at"] {
                assert!(error.message().contains(words), "{error}");
            }
        }
        assert!(sweeper.stats().failure.is_some());
        assert_eq!(names(&*source).await, ["gone"]);
    }
    let sweeper = sweeper_at(|| wall() + Duration::from_secs(30)).await;
    let round = sweeper.sweep_once(false).await.expect("a round");
    assert_eq!(round.done.deleted, 1);
    let stats = sweeper.stats();
    assert_eq!((stats.pages, stats.rounds, stats.failure), (1, 1, None));
}

/// An instance waits for its job's store for a limited time.
#[tokio::test(start_paused = true)]
async fn an_outage_of_the_store_is_reported() {
    let faults = Faults {
        before: 100,
        ..Faults::default()
    };
    let away = FaultyStore::new(Arc::new(MemoryStore::new()), faults, 7);
    let sweeper = with_state(&Files::new(), "", Arc::new(away)).await;
    let error = sweeper.sweep_once(false).await.expect_err("it is away");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(
        error.message().contains("was not acquired within 60s"),
        "{error}"
    );
}

/// Answers to writes of the document are lost. What a round leaves out, the next one removes.
#[tokio::test]
async fn after_lost_answers_the_next_round_does_the_rest() {
    // Side by side: a sweeper waits after each failure.
    futures_util::future::join_all((0..20).map(loses_answers)).await;
}

async fn loses_answers(seed: u64) {
    let files = Files::new();
    let source = files.store("source").await;
    for number in 0..30 {
        let marks = [("TimeToLive", EXPIRED)];
        put(&*source, &format!("{number:02}"), &marks).await;
    }
    let faults = Faults {
        before: 4,
        after: 12,
        ..Faults::default()
    };
    let state = FaultyStore::new(Arc::new(MemoryStore::new()), faults, seed);
    let more = r#", "page_size": 3, "interval": "1h""#;
    let sweeper = with_state(&files, more, Arc::new(state)).await;
    for rounds in 1.. {
        // The store fails now and then. The round continues.
        while !sweeper
            .sweep_once(false)
            .await
            .is_ok_and(|round| round.finished)
        {}
        if names(&*source).await.is_empty() {
            break;
        }
        assert!(rounds < 10, "seed {seed}");
        _ = sweeper.sweep_once(true).await;
    }
}
