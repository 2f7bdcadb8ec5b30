//! One generator of unique ids: how fast it hands them out, one by one and many at a time.
//!
//! All in this process: the tasks share the generator, as those of a service do. The ids must be
//! without gap and none may come twice. What it costs the store is counted: successful writes.

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
    IdsArgs,
    progress::Progress,
    report::{Figures, Unit},
};

/// Counts the writes of a blob.
#[derive(Debug)]
struct Counting {
    inner: BlobSyncStore,
    writes: Arc<AtomicU64>,
}

/// What the tasks came to, together.
#[derive(Debug, Default)]
struct Tally {
    ids: u64,
    sum: u128,
    /// Calls that found no id in memory.
    waits: u64,
}

/// One way to take ids, measured.
#[derive(Debug)]
struct Outcome {
    wall: Duration,
    waits: u64,
    writes: u64,
}

/// How a task takes ids.
#[derive(Debug, Clone, Copy)]
enum Way {
    OneByOne,
    Batches(u64),
}

/// Does the work once.
pub(super) async fn once(args: &IdsArgs, progress: &Progress) -> Result<Figures> {
    let store = store::open(&args.store).await?;
    progress.say("one by one");
    let single = measure(args, &store, Way::OneByOne).await?;
    progress.say("many at a time");
    let many = measure(args, &store, Way::Batches(args.batch.into())).await?;
    Ok(figures(args, &single, &many))
}

/// Takes all ids from a generator on a blob of its own.
async fn measure(args: &IdsArgs, store: &Arc<dyn BlobStore>, way: Way) -> Result<Outcome> {
    let blob = BlobName::new(&format!("ids/reveille-bench-{}", std::process::id()))?;
    store.delete(&blob, None).await?;
    let writes = Arc::<AtomicU64>::default();
    let counting = Counting {
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
        // What does not divide evenly falls to the first.
        let count = args.ids / tasks + u64::from(task < args.ids % tasks);
        running.spawn(take(Arc::clone(&ids), count, way));
    }
    let mut tally = Tally::default();
    while let Some(ended) = running.join_next().await {
        tally.add(&ended??);
    }
    let wall = began.elapsed();
    drop(ids);
    let writes = writes.load(Ordering::Relaxed);
    store.delete(&blob, None).await?;
    tally.check(args.ids)?;
    Ok(Outcome {
        wall,
        waits: tally.waits,
        writes,
    })
}

async fn take(ids: Arc<UniqueIdGenerator>, count: u64, way: Way) -> Result<Tally> {
    match way {
        Way::OneByOne => one_by_one(&ids, count).await,
        Way::Batches(size) => batches(&ids, count, size).await,
    }
}

async fn one_by_one(ids: &UniqueIdGenerator, count: u64) -> Result<Tally> {
    let (mut tally, mut next) = (Tally::default(), 0);
    for _ in 0..count {
        let id = noting(ids.next_id(), &mut tally.waits).await?;
        tally.take(id, &mut next)?;
    }
    Ok(tally)
}

async fn batches(ids: &UniqueIdGenerator, count: u64, size: u64) -> Result<Tally> {
    let (mut tally, mut next) = (Tally::default(), 0);
    while tally.ids < count {
        let size = usize::try_from(size.min(count - tally.ids))?;
        for id in noting(ids.next_ids(size), &mut tally.waits).await? {
            tally.take(id, &mut next)?;
        }
    }
    Ok(tally)
}

/// Runs a call, and counts it where it has to wait.
async fn noting<T>(call: impl Future<Output = T>, waits: &mut u64) -> T {
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
    let mut figures = Figures::default();
    for (name, count) in [
        ("ids", args.ids),
        ("tasks", args.tasks.into()),
        ("range size", args.range_size),
        ("batch", args.batch.into()),
    ] {
        figures.add(name, Unit::Count, Some(count as f64));
    }
    for (names, outcome) in [
        (
            [
                "next_id wall",
                "next_id",
                "next_id writes",
                "next_id that waited",
            ],
            single,
        ),
        (
            [
                "next_ids wall",
                "next_ids",
                "next_ids writes",
                "next_ids that waited",
            ],
            many,
        ),
    ] {
        let [wall, rate, writes, waits] = names;
        let seconds = outcome.wall.as_secs_f64();
        figures.add(wall, Unit::Seconds, Some(seconds));
        figures.add(rate, Unit::PerSecond, Some(args.ids as f64 / seconds));
        figures.add(writes, Unit::Count, Some(outcome.writes as f64));
        figures.add(waits, Unit::Count, Some(outcome.waits as f64));
    }
    figures
}

impl Tally {
    /// Counts an id, which must be above the task's last one.
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

    /// Checks that the ids are those from 0 on: a gap or a repetition would move their sum.
    fn check(&self, ids: u64) -> Result<()> {
        let expected = u128::from(ids) * u128::from(ids.saturating_sub(1)) / 2;
        ensure!(
            (self.ids, self.sum) == (ids, expected),
            "{} ids came, and not each from 0 to {ids} once",
            self.ids
        );
        Ok(())
    }
}

#[async_trait]
impl OptimisticSyncStore for Counting {
    async fn get_data(&mut self) -> reveille::Result<Option<String>> {
        self.inner.get_data().await
    }

    async fn try_optimistic_write(&mut self, data: &str) -> reveille::Result<bool> {
        let written = self.inner.try_optimistic_write(data).await?;
        self.writes.fetch_add(u64::from(written), Ordering::Relaxed);
        Ok(written)
    }
}

impl fmt::Display for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
