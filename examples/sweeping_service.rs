//! A sweeping service: two instances share a container, delete expired blobs, and move one of them
//! to a dead-blob container.
//!
//! `cargo run --example sweeping_service` uses files in a temporary directory. In production the
//! URLs are `az://CONTAINER` and the like (with `--features cloud`), and the instances run on
//! several machines.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use reveille::{
    store::{self, BlobName},
    sweep::{SweepJob, Sweeper, set_expiry},
};

#[tokio::main]
async fn main() -> reveille::Result<()> {
    let directory = tempfile::tempdir().expect("a directory");
    let url = |name: &str| format!("sqlite:{}", directory.path().join(name).display());
    let environment: BTreeMap<String, String> = BTreeMap::new();

    // Temporary state, with the time after which it is not needed.
    let sessions = store::open(&url("sessions")).await?;
    let now = SystemTime::now();
    for (name, end, grave) in [
        ("session/1", now, None),
        ("session/2", now, Some("graves/2026/")),
        ("session/3", now + Duration::from_secs(3600), None),
    ] {
        sessions
            .create(&BlobName::new(name)?, "state".into())
            .await?;
        let blob = format!("{}#{name}", url("sessions"));
        set_expiry(&blob, Some(end), grave, &environment).await?;
    }

    let job = format!(
        r#"{{"name": "sessions", "state": "{}", "interval": "1s",
            "containers": [{{"url": "{}", "prefix": "session/"}}],
            "dead": {{"account": "{}"}}}}"#,
        url("state"),
        url("sessions"),
        url("dead"),
    );
    let mut instances = Vec::new();
    for number in 1..=2 {
        let sweeper = Sweeper::new(SweepJob::parse(&job)?, &environment).await?;
        let task = tokio::spawn(async move {
            sweeper
                .run(|round| println!("instance {number}, round {}: {:?}", round.round, round.done))
                .await;
        });
        instances.push(task);
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    for task in instances {
        // It may be stopped at any moment: the next round does the rest.
        task.abort();
    }

    let dead = store::open(&url("dead")).await?;
    for store in [sessions, dead] {
        for blob in store
            .list("", &store::PageOptions::default())
            .await?
            .entries
        {
            println!("left: {}", blob.name);
        }
    }
    Ok(())
}
