//! Short runs of the benchmarks: the processes find each other, and the figures are there.

use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;

/// Runs `reveille-bench` once, and returns the figures of its report.
async fn measure(arguments: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_reveille-bench"))
        .args(arguments.split(' '))
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

/// Fails unless each figure of each server is above 0.
#[track_caller]
fn assert_measured(medians: &Value, servers: &[&str], figures: &[&str]) {
    for server in servers {
        for figure in figures {
            let value = medians[server][figure].as_f64();
            assert!(value > Some(0.0), "{server}, {figure}: {medians:#}");
        }
    }
}

#[tokio::test]
async fn wake_ups_are_measured_on_protected_relays_next_to_the_plain_one() {
    let work = "wake --notifications 5 --warm-up 1 --peer tls-token --peer jwt";
    let medians = measure(work).await;
    for server in ["reveille", "tls-token", "jwt"] {
        assert_eq!(medians[server]["notifications"], 5.0, "{medians:#}");
        assert_measured(&medians, &[server], &["p50_us", "p99_us"]);
    }
}

#[tokio::test]
async fn requests_are_measured_on_a_relay_with_a_token_next_to_the_plain_one() {
    let work = "notify --notifications 50 --streamed 50 --warm-up 1 --peer token";
    let figures = ["unary_wall_seconds", "stream_wall_seconds"];
    assert_measured(&measure(work).await, &["reveille", "token"], &figures);
}

#[tokio::test]
async fn wake_ups_by_another_relay_are_measured_next_to_one_relay_and_nats() {
    let medians = measure("cluster wake --notifications 5 --warm-up 1").await;
    let sides = ["reveille", "cluster-of-one", "cluster", "nats"];
    assert_measured(&medians, &sides, &["p50_us", "p99_us"]);
}

/// Left out of quick runs.
mod full {
    use super::*;

    #[tokio::test]
    async fn a_burst_and_many_queues_are_measured_next_to_nats() {
        let medians = measure("burst --notifications 500 --subscribers 3 --peer nats").await;
        assert_measured(&medians, &["reveille", "nats"], &["wall_seconds"]);
        assert_eq!(medians["nats"]["wake_ups"], 1_500.0, "{medians:#}");
        let work = "each --queues 8 --events 80 --subscribers 3 --peer nats";
        let medians = measure(work).await;
        let figures = ["lock_step_wall_seconds", "pipelined_wall_seconds"];
        assert_measured(&medians, &["reveille", "nats"], &figures);
    }

    #[tokio::test]
    async fn a_fleet_is_measured_awake_and_idle() {
        let medians = measure("wake-all --subscribers 20 --rounds 2").await;
        assert_eq!(medians["reveille"]["wake_ups"], 40.0, "{medians:#}");
        let work = "idle --subscribers 20 --per-connection 10 --hold 1s";
        assert_measured(&measure(work).await, &["reveille"], &["connecting_seconds"]);
    }

    #[tokio::test]
    async fn a_job_is_measured_from_its_put_to_its_handler() {
        let work = "job --messages 5 --warm-up 1 --polled 1 --hold 1s";
        let figures = ["put_to_handler_p50_us", "polled_p50_us"];
        let medians = measure(work).await;
        assert_measured(&medians, &["reveille"], &figures);
        assert_eq!(medians["reveille"]["wake_ups_message"], 1.0, "{medians:#}");
    }

    #[tokio::test]
    async fn a_queue_is_measured_by_itself() {
        let medians = measure("queue --messages 500").await;
        let figures = ["put_per_second", "handled_per_second"];
        assert_measured(&medians, &["reveille"], &figures);
    }

    #[tokio::test]
    async fn many_queues_are_measured_with_exact_sums() {
        let medians = measure("scale --queues 2000 --hold 1s").await;
        let figures = ["all_caught_up_seconds", "woken_wake_p50_us"];
        assert_measured(&medians, &["reveille"], &figures);
    }

    #[tokio::test]
    async fn the_hand_over_between_two_machines_is_measured() {
        let work = "courier --sends 20 --messages 200 --backlog 2000 --singles 5";
        let figures = ["hand_over_handled_per_second", "send_to_handler_p50_us"];
        assert_measured(&measure(work).await, &["reveille"], &figures);
    }

    #[tokio::test]
    async fn acknowledgements_of_a_cluster_are_measured_next_to_one_relay() {
        let work = "cluster notify --notifications 5 --streamed 50 --rate 100 --hold 200ms";
        let figures = [
            "one_by_one_p50_us",
            "streamed_per_second",
            "at_this_rate_p50_us",
        ];
        assert_measured(&measure(work).await, &["reveille", "cluster"], &figures);
    }

    #[tokio::test]
    async fn a_burst_reaches_the_subscribers_of_all_relays_in_few_frames() {
        let work = "cluster burst --notifications 500 --subscribers 4";
        let medians = measure(work).await;
        assert_eq!(medians["nats"]["wake_ups"], 2_000.0, "{medians:#}");
        let frames = medians["cluster"]["frames"].as_f64();
        assert!(frames > Some(0.0) && frames < Some(500.0), "{medians:#}");
    }
}
