//! The process of the `*/*` subscription.
//!
//! On `subscribe` it opens the subscription, says `at N` each second, and in one line of JSON how
//! long it took until it was told of every queue. On `told` it says of how many notifications it was
//! told so far, and on `leave` it closes the subscription.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use reveille::{Client, ListenerId, Selector, SubscribeOptions, Subscription, WorkDetected};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use super::{
    super::{WildcardArgs, helper},
    AT, TOLD, client, names,
};

/// How the subscription caught up.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct CaughtUp {
    /// Queues that were named. Fewer than there are where the relay told of the pattern instead.
    pub(super) queues: u32,
    /// From the call to the last of them.
    pub(super) seconds: f64,
}

/// Of how many notifications the subscription was told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WildcardTold {
    /// Of queues that were known before.
    pub(super) known: u64,
    /// Of queues that became known while it was open.
    pub(super) new: u64,
    /// Wake-ups under the pattern's own name.
    pub(super) pattern: u64,
}

/// What it has been told while catching up.
struct CatchUp {
    named: Vec<bool>,
    count: u32,
    /// The pattern's own entry has come.
    pattern: bool,
}

pub(super) const SUBSCRIBE: &str = "subscribe";
pub(super) const LEAVE: &str = "leave";
pub(super) const LEFT: &str = "left";

/// The shortest there is, so that a short phase has some heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Where the pattern's own entry has come and no queue was named for this long, no more will be.
const QUIET: Duration = Duration::from_secs(10);

/// Holds the subscription until the parent lets go.
pub(in crate::cli::bench) async fn run(args: &WildcardArgs) -> Result<()> {
    let mut orders = helper::orders();
    let client = client(&args.target)?;
    let mut subscription = None;
    let mut told = WildcardTold::default();
    loop {
        tokio::select! {
            order = orders.recv() => match order.as_deref() {
                None => return Ok(()),
                Some(SUBSCRIBE) => {
                    let mut opened = subscribe(&client)?;
                    let caught = catch_up(&mut opened, args.queues, &mut told).await?;
                    println!("{}", serde_json::to_string(&caught)?);
                    subscription = Some(opened);
                }
                Some(TOLD) => println!("{}", serde_json::to_string(&told)?),
                Some(LEAVE) => {
                    subscription = None;
                    println!("{LEFT}");
                }
                Some(order) => bail!("the order {order:?} is not known"),
            },
            work = next(&mut subscription) => told.take(&work?),
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

/// Waits for the next wake-up, for ever where there is no subscription.
async fn next(subscription: &mut Option<Subscription>) -> Result<WorkDetected> {
    match subscription {
        Some(subscription) => Ok(subscription.next().await.context("no more wake-ups")??),
        None => std::future::pending().await,
    }
}

/// Reads until every queue was named, or only the pattern was.
async fn catch_up(
    subscription: &mut Subscription,
    queues: u32,
    told: &mut WildcardTold,
) -> Result<CaughtUp> {
    let began = Instant::now();
    let (mut last, mut said) = (began, began);
    let mut catch_up = CatchUp::new(queues);
    while !catch_up.is_complete() {
        let second = said + Duration::from_secs(1);
        if let Ok(work) = timeout_at(second, subscription.next()).await {
            let work = work.context("no more wake-ups")??;
            told.take(&work);
            if catch_up.take(&work.queue) {
                last = Instant::now();
            }
        }
        if Instant::now() >= second {
            println!("{AT} {}", catch_up.count);
            said = Instant::now();
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

    /// Takes an entry; returns whether it is one that was waited for.
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

impl WildcardTold {
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
    use crate::cli::bench::scale::tests::{node, notify};

    #[tokio::test]
    async fn the_pattern_is_told_of_every_queue_and_then_of_each_notification() {
        let node = node().await;
        let queues: Vec<_> = (0..300)
            .map(|at| names::queue(at).expect("a name"))
            .collect();
        notify(&node, &queues).await;
        let client = client(&node.url()).expect("a URL");
        let mut subscription = subscribe(&client).expect("options");
        let mut told = WildcardTold::default();
        let caught = catch_up(&mut subscription, 300, &mut told).await;
        assert_eq!(caught.expect("caught up").queues, 300);
        // A catch-up tells of no notifications.
        assert_eq!((told.known, told.new, told.pattern), (0, 0, 1));
        let new = names::new_queue(1, 1).expect("a name");
        notify(&node, &[queues[7].clone(), new]).await;
        while told.known + told.new < 2 {
            told.take(&subscription.next().await.expect("open").expect("a wake-up"));
        }
        assert_eq!((told.known, told.new), (1, 1));
        node.shutdown(Duration::ZERO).await;
    }
}
