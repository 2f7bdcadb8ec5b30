//! One notification for each of many queues in each request, to subscribers of all of them.
//!
//! Wake-ups of different queues cannot be conflated, so this measures the server's cost of an
//! entry. Two modes run after each other on the same connections. In lock step, a request is sent
//! only after all subscribers have the one before. Pipelined, the publisher sends as fast as it
//! gets acknowledgements. The sums must be exact in both.

use std::time::SystemTime;

use anyhow::Result;
use reveille::QueueAddress;

use super::{
    args::EachArgs,
    broker::Broker,
    progress::Progress,
    report::{Figures, Unit},
    sender::{Sender, event_size},
    single_queue::since,
    subscriber_process::{Delivered, SubscriberProcess, SubscriberSpec},
    usage::Usage,
};

/// The way in which requests are sent.
#[derive(Debug, Clone, Copy)]
enum Mode {
    /// Each request after all subscribers have the one before.
    LockStep,
    /// As fast as the server acknowledges them.
    Pipelined,
}

/// Measurements of one mode.
#[derive(Debug)]
struct ModeResult {
    wall: f64,
    delivered: Delivered,
    before: ServerSample,
    after: ServerSample,
}

/// Usage and counters of the server at one moment.
#[derive(Debug)]
struct ServerSample {
    usage: Usage,
    /// Wakes and entries that the relay has sent; `None` for a peer.
    sent: Option<(u64, u64)>,
}

/// Runs the benchmark once, in both modes.
pub(super) async fn each(args: &EachArgs, broker: &Broker, progress: &Progress) -> Result<Figures> {
    let queues = queues(args.queues)?;
    let requests = requests(args.events, args.queues);
    let subscribers = args.subscribers;
    progress.step(&format!("connecting {subscribers} subscribers"));
    let spec = SubscriberSpec::of(&queues, subscribers, false);
    let mut process = SubscriberProcess::start(broker, &spec).await?;
    let pending = requests * u64::from(args.queues);
    let mut sender = Sender::open(broker, &queues, args.queues.into(), pending).await?;
    let events = u64::from(args.queues);
    let (lock_step, pipelined) = (Mode::LockStep, Mode::Pipelined);
    // Opens the publisher's connection.
    send(lock_step, &mut process, &mut sender, broker, (1, events)).await?;

    let work = (requests, events);
    progress.step(&format!("{requests} requests in lock step"));
    let lock_step = send(lock_step, &mut process, &mut sender, broker, work).await?;
    progress.step(&format!("{requests} requests, pipelined"));
    let pipelined = send(pipelined, &mut process, &mut sender, broker, work).await?;
    process.stop().await;

    let deliveries = pending * subscribers;
    let mut figures = Figures::of_counts(&[
        ("queues", args.queues.into()),
        ("subscribers", subscribers),
        ("requests", requests),
        ("deliveries", deliveries),
    ]);
    for (name, mode) in [("lock step", lock_step), ("pipelined", pipelined)] {
        mode.add(name, deliveries, &mut figures);
    }
    figures.add("payload", Unit::Bytes, event_size(&queues[0]) as f64);
    Ok(figures)
}

/// Sends the requests. The arguments are the number of requests, and of events in each.
async fn send(
    mode: Mode,
    process: &mut SubscriberProcess,
    sender: &mut Sender,
    broker: &Broker,
    (requests, events): (u64, u64),
) -> Result<ModeResult> {
    match mode {
        Mode::LockStep => process.expect_steps(requests, events).await?,
        Mode::Pipelined => process.expect(requests * events).await?,
    }
    let (before, began) = (ServerSample::of(broker).await?, SystemTime::now());
    match mode {
        Mode::LockStep => {
            for _ in 0..requests {
                sender.request().await?;
                process.step().await?;
            }
        }
        Mode::Pipelined => sender.requests(requests).await?,
    }
    let delivered = process.delivered(requests * events).await?;
    Ok(ModeResult {
        wall: since(began, &delivered),
        delivered,
        before,
        after: ServerSample::of(broker).await?,
    })
}

impl ServerSample {
    async fn of(broker: &Broker) -> Result<Self> {
        let usage = broker.usage();
        let sent = broker.metrics().await?.and_then(|metrics| {
            let wakes = metrics.value("reveille_wakes_total")?;
            Some((wakes, metrics.value("reveille_wake_entries_total")?))
        });
        Ok(Self { usage, sent })
    }
}

impl ModeResult {
    fn add(&self, name: &str, deliveries: u64, figures: &mut Figures) {
        let cpu = self.after.usage.seconds_since(&self.before.usage);
        let sent = self.after.sent.zip(self.before.sent);
        let wakes = sent.map(|(after, before)| (after.0 - before.0) as f64);
        let entries = sent.map_or(self.delivered.wakeups, |(after, before)| after.1 - before.1);
        let deliveries = deliveries as f64;
        let per = |seconds: f64| {
            Some(seconds)
                .filter(|span| *span > 0.0)
                .map(|span| deliveries / span)
        };
        for (figure, unit, value) in [
            ("wall", Unit::Seconds, Some(self.wall)),
            ("cpu", Unit::Seconds, cpu),
            ("deliveries", Unit::PerSecond, per(self.wall)),
            ("deliveries/cpu", Unit::PerSecond, cpu.and_then(per)),
            ("wakes", Unit::Count, wakes),
            ("entries", Unit::Count, Some(entries as f64)),
            ("rss", Unit::Kib, self.after.usage.kib()),
        ] {
            figures.add(format!("{name} {figure}"), unit, value);
        }
    }
}

/// Returns the queues of all runs of this process. Their names contain the process id, so that a
/// shared relay's other notifications are not counted. The names differ in digits only.
fn queues(count: u16) -> Result<Vec<QueueAddress>> {
    let process = std::process::id() % 10_000_000;
    let address = |queue| QueueAddress::new("bench", &format!("e{process:07}-{queue:04}"));
    Ok((0..count).map(address).collect::<Result<_, _>>()?)
}

/// Returns the number of requests for this number of events, with one event of each queue.
fn requests(events: u64, queues: u16) -> u64 {
    events.div_ceil(queues.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_rounded_up_to_whole_requests() {
        assert_eq!(requests(100_000, 64), 1_563);
        assert_eq!(requests(128, 64), 2);
        assert_eq!(requests(1, 64), 1);
    }

    #[test]
    fn the_names_of_the_queues_have_the_same_length() {
        let queues = queues(1024).expect("names");
        let length = |queue: &QueueAddress| queue.to_string().len();
        assert!(
            queues
                .iter()
                .all(|queue| length(queue) == length(&queues[0]))
        );
        assert!(queues.windows(2).all(|two| two[0] < two[1]));
    }
}
