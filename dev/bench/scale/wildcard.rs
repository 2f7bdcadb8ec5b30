//! The process of the `*/*` subscription.
//!
//! On `subscribe` it opens the subscription, prints `at N` each second, and then one line of JSON
//! with the time until the catch-up of every queue. On `sums` it prints the number of notifications
//! so far, and on `leave` it closes the subscription.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use reveille::{Client, ListenerId, Selector, SubscribeOptions, Subscription, WorkDetected};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use super::{
    super::{args::WildcardArgs, child},
    AT, SUMS, client, names,
};

/// Measurements of the subscription's catch-up.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct CaughtUp {
    /// Number of named queues. Smaller than the number of queues if the relay sent the pattern's
    /// entry instead.
    pub(super) queues: u32,
    /// Time from the call to the last named queue.
    pub(super) seconds: f64,
}

/// The notifications that the subscription got.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WildcardSums {
    /// Of queues from before the subscription.
    pub(super) known: u64,
    /// Of queues that were new while it was open.
    pub(super) new: u64,
    /// Wake-ups under the pattern's name.
    pub(super) pattern: u64,
}

/// The state of the catch-up.
struct CatchUp {
    named: Vec<bool>,
    count: u32,
    /// The pattern's entry has arrived.
    pattern: bool,
}

pub(super) const SUBSCRIBE: &str = "subscribe";
pub(super) const LEAVE: &str = "leave";
pub(super) const LEFT: &str = "left";

/// The minimum, so that a short phase has some heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// The catch-up ends if the pattern's entry has arrived and no queue was named for this long.
const QUIET: Duration = Duration::from_secs(10);

/// Runs the subscription until the parent closes the input.
pub(crate) async fn run(args: &WildcardArgs) -> Result<()> {
    let mut commands = child::commands();
    let client = client(&args.target)?;
    let mut subscription = None;
    let mut sums = WildcardSums::default();
    loop {
        tokio::select! {
            order = commands.recv() => match order.as_deref() {
                None => return Ok(()),
                Some(SUBSCRIBE) => {
                    let mut opened = subscribe(&client)?;
                    let caught = catch_up(&mut opened, args.queues, &mut sums).await?;
                    println!("{}", serde_json::to_string(&caught)?);
                    subscription = Some(opened);
                }
                Some(SUMS) => println!("{}", serde_json::to_string(&sums)?),
                Some(LEAVE) => {
                    subscription = None;
                    println!("{LEFT}");
                }
                Some(order) => bail!("the order {order:?} is not known"),
            },
            work = next(&mut subscription) => sums.take(&work?),
        }
    }
}

fn subscribe(client: &Client) -> Result<Subscription> {
    let options = SubscribeOptions {
        heartbeat: HEARTBEAT,
        ..SubscribeOptions::new(ListenerId::new("wildcard")?, [Selector::new("*", "*")?])
    };
    Ok(client.subscribe(options)?)
}

/// Waits for the next wake-up. Never returns without a subscription.
async fn next(subscription: &mut Option<Subscription>) -> Result<WorkDetected> {
    match subscription {
        Some(subscription) => Ok(subscription.next().await.context("no more wake-ups")??),
        None => std::future::pending().await,
    }
}

/// Reads until every queue was named, or only the pattern was named.
async fn catch_up(
    subscription: &mut Subscription,
    queues: u32,
    sums: &mut WildcardSums,
) -> Result<CaughtUp> {
    let began = Instant::now();
    let (mut last, mut printed) = (began, began);
    let mut catch_up = CatchUp::new(queues);
    while !catch_up.is_complete() {
        let second = printed + Duration::from_secs(1);
        if let Ok(work) = timeout_at(second, subscription.next()).await {
            let work = work.context("no more wake-ups")??;
            sums.take(&work);
            if catch_up.take(&work.queue) {
                last = Instant::now();
            }
        }
        if Instant::now() >= second {
            println!("{AT} {}", catch_up.count);
            printed = Instant::now();
        }
        if catch_up.pattern && last.elapsed() > QUIET {
            break;
        }
    }
    Ok(CaughtUp {
        queues: catch_up.count,
        seconds: (last - began).as_secs_f64(),
    })
}

impl CatchUp {
    fn new(queues: u32) -> Self {
        Self {
            named: vec![false; queues as usize],
            count: 0,
            pattern: false,
        }
    }

    /// Records an entry; returns whether the catch-up waited for it.
    fn take(&mut self, queue: &Selector) -> bool {
        if queue.is_pattern() {
            return !std::mem::replace(&mut self.pattern, true);
        }
        let number = names::queue_number(queue).map(|number| number as usize);
        let Some(named) = number.and_then(|number| self.named.get_mut(number)) else {
            return false;
        };
        let is_first = !std::mem::replace(named, true);
        self.count += u32::from(is_first);
        is_first
    }

    fn is_complete(&self) -> bool {
        self.pattern && self.count as usize == self.named.len()
    }
}

impl WildcardSums {
    fn take(&mut self, work: &WorkDetected) {
        if work.queue.is_pattern() {
            self.pattern += 1;
        } else if names::queue_number(&work.queue).is_some() {
            self.known += work.notifications;
        } else if names::is_new(&work.queue) {
            self.new += work.notifications;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::tests::{node, notify};

    #[tokio::test]
    async fn the_pattern_gets_every_queue_and_then_each_notification() {
        let node = node().await;
        let queues: Vec<_> = (0..300)
            .map(|at| names::queue(at).expect("a name"))
            .collect();
        notify(&node, &queues).await;
        let client = client(&node.url()).expect("a URL");
        let mut subscription = subscribe(&client).expect("options");
        let mut sums = WildcardSums::default();
        let caught = catch_up(&mut subscription, 300, &mut sums).await;
        assert_eq!(caught.expect("caught up").queues, 300);
        // A catch-up carries no notifications.
        assert_eq!((sums.known, sums.new, sums.pattern), (0, 0, 1));
        let new = names::new_queue(1, 1).expect("a name");
        notify(&node, &[queues[7].clone(), new]).await;
        while sums.known + sums.new < 2 {
            sums.take(&subscription.next().await.expect("open").expect("a wake-up"));
        }
        assert_eq!((sums.known, sums.new), (1, 1));
        node.shutdown(Duration::ZERO).await;
    }
}
