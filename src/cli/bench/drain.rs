//! Very many messages through one listener: how fast they are handled, and that the memory of its
//! process does not grow with their number.
//!
//! All of them are in the queue before the listener starts, so that it scales up to what its policy
//! gives. Memory is read when a tenth of them was handled, when the last was, and the most of what
//! it was in between.

use std::{
    process,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use reveille::{
    Client, ListenerId,
    listener::{Delivery, HandlerError, Listener, ListenerConfig},
    queue::{Metered, NewMessage, WorkQueue},
};

use super::{
    DrainArgs, Side,
    broker::Broker,
    progress::Progress,
    queue::Place,
    report::{Figures, Unit},
    usage::Usage,
};

/// What the handler was given.
#[derive(Debug, Default)]
struct Tally {
    handled: AtomicU64,
    sum: AtomicU64,
}

/// How long messages are handled.
#[derive(Debug, Clone, Copy)]
struct Spans {
    each: Duration,
    slow: Duration,
    slow_percent: u64,
}

/// The process's memory while it worked.
#[derive(Debug, Default)]
struct Memory {
    at_a_tenth: Option<u64>,
    at_the_end: Option<u64>,
    most: Option<u64>,
}

/// Messages of one put.
const BATCH: u64 = 1000;
const LOOK: Duration = Duration::from_millis(20);
/// Messages that are not handled for so long are lost.
const LOST: Duration = Duration::from_secs(120);

/// Does the work once.
pub(super) async fn once(args: &DrainArgs, progress: &Progress) -> Result<Figures> {
    let place = Place::of(args.queue.as_deref())?;
    let queue = Arc::new(Metered::new(place.open().await?));
    progress.say(&format!("putting {} messages", args.messages));
    put_all(&*queue, args).await?;

    let broker = Broker::start(Side::Reveille, None).await?;
    let client = Client::new(&broker.target)?;
    let config = ListenerConfig {
        dequeue_batch_size: 32,
        ..ListenerConfig::default()
    };
    let options = config.subscription(ListenerId::new("drain")?, &*queue);
    let (tally, spans) = (Arc::<Tally>::default(), Spans::of_args(args));
    let told = Arc::clone(&tally);
    progress.say("handling them");
    let before = queue.usage();
    let began = Instant::now();
    let listener = Listener::builder(Arc::clone(&queue) as Arc<dyn WorkQueue>)
        .wakes(client.subscribe(options)?)
        .config(config)
        .start(move |delivery: Delivery| {
            let (tally, spans) = (Arc::clone(&told), spans);
            async move {
                let number = number_of(&delivery)?;
                let span = spans.of(number);
                if !span.is_zero() {
                    tokio::time::sleep(span).await;
                }
                tally.add(number);
                Ok(())
            }
        })
        .await?;
    let memory = Memory::until(&listener, args.messages).await?;
    let took = began.elapsed();
    let tasks = listener.state().total_dequeue_tasks;
    listener.shutdown().await;
    let used = queue.usage().since(&before).total();
    tally.check(args.messages)?;
    ensure!(queue.depth().await? == 0, "{queue} is not empty afterwards");
    broker.stop().await;
    Ok(figures(args, took, tasks, used, &memory))
}

async fn put_all(queue: &dyn WorkQueue, args: &DrainArgs) -> Result<()> {
    let batch = BATCH;
    let size = usize::from(args.size);
    let mut first = 0;
    while first < args.messages {
        let end = args.messages.min(first + batch);
        let body = |number: u64| format!("{number:0size$}");
        let messages = (first..end).map(|number| NewMessage::new(body(number)));
        queue.put(messages.collect()).await?;
        first = end;
    }
    Ok(())
}

fn number_of(delivery: &Delivery) -> Result<u64, HandlerError> {
    Ok(std::str::from_utf8(&delivery.message.body)?.parse()?)
}

impl Spans {
    fn of_args(args: &DrainArgs) -> Self {
        Self {
            each: args.handling,
            slow: args.slow,
            slow_percent: args.slow_percent.into(),
        }
    }

    /// Returns how long a message is handled; the slow ones are spread among the others.
    fn of(&self, number: u64) -> Duration {
        match (number * 37) % 100 < self.slow_percent {
            true => self.slow,
            false => self.each,
        }
    }
}

impl Tally {
    fn add(&self, number: u64) {
        self.sum.fetch_add(number + 1, Ordering::Relaxed);
        self.handled.fetch_add(1, Ordering::Relaxed);
    }

    /// Checks that each message was handled, and none twice.
    fn check(&self, messages: u64) -> Result<()> {
        let handled = self.handled.load(Ordering::Relaxed);
        ensure!(
            handled == messages && self.sum.load(Ordering::Relaxed) == (1..=messages).sum::<u64>(),
            "{handled} messages were handled instead of {messages}, or not each of them once"
        );
        Ok(())
    }
}

impl Memory {
    /// Watches the memory of this process until so many messages were handled and deleted.
    async fn until(listener: &Listener, messages: u64) -> Result<Self> {
        let mut memory = Self::default();
        let (mut last, mut moved) = (0, Instant::now());
        loop {
            tokio::time::sleep(LOOK).await;
            let handled = listener.state().stats.handled;
            let rss = Usage::of(Some(process::id())).rss_kib;
            memory.most = memory.most.max(rss);
            if handled >= messages / 10 && memory.at_a_tenth.is_none() {
                memory.at_a_tenth = rss;
            }
            if handled >= messages {
                memory.at_the_end = rss;
                return Ok(memory);
            }
            if handled > last {
                (last, moved) = (handled, Instant::now());
            }
            let waited = moved.elapsed();
            ensure!(
                waited < LOST,
                "{} messages are not handled, and none was for {waited:?}",
                messages - handled
            );
        }
    }
}

fn figures(
    args: &DrainArgs,
    took: Duration,
    tasks: usize,
    transactions: u64,
    memory: &Memory,
) -> Figures {
    let mut figures = Figures::default();
    let messages = args.messages as f64;
    figures.add("messages", Unit::Count, Some(messages));
    figures.add("body", Unit::Bytes, Some(args.size.into()));
    figures.add("most tasks", Unit::Count, Some(tasks as f64));
    figures.add("wall", Unit::Seconds, Some(took.as_secs_f64()));
    figures.add(
        "handled",
        Unit::PerSecond,
        Some(messages / took.as_secs_f64()),
    );
    let each = transactions as f64 / messages;
    figures.add(
        "transactions/1,000 messages",
        Unit::Count,
        Some(each * 1000.0),
    );
    for (name, kib) in [
        ("memory at a tenth", memory.at_a_tenth),
        ("memory at the end", memory.at_the_end),
        ("most memory", memory.most),
    ] {
        figures.add(name, Unit::Kib, kib.map(|kib| kib as f64));
    }
    figures
}
