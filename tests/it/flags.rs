//! Durable flags on every store: with a relay, with the store alone, with both, and under failures.

mod alone;
mod cloud;
mod limits;
mod outage;
mod proxied;
mod watchers;

use std::process::{Output, Stdio};

use reveille::{Client, FlagName, FlagState, FlagWatcher, ListenerId};
use tempfile::TempDir;
use tokio::process::Child;

use crate::{
    binary::{Binary, limits, reveille, stderr},
    support::{azurite::azurite, figure, moto::moto, until, within},
};

/// A store that a relay and its nodes share.
#[derive(Debug)]
struct Place {
    url: String,
    variables: Vec<(String, String)>,
}

fn azure(container: &str) -> Place {
    azurite().create_container(container);
    connected(container, &azurite().connection_string())
}

fn connected(container: &str, connection_string: &str) -> Place {
    let variable = "AZURE_STORAGE_CONNECTION_STRING".to_owned();
    Place {
        url: format!("az://{container}"),
        variables: vec![(variable, connection_string.to_owned())],
    }
}

fn s3(bucket: &str) -> Place {
    moto().create_bucket(bucket);
    Place {
        url: format!("s3://{bucket}"),
        variables: moto().environment(),
    }
}

/// An empty file is a store. A node that only reads would not create one.
fn sqlite(home: &TempDir) -> Place {
    let file = home.path().join("flags.db");
    std::fs::File::create(&file).expect("made");
    Place {
        url: format!("sqlite:{}", file.display()),
        variables: Vec::new(),
    }
}

impl Place {
    /// Starts a relay on it with this refresh interval.
    async fn relay(&self, refresh: &str) -> Binary {
        let file = limits(&format!("flag_refresh = '{refresh}'"));
        let arguments = ["--store", &self.url, "--config", &file];
        Binary::serve_with(&arguments, &self.variables).await
    }

    /// Makes a verb's command with the store's credential and without a relay.
    fn verb(&self, home: &TempDir, arguments: &[&str]) -> tokio::process::Command {
        let mut command = reveille(home, arguments);
        command.envs(self.variables.iter().cloned());
        command
    }

    /// Runs a verb with `--store` to its end.
    async fn run(&self, home: &TempDir, arguments: &[&str]) -> Output {
        let arguments = [arguments, &["--store", &self.url]].concat();
        let output = within("the end", self.verb(home, &arguments).output()).await;
        output.expect("it starts")
    }

    /// Parks a node that reads the store every 200 ms.
    fn park(&self, home: &TempDir, arguments: &[&str]) -> Child {
        let waits = ["wait", "--store", &self.url, "--interval", "200ms"];
        spawned(self.verb(home, &[&waits, arguments].concat()))
    }
}

/// Starts a command whose output is read at its end.
fn spawned(mut command: tokio::process::Command) -> Child {
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it starts")
}

/// Waits for a parked node's end.
async fn released(node: Child) -> Output {
    let output = within("a release", node.wait_with_output()).await;
    let output = output.expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    output
}

/// Asserts that a verb ended with this exit code. Returns its stderr.
fn ended(output: &Output, code: i32) -> String {
    let complaint = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{complaint}");
    complaint
}

/// Waits until this number of nodes watch.
async fn parked(relay: &Binary, nodes: u64) {
    until("the nodes watch", async || {
        figure(relay.admin(), "reveille_flag_watchers").await == nodes
    })
    .await;
}

fn watch(relay: &Binary, flag: &str, node: &str) -> FlagWatcher {
    let client = Client::new(&relay.url()).expect("a URL");
    let (flag, node) = (FlagName::new(flag), ListenerId::new(node));
    client.watch_flag(flag.expect("a name"), node.expect("an id"))
}

/// Returns a watch's next state.
async fn state(watch: &mut FlagWatcher) -> FlagState {
    use reveille::FlagWatch as _;
    let state = within("a state", watch.next()).await;
    state.expect("not closed").expect("not refused")
}
