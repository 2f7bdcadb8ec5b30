//! What goes wrong in a round: somebody writes meanwhile, an instance dies, a document is nonsense.

use super::*;
use crate::{
    ErrorKind,
    store::{
        MemoryStore,
        container::Head,
        faulty::{Faults, FaultyStore},
    },
};

fn name(name: &str) -> BlobName {
    BlobName::new(name).expect("a name")
}

#[tokio::test]
async fn what_is_written_while_it_is_worked_on_is_kept() {
    let files = Files::new();
    let source = files.store("source").await;
    let marks = [("TimeToLive", EXPIRED), ("DeadBlobContainer", "grave")];
    put(&*source, "moved", &marks).await;
    put(&*source, "deleted", &marks[..1]).await;
    let sweeper = files.sweeper("").await;
    let container = sweeper.sources[0].container.clone().expect("it is on");
    let page = container
        .list("", &PageOptions::default())
        .await
        .expect("a list");
    let mut heads = Vec::new();
    for head in page.heads {
        heads.extend(with_metadata(&*container, head).await.expect("a head"));
    }
    // After the look, and before it is moved or deleted.
    for blob in ["moved", "deleted"] {
        let now = source.get(&name(blob)).await.expect("get").expect("there");
        let fresh = BlobContent::from("fresh");
        source
            .update(&name(blob), fresh, &now.etag)
            .await
            .expect("update");
    }
    let page = container::HeadPage {
        heads,
        ..Default::default()
    };
    let counts = sweeper.reaper.work(&*container, page, wall()).await;
    assert_eq!((counts.changed, counts.removed()), (2, 0), "{counts:?}");
    for blob in ["moved", "deleted"] {
        let now = source.get(&name(blob)).await.expect("get").expect("there");
        assert_eq!(&now.content.bytes[..], b"fresh");
    }
}

#[tokio::test]
async fn what_an_instance_took_and_never_worked_is_the_next_rounds() {
    let files = Files::new();
    let source = files.store("source").await;
    for number in 0..10 {
        put(&*source, &format!("{number}"), &[("TimeToLive", EXPIRED)]).await;
    }
    let more = r#", "page_size": 4"#;
    let (dead, alive) = (files.sweeper(more).await, files.sweeper(more).await);
    let taken = dead
        .turns
        .take(&dead, &Wish::default(), &mut Memory::default())
        .await;
    let taken = taken.expect("a turn").expect("not stopped").taken;
    assert!(matches!(taken, Taken::Page { .. }), "{taken:?}");
    drop(dead);
    let round = alive.sweep_once(false).await.expect("a round");
    assert_eq!((round.done.deleted, round.finished), (6, true));
    let next = alive.sweep_once(true).await.expect("a round");
    assert_eq!(next.done.deleted, 4);
}

#[tokio::test]
async fn a_document_of_nonsense_stops_the_job_and_stays_as_it_is() {
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
        .expect("it goes on as the error says");
}

#[tokio::test]
async fn a_container_that_cannot_be_listed_is_counted_and_the_others_are_swept() {
    let files = Files::new();
    let source = files.store("source").await;
    put(&*source, "a", &[("TimeToLive", EXPIRED)]).await;
    let nobody = r#"{"AZURE_STORAGE_CONNECTION_STRING":
        "BlobEndpoint=http://127.0.0.1:1/acct;AccountName=acct;AccountKey=a2V5"}"#;
    let text = format!(
        r#"{{"name": "job", "state": "memory:", "containers": [
            {{"url": "az://nowhere", "environment": {nobody}}}, {{"url": "{}"}}]}}"#,
        files.url("source")
    );
    let job = SweepJob::parse(&text).expect("a job");
    let sweeper = Sweeper::new(job, &BTreeMap::new())
        .await
        .expect("a sweeper");
    let error = sweeper.check().await.expect_err("nobody is there");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let round = sweeper.sweep_once(false).await.expect("a round");
    assert_eq!((round.done.failed, round.done.deleted), (1, 1));
    assert!(!round.finished, "what may pass is gone on with");
    let next = sweeper.sweep_once(false).await.expect("the same round");
    assert_eq!(
        (next.round, next.done.failed, next.done.seen),
        (round.round, 1, 0)
    );
}

#[test]
fn other_metadata_is_another_blob_even_where_an_etag_is_a_hash() {
    let head = |marks: &[(&str, &str)]| Head {
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

/// Between copy and deletion: both are there, and the next round ends it.
#[tokio::test]
async fn what_was_copied_and_not_deleted_is_copied_over_and_deleted() {
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
async fn what_others_keep_where_the_dead_would_go_is_not_written_over() {
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
    // Of two at the same time the later one is as one that was changed meanwhile.
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
async fn the_dead_are_not_put_where_they_end_with_the_process() {
    let text = r#"{"name": "job", "state": "memory:", "containers": [{"url": "memory:"}],
        "dead": {"account": "env:DEAD"}}"#;
    let job = SweepJob::parse(text).expect("a job");
    let environment = [("DEAD".to_owned(), "memory:".to_owned())].into();
    let error = Sweeper::new(job, &environment).await.expect_err("memory");
    assert!(
        error
            .message()
            .starts_with("dead.account: a store in memory"),
        "{error}"
    );
}

#[tokio::test]
async fn an_account_of_the_dead_that_cannot_be_used_is_said_at_once() {
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

/// A job's store that is away is waited for, and not for ever; who is told to stop stops.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_is_said_and_stops_nobody_from_stopping() {
    let faults = Faults {
        before: 100,
        ..Faults::default()
    };
    let inner = Arc::new(MemoryStore::new());
    let away = Arc::new(FaultyStore::new(inner, faults, 7));
    let sweeper = Sweeper {
        turns: Turns::new(away, "job").expect("a name"),
        ..Files::new().sweeper("").await
    };
    let error = sweeper.sweep_once(false).await.expect_err("it is away");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(
        error.message().contains("was not had within 60s"),
        "{error}"
    );
    assert!(sweeper.stats().failure.is_some());
    let stopping = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        sweeper.stop();
    };
    let begun = tokio::time::Instant::now();
    tokio::join!(sweeper.run(|_| ()), stopping);
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
}

/// Whatever answers of the document's writes are lost: each page is worked once, and counted once.
#[tokio::test]
async fn a_lost_answer_counts_nothing_twice_and_loses_no_page() {
    for seed in 0..20 {
        let files = Files::new();
        let source = files.store("source").await;
        for number in 0..30 {
            put(
                &*source,
                &format!("{number:02}"),
                &[("TimeToLive", EXPIRED)],
            )
            .await;
        }
        let faults = Faults {
            before: 4,
            after: 12,
            ..Faults::default()
        };
        let state = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), faults, seed));
        let sweeper = Sweeper {
            turns: Turns::new(Arc::clone(&state) as Arc<dyn BlobStore>, "job").expect("a name"),
            ..files.sweeper(r#", "page_size": 3, "interval": "1h""#).await
        };
        let last = loop {
            // It fails now and then, and goes on where it was.
            if let Ok(round) = sweeper.sweep_once(false).await
                && round.finished
            {
                break round;
            }
        };
        assert_eq!(sweeper.stats().done.deleted, 30, "seed {seed}");
        assert_eq!(last.of_all.deleted, 30, "seed {seed}");
        assert!(names(&*source).await.is_empty(), "seed {seed}");
    }
}
