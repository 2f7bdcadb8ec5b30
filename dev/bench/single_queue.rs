//! The benchmarks with one queue: `burst`, `wake`, `wake-all` and `idle`.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use clap::Args;
use reveille::{QueueAddress, duration};

use crate::{
    Benchmark, Servers,
    broker::Broker,
    positive,
    report::{Figures, Unit, median},
    sender::{Sender, event_size},
    server::Server,
    step,
    subscriber_process::{Delivered, SubscriberProcess, SubscriberSpec},
    usage::Usage,
};

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench burst --peer nats")]
pub(crate) struct BurstArgs {
    /// Number of notifications.
    #[arg(long, default_value_t = 200_000, value_parser = positive())]
    notifications: u64,
    /// Number of subscribers, each on a separate connection.
    #[arg(long, default_value_t = 100, value_parser = positive())]
    subscribers: u64,
    /// Number of notifications of one request.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: u16,
    #[command(flatten)]
    servers: Servers,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench wake --notifications 1000")]
pub(crate) struct WakeArgs {
    /// Number of measured notifications.
    #[arg(long, default_value_t = 5_000, value_parser = positive())]
    notifications: u64,
    /// Number of notifications before them, which are not measured.
    #[arg(long, default_value_t = 500, value_parser = positive())]
    warm_up: u64,
    /// Pause before each notification; timers round it up to the next millisecond.
    #[arg(long, default_value = "500us", value_parser = duration::parse)]
    pause: Duration,
    #[command(flatten)]
    servers: Servers,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench wake-all --subscribers 1000 --rounds 20")]
pub(crate) struct WakeAllArgs {
    /// Number of subscribers, each on a separate connection.
    #[arg(long, default_value_t = 4_000, value_parser = positive())]
    subscribers: u64,
    /// Number of notifications, each of which wakes all subscribers.
    #[arg(long, default_value_t = 10, value_parser = positive())]
    rounds: u64,
    #[command(flatten)]
    servers: Servers,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench idle --subscribers 100000 --per-connection 100")]
pub(crate) struct IdleArgs {
    /// Number of subscribers.
    #[arg(long, default_value_t = 8_000, value_parser = positive())]
    subscribers: u64,
    /// Number of subscribers on one connection; a client has at most 256 streams on a connection,
    /// and a connection to Redis is one subscriber.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=256))]
    per_connection: u64,
    /// How long the subscribers stay connected.
    #[arg(long, default_value = "5s", value_parser = duration::parse)]
    hold: Duration,
    #[command(flatten)]
    servers: Servers,
}

/// The server, the subscribers and the publisher of one run.
struct Run {
    broker: Broker,
    subscribers: u64,
    timed: bool,
    /// Size of a notification in bytes.
    payload: usize,
    process: SubscriberProcess,
    sender: Sender,
}

impl Benchmark for BurstArgs {
    fn servers(&self) -> Vec<Server> {
        self.servers.all()
    }

    async fn run(&self, server: Server) -> Result<Figures> {
        let count = self.notifications;
        let broker = self.servers.start(server).await?;
        let mut run = Run::start(broker, self.subscribers, false, self.batch).await?;
        // Opens the publisher's connection.
        run.round().await?;
        step(format_args!("{count} notifications"));
        run.process.expect(1, count).await?;
        let before = run.broker.usage();
        let began = run.sender.all(count).await?;
        let delivered = run.process.delivered(count).await?;
        let wall = delivered.seconds_since(began);
        run.finish(&before, (count, delivered.wakeups), wall).await
    }
}

impl Benchmark for WakeArgs {
    fn servers(&self) -> Vec<Server> {
        self.servers.all()
    }

    async fn run(&self, server: Server) -> Result<Figures> {
        let broker = self.servers.start(server).await?;
        let mut run = Run::start(broker, 1, true, 1).await?;
        step(format_args!("{} to warm up", self.warm_up));
        run.singly(self.warm_up, self.pause).await?;
        run.process.latencies().await?;
        step(format_args!("{} notifications", self.notifications));
        let (before, began) = (run.broker.usage(), SystemTime::now());
        let delivered = run.singly(self.notifications, self.pause).await?;
        let counts = (self.notifications, delivered.wakeups);
        let wall = delivered.seconds_since(began);
        run.finish(&before, counts, wall).await
    }
}

impl Benchmark for WakeAllArgs {
    fn servers(&self) -> Vec<Server> {
        self.servers.all()
    }

