//! The server of one run: a relay, a nats-server or a redis-server, in a separate process.

use std::{
    ffi::OsString,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use reveille::{
    AccessFiles, Client, ClientConfig, ClusterConfig, NatsConfig, Node, NodeConfig, RelayConfig,
    ServerTls,
};

use super::{
    Server,
    args::{Protection, RelayArgs},
    child,
    metrics::Metrics,
    security::Security,
    usage::Usage,
};
use crate::child::Child;

/// A server that the bench started, or the relay of `--relay`.
#[derive(Debug)]
pub(super) struct Broker {
    pub(super) server: Server,
    /// The relay's URL, or the peer's host and port.
    pub(super) target: String,
    pid: Option<u32>,
    /// Address of the admin port; `None` for a peer and for `--relay`.
    admin: Option<String>,
    process: Option<Child>,
    /// Of a relay that the bench started. The clients of `--relay` use the variables of this
    /// process.
    security: Option<Security>,
}

impl Broker {
    /// Returns a client of the relay, with its TLS and credential.
    pub(super) fn client(&self) -> Result<Client> {
        let config = match &self.security {
            Some(security) => security.client_config(),
            None => ClientConfig::from_environment()?,
        };
        Ok(Client::with_config(&self.target, config)?)
    }

    /// Returns the variables of a process with clients of the server.
    pub(super) fn client_environment(&self) -> Vec<(&'static str, OsString)> {
        let security = self.security.as_ref();
        security.map_or_else(Vec::new, |security| security.environment().into())
    }

    /// Returns the protection of a relay that the bench started; `None` for other servers.
    pub(super) fn security(&self) -> Option<&Security> {
        self.security.as_ref()
    }

    /// Starts a server, or uses the relay with the URL `relay`.
    pub(super) async fn start(server: Server, relay: Option<&str>) -> Result<Self> {
        if let Some(relay) = relay {
            return Ok(Self {
                server,
                target: relay.to_owned(),
                pid: None,
                admin: None,
                process: None,
                security: None,
            });
        }
        match server {
            Server::Relay(protection) => Self::start_relay(protection, &[]).await,
            Server::Nats | Server::RawNats => Self::spawn(server, "nats", &[]).await,
            Server::Redis => Self::spawn(server, "redis", &[]).await,
            Server::Rabbitmq => bail!("rabbitmq-server relays no notifications"),
            Server::Cluster | Server::FarCluster | Server::ClusterOfOne => {
                bail!("a cluster is several servers")
            }
        }
    }

    /// Starts a nats-server with this program, on this port; 0 is any free one.
    pub(super) async fn nats(program: &Path, port: u16) -> Result<Self> {
        let program = format!("--program={}", program.display());
        Self::spawn(Server::Nats, "nats", &[program, format!("--port={port}")]).await
    }

    /// Starts a plain relay with these arguments of [`RelayArgs`].
    pub(super) async fn relay(args: &[String]) -> Result<Self> {
        Self::start_relay(Protection::None, args).await
    }

    async fn start_relay(protection: Protection, args: &[String]) -> Result<Self> {
        let security = Security::create(protection)?;
        let args = [args, &security.relay_args()].concat();
        let relay = Self::spawn(Server::Relay(protection), "relay", &args).await?;
        Ok(Self {
            security: Some(security),
            ..relay
        })
    }

    async fn spawn(server: Server, name: &'static str, args: &[String]) -> Result<Self> {
        let mut process = Child::start(name, args)?;
        let line = process.line().await?;
        let mut words = line.split(' ');
        let target = words.next().unwrap_or_default().to_owned();
        let pid = words.next().context("no process id")?.parse().ok();
        Ok(Self {
            server,
            target,
            pid,
            admin: words.next().map(str::to_owned),
            process: Some(process),
            security: None,
        })
    }

    /// Returns the host and port of the admin port of a relay that the bench started.
    pub(super) fn admin(&self) -> Result<&str> {
        self.admin.as_deref().context("the admin port is on")
    }

    /// Returns the server's usage so far.
    pub(super) fn usage(&self) -> Usage {
        Usage::of(self.pid)
    }

    /// Returns the relay's metrics; `None` for a peer and for `--relay`.
    pub(super) async fn metrics(&self) -> Result<Option<Metrics>> {
        match &self.admin {
            Some(admin) => Metrics::read(admin).await.map(Some),
            None => Ok(None),
        }
    }

    /// Kills a relay that the bench started with SIGKILL, and waits until it has ended.
    pub(super) async fn kill(self) {
        if let Some(process) = self.process {
            process.kill().await;
        }
    }

    /// Ends a relay that the bench started.
    ///
    /// # Errors
    /// It did not end within this time.
    pub(super) async fn drain(self, within: Duration) -> Result<()> {
        let ended = match self.process {
            Some(process) => process.end_within(within).await,
            None => true,
        };
        ensure!(ended, "the relay at {} has not ended in time", self.target);
        Ok(())
    }

    /// Ends the server, unless it is the relay of `--relay`. A peer is killed with SIGKILL.
    pub(super) async fn stop(self) {
        if let Some(process) = self.process {
            process.stop().await;
        }
    }
}

/// The relay's process: prints its URL, its process id and its admin address, and serves until the
/// parent closes the input.
pub(super) async fn serve_relay(args: &RelayArgs) -> Result<()> {
    child::raise_limits();
    let node = Node::start(node_config(args)).await?;
    let admin = node.admin_address().context("the admin port is on")?;
    println!("{} {} {admin}", node.url(), std::process::id());
    child::parent_closed().await;
    // As long again for requests that have begun.
    node.shutdown(args.drain).await;
    Ok(())
}

/// Returns the configuration of a relay, whose admin port is any free one.
pub(super) fn node_config(args: &RelayArgs) -> NodeConfig {
    let mut relay = RelayConfig::default();
    relay.sentinel_interval = args.sentinel.unwrap_or(relay.sentinel_interval);
    relay.drain = args.drain;
    if let Some(max) = args.max_queues {
        (relay.max_queues, relay.max_cursors_per_stream) = (max, max);
    }
    if let Some(id) = &args.relay_id {
        relay.relay_id.clone_from(id);
    }
    let on_port = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let cluster = args.cluster.clone().map(|url| ClusterConfig {
        nats: NatsConfig {
            servers: vec![url],
            ..NatsConfig::default()
        },
        ..ClusterConfig::default()
    });
    let tls = args.tls_cert.clone().zip(args.tls_key.clone());
    let tls = tls.map(|(certificate, key)| ServerTls {
        certificate,
        key,
        client_ca: None,
    });
    let access = args.auth.clone().map(|rules| AccessFiles {
        rules,
        audit_log: None,
    });
    NodeConfig {
        tls,
        access,
        cluster,
        listen: on_port(args.port),
        admin_listen: Some(on_port(0)),
        store: args.store.clone(),
        relay,
        measure_polls: args.measure_polls,
        ..NodeConfig::default()
    }
}

/// Returns the argument of a relay with this sentinel interval; 0 for never.
pub(super) fn sentinel(interval: Duration) -> String {
    format!("--sentinel={}ms", interval.as_millis())
}

/// Fails if a server's program is not on the PATH.
pub(super) fn check_installed(server: Server) -> Result<()> {
    match server {
        Server::Relay(_) => Ok(()),
        Server::Nats | Server::RawNats => find("nats-server"),
        Server::Redis => find("redis-server"),
        Server::Rabbitmq => find("rabbitmq-server"),
        // `cluster` finds its nats-server before.
        Server::Cluster | Server::FarCluster | Server::ClusterOfOne => Ok(()),
    }
}

/// Fails if a program is not on the PATH.
fn find(name: &str) -> Result<()> {
    program(name).map(|_| ())
}

/// Returns the path of a program on the PATH.
pub(super) fn program(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&path).map(|directory| directory.join(name));
    let Some(found) = files.find(|file| file.is_file()) else {
        bail!(
            "{name} is not on the PATH: install it, on Debian and Ubuntu with \
             `apt-get install {name}`"
        );
    };
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_missing_peer_names_its_package() {
        let error = find("no-such-server").expect_err("missing").to_string();
        assert!(error.contains("apt-get install no-such-server"), "{error}");
    }
}
