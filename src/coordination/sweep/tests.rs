//! Rounds on stores in memory, on a real Azurite, and on moto's S3.

#[cfg(feature = "cloud")]
mod azure;
mod faults;
#[cfg(feature = "cloud")]
mod proxied;

use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::store::{BlobContent, BlobName, BlobStore};

/// A directory with an SQLite file for each name.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn url(&self, name: &str) -> String {
        format!("sqlite:{}", self.0.path().join(name).display())
    }

    async fn store(&self, name: &str) -> Arc<dyn BlobStore> {
        store::open(&self.url(name)).await.expect("a store")
    }

    /// Makes a sweeper of `source` whose dead blobs go to `dead`. `more` is added to its file.
    async fn sweeper(&self, more: &str) -> Sweeper {
        // A container's file must be there.
        self.store("source").await;
        let [state, source, dead] = ["state", "source", "dead"].map(|name| self.url(name));
        let text = format!(
            r#"{{"name": "job", "state": "{state}", "dead": {{"account": "{dead}"}},
                "containers": [{{"url": "{source}"}}]{more}}}"#
        );
        let job = SweepJob::parse(&text).expect("a job");
        Sweeper::new(job, &BTreeMap::new())
            .await
            .expect("a sweeper")
    }
}

const EXPIRED: &str = "2000-01-01T00:00:00Z";

async fn put(store: &dyn BlobStore, name: &str, marks: &[(&str, &str)]) {
    let content = BlobContent {
        bytes: Bytes::copy_from_slice(name.as_bytes()),
        metadata: marks
            .iter()
            .map(|(k, v)| ((*k).into(), (*v).into()))
            .collect(),
    };
    let name = BlobName::new(name).expect("a name");
    store.create(&name, content).await.expect("put");
}

async fn names(store: &dyn BlobStore) -> Vec<String> {
    let page = PageOptions {
        size: 5_000,
        token: None,
    };
    let listed = store.list("", &page).await.expect("a list");
    listed.entries.iter().map(|e| e.name.to_string()).collect()
}

#[tokio::test]
async fn a_round_deletes_moves_and_leaves() {
    let files = Files::new();
    let (source, dead) = (files.store("source").await, files.store("dead").await);
    for (name, marks) in [
        ("kept", &[][..]),
        ("alive", &[("TimeToLive", "2999-01-01T00:00:00Z")]),
        ("gone", &[("TimeToLive", EXPIRED)]),
        (
            "moved",
            &[
                ("TimeToLive", EXPIRED),
                ("DeadBlobContainer", "grave"),
                ("color", "red"),
            ],
        ),
        (
            "moved-under",
            &[
                ("TimeToLive", EXPIRED),
                ("DeadBlobContainer", "grave/2026/"),
            ],
        ),
        (
            "moved-as",
            &[
                ("TimeToLive", EXPIRED),
                ("DeadBlobContainer", "grave/other/name"),
            ],
        ),
        ("no-time", &[("TimeToLive", "soon")]),
        (
            "no-place",
            &[("TimeToLive", EXPIRED), ("DeadBlobContainer", "a/../b")],
        ),
        ("leases/x", &[("TimeToLive", EXPIRED)]),
    ] {
        put(&*source, name, marks).await;
    }
    let sweeper = files.sweeper("").await;

    let mut plan = Vec::new();
    let planned = sweeper
        .dry_run(|blob| plan.push((blob.blob, blob.action)))
        .await;
    assert_eq!(planned.expect("a plan").removed(), 4);
    assert_eq!(plan.len(), 7, "{plan:?}");
    assert_eq!(names(&*source).await.len(), 9, "nothing was changed");
    assert!(
        names(&*files.store("state").await).await.is_empty(),
        "nothing was written"
    );

    let round = sweeper.sweep_once(false).await.expect("a round");
    assert!(round.finished);
    assert_eq!(round.of_all, round.done);
    let expected = Counts {
        seen: 9,
        unmarked: 1,
        alive: 1,
        deleted: 1,
        moved: 3,
        left: 3,
        ..Counts::default()
    };
    assert_eq!(round.done, expected);
    let left = ["alive", "kept", "leases/x", "no-place", "no-time"];
    assert_eq!(names(&*source).await, left);
    let moved = ["grave/2026/moved-under", "grave/moved", "grave/other/name"];
    assert_eq!(names(&*dead).await, moved);

    let copy = dead
        .get(&BlobName::new("grave/moved").expect("a name"))
        .await;
    let copy = copy.expect("get").expect("it is there").content;
    assert_eq!(&copy.bytes[..], b"moved");
    assert_eq!(copy.metadata["color"], "red");
    assert_eq!(
        copy.metadata[SWEPT_FROM],
        format!("{}/moved", files.url("source"))
    );
    assert!(
        !copy.metadata.contains_key(TIME_TO_LIVE),
        "it would be swept again"
    );
}