    async fn run(&self, server: Server) -> Result<Figures> {
        let broker = self.servers.start(server).await?;
        let mut run = Run::start(broker, self.subscribers, true, 1).await?;
        run.round().await?;
        run.process.latencies().await?;
        step(format_args!("{} rounds", self.rounds));
        let before = run.broker.usage();
        let (mut walls, mut wakeups) = (Vec::new(), 0);
        for _ in 0..self.rounds {
            let (wall, delivered) = run.round().await?;
            walls.push(wall);
            wakeups += delivered.wakeups;
        }
        let wall = median(&mut walls).unwrap_or_default();
        run.finish(&before, (self.rounds, wakeups), wall).await
    }
}

impl Benchmark for IdleArgs {
    fn servers(&self) -> Vec<Server> {
        self.servers.all()
    }

    async fn run(&self, server: Server) -> Result<Figures> {
        let broker = self.servers.start(server).await?;
        let (queues, empty, began) = ([queue()?], broker.usage(), SystemTime::now());
        step(format_args!("connecting {} subscribers", self.subscribers));
        let spec = SubscriberSpec {
            per_connection: self.per_connection,
            ..SubscriberSpec::of(&queues, self.subscribers, false)
        };
        let process = SubscriberProcess::start(&broker, &spec).await?;
        let connected = began.elapsed().unwrap_or_default();
        step(format_args!("holding {} subscribers", self.subscribers));
        let before = broker.usage();
        tokio::time::sleep(self.hold).await;
        let after = broker.usage();
        process.stop().await;
        broker.stop().await;
        let mut figures = Figures::default();
        figures.count("subscribers", self.subscribers);
        figures.count("per connection", self.per_connection);
        figures.add("connecting", Unit::Seconds, connected.as_secs_f64());
        figures.add("rss before", Unit::Kib, empty.kib());
        let each = after.kib().zip(empty.kib());
        let each = each.map(|(after, before)| (after - before) / self.subscribers as f64);
        figures.add("rss/subscription", Unit::Kib, each);
        figures.add("wall", Unit::Seconds, self.hold.as_secs_f64());
        figures.usage("", &before, &after);
        Ok(figures)
    }
}

impl Run {
    /// Connects the subscribers, then a publisher with this batch.
    async fn start(broker: Broker, subscribers: u64, timed: bool, batch: u16) -> Result<Self> {
        let queues = [queue()?];
        step(format_args!("connecting {subscribers} subscribers"));
        let spec = SubscriberSpec::of(&queues, subscribers, timed);
        Ok(Self {
            subscribers,
            timed,
            payload: event_size(&queues[0]),
            process: SubscriberProcess::start(&broker, &spec).await?,
            sender: Sender::open(&broker, &queues, batch.into()).await?,
            broker,
        })
    }

    /// Publishes one notification and waits until all subscribers have it; returns the time in
    /// seconds.
    async fn round(&mut self) -> Result<(f64, Delivered)> {
        self.process.expect(1, 1).await?;
        let began = self.sender.one().await?;
        let delivered = self.process.delivered(1).await?;
        Ok((delivered.seconds_since(began), delivered))
    }

    /// Publishes one notification at a time, with a pause before each.
    async fn singly(&mut self, count: u64, pause: Duration) -> Result<Delivered> {
        self.process.expect(1, count).await?;
        for _ in 0..count {
            tokio::time::sleep(pause).await;
            self.sender.one().await?;
        }
        self.process.delivered(count).await
    }

    /// Ends the measurements, then the processes. The counts are those of notifications and of
    /// wake-ups.
    async fn finish(
        mut self,
        before: &Usage,
        (notifications, wakeups): (u64, u64),
        wall: f64,
    ) -> Result<Figures> {
        let after = self.broker.usage();
        let mut figures = Figures::default();
        figures.count("subscribers", self.subscribers);
        figures.count("notifications", notifications);
        figures.count("wake-ups", wakeups);
        figures.add("wall", Unit::Seconds, wall);
        if self.timed {
            figures.latencies("", &self.process.latencies().await?);
            let each = after.seconds_since(before);
            let each = each.map(|cpu| cpu * 1e6 / wakeups.max(1) as f64);
            figures.add("cpu/wake-up", Unit::Micros, each);
        }
        figures.usage("", before, &after);
        figures.add("payload", Unit::Bytes, self.payload as f64);
        self.process.stop().await;
        self.broker.stop().await;
        Ok(figures)
    }
}

/// Returns the queue of all runs of this process. Its name contains the process id, so that a
/// shared relay's other notifications are not counted. The name has a fixed length.
pub(crate) fn queue() -> Result<QueueAddress> {
    Ok(QueueAddress::new(
        "bench",
        &format!("w{:07}", std::process::id() % 10_000_000),
    )?)
}
