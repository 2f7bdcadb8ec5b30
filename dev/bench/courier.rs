//! Store and forward between two machines: durable sends into a local queue, and the hand-over of
//! messages from machine A to machine B.
//!
//! Both machines are on this computer, each with its own processes and directory. The publisher of A
//! and the consumer of B are in this process, so that one clock measures a latency. A send ends when
//! the message is on the disk of A. Each message must be handled at B, and none twice.

mod machines;
pub(super) mod queue_manager;
mod rabbitmq;
mod rabbitmq_node;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use hdrhistogram::Histogram;
use tokio::{sync::mpsc, task::JoinSet, time::timeout};

use self::{
    machines::{Handled, Machines, Target},
    queue_manager::QueueFiles,
    rabbitmq::RabbitMq,
};
use super::{
    args::{CourierArgs, Server},
    directory::Directory,
    progress::Progress,
    queue::{HandledSum, fdatasync, numbered_body},
    report::{Figures, Unit},
    usage::Usage,
};

/// The servers under test, and the messages that were handled at machine B.
struct Bench<'a> {
    args: &'a CourierArgs,
    machines: Arc<dyn Machines>,
    handled: mpsc::UnboundedReceiver<Handled>,
    figures: Figures,
}

/// Time and latencies of a number of sends.
struct Sends {
    wall: Duration,
    latencies: Histogram<u64>,
}

/// The hand-over of many messages.
struct Throughput {
    /// Until the last message was on the disk of A.
    sent: Duration,
    /// Until the last message was handled at B.
    wall: Duration,
    /// The usage of A, of B, and of this process.
    before: [Usage; 3],
    after: [Usage; 3],
}

/// Number of messages of each kind that are sent first and are not measured.
const WARM_UP: u64 = 200;
/// A message that takes longer than this is lost. It includes the connection of the two machines.
const LOSS_TIMEOUT: Duration = Duration::from_secs(60);
/// How often the messages of a backlog are counted.
const POLL: Duration = Duration::from_millis(5);
/// Wait for a second delivery of the last messages.
const SETTLE: Duration = Duration::from_millis(500);

/// Runs the benchmark once.
pub(super) async fn once(
    args: &CourierArgs,
    server: Server,
    progress: &Progress,
) -> Result<Figures> {
    let directory = Directory::new()?;
    let sync = fdatasync(directory.path())?;
    progress.step("starting two machines");
    let (sender, handled) = mpsc::unbounded_channel();
    let machines: Arc<dyn Machines> = match server {
        Server::Relay(_) => Arc::new(QueueFiles::start(directory.path(), sender).await?),
        Server::Rabbitmq => Arc::new(RabbitMq::start(directory.path(), sender).await?),
        other => anyhow::bail!("{other} is not measured by this benchmark"),
    };
    let mut bench = Bench {
        args,
        machines,
        handled,
        figures: Figures::of_counts(&[
            ("messages", args.messages),
            ("backlog", args.backlog),
            ("concurrent", args.tasks.into()),
        ]),
    };
    let size = f64::from(args.size);
    bench.figures.add("body", Unit::Bytes, size);
    bench.figures.add("fdatasync", Unit::Micros, sync);
    let measured = bench.measure(progress).await;
    // Also after a failure: the processes must have ended when their directory is deleted.
    bench.machines.stop().await;
    measured?;
    Ok(bench.figures)
}

