//! Store and forward between two machines: durable sends into a local queue, and the hand-over of
//! messages from machine A to machine B.
//!
//! Both machines are on this computer. Each is a queue file that a process with a relay hosts. The
//! publisher of A and the consumer of B are in this process, so that one clock measures a latency,
//! and open the files themselves, as applications do. A send is one transaction, and ends when the
//! message is on the disk of A. Each message must be handled at B, and none twice.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use reveille::{
    Client, ListenerId, Node, NodeConfig, QueuesConfig, SubscribeOptions, Subscription,
    courier::{Destination, QueueManager, QueueManagerConfig},
    duration,
    queue::WorkQueue as _,
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    Benchmark,
    child::{self, Child},
    latencies::Latencies,
    positive,
    queue::{HandledSum, fdatasync, numbered_body},
    report::{Figures, Unit},
    server::Server,
    step,
    usage::Usage,
};

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench courier --runs 5")]
pub(crate) struct CourierArgs {
    /// Number of messages that are sent one at a time into a local queue.
    #[arg(long, default_value_t = 2_000, value_parser = positive())]
    sends: u64,
    /// Number of messages that are sent concurrently, into a local queue and then to the other
    /// machine.
    #[arg(long, default_value_t = 20_000, value_parser = positive())]
    messages: u64,
    /// Number of messages that wait for the other machine when it goes on.
    #[arg(long, default_value_t = 50_000, value_parser = positive())]
    backlog: u64,
    /// Number of concurrent transactions.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    tasks: u16,
    /// Size of a message in bytes.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u16).range(8..=32_768))]
    size: u16,
    /// Number of single messages to the other machine whose latency is measured.
    #[arg(long, default_value_t = 500, value_parser = positive())]
    singles: u64,
    /// Pause before each single message.
    #[arg(long, default_value = "2ms", value_parser = duration::parse)]
    pause: Duration,
}

/// The arguments of the process that hosts a queue file.
#[derive(Debug, Clone, Args)]
pub(crate) struct QueueHostArgs {
    #[arg(long)]
    path: PathBuf,
}

/// The two machines, and the messages that were handled at B.
struct Run<'a> {
    args: &'a CourierArgs,
    hosts: [Host; 2],
    /// The queue file of A, and of B.
    a: QueueManager,
    b: QueueManager,
    handled: mpsc::UnboundedReceiver<Handled>,
    figures: Figures,
}

/// The process that hosts a queue file.
struct Host {
    process: Child,
    url: String,
    pid: u32,
}

/// A message that the consumer at B has received.
#[derive(Debug, Clone, Copy)]
struct Handled {
    number: u64,
    /// The start of the handler.
    at: Instant,
}

/// A number of sends.
struct Sends {
    wall: Duration,
    latencies: Latencies,
}

/// The queue of A without a consumer, and the queues of B with and without one.
const LOCAL: &str = "local";
const IN: &str = "in";
const STORED: &str = "stored";
/// Name of the queue file in its machine's directory.
const FILE: &str = "queues.db";
/// Number of tasks of the consumer, and the messages of a transaction of one of them.
const CONSUMERS: usize = 4;
const BATCH: usize = 32;
/// Number of messages of each kind that are sent first and are not measured.
const WARM_UP: u64 = 200;
/// A message that takes longer than this is lost. It includes the connection of the two machines.
const LOSS_TIMEOUT: Duration = Duration::from_secs(60);
/// How often the messages of a backlog are counted.
const POLL: Duration = Duration::from_millis(5);
/// Wait for a second delivery of the last messages.
const SETTLE: Duration = Duration::from_millis(500);

impl Benchmark for CourierArgs {
    async fn run(&self, _: Server) -> Result<Figures> {
        let directory = TempDir::new()?;
        let sync = fdatasync(directory.path())?;
        step("starting two machines");
        let mut run = Run::start(self, directory.path()).await?;
        run.figures.count("messages", self.messages);
        run.figures.count("backlog", self.backlog);
        run.figures.count("concurrent", self.tasks.into());
        let size = f64::from(self.size);
        run.figures.add("body", Unit::Bytes, size);
        run.figures.add("fdatasync", Unit::Micros, sync);
        let measured = run.measure().await;
        // Also after a failure: the processes must have ended when their directory is deleted.
        for host in run.hosts {
            host.process.stop().await;
        }
        measured?;
        Ok(run.figures)
    }
}

