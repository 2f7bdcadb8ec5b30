//! Three relays and their nats-server on this machine, next to one relay and to nats-server alone.
//!
//! Each relay, each relay's subscribers and the nats-server are separate processes; the publisher is
//! in this process. All sides of a part have the same figures, and alternate.

mod burst;
mod deployment;
mod group;
mod idle;
mod kills;
mod link;
mod notify;
mod processes;
mod restarts;
mod sentinel;
mod traffic;
mod wake;

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};

use self::deployment::Options;
use super::{
    Server,
    args::{ClusterArgs, ClusterPart},
    broker,
    progress::Progress,
    report::Figures,
};

/// The number of relays in a cluster.
const RELAYS: usize = 3;
/// The nats-server of the tests, below cargo's target directory.
const TESTS_SERVER: &str = "test-env/venv/bin/nats-server";

/// Runs the chosen part once on one side.
pub(super) async fn once(
    args: &ClusterArgs,
    server: Server,
    progress: &Progress,
) -> Result<Figures> {
    let options = Options::new(args.nats_server()?);
    match &args.part {
        ClusterPart::Wake(args) => wake::once(args, server, options, progress).await,
        ClusterPart::Notify(args) => notify::once(args, server, options, progress).await,
        ClusterPart::Burst(args) => burst::once(args, server, options, progress).await,
        ClusterPart::Idle(args) => idle::once(args, server, options, progress).await,
        ClusterPart::Group(args) => group::once(args, server, options, progress).await,
        ClusterPart::Sentinel(args) => sentinel::once(args, server, options, progress).await,
        ClusterPart::Restarts(args) => restarts::once(args, &options, progress).await,
        ClusterPart::Kills(args) => kills::once(args, &options, progress).await,
    }
}

impl ClusterArgs {
    /// Returns the path of nats-server.
    pub(super) fn nats_server(&self) -> Result<PathBuf> {
        if let Some(path) = &self.nats_server {
            ensure!(path.is_file(), "--nats-server: no file {}", path.display());
            return Ok(path.clone());
        }
        if let Ok(path) = broker::program("nats-server") {
            return Ok(path);
        }
        let program = std::env::current_exe().context("the path of this program is unknown")?;
        let mut below = program.ancestors().map(|path| path.join(TESTS_SERVER));
        below
            .find(|path| path.is_file())
            .context("no nats-server on the PATH: install it, or set --nats-server")
    }
}
