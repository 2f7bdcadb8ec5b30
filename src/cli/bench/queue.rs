//! A work queue by itself: messages are put, then got, handled and deleted.
//!
//! All in this process, as an embedded queue is used. Puts come in batches, and so do gets; the
//! deletes of a batch are issued one by one and at the same time, as a listener's tasks do. How long
//! the disk takes for one fdatasync stands beside the figures, as every commit waits for one.

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

use super::{
    QueueArgs,
    directory::Directory,
    progress::Progress,
    report::{Figures, Unit, median},
    usage::Usage,
};

/// A queue of this bench's own, deleted when it is dropped.
pub(super) struct Place {
    pub(super) url: String,
    /// Where a queue of this bench's own is.
    _own: Option<Directory>,
}

/// What is left to do, and what came of what was done.
#[derive(Debug, Default)]
struct Tally {
    next: AtomicU64,
    handled: AtomicU64,
    sum: AtomicU64,
}

/// Longer than any run: a message that came back would be handled twice.
const HIDDEN: Duration = Duration::from_secs(3600);
/// One that lasts until it is on the disk takes from microseconds to tens of milliseconds.
const SYNCS: usize = 50;

/// Does the work once.
pub(super) async fn once(args: &QueueArgs, progress: &Progress) -> Result<Figures> {
    let place = Place::of(args.queue.as_deref())?;
    let sync = place.fdatasync()?;
    let queue = place.open().await?;
    let before = Usage::of(Some(std::process::id()));
    progress.say(&format!("putting {} messages", args.messages));
    let put = timed(args, &queue, |queue, args, tally| async move {
        put_all(&*queue, &args, &tally).await
    });
    let (put, _) = put.await?;
    progress.say("handling them");
    let handled = timed(args, &queue, |queue, args, tally| async move {
        handle_all(&*queue, &args, &tally).await
    });
    let (handled, tally) = handled.await?;
    let after = Usage::of(Some(std::process::id()));
    check(args, &tally)?;
    ensure!(queue.depth().await? == 0, "{queue} is not empty afterwards");
    Ok(figures(args, put, handled, sync, &before, &after))
}

/// Runs as many tasks as asked for until all of them have ended; returns how long that took.
async fn timed<F: Future<Output = Result<()>> + Send + 'static>(
    args: &QueueArgs,
    queue: &Arc<dyn WorkQueue>,
    work: impl Fn(Arc<dyn WorkQueue>, QueueArgs, Arc<Tally>) -> F,
) -> Result<(Duration, Arc<Tally>)> {
    let tally = Arc::<Tally>::default();
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..args.tasks {
        tasks.spawn(work(Arc::clone(queue), args.clone(), Arc::clone(&tally)));
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok((began.elapsed(), tally))
}

async fn put_all(queue: &dyn WorkQueue, args: &QueueArgs, tally: &Tally) -> Result<()> {
    loop {
        let first = tally.next.fetch_add(args.batch.into(), Ordering::Relaxed);
        let end = args.messages.min(first + u64::from(args.batch));
        if first >= end {
            return Ok(());
        }
        let size = usize::from(args.size);
        let body = |number: u64| format!("{number:0size$}");
        let messages = (first..end).map(|number| NewMessage::new(body(number)));
        queue.put(messages.collect()).await?;
    }
}

async fn handle_all(queue: &dyn WorkQueue, args: &QueueArgs, tally: &Tally) -> Result<()> {
    loop {
        let got = queue.get(args.batch.into(), HIDDEN).await?;
        if got.is_empty() {
            return Ok(());
        }
        for message in &got {
            let text = std::str::from_utf8(&message.body)?;
            let number: u64 = text.parse().context("a message is none of the bench's")?;
            tally.sum.fetch_add(number + 1, Ordering::Relaxed);
        }
        try_join_all(got.iter().map(|message| queue.delete(&message.receipt))).await?;
        tally.handled.fetch_add(got.len() as u64, Ordering::Relaxed);
    }
}

/// Checks that each message was handled, and none twice.
fn check(args: &QueueArgs, tally: &Tally) -> Result<()> {
    let (handled, sum) = (&tally.handled, &tally.sum);
    let (handled, sum) = (handled.load(Ordering::Relaxed), sum.load(Ordering::Relaxed));
    let expected = (1..=args.messages).sum::<u64>();
    ensure!(
        handled == args.messages && sum == expected,
        "{handled} messages were handled instead of {}, or not each of them once",
        args.messages
    );
    Ok(())
}

fn figures(
    args: &QueueArgs,
    put: Duration,
    handled: Duration,
    sync: Option<f64>,
    before: &Usage,
    after: &Usage,
) -> Figures {
    let mut figures = Figures::default();
    for (name, count) in [
        ("messages", args.messages as f64),
        ("batch", args.batch.into()),
        ("tasks", args.tasks.into()),
    ] {
        figures.add(name, Unit::Count, Some(count));
    }
    figures.add("body", Unit::Bytes, Some(args.size.into()));
    for (wall, rate, span) in [
        ("put wall", "put", put),
        ("handled wall", "handled", handled),
    ] {
        let per_second = args.messages as f64 / span.as_secs_f64();
        figures.add(wall, Unit::Seconds, Some(span.as_secs_f64()));
        figures.add(rate, Unit::PerSecond, Some(per_second));
    }
    let cpu = after.cpu_since(before).map(|cpu| cpu.as_secs_f64());
    figures.add("cpu", Unit::Seconds, cpu);
    figures.add("fdatasync", Unit::Micros, sync);
    figures
}

/// Returns the median of how long the disk takes to keep 4 KiB more of a file, in microseconds.
fn fdatasync(directory: &Path) -> Result<f64> {
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

impl Place {
    /// Returns the queue that is named, or a new one in a directory of its own.
    pub(super) fn of(queue: Option<&str>) -> Result<Self> {
        if let Some(url) = queue {
            return Ok(Self {
                url: url.to_owned(),
                _own: None,
            });
        }
        let own = Directory::new()?;
        Ok(Self {
            url: format!("sqlite:{}/bench.db?queue=bench", own.path().display()),
            _own: Some(own),
        })
    }

    /// Opens the queue, which must be empty.
    pub(super) async fn open(&self) -> Result<Arc<dyn WorkQueue>> {
        let queue = queue::open(&self.url).await?;
        queue.create().await?;
        let depth = queue.depth().await?;
        ensure!(
            depth == 0,
            "{queue} holds {depth} messages: name an empty queue, as all that is in it is handled"
        );
        Ok(queue)
    }

    /// Returns how long the disk of the queue's file takes for one fdatasync, in microseconds; `None`
    /// for a queue that is no file.
    pub(super) fn fdatasync(&self) -> Result<Option<f64>> {
        self.directory().map(|of| fdatasync(&of)).transpose()
    }

    /// Returns where the queue's file is.
    fn directory(&self) -> Option<PathBuf> {
        let path = self.url.strip_prefix("sqlite:")?;
        let (path, _) = path.split_once('?').unwrap_or((path, ""));
        match Path::new(path).parent() {
            Some(parent) if !parent.as_os_str().is_empty() => Some(parent.to_owned()),
            _ => Some(PathBuf::from(".")),
        }
    }
}
