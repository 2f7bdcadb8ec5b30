//! The publisher and the subscribers of one run, on the servers of a [`Deployment`].

use std::time::SystemTime;

use anyhow::{Context as _, Result};
use reveille::{LinkState, QueueAddress, Report, ReportState, WorkDetected};
use tokio::sync::watch;

use super::{
    super::{
        broker::Broker,
        report::{Figures, Unit},
        sender::Sender,
        single_queue::since,
        subscriber_process::{SubscriberProcess, SubscriberSpec},
    },
    deployment::{Deployment, DeploymentUsage},
};

/// The subscribers' processes, and a publisher.
pub(super) struct Traffic {
    pub(super) processes: Vec<SubscriberProcess>,
    pub(super) sender: Sender,
}

/// Measurements of one round.
pub(super) struct Round {
    /// Time in seconds until the last subscriber had all.
    pub(super) wall: f64,
    pub(super) wakeups: u64,
}

impl Traffic {
    /// Connects this number of subscribers to each server, then a publisher to the first one.
    pub(super) async fn start(
        deployment: &Deployment,
        subscribers: &[(&Broker, u64)],
        queue: &QueueAddress,
        (batch, pending): (u16, u64),
        timed: bool,
    ) -> Result<Self> {
        let queues = std::slice::from_ref(queue);
        let mut processes = Vec::new();
        for (server, count) in subscribers {
            let spec = SubscriberSpec::of(queues, *count, timed);
            processes.push(SubscriberProcess::start(server, &spec).await?);
        }
        let sender = Sender::open(deployment.first(), queues, batch.into(), pending).await?;
        Ok(Self { processes, sender })
    }

    /// Makes each subscriber expect `notifications` more, publishes them with `publish`, and waits
    /// until all subscribers have them.
    pub(super) async fn round(
        &mut self,
        notifications: u64,
        publish: impl AsyncFnOnce(&mut Sender) -> Result<SystemTime>,
    ) -> Result<Round> {
        for process in &mut self.processes {
            process.expect(notifications).await?;
        }
        let began = publish(&mut self.sender).await?;
        let (mut wall, mut wakeups) = (0_f64, 0);
        for process in &mut self.processes {
            let delivered = process.delivered(notifications).await?;
            wall = wall.max(since(began, &delivered));
            wakeups += delivered.wakeups;
        }
        Ok(Round { wall, wakeups })
    }

    pub(super) async fn stop(self) {
        for process in self.processes {
            process.stop().await;
        }
    }
}

/// Adds the processor time since `before`, and the memory.
pub(super) fn usage(figures: &mut Figures, deployment: &Deployment, before: &DeploymentUsage) {
    let after = deployment.usage();
    let cpu = after.servers.seconds_since(&before.servers);
    figures.add("servers' cpu", Unit::Seconds, cpu);
    figures.add("servers' rss", Unit::Kib, after.servers.kib());
    let cpu = after.broker.seconds_since(&before.broker);
    figures.add("broker's cpu", Unit::Seconds, cpu);
    figures.add("broker's rss", Unit::Kib, after.broker.kib());
}

/// Waits until each subscription has a stream.
pub(super) async fn welcomed(
    links: impl IntoIterator<Item = watch::Receiver<LinkState>>,
) -> Result<()> {
    for mut link in links {
        link.wait_for(|link| link.welcomes > 0).await?;
    }
    Ok(())
}

/// Returns the report that the queue of a wake-up is empty.
pub(super) fn drained(work: &WorkDetected) -> Result<Report> {
    Ok(Report {
        state: ReportState::Drained,
        sequence: work.sequence,
        ..Report::new(work.queue.as_address().context("not a pattern")?)
    })
}
