//! The phases of a `*/*` subscriber: it subscribes, catches up, is idle, is woken, and leaves.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use reveille::{Notification, Publisher};
use tokio::time::{Instant, sleep};

use super::{
    super::{args::ScaleArgs, broker::Broker, child, report::Unit, subscriber_process::Latencies},
    answer, grown, idle,
    latency_probe::{MAX_LATENCY, record},
    names,
    phases::{Phases, add_latencies},
    read_sums,
    subscriptions::SubscriptionSums,
    wildcard::{self, CaughtUp, WildcardSums},
};
use crate::child::Child;

/// Notifications of random queues.
#[derive(Debug, Clone, Copy, Default)]
struct Sent {
    notifications: u64,
    /// Expected deliveries to the exact subscriptions.
    exact: u64,
}

/// Number of queues that are new while the subscriber is connected.
const NEW: u32 = 1_000;
/// Queues of one request that wakes the `*/*` subscriber, and the pause between two requests.
const RANDOM: usize = 64;
const PAUSE: Duration = Duration::from_millis(20);

/// Runs the phases.
pub(super) async fn run(
    args: &ScaleArgs,
    broker: &Broker,
    publisher: &Publisher,
    subscriptions: &mut Child,
    phases: &mut Phases<'_>,
) -> Result<()> {
    let target = format!("--target={}", broker.target);
    let queues = format!("--queues={}", args.queues);
    let mut wildcard = Child::start("wildcard", &[target, queues])?;
    let caught = subscribe(broker, &mut wildcard, phases).await?;
    phases.run("wildcard idle", idle(args.hold)).await?;

    let woken = notify_random(args, publisher);
    let sent = phases.run("wildcard woken", woken).await?;
    let named = caught.queues == args.queues;
    let enough = |sums: u64, sent: u64, pattern: u64| sums >= sent || !named && pattern > 1;
    let sums: WildcardSums = read_sums(&mut wildcard, |sums: &WildcardSums| {
        enough(sums.known, sent.notifications, sums.pattern)
    })
    .await?;
    check_wildcard(args, caught, sums.known, sent.notifications, sums.pattern)?;
    let sums = read_sums(subscriptions, |sums: &SubscriptionSums| {
        sums.exact >= sent.exact
    })
    .await?;
    check("exact subscriptions", sums.exact, sent.exact)?;

    let latencies = phases
        .run("new queues", notify_new(args, publisher))
        .await?;
    add_latencies(&mut phases.figures, "new queue ack", &latencies);
    let new = u64::from(NEW);
    let sums: WildcardSums = read_sums(&mut wildcard, |sums: &WildcardSums| {
        enough(sums.new, new, sums.pattern)
    })
    .await?;
    check_wildcard(args, caught, sums.new, new, sums.pattern)?;
    check_wildcard(args, caught, sums.known, sent.notifications, sums.pattern)?;
    let sums = read_sums(subscriptions, |sums: &SubscriptionSums| {
        sums.patterns >= new
    })
    .await?;
    check("pattern subscriptions", sums.patterns, new)?;
    check("exact subscriptions", sums.exact, sent.exact)?;

    phases
        .run("wildcard leaves", leave(&mut wildcard, args.hold))
        .await?;
    wildcard.stop().await;
    Ok(())
}

/// Subscribes, and waits for the catch-up of every queue.
async fn subscribe(
    broker: &Broker,
    wildcard: &mut Child,
    phases: &mut Phases<'_>,
) -> Result<CaughtUp> {
    let before = broker.usage();
    let progress = phases.progress();
    let subscribed = async {
        wildcard.send(wildcard::SUBSCRIBE).await?;
        let line = answer(wildcard, progress, "wildcard catches up").await?;
        serde_json::from_str(&line).context(line)
    };
    let caught: CaughtUp = phases.run("wildcard subscribes", subscribed).await?;
    let each = grown(broker, before.rss_kib, caught.queues);
    let figures = &mut phases.figures;
    figures.add("wildcard caught up", Unit::Seconds, caught.seconds);
    figures.add("wildcard catch-ups", Unit::Count, f64::from(caught.queues));
    figures.add("wildcard rss/catch-up", Unit::Kib, each);
    Ok(caught)
}

/// Closes the subscription, and waits: the relay may be busy with it for some time afterwards.
async fn leave(wildcard: &mut Child, hold: Duration) -> Result<()> {
    wildcard.send(wildcard::LEAVE).await?;
    wildcard.expect(wildcard::LEFT).await?;
    idle(hold).await
}

/// Notifies random queues for a while.
async fn notify_random(args: &ScaleArgs, publisher: &Publisher) -> Result<Sent> {
    let ends = Instant::now() + args.hold;
    let mut sent = Sent::default();
    let mut notifications = Vec::with_capacity(RANDOM);
    while Instant::now() < ends {
        for _ in 0..RANDOM {
            let number = fastrand::u32(0..args.queues);
            notifications.push(Notification::new(names::queue(number)?));
            sent.notifications += 1;
            sent.exact += names::subscriptions_of(number, args.subscriptions, args.queues);
        }
        publisher
            .notify_all(std::mem::take(&mut notifications))
            .await?;
        sleep(PAUSE).await;
    }
    Ok(sent)
}

/// Notifies new queues, one at a time; returns the latencies of the acknowledgements.
async fn notify_new(args: &ScaleArgs, publisher: &Publisher) -> Result<Latencies> {
    let mut latencies = Histogram::new_with_bounds(1, MAX_LATENCY, 3)?;
    for number in 0..NEW {
        let queue = names::new_queue(number % args.patterns, number)?;
        let began = Instant::now();
        publisher.notify(Notification::new(queue)).await?;
        record(&mut latencies, began.elapsed());
        sleep(args.pause).await;
    }
    Ok(Latencies::of(&latencies))
}

fn check(subscribers: &str, delivered: u64, sent: u64) -> Result<()> {
    ensure!(
        delivered == sent,
        "the sums are wrong: the {subscribers} got {delivered} notifications, and {sent} were sent"
    );
    Ok(())
}

/// Checks the notifications of the `*/*` subscriber. If the relay did not name every queue to it,
/// the pattern's entry may stand for several queues.
fn check_wildcard(
    args: &ScaleArgs,
    caught: CaughtUp,
    delivered: u64,
    sent: u64,
    pattern: u64,
) -> Result<()> {
    if caught.queues == args.queues {
        return check("wildcard subscriber", delivered, sent);
    }
    ensure!(
        delivered <= sent && (delivered == sent || pattern > 1),
        "the sums are wrong: the */* subscriber got {delivered} notifications and {pattern} entries \
         of its pattern, and {sent} were sent"
    );
    Ok(())
}
