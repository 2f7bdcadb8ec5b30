//! One generator of unique ids: measures its throughput with single and with batched calls.
//!
//! All tasks are in this process and share the generator, as in a service. The ids must have no gap
//! and no repetition. The report has the number of successful writes to the store.

use std::{
    fmt,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use async_trait::async_trait;
use futures_util::poll;
use reveille::{
    store::{self, BlobName, BlobStore},
    unique_id::{BlobSyncStore, IdConfig, OptimisticSyncStore, UniqueIdGenerator},
};
use tokio::task::JoinSet;

use super::{
    args::IdsArgs,
    progress::Progress,
    report::{Figures, Unit},
};

/// A store that counts its writes.
#[derive(Debug)]
struct CountingStore {
    inner: BlobSyncStore,
    writes: Arc<AtomicU64>,
}

/// The sums of the tasks.
#[derive(Debug, Default)]
struct IdSums {
    ids: u64,
    sum: u128,
    /// Number of calls that had to wait, because no id was in memory.
    waits: u64,
}

/// Measurements of one kind of call.
#[derive(Debug)]
struct Outcome {
    wall: Duration,
    waits: u64,
    writes: u64,
}

/// The kind of call that takes ids.
#[derive(Debug, Clone, Copy)]
enum CallKind {
    OneByOne,
    Batches(u64),
}

/// Runs the benchmark once.
pub(super) async fn once(args: &IdsArgs, progress: &Progress) -> Result<Figures> {
    let store = store::open(&args.store).await?;
    progress.step("one by one");
    let single = measure(args, &store, CallKind::OneByOne).await?;
    progress.step("many at a time");
    let many = measure(args, &store, CallKind::Batches(args.batch.into())).await?;
    Ok(figures(args, &single, &many))
}

/// Takes all ids from a generator on a new blob.
async fn measure(args: &IdsArgs, store: &Arc<dyn BlobStore>, kind: CallKind) -> Result<Outcome> {
    let blob = BlobName::new(&format!("ids/reveille-bench-{}", std::process::id()))?;
    store.delete(&blob, None).await?;
    let writes = Arc::<AtomicU64>::default();
    let counting = CountingStore {
        inner: BlobSyncStore::new(Arc::clone(store), blob.clone()),
        writes: Arc::clone(&writes),
    };
    let config = IdConfig {
        range_size: args.range_size,
        ..IdConfig::default()
    };
    let ids = Arc::new(UniqueIdGenerator::new(counting, config)?);
    let tasks = u64::from(args.tasks);
    let began = Instant::now();
    let mut running = JoinSet::new();
    for task in 0..tasks {
        // The first tasks take the remainder.
        let count = args.ids / tasks + u64::from(task < args.ids % tasks);
        running.spawn(take(Arc::clone(&ids), count, kind));
    }
    let mut sums = IdSums::default();
    while let Some(ended) = running.join_next().await {
        sums.add(&ended??);
    }
    let wall = began.elapsed();
    drop(ids);
    let writes = writes.load(Ordering::Relaxed);
    store.delete(&blob, None).await?;
    sums.check(args.ids)?;
    Ok(Outcome {
        wall,
        waits: sums.waits,
        writes,
    })
}

async fn take(ids: Arc<UniqueIdGenerator>, count: u64, kind: CallKind) -> Result<IdSums> {
    match kind {
        CallKind::OneByOne => one_by_one(&ids, count).await,
        CallKind::Batches(size) => batches(&ids, count, size).await,
    }
}

async fn one_by_one(ids: &UniqueIdGenerator, count: u64) -> Result<IdSums> {
    let (mut sums, mut next) = (IdSums::default(), 0);
    for _ in 0..count {
        let id = count_wait(ids.next_id(), &mut sums.waits).await?;
        sums.take(id, &mut next)?;
    }
    Ok(sums)
}

async fn batches(ids: &UniqueIdGenerator, count: u64, size: u64) -> Result<IdSums> {
    let (mut sums, mut next) = (IdSums::default(), 0);
    while sums.ids < count {
        let size = usize::try_from(size.min(count - sums.ids))?;
        for id in count_wait(ids.next_ids(size), &mut sums.waits).await? {
            sums.take(id, &mut next)?;
        }
    }
    Ok(sums)
}

/// Runs a call, and counts it if it has to wait.
async fn count_wait<T>(call: impl Future<Output = T>, waits: &mut u64) -> T {
    let mut call = pin!(call);
    match poll!(&mut call) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => {
            *waits += 1;
            call.await
        }
    }
}

fn figures(args: &IdsArgs, single: &Outcome, many: &Outcome) -> Figures {
    let mut figures = Figures::of_counts(&[
        ("ids", args.ids),
        ("tasks", args.tasks.into()),
        ("range size", args.range_size),
        ("batch", args.batch.into()),
    ]);
    for (call, outcome) in [("next_id", single), ("next_ids", many)] {
        let seconds = outcome.wall.as_secs_f64();
        figures.add(format!("{call} wall"), Unit::Seconds, seconds);
        figures.add(call, Unit::PerSecond, args.ids as f64 / seconds);
        let writes = outcome.writes as f64;
        figures.add(format!("{call} writes"), Unit::Count, writes);
        let waits = outcome.waits as f64;
        figures.add(format!("{call} that waited"), Unit::Count, waits);
    }
    figures
}

impl IdSums {
    /// Counts an id, which must be greater than the task's last id.
    fn take(&mut self, id: u64, next: &mut u64) -> Result<()> {
        ensure!(id >= *next, "id {id} came after {}", *next - 1);
        *next = id + 1;
        self.ids += 1;
        self.sum += u128::from(id);
        Ok(())
    }

    fn add(&mut self, other: &Self) {
        self.ids += other.ids;
        self.sum += other.sum;
        self.waits += other.waits;
    }

    /// Checks that the ids start at 0 without a gap or a repetition, by their number and sum.
    fn check(&self, ids: u64) -> Result<()> {
        let expected = u128::from(ids) * u128::from(ids.saturating_sub(1)) / 2;
        ensure!(
            (self.ids, self.sum) == (ids, expected),
            "{} ids were taken, but not each of the first {ids} ids exactly once",
            self.ids
        );
        Ok(())
    }
}

#[async_trait]
impl OptimisticSyncStore for CountingStore {
    async fn get_data(&mut self) -> reveille::Result<Option<String>> {
        self.inner.get_data().await
    }

    async fn try_optimistic_write(&mut self, data: &str) -> reveille::Result<bool> {
        let written = self.inner.try_optimistic_write(data).await?;
        self.writes.fetch_add(u64::from(written), Ordering::Relaxed);
        Ok(written)
    }
}

impl fmt::Display for CountingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
