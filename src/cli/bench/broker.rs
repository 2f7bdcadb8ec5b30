//! The server of one run: a relay, a nats-server or a redis-server, in a process of its own.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use reveille::{Node, NodeConfig, RelayConfig};

use super::{
    RelayArgs, Side,
    helper::{self, Helper},
    metrics::Metrics,
    usage::Usage,
};

/// A server that runs, or one that was named.
#[derive(Debug)]
pub(super) struct Broker {
    pub(super) side: Side,
    /// The relay's URL, or the peer's host and port.
    pub(super) target: String,
    pid: Option<u32>,
    /// Where a relay of the bench's own tells its metrics.
    admin: Option<String>,
    helper: Option<Helper>,
}

impl Broker {
    /// Starts a server; `relay` is the URL of one that runs already.
    pub(super) async fn start(side: Side, relay: Option<&str>) -> Result<Self> {
        if let Some(relay) = relay {
            return Ok(Self {
                side,
                target: relay.to_owned(),
                pid: None,
                admin: None,
                helper: None,
            });
        }
        check_installed(side)?;
        let name = match side {
            Side::Reveille => "relay",
            Side::Nats | Side::RawNats => "nats",
            Side::Redis => "redis",
        };
        Self::spawn(side, name, &[]).await
    }

    /// Starts a relay that has somebody look unasked so often; 0 for never.
    pub(super) async fn relay(sentinel: Duration) -> Result<Self> {
        let args = ["--sentinel".to_owned(), in_millis(sentinel)];
        Self::spawn(Side::Reveille, "relay", &args).await
    }

    /// Starts a relay whose flags are in this store.
    pub(super) async fn relay_on(store: &str) -> Result<Self> {
        let args = ["--store".to_owned(), store.to_owned()];
        Self::spawn(Side::Reveille, "relay", &args).await
    }

    /// Starts a relay that remembers so many queues, and measures its tasks' polls; `sentinel` instead
    /// of its own interval.
    pub(super) async fn relay_of(max_queues: usize, sentinel: Option<Duration>) -> Result<Self> {
        let mut args = vec![
            "--measure-polls".to_owned(),
            "--max-queues".to_owned(),
            max_queues.to_string(),
        ];
        if let Some(sentinel) = sentinel {
            args.extend(["--sentinel".to_owned(), in_millis(sentinel)]);
        }
        Self::spawn(Side::Reveille, "relay", &args).await
    }

    async fn spawn(side: Side, name: &'static str, args: &[String]) -> Result<Self> {
        let mut helper = Helper::start(name, args)?;
        let line = helper.line().await?;
        let mut words = line.split(' ');
        let target = words.next().unwrap_or_default().to_owned();
        let pid = words.next().context("no process id")?.parse().ok();
        Ok(Self {
            side,
            target,
            pid,
            admin: words.next().map(str::to_owned),
            helper: Some(helper),
        })
    }

    /// Returns what the server has used so far.
    pub(super) fn usage(&self) -> Usage {
        Usage::of(self.pid)
    }

    /// Returns what the relay has counted so far; `None` for a peer, and for a relay that was named.
    pub(super) async fn metrics(&self) -> Result<Option<Metrics>> {
        match &self.admin {
            Some(admin) => Metrics::read(admin).await.map(Some),
            None => Ok(None),
        }
    }

    /// Ends the server, unless it was there before.
    pub(super) async fn stop(self) {
        if let Some(helper) = self.helper {
            helper.stop().await;
        }
    }
}

/// The relay's process: prints its URL, its process id and its admin address, and serves until its
/// parent lets go.
pub(super) async fn serve_relay(args: &RelayArgs) -> Result<()> {
    helper::raise_limits();
    let mut relay = RelayConfig::default();
    relay.sentinel_interval = args.sentinel.unwrap_or(relay.sentinel_interval);
    if let Some(max) = args.max_queues {
        (relay.max_queues, relay.max_cursors_per_stream) = (max, max);
    }
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    let config = NodeConfig {
        listen: any_port,
        admin_listen: Some(any_port),
        store: args.store.clone(),
        relay,
        measure_polls: args.measure_polls,
        ..NodeConfig::default()
    };
    let node = Node::start(config).await?;
    let admin = node.admin_address().context("it was asked for")?;
    println!("{} {} {admin}", node.url(), std::process::id());
    helper::abandoned().await;
    node.shutdown(Duration::ZERO).await;
    Ok(())
}

/// Returns a span as the relay's process takes it.
fn in_millis(span: Duration) -> String {
    format!("{}ms", span.as_millis())
}

/// Fails where a side's server is not on the PATH.
pub(super) fn check_installed(side: Side) -> Result<()> {
    match side {
        Side::Reveille => Ok(()),
        Side::Nats | Side::RawNats => find("nats-server"),
        Side::Redis => find("redis-server"),
    }
}

/// Fails where a program is not on the PATH.
fn find(program: &str) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    ensure!(
        found,
        "{program} is not on the PATH: install it, on Debian and Ubuntu by \
         `apt-get install {program}`"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_missing_is_an_error_that_tells_what_to_install() {
        let error = find("no-such-server").expect_err("missing").to_string();
        assert!(error.contains("apt-get install no-such-server"), "{error}");
    }
}
