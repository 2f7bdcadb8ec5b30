//! One notification in each request, with many requests in flight: unary `Notify` calls, then a
//! `NotifyStream`.
//!
//! It measures the relay's processor time for a request, without and with credentials. Both modes
//! have the same subscribers, and the sums must be exact.

use std::time::SystemTime;

use anyhow::Result;
use clap::{
    Args, ValueEnum as _,
    builder::{PossibleValuesParser, TypedValueParser},
};

use crate::{
    Benchmark, Servers,
    broker::Broker,
    positive,
    raw::{NotifyRequest, RawPublisher},
    report::{Figures, Unit},
    sender::{PIPELINE, Sender},
    server::Server,
    single_queue::queue,
    step,
    subscriber_process::{SubscriberProcess, SubscriberSpec},
};

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench notify --peer token --peer jwt")]
pub(crate) struct NotifyArgs {
    /// Number of measured unary notifications.
    #[arg(long, default_value_t = 200_000, value_parser = positive())]
    notifications: u64,
    /// Number of measured notifications on the stream, each of which takes less time.
    #[arg(long, default_value_t = 1_000_000, value_parser = positive())]
    streamed: u64,
    /// Number of notifications before them in each mode, which are not measured.
    #[arg(long, default_value_t = 2_000, value_parser = positive())]
    warm_up: u64,
    /// Number of subscribers, each on a separate connection.
    #[arg(long, default_value_t = 1, value_parser = positive())]
    subscribers: u64,
    /// Run the same benchmark on a relay with rules and a credential, in turn with the plain one;
    /// may be repeated.
    #[arg(long, value_name = "SERVER", value_parser = relay_with_credential())]
    peer: Vec<Server>,
}

/// The publisher of one mode.
enum Mode {
    Unary(RawPublisher, NotifyRequest),
    Stream(Box<Sender>),
}

impl Benchmark for NotifyArgs {
    fn servers(&self) -> Vec<Server> {
        Servers {
            peer: self.peer.clone(),
            relay: None,
        }
        .all()
    }

    async fn run(&self, server: Server) -> Result<Figures> {
        let (broker, queues) = (Broker::start(server).await?, [queue()?]);
        step("connecting");
        let spec = SubscriberSpec::of(&queues, self.subscribers, false);
        let mut process = SubscriberProcess::start(&broker, &spec).await?;
        let unary = RawPublisher::open(&broker.target, broker.credential()).await?;
        let unary = Mode::Unary(unary, NotifyRequest::new(&queues));
        let stream = Sender::open(&broker, &queues, 1).await?;
        let mut figures = Figures::default();
        figures.count("subscribers", self.subscribers);
        figures.count("in flight", PIPELINE as u64);
        for (name, mut mode, count) in [
            ("unary", unary, self.notifications),
            ("stream", Mode::Stream(Box::new(stream)), self.streamed),
        ] {
            step(format_args!("{count} notifications, {name}"));
            mode.run(&mut process, self.warm_up).await?;
            let before = broker.usage();
            let wall = mode.run(&mut process, count).await?;
            let cpu = broker.usage().seconds_since(&before);
            let each = cpu.map(|cpu| cpu * 1e6 / count as f64);
            figures.count(format!("{name} notifications"), count);
            figures.add(format!("{name} wall"), Unit::Seconds, wall);
            figures.add(format!("{name} cpu"), Unit::Seconds, cpu);
            figures.add(format!("{name} cpu/notification"), Unit::Micros, each);
        }
        figures.add("rss", Unit::Kib, broker.usage().kib());
        process.stop().await;
        broker.stop().await;
        Ok(figures)
    }
}

impl Mode {
    /// Publishes the notifications; returns the seconds until all were received.
    async fn run(&mut self, process: &mut SubscriberProcess, count: u64) -> Result<f64> {
        process.expect(1, count).await?;
        let began = SystemTime::now();
        match self {
            Self::Unary(relay, request) => relay.unary(request, count, PIPELINE).await?,
            Self::Stream(stream) => stream.requests(count).await?,
        }
        Ok(process.delivered(count).await?.seconds_since(began))
    }
}

/// Parses the relays with a credential and without TLS.
fn relay_with_credential() -> impl TypedValueParser<Value = Server> {
    PossibleValuesParser::new(["token", "jwt"]).try_map(|name| Server::from_str(&name, false))
}
