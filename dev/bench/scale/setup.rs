//! Sets up the queues and subscriptions, and measures the memory of each.

use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use reveille::{Notification, Publisher};

use super::{
    super::{
        args::ScaleArgs,
        broker::Broker,
        child,
        progress::Progress,
        report::{Figures, Unit},
        subscriber_process::READY,
    },
    BATCH, PIPELINE, answer, grown, names, subscriptions,
};
use crate::child::Child;

/// Notifies each queue once, so that the relay has all of them in memory.
pub(super) async fn notify_queues(
    args: &ScaleArgs,
    broker: &Broker,
    publisher: &Publisher,
    figures: &mut Figures,
) -> Result<()> {
    let (before, began) = (broker.usage(), SystemTime::now());
    let numbers: Vec<u32> = (0..args.queues).collect();
    let request = async |numbers: Vec<u32>| {
        let queue = |number| Ok(Notification::new(names::queue(number)?));
        let notifications = numbers.into_iter().map(queue).collect::<Result<_>>()?;
        publisher.notify_all(notifications).await?;
        anyhow::Ok(())
    };
    stream::iter(numbers.chunks(BATCH).map(<[u32]>::to_vec))
        .map(request)
        .buffer_unordered(PIPELINE)
        .try_collect::<()>()
        .await?;
    let wall = began.elapsed().unwrap_or_default();
    let metrics = broker.metrics().await?.context("the relay has metrics")?;
    let known = metrics.value("reveille_queues").context("the gauge")?;
    ensure!(
        known == u64::from(args.queues),
        "the relay has {known} of {} queues in memory",
        args.queues
    );
    figures.add("notify", Unit::Seconds, wall.as_secs_f64());
    let each = grown(broker, before.rss_kib, args.queues);
    figures.add("rss/queue", Unit::Kib, each);
    Ok(())
}

/// Opens the pattern subscriptions, then the exact ones.
pub(super) async fn open_subscriptions(
    args: &ScaleArgs,
    broker: &Broker,
    progress: &Progress,
    figures: &mut Figures,
) -> Result<Child> {
    let child = [
        format!("--target={}", broker.target),
        format!("--queues={}", args.queues),
        format!("--per-connection={}", args.per_connection),
    ];
    let mut subscriptions = Child::start("subscriptions", &child)?;
    for (kind, name, count) in [
        (subscriptions::PATTERNS, "pattern", args.patterns),
        (subscriptions::EXACT, "subscription", args.subscriptions),
    ] {
        let step = format!("opening {count} subscriptions ({kind})");
        progress.step(&step);
        let (before, began) = (broker.usage(), SystemTime::now());
        subscriptions.send(&format!("{kind} {count}")).await?;
        let line = answer(&mut subscriptions, progress, &step).await?;
        ensure!(line == READY, "the subscriptions' process printed {line:?}");
        let wall = began.elapsed().unwrap_or_default().as_secs_f64();
        figures.add(format!("{name}s opened"), Unit::Seconds, wall);
        let each = grown(broker, before.rss_kib, count);
        figures.add(format!("rss/{name}"), Unit::Kib, each);
    }
    Ok(subscriptions)
}
