//! The whole demo: its totals are exact, and its pushed fleet makes no storage transaction while
//! idle.

use std::{process::Stdio, time::Duration};

use crate::binary::{reveille, stdout};

/// The demo takes about 16 s, half of it waiting on purpose, and other tests run concurrently.
const TIMEOUT: Duration = Duration::from_secs(120);

#[tokio::test]
async fn the_demo_adds_up_and_its_pushed_fleet_costs_nothing_while_idle() {
    let home = tempfile::tempdir().expect("a directory");
    let mut command = reveille(&home, &["demo", "--listeners", "3", "-o", "json"]);
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

    let figures: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
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

    let left = std::fs::read_dir(home.path()).expect("it can be read");
    assert_eq!(left.count(), 0, "nothing is left on disk");
}
