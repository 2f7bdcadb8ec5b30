//! The external scaler of KEDA: a stock client that behaves as KEDA's source does, with real listeners
//! as pods. The checks are in `tests/python/keda.py`.

use std::process::Stdio;

use tokio::process::Command;

use crate::{
    python::{python, stubs},
    sources::root,
    tls::Authority,
};

async fn scenario(name: &str) {
    scenario_with(name, "").await;
}

async fn scenario_with(name: &str, certificates: &str) {
    let (stubs, mut command) = (stubs().await, Command::new(python()));
    command
        .args(["tests/python/keda.py", env!("CARGO_BIN_EXE_reveille"), name])
        .env("PYTHONPATH", stubs.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TMPDIR", stubs.path())
        .env("CERTIFICATES", certificates)
        .current_dir(root())
        .stdin(Stdio::null());
    // Its own steps have limits of time.
    let output = command.output().await.expect("it starts");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{name}: {stdout}\n{stderr}");
    print!("{stdout}");
}

#[tokio::test]
async fn a_workload_goes_from_zero_to_many_and_back() {
    scenario("from_zero_to_many_and_back").await;
}

#[tokio::test]
async fn a_pod_is_asked_for_although_keda_drops_the_first_requests() {
    scenario("each_true_is_dropped_for_a_while").await;
}

#[tokio::test]
async fn idle_workloads_are_at_zero_after_one_cool_down() {
    scenario("idle_objects_ask_for_nothing").await;
}

#[tokio::test]
async fn nothing_is_stranded_where_the_relay_is_killed() {
    scenario("the_relay_is_killed_under_load").await;
}

#[tokio::test]
async fn after_a_restart_each_workload_looks() {
    scenario("after_a_restart_each_workload_looks").await;
}

#[tokio::test]
async fn a_delayed_notification_starts_a_pod() {
    scenario("a_delayed_notification_starts_a_pod_when_it_is_due").await;
}

#[tokio::test]
async fn a_bad_key_of_a_trigger_is_named() {
    scenario("bad_keys_and_answers").await;
}

#[tokio::test]
async fn a_scaler_states_its_token_in_its_keys() {
    scenario("tokens_are_those_of_the_keys").await;
}

#[tokio::test]
async fn a_scaler_is_named_by_its_client_certificate() {
    let home = tempfile::tempdir().expect("a directory");
    let authority = Authority::new("cluster");
    let issue =
        |names: &[&str], name: &str| authority.write(home.path(), name, authority.issue(names));
    let relay = issue(&["localhost", "127.0.0.1"], "relay");
    issue(&["keda.example.com"], "keda");
    issue(&["stranger.example.com"], "stranger");
    let path = |name: &str| home.path().join(name).display().to_string();
    let certificates = [
        relay.ca.display().to_string(),
        path("relay"),
        path("keda"),
        path("stranger"),
    ];
    scenario_with(
        "a_client_certificate_names_the_caller",
        &certificates.join(":"),
    )
    .await;
}

#[tokio::test]
async fn a_workload_of_a_cluster_is_scaled_by_any_of_its_relays() {
    scenario("the_relays_of_a_cluster_scale_as_one").await;
}

#[tokio::test]
async fn the_manifests_of_keda_are_valid() {
    scenario("the_manifests_are_what_keda_and_the_relay_take").await;
}

#[tokio::test]
async fn a_workload_is_asked_for_when_its_last_listener_leaves_with_work() {
    scenario("a_listener_comes_and_goes").await;
}
