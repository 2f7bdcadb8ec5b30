//! Sweepers that share a container of expired blobs: how fast they empty it, and what that costs.
//!
//! The instances are in this process, each with clients of its own. Every blob must be handled once:
//! what they say together must be what was there, and nothing may be left.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use reveille::{
    store::{
        self, BlobName, PageOptions,
        container::{self, Container, Content},
    },
    sweep::{Counts, DEAD_BLOB_CONTAINER, SweepJob, Sweeper, TIME_TO_LIVE},
};
use tokio::task::JoinSet;

use super::{
    SweepArgs,
    directory::Directory,
    listen::requests,
    progress::Progress,
    report::{Figures, Unit},
};

/// Where blobs, the job's document and the dead are.
struct Places {
    blobs: String,
    state: String,
    dead: String,
    /// Deleted with this.
    _own: Option<Directory>,
}

/// Blobs that are put at the same time.
const PUTS: usize = 16;

/// Does the work once.
pub(super) async fn once(args: &SweepArgs, progress: &Progress) -> Result<Figures> {
    let places = Places::of(args.store.as_deref())?;
    let environment = store::environment();
    let container = container::connect(&places.blobs, &environment).await?;
    ensure!(
        count(&*container).await? == 0,
        "{container} is not empty: name an empty one"
    );
    progress.say("putting blobs");
    put(&*container, args).await?;
    let before = args.azurite_log.as_deref().map(requests).transpose()?;
    progress.say("sweeping");
    let began = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..args.instances {
        let sweeper = Sweeper::new(job(&places)?, &environment).await?;
        running.spawn(async move { sweeper.sweep_once(true).await });
    }
    let mut all = Counts::default();
    while let Some(round) = running.join_next().await {
        all.add(&round??.done);
    }
    let wall = began.elapsed();
    let after = args.azurite_log.as_deref().map(requests).transpose()?;
    ensure!(
        all.removed() == args.blobs && all.seen == args.blobs && all.failed + all.changed == 0,
        "not every blob was handled once: {all:?}"
    );
    ensure!(count(&*container).await? == 0, "{container} is not empty");
    let requests = before.zip(after).map(|(before, after)| after - before);
    Ok(figures(args, wall, requests))
}

impl Places {
    fn of(store: Option<&str>) -> Result<Self> {
        if let Some(store) = store {
            let (scheme, _) = store.split_once("//").unwrap_or((store, ""));
            let store = store.trim_end_matches('/');
            return Ok(Self {
                blobs: format!("{store}/blobs"),
                state: format!("{store}/state"),
                dead: scheme.to_owned(),
                _own: None,
            });
        }
        let own = Directory::new()?;
        let file = |name| format!("sqlite:{}", own.path().join(name).display());
        Ok(Self {
            blobs: file("blobs.db"),
            state: file("state.db"),
            dead: file("dead.db"),
            _own: Some(own),
        })
    }
}

fn job(places: &Places) -> Result<SweepJob> {
    let Places {
        blobs, state, dead, ..
    } = places;
    let text = serde_json::json!({
        "name": "bench",
        "state": state,
        "containers": [{ "url": blobs }],
        "dead": { "account": dead },
    });
    Ok(SweepJob::parse(&text.to_string())?)
}

async fn put(container: &dyn Container, args: &SweepArgs) -> Result<()> {
    let mut marks = vec![(TIME_TO_LIVE, "2000-01-01T00:00:00Z")];
    if args.moved {
        marks.push((DEAD_BLOB_CONTAINER, "graves"));
    }
    let marks: BTreeMap<String, String> = marks
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let puts = (0..args.blobs).map(|number| {
        let marks = marks.clone();
        async move {
            let name = BlobName::new(&format!("{number:08}"))?;
            let content = Content::whole("expired".into());
            container.write(&name, content, marks, None).await
        }
    });
    stream::iter(puts)
        .buffer_unordered(PUTS)
        .try_collect::<()>()
        .await?;
    Ok(())
}

async fn count(container: &dyn Container) -> Result<u64> {
    let one = PageOptions {
        size: 1,
        token: None,
    };
    let listed = container.list("", &one).await?;
    Ok(listed.heads.len() as u64)
}

fn figures(args: &SweepArgs, wall: Duration, requests: Option<u64>) -> Figures {
    let mut figures = Figures::default();
    let (blobs, seconds) = (args.blobs as f64, wall.as_secs_f64());
    figures.add("blobs", Unit::Count, Some(blobs));
    figures.add("instances", Unit::Count, Some(args.instances as f64));
    figures.add("wall", Unit::Seconds, Some(seconds));
    figures.add("blobs handled", Unit::PerSecond, Some(blobs / seconds));
    let each = requests.map(|requests| requests as f64 / blobs);
    figures.add(
        "requests",
        Unit::Count,
        requests.map(|requests| requests as f64),
    );
    figures.add("requests per blob", Unit::Ratio, each);
    figures
}
