//! A `*/*` subscriber comes, is told of every queue, is idle, is woken, and leaves.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use reveille::{Notification, Publisher};
use tokio::time::{Instant, sleep};

use super::{
    super::{ScaleArgs, broker::Broker, fleet::Latencies, helper::Helper, report::Unit},
    answer,
    crowd::CrowdTold,
    grown, idle,
    meter::{LONGEST, record},
    names,
    phases::{Phases, add_latencies},
    sums,
    wildcard::{self, CaughtUp, WildcardTold},
};

/// Notifications of random queues.
#[derive(Debug, Clone, Copy, Default)]
struct Sent {
    notifications: u64,
    /// Those that the exact subscriptions are to be told of, counted for each of them.
    exact: u64,
}

/// Queues that become known while all is up.
const NEW: u32 = 1_000;
/// Queues of one request that wakes the `*/*` subscriber, and the pause between two.
const RANDOM: usize = 64;
const PAUSE: Duration = Duration::from_millis(20);

/// Goes through the phases of the visit.
pub(super) async fn visit(
    args: &ScaleArgs,
    broker: &Broker,
    publisher: &Publisher,
    crowd: &mut Helper,
    phases: &mut Phases<'_>,
) -> Result<()> {
    let target = ["--target".to_owned(), broker.target.clone()];
    let queues = ["--queues".to_owned(), args.queues.to_string()];
    let mut wildcard = Helper::start("wildcard", &[target, queues].concat())?;
    let caught = come(broker, &mut wildcard, phases).await?;
    phases.run("wildcard idle", idle(args.hold)).await?;

    let woken = notify_random(args, publisher);
    let sent = phases.run("wildcard woken", woken).await?;
    let named = caught.queues == args.queues;
    let enough = |told: u64, sent: u64, pattern: u64| told >= sent || !named && pattern > 1;
    let told: WildcardTold = sums(&mut wildcard, |told: &WildcardTold| {
        enough(told.known, sent.notifications, told.pattern)
    })
    .await?;
    check_wildcard(args, caught, told.known, sent.notifications, told.pattern)?;
    let told = sums(crowd, |told: &CrowdTold| told.exact >= sent.exact).await?;
    check("exact subscriptions", told.exact, sent.exact)?;

    let latencies = phases
        .run("new queues", notify_new(args, publisher))
        .await?;
    add_latencies(&mut phases.figures, "new queue ack", &latencies);
    let new = u64::from(NEW);
    let told: WildcardTold = sums(&mut wildcard, |told: &WildcardTold| {
        enough(told.new, new, told.pattern)
    })
    .await?;
    check_wildcard(args, caught, told.new, new, told.pattern)?;
    check_wildcard(args, caught, told.known, sent.notifications, told.pattern)?;
    let told = sums(crowd, |told: &CrowdTold| told.patterns >= new).await?;
    check("pattern subscriptions", told.patterns, new)?;
    check("exact subscriptions", told.exact, sent.exact)?;

    phases
        .run("wildcard leaves", leave(&mut wildcard, args.hold))
        .await?;
    wildcard.stop().await;
    Ok(())
}

/// Subscribes, and waits until it was told of every queue.
async fn come(broker: &Broker, wildcard: &mut Helper, phases: &mut Phases<'_>) -> Result<CaughtUp> {
    let before = broker.usage();
    let progress = phases.progress();
    let subscribed = async {
        wildcard.tell(wildcard::SUBSCRIBE).await?;
        let line = answer(wildcard, progress, "wildcard is told of the queues").await?;
        serde_json::from_str(&line).context(line)
    };
    let caught: CaughtUp = phases.run("wildcard subscribes", subscribed).await?;
    let each = grown(broker, before.rss_kib, caught.queues);
    let figures = &mut phases.figures;
    figures.add("wildcard caught up", Unit::Seconds, Some(caught.seconds));
    figures.add(
        "wildcard catch-ups",
        Unit::Count,
        Some(caught.queues.into()),
    );
    figures.add("wildcard rss/catch-up", Unit::Kib, each);
    Ok(caught)
}

/// Closes the subscription, and waits: the relay may be busy with it for longer than it takes to say
/// so.
async fn leave(wildcard: &mut Helper, hold: Duration) -> Result<()> {
    wildcard.tell(wildcard::LEAVE).await?;
    let line = wildcard.line().await?;
    ensure!(line == wildcard::LEFT, "the wildcard process says {line:?}");
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

/// Notifies queues that the relay does not know, one at a time; returns how long the
/// acknowledgements took.
async fn notify_new(args: &ScaleArgs, publisher: &Publisher) -> Result<Latencies> {
    let mut latencies = Histogram::new_with_bounds(1, LONGEST, 3)?;
    for number in 0..NEW {
        let queue = names::new_queue(number % args.patterns, number)?;
        let began = Instant::now();
        publisher.notify(Notification::new(queue)).await?;
        record(&mut latencies, began.elapsed());
        sleep(args.pause).await;
    }
    Ok(Latencies::of(&latencies))
}

fn check(who: &str, told: u64, sent: u64) -> Result<()> {
    ensure!(
        told == sent,
        "the sums are wrong: the {who} were told of {told} notifications, and {sent} were sent"
    );
    Ok(())
}

/// Checks what the `*/*` subscriber was told. A relay that did not name every queue to it may tell
/// of the pattern instead, and does so for several queues at once.
fn check_wildcard(
    args: &ScaleArgs,
    caught: CaughtUp,
    told: u64,
    sent: u64,
    pattern: u64,
) -> Result<()> {
    if caught.queues == args.queues {
        return check("wildcard subscriber", told, sent);
    }
    ensure!(
        told <= sent && (told == sent || pattern > 1),
        "the sums are wrong: the */* subscriber was told of {told} notifications and {pattern} times \
         of its pattern, and {sent} were sent"
    );
    Ok(())
}
