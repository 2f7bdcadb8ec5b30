//! A stock gRPC client: Python's grpcio with stubs made from `proto/`, against the real relay.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use reveille::testing::TestRelay;
use tempfile::TempDir;
use tokio::process::Command;

use crate::{
    sources::root,
    support::{target, within},
};

/// Returns the Python that `tests/run` prepared.
pub(crate) fn python() -> PathBuf {
    let python = target().join("test-env/venv/bin/python");
    let found = python.exists();
    assert!(found, "no {}: run tests/run once", python.display());
    python
}

/// Makes the stubs, for one test: another process of tests would read half of a shared file.
pub(crate) async fn stubs() -> TempDir {
    let stubs = tempfile::tempdir().expect("a directory");
    let mut protoc = Command::new(python());
    protoc.args(["-m", "grpc_tools.protoc", "-Iproto"]);
    for kind in ["python", "grpc_python"] {
        protoc.arg(format!("--{kind}_out={}", stubs.path().display()));
    }
    for file in ["relay", "flags", "admin", "courier"] {
        protoc.arg(format!("reveille/v1/{file}.proto"));
    }
    protoc.arg("externalscaler/externalscaler.proto");
    run(protoc.current_dir(root()), "grpc_tools.protoc").await;
    stubs
}

/// Runs a command to its end, and shows its output where it fails.
pub(crate) async fn run(command: &mut Command, what: &str) -> String {
    let command = command.stdin(Stdio::null()).kill_on_drop(true);
    let output = within(what, command.output()).await.expect(what);
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    let well = output.status.success();
    assert!(well, "{what}: {}\n{stdout}\n{stderr}", output.status);
    stdout.into_owned()
}

/// Runs a script of `tests/python` against a relay of its own.
async fn script(name: &str) {
    let relay = TestRelay::start().await.expect("a relay");
    let address = relay.node().expect("it runs").address();
    let script = Path::new("tests/python").join(name);
    let (stubs, mut command) = (stubs().await, Command::new(python()));
    command
        .arg(script)
        .arg(address.to_string())
        .env("PYTHONPATH", stubs.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(root());
    run(&mut command, name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn notify_subscribe_resume_and_report() {
    script("wake.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_refused_by_name() {
    script("bad_input.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_and_unleash_a_flag() {
    script("flags.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_reflection() {
    script("health.py").await;
}
