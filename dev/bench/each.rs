//! One notification for each of many queues in each request, to subscribers of all of them.
//!
//! Wake-ups of different queues cannot be conflated, so this measures the server's cost of an
//! entry. Two modes run after each other on the same connections. In lock step, a request is sent
//! only after all subscribers have the one before. Pipelined, the publisher sends as fast as it
//! gets acknowledgements. The sums must be exact in both.

use std::time::SystemTime;

use anyhow::Result;
use clap::Args;
use reveille::QueueAddress;

use crate::{
    Benchmark, Servers,
    broker::Broker,
    positive,
    report::{Figures, Unit},
    sender::{Sender, event_size},
    server::Server,
    step,
    subscriber_process::{SubscriberProcess, SubscriberSpec},
};

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench each --peer nats --peer redis")]
pub(crate) struct EachArgs {
    /// Number of queues; each request has one event for each of them.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    queues: u16,
    /// Number of subscribers to all queues, each on a separate connection.
    #[arg(long, default_value_t = 100, value_parser = positive())]
    subscribers: u64,
    /// Number of events in each of the two modes, rounded up to whole requests.
    #[arg(long, default_value_t = 100_000, value_parser = positive())]
    events: u64,
    #[command(flatten)]
    servers: Servers,
}

/// The processes of one run.
struct Run {
    broker: Broker,
    process: SubscriberProcess,
    sender: Sender,
}

impl Benchmark for EachArgs {
    fn servers(&self) -> Vec<Server> {
        self.servers.all()
    }

    async fn run(&self, server: Server) -> Result<Figures> {
        let broker = self.servers.start(server).await?;
        let queues = queues(self.queues)?;
        let requests = self.events.div_ceil(self.queues.into());
        let events = requests * u64::from(self.queues);
        step(format_args!("connecting {} subscribers", self.subscribers));
        let spec = SubscriberSpec::of(&queues, self.subscribers, false);
        let mut run = Run {
            process: SubscriberProcess::start(&broker, &spec).await?,
            sender: Sender::open(&broker, &queues, self.queues.into()).await?,
            broker,
        };
        let mut figures = Figures::default();
        figures.count("queues", self.queues.into());
        figures.count("subscribers", self.subscribers);
        figures.count("requests", requests);
        let deliveries = events * self.subscribers;
        figures.count("deliveries", deliveries);
        // Opens the publisher's connection.
        run.send(1, 1, self.queues.into()).await?;
        for (name, steps) in [("lock step", requests), ("pipelined", 1)] {
            step(format_args!("{requests} requests, {name}"));
            let before = run.broker.usage();
            let each = events / steps;
            let (wall, wakeups) = run.send(steps, requests / steps, each).await?;
            let after = run.broker.usage();
            let cpu = after.seconds_since(&before);
            let per =
                |seconds: f64| Some(deliveries as f64 / seconds).filter(|rate| rate.is_finite());
            figures.add(format!("{name} wall"), Unit::Seconds, wall);
            figures.add(format!("{name} cpu"), Unit::Seconds, cpu);
            figures.add(format!("{name} deliveries"), Unit::PerSecond, per(wall));
            let of_cpu = cpu.and_then(per);
            figures.add(format!("{name} deliveries/cpu"), Unit::PerSecond, of_cpu);
            figures.count(format!("{name} entries"), wakeups);
            figures.add(format!("{name} rss"), Unit::Kib, after.kib());
        }
        figures.add("payload", Unit::Bytes, event_size(&queues[0]) as f64);
        run.process.stop().await;
        run.broker.stop().await;
        Ok(figures)
    }
}

impl Run {
    /// Sends `requests` requests in each of the steps, with this number of events in a step. Returns
    /// the time in seconds, and the number of wake-ups.
    async fn send(&mut self, steps: u64, requests: u64, events: u64) -> Result<(f64, u64)> {
        self.process.expect(steps, events).await?;
        let began = SystemTime::now();
        for step in 1..=steps {
            self.sender.requests(requests).await?;
            if step < steps {
                self.process.step().await?;
            }
        }
        let delivered = self.process.delivered(steps * events).await?;
        Ok((delivered.seconds_since(began), delivered.wakeups))
    }
}

/// Returns the queues of all runs of this process. Their names contain the process id, so that a
/// shared relay's other notifications are not counted. The names differ in digits only.
fn queues(count: u16) -> Result<Vec<QueueAddress>> {
    let process = std::process::id() % 10_000_000;
    let address = |queue| QueueAddress::new("bench", &format!("e{process:07}-{queue:04}"));
    Ok((0..count).map(address).collect::<Result<_, _>>()?)
}
