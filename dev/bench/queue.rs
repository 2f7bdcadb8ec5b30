//! A work queue without a relay: messages are put, then got, handled and deleted.
//!
//! All tasks are in this process, as for an embedded queue. Puts and gets have batches. The deletes
//! of a batch are single calls that run concurrently, as in a listener's tasks. The report includes
//! the time of one fdatasync, because every commit waits for one.

use std::{
    fs::File,
    io::Write as _,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures_util::future::try_join_all;
use reveille::queue::{self, NewMessage, WorkQueue};
use tokio::task::JoinSet;

use super::{
    args::{QueueArgs, QueueTarget},
    directory::Directory,
    progress::Progress,
    report::{Figures, Unit, median},
    usage::Usage,
};

/// The queue of a benchmark: the one of `--queue`, or a temporary file.
pub(super) struct BenchQueue {
    pub(super) url: String,
    /// The directory of a temporary queue, deleted on drop.
    _directory: Option<Directory>,
}

/// Progress and sums of the tasks.
#[derive(Debug, Default)]
struct SharedCounters {
    next: AtomicU64,
    handled: HandledSum,
}

/// The number of handled messages, and the sum of their numbers.
#[derive(Debug, Default)]
pub(super) struct HandledSum {
    handled: AtomicU64,
    sum: AtomicU64,
}

/// Longer than any run: a redelivered message would be handled twice.
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(3600);
/// Number of measured fdatasync calls. One takes from microseconds to tens of milliseconds.
const SYNCS: usize = 50;

/// Runs the benchmark once.
pub(super) async fn once(args: &QueueArgs, progress: &Progress) -> Result<Figures> {
    let target = BenchQueue::of(&args.queue)?;
    let sync = target.fdatasync()?;
    let queue = target.open().await?;
    let before = Usage::own();
    progress.step(&format!("putting {} messages", args.messages));
    let put = timed(args, &queue, |queue, args, counters| async move {
        put_all(&*queue, &args, &counters).await
    });
    let (put, _) = put.await?;
    progress.step("handling them");
    let handled = timed(args, &queue, |queue, args, counters| async move {
        handle_all(&*queue, &args, &counters).await
    });
    let (handled, counters) = handled.await?;
    let after = Usage::own();
    counters.handled.check(args.messages)?;
    ensure!(queue.depth().await? == 0, "{queue} is not empty afterwards");
    Ok(figures(args, put, handled, sync, &before, &after))
}

/// Runs `--tasks` tasks to their end, and returns the elapsed time.
async fn timed<F: Future<Output = Result<()>> + Send + 'static>(
    args: &QueueArgs,
    queue: &Arc<dyn WorkQueue>,
    work: impl Fn(Arc<dyn WorkQueue>, QueueArgs, Arc<SharedCounters>) -> F,
) -> Result<(Duration, Arc<SharedCounters>)> {
    let counters = Arc::<SharedCounters>::default();
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..args.tasks {
        tasks.spawn(work(Arc::clone(queue), args.clone(), Arc::clone(&counters)));
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok((began.elapsed(), counters))
}

async fn put_all(queue: &dyn WorkQueue, args: &QueueArgs, counters: &SharedCounters) -> Result<()> {
    loop {
        let first = counters
            .next
            .fetch_add(args.batch.into(), Ordering::Relaxed);
        let end = args.messages.min(first + u64::from(args.batch));
        if first >= end {
            return Ok(());
        }
        queue.put(numbered(first..end, args.size)).await?;
    }
}

/// Returns messages of this size with their numbers.
pub(super) fn numbered(numbers: Range<u64>, size: u16) -> Vec<NewMessage> {
    let message = |number: u64| NewMessage::new(numbered_body(number, size));
    numbers.map(message).collect()
}

/// Returns a body of this size with a number.
pub(super) fn numbered_body(number: u64, size: u16) -> Vec<u8> {
    let size = usize::from(size);
    format!("{number:0size$}").into_bytes()
}

async fn handle_all(
    queue: &dyn WorkQueue,
    args: &QueueArgs,
    counters: &SharedCounters,
) -> Result<()> {
    loop {
        let got = queue.get(args.batch.into(), VISIBILITY_TIMEOUT).await?;
        if got.is_empty() {
            return Ok(());
        }
        for message in &got {
            let text = std::str::from_utf8(&message.body)?;
            let number = text.parse().context("a message is not from the bench")?;
            counters.handled.add(number);
        }
        try_join_all(got.iter().map(|message| queue.delete(&message.receipt))).await?;
    }
}

impl HandledSum {
    pub(super) fn add(&self, number: u64) {
        self.sum.fetch_add(number + 1, Ordering::Relaxed);
        self.handled.fetch_add(1, Ordering::Relaxed);
    }

    /// Checks that each message was handled, and none twice.
    pub(super) fn check(&self, messages: u64) -> Result<()> {
        let handled = self.handled.load(Ordering::Relaxed);
        let sum = self.sum.load(Ordering::Relaxed);
        ensure!(
            handled == messages && sum == (1..=messages).sum::<u64>(),
            "{handled} messages were handled instead of {messages}, or some of them twice"
        );
        Ok(())
    }
}

fn figures(
    args: &QueueArgs,
    put: Duration,
    handled: Duration,
    sync: Option<f64>,
    before: &Usage,
    after: &Usage,
) -> Figures {
    let mut figures = Figures::of_counts(&[
        ("messages", args.messages),
        ("batch", args.batch.into()),
        ("tasks", args.tasks.into()),
    ]);
    figures.add("body", Unit::Bytes, f64::from(args.size));
    for (wall, rate, span) in [
        ("put wall", "put", put),
        ("handled wall", "handled", handled),
    ] {
        let per_second = args.messages as f64 / span.as_secs_f64();
        figures.add(wall, Unit::Seconds, span.as_secs_f64());
        figures.add(rate, Unit::PerSecond, per_second);
    }
    figures.add("cpu", Unit::Seconds, after.seconds_since(before));
    figures.add("fdatasync", Unit::Micros, sync);
    figures
}

/// Returns the median time in microseconds to append 4 KiB to a file and sync it to the disk.
pub(super) fn fdatasync(directory: &Path) -> Result<f64> {
    let path = directory.join(format!(".reveille-bench-sync-{}", std::process::id()));
    let measure = || -> std::io::Result<Vec<f64>> {
        let mut file = File::create(&path)?;
        let mut spans = Vec::with_capacity(SYNCS);
        for _ in 0..SYNCS {
            file.write_all(&[7; 4096])?;
            let began = Instant::now();
            file.sync_data()?;
            spans.push(began.elapsed().as_secs_f64() * 1e6);
        }
        Ok(spans)
    };
    let spans = measure();
    let _ = std::fs::remove_file(&path);
    let mut spans = spans.with_context(|| format!("{} cannot be written", directory.display()))?;
    Ok(median(&mut spans).unwrap_or_default())
}

impl BenchQueue {
    /// Returns the queue of `--queue`, or a new one in a temporary directory.
    pub(super) fn of(target: &QueueTarget) -> Result<Self> {
        if let Some(url) = &target.url {
            return Ok(Self {
                url: url.clone(),
                _directory: None,
            });
        }
        let directory = Directory::new()?;
        Ok(Self {
            url: format!("sqlite:{}/bench.db?queue=bench", directory.path().display()),
            _directory: Some(directory),
        })
    }

    /// Opens the queue, which must be empty.
    pub(super) async fn open(&self) -> Result<Arc<dyn WorkQueue>> {
        let queue = queue::open(&self.url).await?;
        queue.create().await?;
        let depth = queue.depth().await?;
        ensure!(
            depth == 0,
            "{queue} has {depth} messages: name an empty queue, as the bench deletes all messages"
        );
        Ok(queue)
    }

    /// Returns the time in microseconds of one fdatasync on the disk of the queue's file; `None`
    /// for a queue without a file.
    pub(super) fn fdatasync(&self) -> Result<Option<f64>> {
        let directory = self.directory();
        directory.map(|path| fdatasync(&path)).transpose()
    }

    /// Returns the directory of the queue's file.
    fn directory(&self) -> Option<PathBuf> {
        let path = self.url.strip_prefix("sqlite:")?;
        let (path, _) = path.split_once('?').unwrap_or((path, ""));
        match Path::new(path).parent() {
            Some(parent) if !parent.as_os_str().is_empty() => Some(parent.to_owned()),
            _ => Some(PathBuf::from(".")),
        }
    }
}