impl Bench<'_> {
    async fn measure(&mut self, progress: &Progress) -> Result<()> {
        progress.step("warming up");
        self.send(Target::Local, WARM_UP, self.args.tasks).await?;
        self.hand_over(WARM_UP).await?;
        progress.step("local sends, one at a time");
        let sends = self.send(Target::Local, self.args.sends, 1).await?;
        self.add_sends("single", self.args.sends, &sends);
        progress.step("local sends, concurrent");
        let (messages, tasks) = (self.args.messages, self.args.tasks);
        let sends = self.send(Target::Local, messages, tasks).await?;
        self.add_sends("concurrent", messages, &sends);
        progress.step("hand-over, concurrent");
        self.throughput().await?;
        progress.step("hand-over, one at a time");
        self.latency().await?;
        progress.step("hand-over of a backlog");
        self.backlog().await
    }

    /// Sends messages while B is stopped, and measures how fast they arrive at a queue of B without
    /// a consumer. The first tenth is not measured: B notices that it can go on.
    async fn backlog(&mut self) -> Result<()> {
        let messages = self.args.backlog;
        self.machines.freeze(true).await?;
        let sent = self.send(Target::Stored, messages, self.args.tasks).await;
        self.machines.freeze(false).await?;
        sent?;
        let stored = timeout(LOSS_TIMEOUT, async {
            let mut began = None;
            loop {
                let (stored, now) = (self.machines.stored().await?, Instant::now());
                if stored >= messages / 10 {
                    let (first, at) = *began.get_or_insert((stored, now));
                    if stored >= messages {
                        return anyhow::Ok((stored - first) as f64 / (now - at).as_secs_f64());
                    }
                }
                tokio::time::sleep(POLL).await;
            }
        });
        let rate = stored.await.context("a message was lost")??;
        tokio::time::sleep(SETTLE).await;
        let stored = self.machines.stored().await?;
        ensure!(
            stored == messages,
            "{stored} messages of {messages} arrived"
        );
        self.figures
            .add("backlog handed over", Unit::PerSecond, rate);
        Ok(())
    }

    /// Measures the time until all messages are handled at B.
    async fn throughput(&mut self) -> Result<()> {
        let before = self.machines.usage().await;
        let (sent, wall) = self.hand_over(self.args.messages).await?;
        let after = self.machines.usage().await;
        self.add_throughput(&Throughput {
            sent,
            wall,
            before,
            after,
        });
        Ok(())
    }

    /// Measures single messages from the start of the send to the handler at B.
    async fn latency(&mut self) -> Result<()> {
        let mut latencies = Histogram::new(3)?;
        for number in 0..self.args.singles {
            tokio::time::sleep(self.args.pause).await;
            let began = Instant::now();
            let body = numbered_body(number, self.args.size);
            self.machines.send(Target::Remote, body).await?;
            let handled = self.next_handled().await?;
            ensure!(
                handled.number == number,
                "message {} was handled instead of {number}",
                handled.number
            );
            latencies.record(nanos(handled.at.saturating_duration_since(began)))?;
        }
        self.none_twice().await?;
        self.add_latencies("send to handler", &latencies);
        Ok(())
    }

    /// Sends messages to B until all are handled. Returns the time of the sends and the whole time.
    async fn hand_over(&mut self, messages: u64) -> Result<(Duration, Duration)> {
        let began = Instant::now();
        let sends = tokio::spawn(sends(
            Arc::clone(&self.machines),
            self.args.clone(),
            Target::Remote,
            messages,
            self.args.tasks,
        ));
        let sum = HandledSum::default();
        let mut last = began;
        for _ in 0..messages {
            let handled = self.next_handled().await?;
            sum.add(handled.number);
            last = last.max(handled.at);
        }
        sum.check(messages)?;
        let sends = sends.await??;
        self.none_twice().await?;
        Ok((sends.wall, last.saturating_duration_since(began)))
    }

    async fn send(&self, target: Target, messages: u64, tasks: u16) -> Result<Sends> {
        let (machines, args) = (Arc::clone(&self.machines), self.args.clone());
        sends(machines, args, target, messages, tasks).await
    }

    async fn next_handled(&mut self) -> Result<Handled> {
        let handled = timeout(LOSS_TIMEOUT, self.handled.recv()).await;
        handled
            .context("a message was lost")?
            .context("the consumer of machine B has ended")
    }

    /// Fails if a message is handled again.
    async fn none_twice(&mut self) -> Result<()> {
        let again = timeout(SETTLE, self.handled.recv()).await;
        ensure!(again.is_err(), "a message was handled twice");
        Ok(())
    }

    fn add_sends(&mut self, name: &str, messages: u64, sends: &Sends) {
        let rate = messages as f64 / sends.wall.as_secs_f64();
        self.figures
            .add(format!("{name} sends"), Unit::PerSecond, rate);
        self.add_latencies(&format!("{name} send"), &sends.latencies);
    }

    fn add_latencies(&mut self, name: &str, latencies: &Histogram<u64>) {
        for (part, quantile) in [("p50", 0.5), ("p99", 0.99)] {
            let micros = latencies.value_at_quantile(quantile) as f64 / 1e3;
            self.figures
                .add(format!("{name} {part}"), Unit::Micros, micros);
        }
    }

    /// Adds the figures of the hand-over.
    fn add_throughput(&mut self, measured: &Throughput) {
        let messages = self.args.messages as f64;
        let figures = &mut self.figures;
        let sent = messages / measured.sent.as_secs_f64();
        figures.add("hand-over sent", Unit::PerSecond, sent);
        let handled = messages / measured.wall.as_secs_f64();
        figures.add("hand-over handled", Unit::PerSecond, handled);
        let processes = ["cpu of A", "cpu of B", "cpu of applications"];
        for (at, name) in processes.into_iter().enumerate() {
            let seconds = measured.after[at].seconds_since(&measured.before[at]);
            figures.add(name, Unit::Seconds, seconds);
        }
        for (at, name) in ["memory of A", "memory of B"].into_iter().enumerate() {
            let kib = measured.after[at].kib();
            figures.add(name, Unit::Kib, kib);
        }
    }
}

/// Sends messages with the numbers from 0 in this many tasks. A task sends its next message when the
/// former one is on the disk.
async fn sends(
    machines: Arc<dyn Machines>,
    args: CourierArgs,
    target: Target,
    messages: u64,
    tasks: u16,
) -> Result<Sends> {
    let next = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let (machines, next, size) = (Arc::clone(&machines), Arc::clone(&next), args.size);
        running.spawn(async move {
            let mut latencies = Histogram::<u64>::new(3)?;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= messages {
                    return anyhow::Ok(latencies);
                }
                let began = Instant::now();
                machines.send(target, numbered_body(number, size)).await?;
                latencies.record(nanos(began.elapsed()))?;
            }
        });
    }
    let mut latencies = Histogram::new(3)?;
    while let Some(ended) = running.join_next().await {
        latencies.add(ended??)?;
    }
    let wall = began.elapsed();
    Ok(Sends { wall, latencies })
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
