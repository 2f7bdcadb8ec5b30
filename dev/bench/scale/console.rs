//! What the console reads: the first page of each list, and the figures, which it watches.

use anyhow::{Context as _, Result, ensure};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    sync::oneshot,
    task::JoinSet,
    time::Instant,
};

use crate::{
    metrics::{get, request},
    report::{Figures, Unit},
};

/// Each list of the page, as its interface is asked for it.
const LISTS: [(&str, &str); 8] = [
    ("queues", "queues?page_size=50"),
    (
        "queues by rate",
        "queues?page_size=50&order_by=QUEUE_ORDER_RATE",
    ),
    (
        "queues by backlog",
        "queues?page_size=50&order_by=QUEUE_ORDER_BACKLOG",
    ),
    (
        "queues by idle time",
        "queues?page_size=50&order_by=QUEUE_ORDER_IDLE",
    ),
    (
        "queues by listeners",
        "queues?page_size=50&order_by=QUEUE_ORDER_LISTENERS",
    ),
    ("queues with 999", "queues?page_size=50&filter=999"),
    ("listeners", "listeners?page_size=100&lost=true"),
    ("listeners with 999", "listeners?page_size=100&filter=999"),
];
/// Reads of each list; the slowest one counts.
const READS: usize = 5;
/// Consoles that watch the figures once a second.
const WATCHERS: usize = 5;

/// Reads the lists, and adds the longest time of each one.
pub(super) async fn read_lists(admin: &str, figures: &mut Figures) -> Result<()> {
    for (name, path) in LISTS {
        let mut longest = 0.0_f64;
        for _ in 0..READS {
            let began = Instant::now();
            let answer = get(admin, &format!("/api/v1/{path}")).await.context(path)?;
            longest = longest.max(began.elapsed().as_secs_f64() * 1e6);
            ensure!(answer.contains("\"next_page_token\""), "{path}: {answer}");
        }
        figures.add(format!("first page: {name}"), Unit::Micros, Some(longest));
    }
    Ok(())
}

/// Streams of the figures.
#[derive(Debug)]
pub(super) struct Watchers {
    tasks: JoinSet<Result<u64>>,
    ends: Vec<oneshot::Sender<()>>,
}

impl Watchers {
    pub(super) async fn start(admin: &str) -> Result<Self> {
        let mut watchers = Self {
            tasks: JoinSet::new(),
            ends: Vec::new(),
        };
        for _ in 0..WATCHERS {
            let stream = request(admin, "/api/v1/stream?interval=1s").await?;
            let (end, mut ended) = oneshot::channel();
            watchers.ends.push(end);
            watchers.tasks.spawn(async move {
                let mut lines = BufReader::new(stream).lines();
                let mut events = 0;
                loop {
                    tokio::select! {
                        line = lines.next_line() => {
                            let line = line?.context("the stream has ended")?;
                            events += u64::from(line == "event: stats");
                        }
                        _ = &mut ended => return Ok(events),
                    }
                }
            });
        }
        Ok(watchers)
    }

    /// Ends the streams, and returns the number of their events.
    pub(super) async fn end(self) -> Result<u64> {
        drop(self.ends);
        let ended = self.tasks.join_all().await.into_iter();
        let events = ended.sum::<Result<u64>>()?;
        ensure!(events > 0, "the watchers got no figures");
        Ok(events)
    }
}