#[tokio::test]
async fn a_blob_is_never_moved_onto_itself() {
    let files = Files::new();
    let source = files.store("dead").await;
    put(
        &*source,
        "grave/a",
        &[("TimeToLive", EXPIRED), ("DeadBlobContainer", "grave")],
    )
    .await;
    put(
        &*source,
        "grave/b",
        &[("TimeToLive", EXPIRED), ("DeadBlobContainer", "grave/c")],
    )
    .await;
    let text = format!(
        r#"{{"name": "job", "state": "memory:", "dead": {{"account": "{dead}"}},
            "containers": [{{"url": "{dead}#grave"}}]}}"#,
        dead = files.url("dead")
    );
    let job = SweepJob::parse(&text).expect("a job");
    let sweeper = Sweeper::new(job, &BTreeMap::new())
        .await
        .expect("a sweeper");
    let round = sweeper.sweep_once(false).await.expect("a round");
    assert_eq!((round.done.left, round.done.moved), (1, 1));
    assert_eq!(names(&*source).await, ["grave/a", "grave/c"]);
}

#[tokio::test]
async fn without_an_account_for_dead_blobs_they_stay() {
    let files = Files::new();
    let source = files.store("source").await;
    put(
        &*source,
        "a",
        &[("TimeToLive", EXPIRED), ("DeadBlobContainer", "grave")],
    )
    .await;
    let text = format!(
        r#"{{"name": "job", "state": "memory:", "containers": [{{"url": "{}"}}]}}"#,
        files.url("source")
    );
    let job = SweepJob::parse(&text).expect("a job");
    let sweeper = Sweeper::new(job, &BTreeMap::new())
        .await
        .expect("a sweeper");
    let round = sweeper.sweep_once(false).await.expect("a round");
    assert_eq!((round.done.left, round.done.removed()), (1, 0));
    assert_eq!(names(&*source).await, ["a"]);
}

#[tokio::test]
async fn many_instances_share_a_round_and_no_blob_is_taken_twice() {
    let files = Files::new();
    let source = files.store("source").await;
    for number in 0..200 {
        put(
            &*source,
            &format!("{number:03}"),
            &[("TimeToLive", EXPIRED)],
        )
        .await;
    }
    let more = r#", "page_size": 7, "interval": "1h""#;
    let sweepers = futures_util::future::join_all((0..4).map(|_| files.sweeper(more))).await;
    let rounds = sweepers.iter().map(|sweeper| sweeper.sweep_once(false));
    let rounds = futures_util::future::join_all(rounds).await;
    let mut all = Counts::default();
    for round in rounds {
        all.add(&round.expect("a round").done);
    }
    assert_eq!((all.seen, all.deleted, all.changed), (200, 200, 0));
    assert!(names(&*source).await.is_empty());

    // This interval has had its round.
    put(&*source, "late", &[("TimeToLive", EXPIRED)]).await;
    let round = sweepers[0].sweep_once(false).await.expect("a round");
    assert_eq!((round.pages, round.of_all.deleted), (0, 200));
    let again = sweepers[0].sweep_once(true).await.expect("a round");
    assert_eq!(again.done.deleted, 1);
}

