//! Generators under failures: no id is given out twice.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicU64, Ordering},
};

use super::*;
use crate::store::{
    BlobContent, MemoryStore,
    tests::faulty::{Faults, FaultyStore},
};

fn blob() -> BlobName {
    BlobName::new("ids/orders").expect("a name")
}

fn memory() -> Arc<dyn BlobStore> {
    Arc::new(MemoryStore::new())
}

fn generator(store: &Arc<dyn BlobStore>, config: IdConfig) -> UniqueIdGenerator {
    let store = BlobSyncStore::new(Arc::clone(store), blob());
    UniqueIdGenerator::new(store, config).expect("a generator")
}

fn by(range_size: u64) -> IdConfig {
    IdConfig {
        range_size,
        ..IdConfig::default()
    }
}

fn from(start: u64, range_size: u64) -> IdConfig {
    IdConfig {
        start,
        ..by(range_size)
    }
}

async fn content(store: &Arc<dyn BlobStore>) -> String {
    let found = store.get(&blob()).await.expect("get").expect("a blob");
    String::from_utf8(found.content.bytes.to_vec()).expect("a text")
}

/// Overwrites the content.
async fn edit(store: &Arc<dyn BlobStore>, text: &'static str) {
    store.delete(&blob(), None).await.expect("delete");
    let content = BlobContent::from(text);
    store.create(&blob(), content).await.expect("create");
}

#[tokio::test]
async fn the_first_id_is_the_stored_number_or_the_start() {
    let store = memory();
    let ids = generator(&store, from(7, 10));
    assert_eq!(ids.next_id().await.ok(), Some(7));
    assert_eq!(content(&store).await, "17");
    // A second generator continues after the first one's range, regardless of the start it was given.
    let ids = generator(&store, by(5));
    assert_eq!(ids.next_ids(7).await.ok(), Some((17..24).collect()));
}

#[tokio::test]
async fn a_range_is_fetched_when_it_is_needed() {
    let store = memory();
    let ids = generator(&store, by(10));
    assert_eq!(ids.next_ids(10).await.ok(), Some((0..10).collect()));
    assert_eq!(content(&store).await, "10", "no range is taken in vain");
    assert_eq!(ids.next_id().await.ok(), Some(10));
    assert_eq!(ids.next_ids(15).await.ok(), Some((11..26).collect()));
    assert_eq!(content(&store).await, "30");
}

#[tokio::test]
async fn many_concurrent_callers_take_no_range_in_vain() {
    let store = memory();
    let ids = Arc::new(generator(&store, by(10)));
    let tasks = (0..100).map(|_| {
        let ids = Arc::clone(&ids);
        tokio::spawn(async move { ids.next_id().await.expect("an id") })
    });
    let mut taken = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        taken.push(task.await.expect("no panic"));
    }
    taken.sort_unstable();
    assert_eq!(taken, (0..100).collect::<Vec<_>>());
}

#[tokio::test]
async fn malformed_content_is_shown_and_can_be_repaired() {
    for text in ["", "ten", "-5", "+5", "1.5", "9223372036854775808", "5 6"] {
        let store = memory();
        edit(&store, text).await;
        let ids = generator(&store, by(10));
        let error = ids.next_id().await.expect_err(text);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.message().contains(&format!("{text:?}")), "{error}");
        assert!(error.message().contains("ids/orders"), "{error}");
        edit(&store, "40\n").await;
        assert_eq!(ids.next_id().await.ok(), Some(40), "it tries again");
    }
}

