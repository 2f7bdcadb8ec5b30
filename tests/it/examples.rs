//! Examples that are programs of their own: compiled against the public API alone, and run.

use std::env;

use tokio::process::Command;

use crate::support::within;

/// Returns the command of an example. Cargo puts its program beside the directory of the tests'
/// programs.
pub(crate) fn example(name: &str) -> Command {
    let tests = env::current_exe().expect("its own path");
    let profile = tests.ancestors().nth(2).expect("target/PROFILE/deps/it");
    let program = profile.join("examples").join(name);
    assert!(
        program.exists(),
        "no {}: run `cargo build --workspace --all-features --examples`",
        program.display()
    );
    let mut example = Command::new(program);
    example.kill_on_drop(true);
    example
}

/// Runs an example to its end; returns its lines.
async fn run_example(name: &str) -> Vec<String> {
    let output = within("the example's end", example(name).output()).await;
    let output = output.expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    stdout.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn a_back_end_of_another_crate_keeps_the_contract_and_serves_a_listener() {
    let lines = ["own:jobs keeps the contract", "handled a job", "0 left"];
    assert_eq!(run_example("own_queue").await, lines);
}

#[tokio::test]
async fn two_killed_machines_of_an_example_receive_each_message_once() {
    let lines = run_example("store_and_forward").await;
    let received = "received 200 messages, each once and in order";
    assert_eq!(lines[0], format!("machine 0 {received}"));
    assert_eq!(lines[1], format!("machine 1 {received}"));
}
