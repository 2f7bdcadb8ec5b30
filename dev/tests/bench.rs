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

#[tokio::test]
async fn wake_ups_by_another_relay_are_measured_next_to_one_relay_and_nats() {
    let work = ["cluster", "wake", "--notifications", "5", "--warm-up", "1"];
    let medians = medians(&work).await;
    for side in ["reveille", "cluster", "nats"] {
        let median = &medians[side];
        assert_eq!(median["notifications"], 5.0, "{side}: {medians}");
        assert!(median["p99_us"].as_f64() > Some(0.0), "{side}: {medians}");
    }
}

#[tokio::test]
async fn acknowledgements_of_a_cluster_are_measured_with_a_near_and_a_far_broker() {
    let counts = ["--notifications", "5", "--streamed", "50", "--rate", "100"];
    let times = ["--hold", "200ms", "--delay", "10ms"];
    let medians = medians(&[&["cluster", "notify"], &counts[..], &times].concat()).await;
    for side in ["reveille", "cluster", "far-cluster"] {
        let rate = medians[side]["streamed_per_second"].as_f64();
        assert!(rate > Some(0.0), "{side}: {medians}");
    }
    // The frame goes to the broker and returns.
    for figure in ["one_by_one_p50_us", "at_this_rate_p50_us"] {
        let far = medians["far-cluster"][figure].as_f64();
        assert!(far >= Some(20_000.0), "{figure}: {medians}");
    }
}

#[tokio::test]
async fn a_burst_reaches_the_subscribers_of_all_relays_in_few_frames() {
    let counts = ["--notifications", "500", "--subscribers", "4"];
    let medians = medians(&[&["cluster", "burst"], &counts[..]].concat()).await;
    assert_eq!(medians["nats"]["wake_ups"], 2_000.0, "{medians}");
    let frames = medians["cluster"]["frames"].as_f64();
    assert!(frames > Some(0.0) && frames < Some(500.0), "{medians}");
}

#[tokio::test]
async fn the_link_of_idle_relays_carries_their_heartbeats() {
    let medians = medians(&["cluster", "idle", "--queues", "3", "--hold", "2s"]).await;
    let bytes = medians["cluster"]["link_bytes_per_second"].as_f64();
    assert!(bytes > Some(0.0), "{medians}");
    assert_eq!(medians["reveille"]["relays"], 1.0, "{medians}");
}

#[tokio::test]
async fn a_group_on_three_relays_is_woken_for_each_message() {
    let counts = ["--members", "3", "--messages", "5", "--bursts", "1"];
    let medians = medians(&[&["cluster", "group"], &counts[..]].concat()).await;
    for side in ["reveille", "cluster"] {
        let each = medians[side]["wake_ups_message"].as_f64();
        assert!(each >= Some(1.0), "{side}: {medians}");
        let woken = medians[side]["members_woken_by_a_burst"].as_f64();
        assert_eq!(woken, Some(3.0), "{side}: {medians}");
    }
}

#[tokio::test]
async fn no_wake_up_is_lost_while_a_relay_and_the_broker_are_killed() {
    let kills = ["--relay-kills", "1", "--broker-kills", "1", "--rate", "150"];
    // The other tests keep the machine busy.
    let work = ["cluster", "kills", "--slack", "10s"];
    let medians = medians(&[&work[..], &kills].concat()).await;
    let figures = &medians["cluster"];
    assert_eq!(
        (&figures["lost"], &figures["late"]),
        (&0.0.into(), &0.0.into())
    );
    assert!(figures["acknowledged"].as_f64() > Some(100.0), "{medians}");
    assert!(
        figures["told_by_catch_up"].as_f64() > Some(0.0),
        "{medians}"
    );
}

#[tokio::test]
async fn the_sentinel_of_three_relays_asks_for_the_checks_of_one() {
    let times = ["--listeners", "6", "--sentinel", "2s", "--hold", "10s"];
    let medians = medians(&[&["cluster", "sentinel"], &times[..]].concat()).await;
    for side in ["reveille", "cluster"] {
        let checks = medians[side]["checks"].as_f64();
        // On a busy machine a check may be late.
        let near = checks >= Some(3.0) && checks <= Some(7.0);
        assert!(near, "{side}: {medians}");
    }
}

#[tokio::test]
async fn a_rolling_restart_is_measured_with_its_checks() {
    let counts = ["--listeners", "9", "--rate", "10", "--drain", "1s"];
    let medians = medians(&[&["cluster", "restarts"], &counts[..]].concat()).await;
    let figures = &medians["cluster"];
    assert_eq!(figures["lost"], 0.0, "{medians}");
    assert!(figures["due_wake_ups"].as_f64() > Some(0.0), "{medians}");
    // Each listener goes to another relay at least once.
    let checks = figures["checks_listener_and_queue"].as_f64();
    assert!(checks >= Some(1.0), "{medians}");
}
