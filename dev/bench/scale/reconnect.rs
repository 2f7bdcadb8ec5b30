//! One stream of very many queues: measures the time to subscribe, and to resume.

use std::{collections::HashMap, time::Duration};

use anyhow::{Context, Result};
use reveille::{
    Client, ConnectionState, ListenerId, Notification, Position, Publisher, SubscribeOptions,
    Subscription, WakeReason,
};
use tokio::time::{Instant, timeout_at};

use super::{
    super::report::{Figures, Unit},
    client, names,
};

/// Measurements of a stream of many queues.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reconnect {
    pub(super) queues: u32,
    /// From the call without positions to the last queue's catch-up.
    pub(super) subscribed: Duration,
    /// From the call with all positions until a new notification was delivered and nothing else was
    /// pending.
    pub(super) resumed: Duration,
    /// Number of catch-ups of the resumed stream.
    pub(super) catch_ups: u64,
}

/// Maximum number of selectors and positions of one stream.
const MAX_QUEUES: u32 = 4_096;
/// Number of repetitions; the medians are reported.
const TIMES: usize = 3;
/// A resumed stream must stay silent for this long.
const SETTLE: Duration = Duration::from_millis(300);

impl Reconnect {
    pub(super) fn add(&self, figures: &mut Figures) {
        let count = |count: u64| Some(count as f64);
        figures.add("stream of queues", Unit::Count, count(self.queues.into()));
        for (name, time) in [
            ("stream subscribed", self.subscribed),
            ("stream resumed", self.resumed),
        ] {
            figures.add(name, Unit::Micros, time.as_secs_f64() * 1e6);
        }
        let catch_ups = count(self.catch_ups);
        figures.add("stream resumed catch-ups", Unit::Count, catch_ups);
    }
}

/// Subscribes and resumes several times.
pub(super) async fn measure(target: &str, queues: u32) -> Result<Reconnect> {
    let queues = queues.min(MAX_QUEUES);
    let client = client(target)?;
    let publisher = client.publisher("reconnect");
    let mut all = Vec::new();
    for _ in 0..TIMES {
        all.push(once(&client, &publisher, queues).await?);
    }
    let median = |of: fn(&Reconnect) -> Duration| {
        let mut times: Vec<Duration> = all.iter().map(of).collect();
        times.sort_unstable();
        times[TIMES / 2]
    };
    Ok(Reconnect {
        queues,
        subscribed: median(|once| once.subscribed),
        resumed: median(|once| once.resumed),
        catch_ups: all.iter().map(|once| once.catch_ups).sum(),
    })
}

async fn once(client: &Client, publisher: &Publisher, queues: u32) -> Result<Reconnect> {
    let addresses: Vec<_> = (0..queues).map(names::queue).collect::<Result<_>>()?;
    let marker = Notification::new(addresses[0].clone());
    // Opens the publisher's connection.
    publisher.notify(marker.clone()).await?;
    let options = SubscribeOptions::new(ListenerId::new("reconnect")?, addresses.clone());
    let began = Instant::now();
    let mut subscription = client.subscribe(options.clone())?;
    // The sentinel may send further checks of a queue: the newest token of each queue counts.
    let mut tokens = HashMap::new();
    while tokens.len() < addresses.len() {
        let work = subscription.next().await.context("no more wake-ups")??;
        tokens.insert(work.queue, work.token);
    }
    let subscribed = began.elapsed();
    drop(subscription);

    let position = |(queue, token)| Position { queue, token };
    let resuming = SubscribeOptions {
        positions: tokens.into_iter().map(position).collect(),
        ..options
    };
    let began = Instant::now();
    let mut subscription = client.subscribe(resuming)?;
    let (resumed, catch_ups) = resume(&mut subscription, publisher, marker, began).await?;
    Ok(Reconnect {
        queues,
        subscribed,
        resumed,
        catch_ups,
    })
}

/// Notifies one queue as soon as the stream is open, and reads until this notification and all
/// pending wake-ups were delivered. Returns the elapsed time, and the number of catch-ups.
async fn resume(
    subscription: &mut Subscription,
    publisher: &Publisher,
    marker: Notification,
    began: Instant,
) -> Result<(Duration, u64)> {
    let mut link = subscription.link();
    let (mut welcomed, mut delivered, mut catch_ups) = (false, None, 0);
    loop {
        let next = async {
            match delivered {
                Some(last) => timeout_at(last + SETTLE, subscription.next()).await.ok(),
                None => Some(subscription.next().await),
            }
        };
        tokio::select! {
            changed = link.changed(), if !welcomed => {
                changed?;
                if link.borrow().connection == ConnectionState::Connected {
                    welcomed = true;
                    publisher.post(marker.clone())?;
                }
            }
            work = next => {
                let Some(work) = work else { break };
                match work.context("no more wake-ups")??.reason {
                    WakeReason::Notified => delivered = Some(Instant::now()),
                    WakeReason::CatchUp => {
                        catch_ups += 1;
                        delivered = delivered.map(|_| Instant::now());
                    }
                    // A check by the sentinel: nothing was pending.
                    _ => {}
                }
            }
        }
    }
    Ok((delivered.context("no notification")? - began, catch_ups))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::tests::{node, notify};

    #[tokio::test]
    async fn a_stream_with_all_its_positions_gets_the_new_notification_only() {
        let node = node().await;
        let queues: Vec<_> = (0..300)
            .map(|at| names::queue(at).expect("a name"))
            .collect();
        notify(&node, &queues).await;
        let measured = measure(&node.url(), 300).await.expect("measured");
        assert_eq!((measured.queues, measured.catch_ups), (300, 0));
        node.shutdown(Duration::ZERO).await;
    }
}