#[tokio::test]
async fn a_deleted_blob_is_an_error_and_no_first_start() {
    let store = memory();
    let ids = generator(&store, by(1));
    assert_eq!(ids.next_ids(2).await.ok(), Some(vec![0, 1]));
    store.delete(&blob(), None).await.expect("delete");
    let error = ids.next_id().await.expect_err("deleted");
    assert!(error.message().contains("was deleted"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn callers_that_wait_for_one_range_share_its_failure() {
    let faults = Faults {
        before: 100,
        ..Faults::default()
    };
    let store: Arc<dyn BlobStore> = Arc::new(FaultyStore::new(memory(), faults, 1));
    let ids = Arc::new(generator(&store, by(10)));
    let began = Instant::now();
    let callers = (0..100).map(|_| {
        let ids = Arc::clone(&ids);
        tokio::spawn(async move { ids.next_id().await })
    });
    for caller in callers.collect::<Vec<_>>() {
        let outcome = caller.await.expect("no panic");
        assert!(outcome.expect_err("away").is_retryable());
    }
    let waited = began.elapsed();
    assert!(waited < Duration::from_secs(12), "{waited:?}");
    ids.next_id().await.expect_err("a later call tries again");
    assert!(began.elapsed() >= waited + Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn after_a_caller_that_gave_up_the_next_one_gets_an_id() {
    let faults = Faults {
        delay: Duration::from_secs(1),
        ..Faults::default()
    };
    let store: Arc<dyn BlobStore> = Arc::new(FaultyStore::new(memory(), faults, 1));
    let ids = generator(&store, by(10));
    for _ in 0..3 {
        let early = tokio::time::timeout(Duration::from_millis(5), ids.next_id()).await;
        early.expect_err("the store takes longer");
    }
    let id = ids.next_id().await.expect("an id");
    assert!(id.is_multiple_of(10), "a range may be lost: {id}");
    assert_eq!(ids.next_id().await.ok(), Some(id + 1));
}

#[tokio::test]
async fn ids_end_at_the_maximum_and_do_not_restart() {
    let store = memory();
    edit(&store, "9223372036854775800").await;
    let ids = generator(&store, by(7));
    assert_eq!(ids.next_id().await.ok(), Some(9_223_372_036_854_775_800));
    let error = ids.next_ids(7).await.expect_err("too many");
    assert!(error.message().contains("no 7 ids are left"), "{error}");
    for (config, field) in [
        (by(0), "range_size"),
        (by(u64::MAX), "range_size"),
        (from(u64::MAX, 1), "start"),
        (from(i64::MAX as u64 - 9, 10), "start"),
    ] {
        let store = BlobSyncStore::new(memory(), blob());
        let error = UniqueIdGenerator::new(store, config).expect_err(field);
        assert!(error.message().contains(field), "{error}");
    }
}

/// Takes ids with generators that are dropped and made again, like killed processes.
async fn node(store: Arc<dyn BlobStore>, range_size: u64, seed: u64) -> Vec<u64> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut taken = Vec::new();
    while taken.len() < 60 {
        let config = IdConfig {
            retry_for: Duration::from_secs(3600),
            ..by(range_size)
        };
        let ids = generator(&store, config);
        let (mut last, until) = (None, rng.usize(1..30));
        for _ in 0..until {
            let id = tokio::select! {
                biased;
                id = ids.next_id() => id.expect("it tries on"),
                // Dropped at any point of its work.
                () = steps(rng.usize(0..40)) => break,
            };
            assert!(last < Some(id), "seed {seed}: {id} after {last:?}");
            last = Some(id);
            taken.push(id);
        }
    }
    taken
}

async fn steps(count: usize) {
    for _ in 0..count {
        tokio::task::yield_now().await;
        if count.is_multiple_of(3) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Runs nodes on a failing store, and checks that no id comes twice. Returns the number of writes
/// whose answer was lost.
async fn contend(store: Arc<dyn BlobStore>, range_sizes: [u64; 6], seed: u64) -> u64 {
    let faults = Faults {
        before: 10,
        after: 10,
        delay: Duration::from_millis(seed % 3),
    };
    let faulty = Arc::new(FaultyStore::new(store, faults, seed));
    let nodes = range_sizes.iter().enumerate().map(|(number, size)| {
        let seed = seed * 100 + number as u64;
        tokio::spawn(node(Arc::clone(&faulty) as Arc<dyn BlobStore>, *size, seed))
    });
    let mut seen = HashSet::new();
    for node in nodes.collect::<Vec<_>>() {
        for id in node.await.expect("no panic") {
            assert!(seen.insert(id), "seed {seed}: {id} twice");
        }
    }
    let free: u64 = content(&faulty.inner()).await.parse().expect("a number");
    assert!(seen.iter().all(|id| *id < free), "seed {seed}");
    // A node that is dropped during a write does not learn its outcome.
    if range_sizes[0] == range_sizes[1] {
        assert!(free >= faulty.written() * range_sizes[0], "seed {seed}");
    }
    faulty.lost()
}

#[tokio::test(start_paused = true)]
async fn no_id_comes_twice_after_kills_and_lost_answers() {
    let mut lost = 0;
    for seed in 0..60 {
        // Equal sizes are the hard case: two writes of the same number look alike.
        for range_sizes in [[5; 6], [1, 2, 3, 5, 8, 40]] {
            lost += contend(memory(), range_sizes, seed).await;
        }
    }
    assert!(lost > 1000, "{lost} answers of writes were lost");
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn no_id_comes_twice_in_a_file_after_lost_answers() {
    let directory = tempfile::tempdir().expect("a directory");
    for seed in 0..3 {
        let path = directory.path().join(format!("{seed}.db"));
        let store = crate::store::SqliteStore::open(path).await;
        contend(Arc::new(store.expect("a store")), [5; 6], seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_generator_that_always_conflicts_gets_an_error() {
    #[derive(Debug)]
    struct Slow(AtomicU64);
    impl Display for Slow {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a busy blob")
        }
    }
    #[async_trait]
    impl OptimisticSyncStore for Slow {
        async fn get_data(&mut self) -> Result<Option<String>> {
            Ok(Some(self.0.fetch_add(1, Ordering::Relaxed).to_string()))
        }
        async fn try_optimistic_write(&mut self, _data: &str) -> Result<bool> {
            Ok(false)
        }
    }
    let began = Instant::now();
    let ids = UniqueIdGenerator::new(Slow(AtomicU64::new(0)), IdConfig::default());
    let error = ids.expect("a generator").next_id().await;
    let error = error.expect_err("too slow");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(
        error.message().contains("times within 2m at a busy blob"),
        "{error}"
    );
    let waited = began.elapsed();
    let least = IdConfig::default().retry_for;
    assert!((least..least * 2).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn four_thousand_nodes_that_start_at_once_all_get_their_ids() {
    // A request takes 10 ms on average, there and back.
    let faults = Faults {
        delay: Duration::from_millis(10),
        ..Faults::default()
    };
    let store: Arc<dyn BlobStore> = Arc::new(FaultyStore::new(memory(), faults, 1));
    let began = Instant::now();
    let nodes = (0..4000).map(|_| {
        let ids = generator(&store, by(10));
        tokio::spawn(async move { ids.next_id().await })
    });
    let mut seen = HashSet::new();
    for node in nodes.collect::<Vec<_>>() {
        let id = node.await.expect("no panic").expect("an id");
        assert!(seen.insert(id), "{id} twice");
    }
    println!("all had an id after {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_store_is_reported_after_seconds() {
    let faults = Faults {
        before: 100,
        ..Faults::default()
    };
    let store: Arc<dyn BlobStore> = Arc::new(FaultyStore::new(memory(), faults, 1));
    let began = Instant::now();
    let error = generator(&store, by(10)).next_id().await;
    assert!(error.expect_err("away").is_retryable());
    let waited = began.elapsed();
    assert!(waited >= Duration::from_secs(10), "{waited:?}");
    assert!(waited < Duration::from_secs(12), "{waited:?}");
}
