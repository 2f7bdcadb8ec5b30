//! What a relay of many queues is set up with, and what each of it costs.

use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use reveille::{Notification, Publisher};

use super::{
    super::{
        ScaleArgs,
        broker::Broker,
        fleet::READY,
        helper::Helper,
        progress::Progress,
        report::{Figures, Unit},
    },
    BATCH, PIPELINE, answer, crowd, grown, names,
};

/// Notifies each queue once: the relay knows them all then.
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
    let metrics = broker.metrics().await?.context("a relay of its own")?;
    let known = metrics.value("reveille_queues").context("the gauge")?;
    ensure!(
        known == u64::from(args.queues),
        "the relay knows {known} of {} queues",
        args.queues
    );
    figures.add("notify", Unit::Seconds, Some(wall.as_secs_f64()));
    let each = grown(broker, before.rss_kib, args.queues);
    figures.add("rss/queue", Unit::Kib, each);
    Ok(())
}

/// Opens the pattern subscriptions, then the exact ones.
pub(super) async fn open_crowd(
    args: &ScaleArgs,
    broker: &Broker,
    progress: &Progress,
    figures: &mut Figures,
) -> Result<Helper> {
    let child = [
        ("target", broker.target.clone()),
        ("queues", args.queues.to_string()),
        ("per-connection", args.per_connection.to_string()),
    ];
    let child = child.map(|(name, value)| [format!("--{name}"), value]);
    let mut crowd = Helper::start("crowd", &child.concat())?;
    for (kind, name, count) in [
        (crowd::PATTERNS, "pattern", args.patterns),
        (crowd::EXACT, "subscription", args.subscriptions),
    ] {
        let what = format!("opening {count} subscriptions ({kind})");
        progress.say(&what);
        let (before, began) = (broker.usage(), SystemTime::now());
        crowd.tell(&format!("{kind} {count}")).await?;
        let line = answer(&mut crowd, progress, &what).await?;
        ensure!(line == READY, "the crowd process says {line:?}");
        let wall = began.elapsed().unwrap_or_default();
        let wall = Some(wall.as_secs_f64());
        figures.add(format!("{name}s opened"), Unit::Seconds, wall);
        let each = grown(broker, before.rss_kib, count);
        figures.add(format!("rss/{name}"), Unit::Kib, each);
    }
    Ok(crowd)
}
