//! A killed `tests/run` leaves no process and no file behind.

use std::{path::Path, process::Stdio};

use tokio::process::{Child, Command};

use crate::support::{until, within};

fn sleeper(directory: Option<&Path>) -> Child {
    let mut command = Command::new("sleep");
    command.arg("600").stdin(Stdio::null()).kill_on_drop(true);
    if let Some(directory) = directory {
        command.env("TMPDIR", directory);
    }
    command.spawn().expect("sleep starts")
}

#[tokio::test]
async fn a_run_of_the_tests_that_is_killed_leaves_no_process_and_no_file() {
    let home = tempfile::tempdir().expect("a directory");
    let directory = home.path().join("of-the-run");
    std::fs::create_dir(&directory).expect("made");
    std::fs::write(directory.join("file"), "left").expect("written");
    let (mut run, mut started) = (sleeper(None), sleeper(Some(&directory)));
    let mut other = sleeper(Some(home.path()));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/clear_up.py");
    let mut clearing = Command::new("python3")
        .arg(script)
        .arg(&directory)
        .arg(run.id().expect("it runs").to_string())
        .env("TMPDIR", &directory)
        .kill_on_drop(true)
        .spawn()
        .expect("python starts");
    run.kill().await.expect("killed, and waited for");
    let ended = within("the end of what it started", started.wait()).await;
    assert!(!ended.expect("a status").success());
    until("the directory is gone", async || !directory.exists()).await;
    let cleared = within("the end of clearing up", clearing.wait()).await;
    assert!(cleared.expect("a status").success());
    assert!(
        other.try_wait().expect("a status").is_none(),
        "not the tests'"
    );
    other.kill().await.expect("killed");
}
