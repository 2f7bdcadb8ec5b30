//! Sweepers that share a container of expired blobs: measures their throughput and requests.
//!
//! The instances are in this process, each with separate clients. Every blob must be handled once:
//! the sum of their reports must match the blobs, and the container must be empty afterwards.

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
    args::SweepArgs,
    directory::Directory,
    listen::requests,
    progress::Progress,
    report::{Figures, Unit},
};

/// The URLs of the blobs, of the job's document, and of the dead blobs.
struct Stores {
    blobs: String,
    state: String,
    dead: String,
    /// The directory of temporary stores, deleted on drop.
    _directory: Option<Directory>,
}

/// Number of concurrent puts.
const PUTS: usize = 16;

/// Runs the benchmark once.
pub(super) async fn once(args: &SweepArgs, progress: &Progress) -> Result<Figures> {
    let stores = Stores::of(args.store.as_deref()).await?;
    let environment = store::environment();
    let container = container::connect(&stores.blobs, &environment).await?;
    ensure!(
        count(&*container).await? == 0,
        "{container} is not empty: name an empty container"
    );
    progress.step("putting blobs");
    put(&*container, args).await?;
    let before = args.azurite_log.as_deref().map(requests).transpose()?;
    progress.step("sweeping");
    let began = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..args.instances {
        let sweeper = Sweeper::new(job(&stores)?, &environment).await?;
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
        "not every blob was handled exactly once: {all:?}"
    );
    ensure!(count(&*container).await? == 0, "{container} is not empty");
    let requests = before.zip(after).map(|(before, after)| after - before);
    Ok(figures(args, wall, requests))
}

impl Stores {
    async fn of(store: Option<&str>) -> Result<Self> {
        if let Some(store) = store {
            let (scheme, _) = store.split_once("//").unwrap_or((store, ""));
            let store = store.trim_end_matches('/');
            return Ok(Self {
                blobs: format!("{store}/blobs"),
                state: format!("{store}/state"),
                dead: scheme.to_owned(),
                _directory: None,
            });
        }
        let directory = Directory::new()?;
        let file = |name| format!("sqlite:{}", directory.path().join(name).display());
        let blobs = file("blobs.db");
        // A sweep creates no container.
        store::open(&blobs).await?;
        Ok(Self {
            blobs,
            state: file("state.db"),
            dead: file("dead.db"),
            _directory: Some(directory),
        })
    }
}

fn job(stores: &Stores) -> Result<SweepJob> {
    let Stores {
        blobs, state, dead, ..
    } = stores;
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
    let (blobs, seconds) = (args.blobs as f64, wall.as_secs_f64());
    let counts = [("blobs", args.blobs), ("instances", args.instances)];
    let mut figures = Figures::of_counts(&counts);
    figures.add("wall", Unit::Seconds, seconds);
    figures.add("blobs handled", Unit::PerSecond, blobs / seconds);
    let requests = requests.map(|requests| requests as f64);
    figures.add("requests", Unit::Count, requests);
    let each = requests.map(|requests| requests / blobs);
    figures.add("requests per blob", Unit::Ratio, each);
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn blobs_in_temporary_files_are_each_removed_once() {
        for moved in [false, true] {
            let args = SweepArgs {
                store: None,
                blobs: 20,
                instances: 2,
                moved,
                azurite_log: None,
            };
            // The benchmark itself checks the counts.
            once(&args, &Progress::new("sweep", 1))
                .await
                .expect("all removed");
        }
    }
}
