//! Examples against a relay that has TLS and asks for a credential.

use std::process::Stdio;

use reveille::NodeConfig;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
};

use super::{GuardedRelay, RULES};
use crate::{
    python::{python, run, stubs},
    readme::blocks,
    support::within,
    tls::{Authority, Files},
};

/// Starts a relay with rules and TLS; returns it with the files of its certificate and their directory.
async fn secure() -> (GuardedRelay, Files, TempDir) {
    let home = tempfile::tempdir().expect("a directory");
    let authority = Authority::new("relays");
    let files = authority.write(home.path(), "relay", authority.server());
    let tls = files.server(None);
    let relay = GuardedRelay::with(RULES, |config| NodeConfig {
        tls: Some(tls),
        ..config
    });
    (relay.await, files, home)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_example_uses_tls_and_a_token() {
    let (relay, files, _home) = secure().await;
    let owner = relay.token("owner").await;
    let address = relay.relay.node().expect("it runs").address();
    let (_, script) = blocks("docs/languages.md", &["python"]).remove(0);
    let stubs = stubs().await;
    let mut python = Command::new(python());
    python
        .args(["-c", &script])
        .env("PYTHONPATH", stubs.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("RELAY", address.to_string())
        .env("RELAY_CA", &files.ca)
        .env("RELAY_TOKEN", owner.reveal());
    let stdout = run(&mut python, "the example in Python").await;
    assert!(stdout.contains("read acct/orders until"), "{stdout}");
}

/// Returns the command of an example, with the files and the token in its environment.
fn example(name: &str, arguments: &[&str], files: &Files, token: &str) -> Command {
    let mut example = crate::examples::example(name);
    example
        .args(arguments)
        .env("REVEILLE_CA", &files.ca)
        .env("REVEILLE_TOKEN", token);
    example
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_in_rust_use_tls_and_a_token() {
    let (relay, files, _home) = secure().await;
    let owner = relay.token("owner").await;
    let url = relay.relay.url();
    assert!(url.starts_with("https://"), "{url}");
    let mut subscriber = example("subscriber", &[&url, "local/*"], &files, owner.reveal());
    let subscriber = subscriber.stdout(Stdio::piped()).spawn();
    let mut subscriber = subscriber.expect("it starts");
    let lines = BufReader::new(subscriber.stdout.take().expect("piped"));
    let jobs = relay.path("jobs.db");
    let jobs = jobs.to_str().expect("UTF-8");
    let mut publisher = example("publisher", &[jobs, &url], &files, owner.reveal());
    let published = within("the publisher's end", publisher.output()).await;
    let published = published.expect("it starts");
    let stderr = String::from_utf8_lossy(&published.stderr);
    assert!(published.status.success(), "{stderr}");
    let mut lines = lines.lines();
    let woken = async {
        while let Some(line) = lines.next_line().await.expect("text") {
            if line.starts_with("local/orders ") {
                return;
            }
        }
        panic!("the subscriber has ended");
    };
    within("a wake-up", woken).await;
}
