//! The whole demo: its woken fleet makes no storage transaction while idle.

use std::{process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

use crate::{
    binary::{reveille, stdout},
    support::{get, until, within},
};

/// A demo takes 16 to 40 s, half of it waiting on purpose, and other tests run concurrently.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Runs a demo to its end; returns its figures, and what it wrote to stderr.
async fn figures(options: &[&str]) -> (serde_json::Value, String) {
    let home = tempfile::tempdir().expect("a directory");
    let mut command = reveille(&home, &[&["demo", "-o", "json"], options].concat());
    // Its stderr goes to a file, so that the output of a demo that does not end can be read.
    let log = tempfile::NamedTempFile::new().expect("a file");
    let stderr = log.reopen().expect("the file");
    command.env("TMPDIR", home.path());
    command.stdout(Stdio::piped()).stderr(stderr);
    let child = command.spawn().expect("it starts");
    let output = tokio::time::timeout(TIMEOUT, child.wait_with_output()).await;
    let complaint = std::fs::read_to_string(log.path()).expect("text");
    println!("{complaint}");
    let output = output.expect("it ends in time").expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{complaint}");

    let left = std::fs::read_dir(home.path()).expect("it can be read");
    assert_eq!(left.count(), 0, "nothing is left on disk");
    let figures = serde_json::from_str(&stdout(&output)).expect("JSON");
    (figures, complaint)
}

#[tokio::test]
async fn the_woken_fleet_of_the_demo_costs_nothing_while_idle() {
    let (figures, complaint) = figures(&["--listeners", "3"]).await;
    println!("{figures:#}");
    let (woken, polling) = (&figures["fleets"][0], &figures["fleets"][1]);
    for fleet in [woken, polling] {
        // 400 work items, each with a put and a delete.
        let busy = fleet["busy_storage_transactions"].as_u64();
        assert!(busy > Some(800), "{fleet}");
        let latency = fleet["latency_p50_ms"].as_f64();
        assert!(latency > Some(0.0), "{fleet}");
    }
    assert_eq!(woken["idle_storage_transactions"], 0, "{complaint}");
    assert!(woken["at_zero_after_ms"].is_number(), "{figures}");
    let idle = polling["idle_storage_transactions"].as_u64();
    assert!(idle > Some(0), "{figures}");
    let cost = |fleet: &serde_json::Value| fleet["month_cost"].as_f64().expect("a cost");
    assert!(cost(woken) < cost(polling), "{figures}");
}

#[tokio::test]
async fn the_demo_shows_its_console_and_ends_when_it_is_interrupted() {
    let home = tempfile::tempdir().expect("a directory");
    let mut command = reveille(&home, &["demo", "--console", "--listeners", "2"]);
    command.env("TMPDIR", home.path());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut demo = command.spawn().expect("it starts");
    let mut lines = BufReader::new(demo.stderr.take().expect("piped")).lines();
    let page = loop {
        let line = within("a line", lines.next_line()).await.expect("text");
        let line = line.expect("the URL");
        if let Some((_, url)) = line.split_once("its console is at http://") {
            break url.trim_end_matches('/').parse().expect("an address");
        }
    };
    // The lines that follow are read, so that the demo never waits for a reader.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    let (status, index) = get(page, "/").await;
    assert_eq!(status, 200);
    assert!(index.contains("<title>reveille</title>"), "{index}");
    until("its fleet shows", async || {
        let (_, watchers) = get(page, "/api/v1/watchers").await;
        let (_, listeners) = get(page, "/api/v1/listeners").await;
        watchers.contains("woken-2") || listeners.contains("woken-2")
    })
    .await;
    let id = demo.id().expect("it runs").to_string();
    let sent = Command::new("kill").args(["-s", "INT", &id]).status().await;
    assert!(sent.expect("kill").success());
    let ended = within("its end", demo.wait()).await.expect("it ends");
    assert_eq!(ended.code(), Some(130));
}