#[tokio::test]
async fn rounds_begin_at_multiples_of_the_interval() {
    let files = Files::new();
    let source = files.store("source").await;
    let sweeper = files.sweeper(r#", "interval": "1s""#).await;
    let (told, mut rounds) = tokio::sync::mpsc::unbounded_channel();
    let running = sweeper.run(|round| told.send((round.round, round.done.deleted)).expect("heard"));
    let putting = async {
        let mut numbers = Vec::new();
        for name in ["a", "b", "c"] {
            put(&*source, name, &[("TimeToLive", EXPIRED)]).await;
            loop {
                let (number, deleted) = rounds.recv().await.expect("a round");
                numbers.push(number);
                if deleted == 1 {
                    break;
                }
            }
        }
        numbers
    };
    let numbers = tokio::select! {
        () = running => unreachable!("it runs for ever"),
        numbers = putting => numbers,
    };
    let mut sorted = numbers.clone();
    sorted.dedup();
    assert_eq!(numbers, sorted, "each number once");
    assert!(numbers.is_sorted());
}

#[tokio::test]
async fn an_expiry_is_set_and_removed() {
    let files = Files::new();
    let source = files.store("source").await;
    put(&*source, "in/a", &[("color", "red")]).await;
    let none = BTreeMap::new();
    let url = format!("{}#in/a", files.url("source"));
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let marked = set_expiry(&url, Some(end), Some("grave/"), &none).await;
    assert_eq!(
        marked.expect("marked").as_deref(),
        Some("2001-09-09T01:46:40Z")
    );
    let sweeper = files.sweeper(r#", "interval": "1h""#).await;
    let mut plan = Vec::new();
    sweeper
        .dry_run(|blob| plan.push(blob.detail))
        .await
        .expect("a plan");
    assert_eq!(plan, ["grave/in/a"]);
    assert_eq!(
        set_expiry(&url, None, None, &none).await.expect("unmarked"),
        None
    );
    let blob = source.get(&BlobName::new("in/a").expect("a name")).await;
    let metadata = blob.expect("get").expect("it is there").content.metadata;
    assert_eq!(metadata, [("color".to_owned(), "red".to_owned())].into());
    for (url, kind) in [
        (format!("{}#none", files.url("source")), ErrorKind::NotFound),
        (files.url("source"), ErrorKind::Invalid),
        ("az://container".to_owned(), ErrorKind::Invalid),
    ] {
        let error = set_expiry(&url, Some(end), None, &none)
            .await
            .expect_err(&url);
        assert_eq!(error.kind(), kind, "{error}");
    }
}

#[tokio::test]
async fn only_the_containers_and_prefixes_of_a_job_are_swept() {
    let files = Files::new();
    let [on, off] = [files.store("on").await, files.store("off").await];
    for name in ["tmp/a", "tmpb", "other"] {
        put(&*on, name, &[("TimeToLive", EXPIRED)]).await;
    }
    put(&*off, "a", &[("TimeToLive", EXPIRED)]).await;
    let text = format!(
        r#"{{"name": "job", "state": "memory:", "containers": [
            {{"url": "{}", "prefix": "tmp/"}}, {{"url": "{}", "off": true}}]}}"#,
        files.url("on"),
        files.url("off")
    );
    let job = SweepJob::parse(&text).expect("a job");
    let sweeper = Sweeper::new(job, &BTreeMap::new())
        .await
        .expect("a sweeper");
    let round = sweeper.sweep_once(false).await.expect("a round");
    assert_eq!((round.done.seen, round.done.deleted), (1, 1));
    assert_eq!(names(&*on).await, ["other", "tmpb"]);
    assert_eq!(names(&*off).await, ["a"]);
}
