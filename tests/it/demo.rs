//! The whole demo: its totals are exact, and its pushed fleet and its agents make no storage
//! transaction while idle.

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
async fn the_demo_adds_up_and_its_pushed_fleet_costs_nothing_while_idle() {
    let (figures, complaint) = figures(&["--listeners", "3"]).await;
    let cents = &figures["cents"];
    assert!(cents.as_u64() > Some(0), "{figures}");
    for way in ["pushed", "polling"] {
        let measured = &figures[way];
        assert_eq!(measured["exact"], true, "{way}: {figures}");
        assert_eq!(measured["transactions"], 20_000, "{way}: {figures}");
        assert_eq!(&measured["cents"], cents, "{way}: {figures}");
        // 400 work items and 400 results, each with a put and a delete.
        let busy = measured["busy_storage_transactions"].as_u64();
        assert!(busy > Some(1_600), "{way}: {figures}");
    }
    let (pushed, polling) = (&figures["pushed"], &figures["polling"]);
    assert_eq!(pushed["idle_storage_transactions"], 0, "{complaint}");
    assert_eq!(pushed["idle_tasks"], 0, "{figures}");
    assert!(
        polling["idle_storage_transactions"].as_u64() > Some(0),
        "{figures}"
    );
    let cost = |measured: &serde_json::Value| measured["month_cost"].as_f64().expect("a cost");
    assert!(cost(pushed) < cost(polling), "{figures}");
    assert!(pushed["at_zero_after_ms"].is_number(), "{figures}");
}

#[tokio::test]
async fn agents_add_up_and_no_worker_runs_while_there_is_no_work() {
    let (figures, complaint) = figures(&["--agents"]).await;
    println!("{figures:#}");
    assert_eq!(figures["exact"], true, "{figures}");
    assert_eq!(figures["transactions"], 20_000, "{figures}");
    for zero in [
        "idle_tasks",
        "idle_tasks_after",
        "idle_storage_transactions",
    ] {
        assert_eq!(figures[zero], 0, "{figures}: {complaint}");
    }
    // One for each of 100 single messages, and one or more for each burst.
    let started = figures["processes_started"].as_u64();
    assert!(started >= Some(105), "{figures}");
    assert!(figures["at_zero_after_ms"].is_number(), "{figures}");
    let span = |name: &str| figures[name].as_f64().expect("a span");
    assert!(span("first_line_p50_ms") > 0.0, "{figures}");
    assert!(span("latency_p50_ms") > 0.0, "{figures}");
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
        watchers.contains("pushed-2") || listeners.contains("pushed-2")
    })
    .await;
    let id = demo.id().expect("it runs").to_string();
    let sent = Command::new("kill").args(["-s", "INT", &id]).status().await;
    assert!(sent.expect("kill").success());
    let ended = within("its end", demo.wait()).await.expect("it ends");
    assert_eq!(ended.code(), Some(130));
}