impl<'a> Run<'a> {
    async fn start(args: &'a CourierArgs, directory: &Path) -> Result<Self> {
        let (at_a, at_b) = (directory.join("a"), directory.join("b"));
        let hosts = [Host::start(&at_a).await?, Host::start(&at_b).await?];
        let a = open(&at_a, &hosts[0]).await?;
        let b = open(&at_b, &hosts[1]).await?;
        a.queue(LOCAL)?.create().await?;
        b.queue(STORED)?.create().await?;
        let queue = b.queue(IN)?;
        queue.create().await?;
        let options = SubscribeOptions::new(ListenerId::new("bench")?, [queue.address().clone()]);
        let wakes = Client::new(&hosts[1].url)?.subscribe(options)?;
        let (sender, handled) = mpsc::unbounded_channel();
        let consumer = b.clone();
        tokio::spawn(async move {
            // The bench sees the end of the channel.
            if let Err(error) = consume(&consumer, wakes, sender).await {
                eprintln!("the consumer has ended: {error:#}");
            }
        });
        Ok(Self {
            args,
            hosts,
            a,
            b,
            handled,
            figures: Figures::default(),
        })
    }

    async fn measure(&mut self) -> Result<()> {
        let (messages, tasks) = (self.args.messages, self.args.tasks);
        step("warming up");
        self.send(LOCAL, WARM_UP, tasks).await?;
        self.hand_over(WARM_UP).await?;
        step("local sends, one at a time");
        let sends = self.send(LOCAL, self.args.sends, 1).await?;
        self.add_sends("single", self.args.sends, &sends);
        step("local sends, concurrent");
        let sends = self.send(LOCAL, messages, tasks).await?;
        self.add_sends("concurrent", messages, &sends);
        step("hand-over, concurrent");
        let before = self.usage();
        let (sent, wall) = self.hand_over(messages).await?;
        let after = self.usage();
        let rate = |span: Duration| messages as f64 / span.as_secs_f64();
        let figures = &mut self.figures;
        figures.add("hand-over sent", Unit::PerSecond, rate(sent));
        figures.add("hand-over handled", Unit::PerSecond, rate(wall));
        for (at, name) in ["A", "B", "applications"].into_iter().enumerate() {
            figures.usage(name, &before[at], &after[at]);
        }
        step("hand-over, one at a time");
        self.latency().await?;
        step("hand-over of a backlog");
        self.backlog().await
    }

    /// Measures single messages from the start of the send to the handler at B.
    async fn latency(&mut self) -> Result<()> {
        let (mut latencies, remote) = (Latencies::new(), self.destination(IN)?);
        for number in 0..self.args.singles {
            sleep(self.args.pause).await;
            let began = Instant::now();
            send(&self.a, &remote, numbered_body(number, self.args.size)).await?;
            let handled = self.next_handled().await?;
            let got = handled.number;
            ensure!(
                got == number,
                "message {got} was handled instead of {number}"
            );
            latencies.record(handled.at.saturating_duration_since(began));
        }
        self.none_twice().await?;
        self.figures
            .latencies("send to handler", &latencies.quantiles());
        Ok(())
    }

    /// Sends messages while B is stopped, and measures how fast they arrive at a queue of B without
    /// a consumer. The first tenth is not measured: B notices that it can go on.
    async fn backlog(&mut self) -> Result<()> {
        let messages = self.args.backlog;
        self.hosts[1].signal(Signal::STOP)?;
        let sent = self.send(STORED, messages, self.args.tasks).await;
        self.hosts[1].signal(Signal::CONT)?;
        sent?;
        let queue = self.b.queue(STORED)?;
        let arrived = timeout(LOSS_TIMEOUT, async {
            let mut began = None;
            loop {
                let (stored, now) = (queue.depth().await?, Instant::now());
                if stored >= messages / 10 {
                    let (first, at) = *began.get_or_insert((stored, now));
                    if stored >= messages {
                        let rate = (stored - first) as f64 / (now - at).as_secs_f64();
                        return anyhow::Ok(Some(rate).filter(|rate| rate.is_finite()));
                    }
                }
                sleep(POLL).await;
            }
        });
        let rate = arrived.await.context("a message was lost")??;
        sleep(SETTLE).await;
        let stored = queue.depth().await?;
        ensure!(
            stored == messages,
            "{stored} messages of {messages} arrived"
        );
        self.figures
            .add("backlog handed over", Unit::PerSecond, rate);
        Ok(())
    }

