//! Very many messages through one listener: measures its throughput, and whether its memory grows
//! with the number of messages.
//!
//! All messages are in the queue before the listener starts, so that it scales up to the maximum of
//! its policy. The report has the memory after a tenth of the messages, at the end, and the
//! maximum.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use reveille::{
    Client, ListenerId,
    listener::{Delivery, HandlerError, Listener, ListenerConfig},
    queue::{Metered, WorkQueue},
};

use super::{
    Server,
    args::DrainArgs,
    broker::Broker,
    progress::Progress,
    queue::{BenchQueue, HandledSum, numbered},
    report::{Figures, Unit},
    usage::Usage,
};

/// Handling times of messages.
#[derive(Debug, Clone, Copy)]
struct HandlingTimes {
    each: Duration,
    slow: Duration,
    slow_percent: u64,
}

/// The process's memory during the run.
#[derive(Debug, Default)]
struct Memory {
    at_a_tenth: Option<u64>,
    at_the_end: Option<u64>,
    most: Option<u64>,
}

/// Fails a run whose messages are lost.
#[derive(Debug)]
pub(super) struct LossTimer {
    handled: u64,
    /// When the last message was handled.
    at: Instant,
}

/// Messages of one put.
const BATCH: u64 = 1000;
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Messages count as lost after this long without a handled message.
const LOSS_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs the benchmark once.
pub(super) async fn once(args: &DrainArgs, progress: &Progress) -> Result<Figures> {
    let target = BenchQueue::of(&args.queue)?;
    let queue = Arc::new(Metered::new(target.open().await?));
    progress.step(&format!("putting {} messages", args.messages));
    put_all(&*queue, args).await?;

    let broker = Broker::start(Server::RELAY, None).await?;
    let client = Client::new(&broker.target)?;
    let config = ListenerConfig {
        dequeue_batch_size: 32,
        ..ListenerConfig::default()
    };
    let options = config.subscription(ListenerId::new("drain")?, &*queue);
    let (handled, times) = (Arc::<HandledSum>::default(), HandlingTimes::of_args(args));
    let counter = Arc::clone(&handled);
    progress.step("handling them");
    let before = queue.usage();
    let began = Instant::now();
    let listener = Listener::builder(Arc::clone(&queue) as Arc<dyn WorkQueue>)
        .wakes(client.subscribe(options)?)
        .config(config)
        .start(move |delivery: Delivery| {
            let (counter, times) = (Arc::clone(&counter), times);
            async move {
                let number = number_of(&delivery)?;
                let span = times.of(number);
                if !span.is_zero() {
                    tokio::time::sleep(span).await;
                }
                counter.add(number);
                Ok(())
            }
        })
        .await?;
    let memory = Memory::until(&listener, args.messages).await?;
    let took = began.elapsed();
    let tasks = listener.state().total_dequeue_tasks;
    listener.shutdown().await;
    let used = queue.usage().since(&before).total();
    handled.check(args.messages)?;
    ensure!(queue.depth().await? == 0, "{queue} is not empty afterwards");
    broker.stop().await;
    Ok(figures(args, took, tasks, used, &memory))
}

async fn put_all(queue: &dyn WorkQueue, args: &DrainArgs) -> Result<()> {
    let mut first = 0;
    while first < args.messages {
        let end = args.messages.min(first + BATCH);
        queue.put(numbered(first..end, args.size)).await?;
        first = end;
    }
    Ok(())
}

fn number_of(delivery: &Delivery) -> Result<u64, HandlerError> {
    Ok(std::str::from_utf8(&delivery.message.body)?.parse()?)
}

impl HandlingTimes {
    fn of_args(args: &DrainArgs) -> Self {
        Self {
            each: args.handling,
            slow: args.slow,
            slow_percent: args.slow_percent.into(),
        }
    }

    /// Returns the handling time of a message; slow messages are spread among the others.
    fn of(&self, number: u64) -> Duration {
        match (number * 37) % 100 < self.slow_percent {
            true => self.slow,
            false => self.each,
        }
    }
}

impl Memory {
    /// Samples the memory of this process until `messages` messages were handled and deleted.
    async fn until(listener: &Listener, messages: u64) -> Result<Self> {
        let mut memory = Self::default();
        let mut timer = LossTimer::start();
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let handled = listener.state().stats.handled;
            let rss = Usage::own().rss_kib;
            memory.most = memory.most.max(rss);
            if handled >= messages / 10 && memory.at_a_tenth.is_none() {
                memory.at_a_tenth = rss;
            }
            if handled >= messages {
                memory.at_the_end = rss;
                return Ok(memory);
            }
            timer.check(handled, messages)?;
        }
    }
}

impl LossTimer {
    pub(super) fn start() -> Self {
        Self {
            handled: 0,
            at: Instant::now(),
        }
    }

    /// Fails if no message was handled for [`LOSS_TIMEOUT`].
    pub(super) fn check(&mut self, handled: u64, messages: u64) -> Result<()> {
        if handled > self.handled {
            (self.handled, self.at) = (handled, Instant::now());
        }
        let waited = self.at.elapsed();
        ensure!(
            waited < LOSS_TIMEOUT,
            "{handled} of {messages} messages were handled, and none for {waited:?}"
        );
        Ok(())
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
    figures.add("messages", Unit::Count, messages);
    figures.add("body", Unit::Bytes, f64::from(args.size));
    figures.add("most tasks", Unit::Count, tasks as f64);
    figures.add("wall", Unit::Seconds, took.as_secs_f64());
    figures.add("handled", Unit::PerSecond, messages / took.as_secs_f64());
    let each = transactions as f64 / messages;
    figures.add("transactions/1,000 messages", Unit::Count, each * 1000.0);
    for (name, kib) in [
        ("memory at a tenth", memory.at_a_tenth),
        ("memory at the end", memory.at_the_end),
        ("most memory", memory.most),
    ] {
        figures.add(name, Unit::Kib, kib.map(|kib| kib as f64));
    }
    figures
}
