//! Short runs of the benchmarks: the processes find each other, and the figures are there.

use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;

/// Runs `reveille-bench` once, and returns the medians of its report.
async fn medians(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_reveille-bench"))
        .args(arguments)
        .args(["--runs", "1", "--output", "json"])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("it runs");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    let mut report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    report["median"].take()
}

#[tokio::test]
async fn wake_ups_are_measured_on_protected_relays_next_to_the_plain_one() {
    let peers = ["--peer", "tls-token", "--peer", "jwt"];
    let work = ["wake", "--notifications", "5", "--warm-up", "1"];
    let medians = medians(&[&work[..], &peers].concat()).await;
    for server in ["reveille", "tls-token", "jwt"] {
        let median = &medians[server];
        assert_eq!(median["notifications"], 5.0, "{server}: {medians}");
        assert!(median["p50_us"].as_f64() > Some(0.0), "{server}: {medians}");
    }
}

#[tokio::test]
async fn requests_are_measured_on_protected_relays_next_to_the_plain_one() {
    let peers = ["--peer", "tls", "--peer", "token"];
    let work = ["notify", "--notifications", "50", "--streamed", "50"];
    let medians = medians(&[&work[..], &["--warm-up", "1"], &peers].concat()).await;
    for server in ["reveille", "tls", "token"] {
        let wall = medians[server]["unary_wall_seconds"].as_f64();
        assert!(wall > Some(0.0), "{server}: {medians}");
    }
}
