//! A work queue without a relay: messages are put, then got, handled and deleted.
//!
//! All tasks are in this process, as for an embedded queue. Puts and gets have batches. The deletes
//! of a batch are single calls that run concurrently, as in a listener's tasks. The report includes
//! the time of one fdatasync, because every commit waits for one.

use std::{
    fs::File,
    io::Write as _,
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

use clap::Args;
use tempfile::TempDir;

use crate::{
    Benchmark, positive,
    report::{Figures, Unit, median},
    server::Server,
    step,
    usage::Usage,
};

/// The queue of a benchmark.
#[derive(Debug, Clone, Args)]
pub(crate) struct QueueTarget {
    /// Measure this queue, which must be empty [default: a SQLite file in the temporary directory,
    /// whose disk decides the cost of a commit].
    #[arg(long = "queue", value_name = "QUEUE_URL")]
    url: Option<String>,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench queue --queue 'sqlite:bench.db?queue=bench'")]
pub(crate) struct QueueArgs {
    #[command(flatten)]
    queue: QueueTarget,
    /// Number of messages.
    #[arg(long, default_value_t = 200_000, value_parser = positive())]
    messages: u64,
    /// Number of messages of one put, and maximum of one get.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: u16,
    /// Number of concurrent tasks that put, and later of tasks that get and delete.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    tasks: u16,
    /// Size of a message in bytes.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=32_768))]
    size: u16,
}

/// The queue of a benchmark: the one of `--queue`, or a temporary file.
pub(crate) struct BenchQueue {
    pub(crate) url: String,
    /// The directory of a temporary queue, deleted on drop.
    _directory: Option<TempDir>,
}

/// Progress and sums of the tasks.
#[derive(Debug, Default)]
struct SharedCounters {
    next: AtomicU64,
    handled: HandledSum,
}

/// The number of handled messages, and the sum of their numbers.
#[derive(Debug, Default)]
pub(crate) struct HandledSum {
    handled: AtomicU64,
    sum: AtomicU64,
}

/// Longer than any run: a redelivered message would be handled twice.
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(3600);
/// Number of measured fdatasync calls. One takes from microseconds to tens of milliseconds.
const SYNCS: usize = 50;

impl Benchmark for QueueArgs {
    async fn run(&self, _: Server) -> Result<Figures> {
        let target = BenchQueue::of(&self.queue)?;
        let sync = target.fdatasync()?;
        let queue = target.open().await?;
        let before = Usage::own();
        step(format_args!("putting {} messages", self.messages));
        let put = timed(self, &queue, |queue, args, counters| async move {
            put_all(&*queue, &args, &counters).await
        });
        let (put, _) = put.await?;
        step("handling them");
        let handled = timed(self, &queue, |queue, args, counters| async move {
            handle_all(&*queue, &args, &counters).await
        });
        let (handled, counters) = handled.await?;
        let cpu = Usage::own().seconds_since(&before);
        counters.handled.check(self.messages)?;
        ensure!(queue.depth().await? == 0, "{queue} is not empty afterwards");
        let mut figures = Figures::default();
        figures.count("messages", self.messages);
        figures.count("batch", self.batch.into());
        figures.count("tasks", self.tasks.into());
        figures.add("body", Unit::Bytes, f64::from(self.size));
        for (name, span) in [("put", put), ("handled", handled)] {
            let seconds = span.as_secs_f64();
            figures.add(format!("{name} wall"), Unit::Seconds, seconds);
            figures.add(name, Unit::PerSecond, self.messages as f64 / seconds);
        }
        figures.add("cpu", Unit::Seconds, cpu);
        figures.add("fdatasync", Unit::Micros, sync);
        Ok(figures)
    }
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
        let message = |number| NewMessage::new(numbered_body(number, args.size));
        queue.put((first..end).map(message).collect()).await?;
    }
}

/// Returns a body of this size with a number.
pub(crate) fn numbered_body(number: u64, size: u16) -> Vec<u8> {
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
    pub(crate) fn add(&self, number: u64) {
        self.sum.fetch_add(number + 1, Ordering::Relaxed);
        self.handled.fetch_add(1, Ordering::Relaxed);
    }

    /// Checks that each message was handled, and none twice.
    pub(crate) fn check(&self, messages: u64) -> Result<()> {
        let handled = self.handled.load(Ordering::Relaxed);
        let sum = self.sum.load(Ordering::Relaxed);
        ensure!(
            handled == messages && sum == (1..=messages).sum::<u64>(),
            "{handled} messages were handled instead of {messages}, or some of them twice"
        );
        Ok(())
    }
}

/// Returns the median time in microseconds to append 4 KiB to a file and sync it to the disk.
pub(crate) fn fdatasync(directory: &Path) -> Result<f64> {
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
    pub(crate) fn of(target: &QueueTarget) -> Result<Self> {
        if let Some(url) = &target.url {
            return Ok(Self {
                url: url.clone(),
                _directory: None,
            });
        }
        let directory = TempDir::new()?;
        Ok(Self {
            url: format!("sqlite:{}/bench.db?queue=bench", directory.path().display()),
            _directory: Some(directory),
        })
    }

    /// Opens the queue, which must be empty.
    pub(crate) async fn open(&self) -> Result<Arc<dyn WorkQueue>> {
        let (queue, _) = queue::create(&self.url).await?;
        let depth = queue.depth().await?;
        ensure!(
            depth == 0,
            "{queue} has {depth} messages: name an empty queue, as the bench deletes all messages"
        );
        Ok(queue)
    }

    /// Returns the time in microseconds of one fdatasync on the disk of the queue's file; `None`
    /// for a queue without a file.
    pub(crate) fn fdatasync(&self) -> Result<Option<f64>> {
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
