//! A back-end in a crate of its own: `examples/own_queue.rs` is compiled against the public API
//! alone, and run.

use std::time::Duration;

use tokio::process::Command;

use crate::sources::root;

#[tokio::test]
async fn a_back_end_of_another_crate_keeps_the_contract_and_serves_a_listener() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["run", "--quiet", "--offline", "--example", "own_queue"])
        .current_dir(root())
        .kill_on_drop(true);
    // It links against what is built already.
    let ended = tokio::time::timeout(Duration::from_secs(300), cargo.output()).await;
    let output = ended.expect("it ends").expect("cargo starts");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let lines = ["own:jobs keeps the contract", "handled a job", "0 left"];
    assert_eq!(stdout.lines().collect::<Vec<_>>(), lines, "{stderr}");
}