    /// Sends messages to B until all are handled. Returns the time of the sends and the whole time.
    async fn hand_over(&mut self, messages: u64) -> Result<(Duration, Duration)> {
        let began = Instant::now();
        let remote = self.destination(IN)?;
        let sends = sends(
            &self.a,
            &remote,
            (messages, self.args.size),
            self.args.tasks,
        );
        let sends = tokio::spawn(sends);
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

    async fn send(&self, queue: &str, messages: u64, tasks: u16) -> Result<Sends> {
        let destination = self.destination(queue)?;
        sends(&self.a, &destination, (messages, self.args.size), tasks).await
    }

    /// Returns a queue as A names it.
    fn destination(&self, queue: &str) -> Result<Destination> {
        let (_, authority) = self.hosts[1].url.split_once("://").context("a URL")?;
        Ok(match queue {
            LOCAL => self.a.destination(queue)?,
            _ => self
                .a
                .destination(&format!("reveille://{authority}/{queue}"))?,
        })
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
        let figures = &mut self.figures;
        figures.add(format!("{name} sends"), Unit::PerSecond, rate);
        figures.latencies(&format!("{name} send"), &sends.latencies.quantiles());
    }

    /// Returns the usage of A, of B, and of this process.
    fn usage(&self) -> [Usage; 3] {
        let [a, b] = self.hosts.each_ref().map(|host| Usage::of(Some(host.pid)));
        [a, b, Usage::own()]
    }
}

impl Host {
    async fn start(directory: &Path) -> Result<Self> {
        std::fs::create_dir(directory)?;
        let path = format!("--path={}", directory.join(FILE).display());
        let mut process = Child::start("queue-host", &[path], [])?;
        let line = process.line().await?;
        let Some((url, pid)) = line.split_once(' ') else {
            bail!("the queue's host printed {line:?}");
        };
        Ok(Self {
            url: url.to_owned(),
            pid: pid.parse()?,
            process,
        })
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        kill_process(pid.context("no process id")?, signal).context("machine B has ended")
    }
}

/// The process of a host: prints its URL and process id, and serves until the parent closes the
/// input.
pub(crate) async fn serve_host(args: &QueueHostArgs) -> Result<()> {
    let config = NodeConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        admin_listen: None,
        queues: Some(QueuesConfig {
            path: args.path.clone(),
            ..QueuesConfig::default()
        }),
        ..NodeConfig::default()
    };
    let node = Node::start(config).await?;
    println!("{} {}", node.url(), std::process::id());
    child::parent_closed().await;
    node.shutdown(Duration::ZERO).await;
    Ok(())
}

/// Opens the queue file of a machine as an application.
async fn open(directory: &Path, host: &Host) -> Result<QueueManager> {
    let config = QueueManagerConfig::default();
    let manager = QueueManager::open(directory.join(FILE), config).await?;
    let publisher = Client::new(&host.url)?.publisher("bench");
    Ok(manager.with_notifier(Arc::new(publisher)))
}

/// Sends one message, and waits until it is on the disk.
async fn send(manager: &QueueManager, to: &Destination, body: Vec<u8>) -> Result<()> {
    let mut transaction = manager.begin();
    transaction.send(to, body)?;
    transaction.commit().await?;
    Ok(())
}

/// Sends messages with the numbers from 0 in this many tasks. A task sends its next message when the
/// former one is on the disk.
fn sends(
    manager: &QueueManager,
    to: &Destination,
    (messages, size): (u64, u16),
    tasks: u16,
) -> impl Future<Output = Result<Sends>> + Send + 'static {
    let next = Arc::new(AtomicU64::new(0));
    let task = |_| {
        let (manager, to, next) = (manager.clone(), to.clone(), Arc::clone(&next));
        async move {
            let mut latencies = Latencies::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= messages {
                    return anyhow::Ok(latencies);
                }
                let began = Instant::now();
                send(&manager, &to, numbered_body(number, size)).await?;
                latencies.record(began.elapsed());
            }
        }
    };
    let tasks: Vec<_> = (0..tasks).map(task).collect();
    async move {
        let began = Instant::now();
        let mut running = JoinSet::from_iter(tasks);
        let mut latencies = Latencies::new();
        while let Some(ended) = running.join_next().await {
            latencies.add(&ended??);
        }
        let wall = began.elapsed();
        Ok(Sends { wall, latencies })
    }
}

/// Receives after each wake-up, until the bench has ended.
async fn consume(
    manager: &QueueManager,
    mut wakes: Subscription,
    handled: mpsc::UnboundedSender<Handled>,
) -> Result<()> {
    while let Some(wake) = wakes.next().await {
        wake?;
        let mut tasks = JoinSet::new();
        for _ in 0..CONSUMERS {
            tasks.spawn(drain(manager.clone(), handled.clone()));
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
    }
    Ok(())
}

/// Receives until the queue is empty.
async fn drain(manager: QueueManager, handled: mpsc::UnboundedSender<Handled>) -> Result<()> {
    loop {
        let mut transaction = manager.begin();
        let messages = transaction.receive_many(IN, BATCH).await?;
        if messages.is_empty() {
            return Ok(());
        }
        for message in &messages {
            let at = Instant::now();
            let number = std::str::from_utf8(&message.body)?.parse();
            let number = number.context("a message is not from the bench")?;
            // The bench has ended if the channel is closed.
            let _ = handled.send(Handled { number, at });
        }
        transaction.commit().await?;
    }
}
