//! Stock gRPC clients of Python at two relays of a cluster.

use tokio::process::Command;

use super::Cluster;
use crate::{
    python::{python, run, stubs},
    sources::root,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_clients_publish_at_one_relay_and_subscribe_at_another() {
    let cluster = Cluster::start(2).await;
    let addresses = cluster.nodes.iter().map(|node| node.address().to_string());
    let stubs = stubs().await;
    let mut command = Command::new(python());
    command
        .arg("tests/python/cluster.py")
        .args(addresses)
        .env("PYTHONPATH", stubs.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(root());
    run(&mut command, "cluster.py").await;
}
