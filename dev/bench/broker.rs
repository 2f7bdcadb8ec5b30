//! The server of one run: a relay, a nats-server or a redis-server, in a separate process.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use reveille::{
    AccessFiles, Client, ClientConfig, ClusterConfig, NatsConfig, Node, NodeConfig, RelayConfig,
    ServerTls, duration,
};

use crate::{
    child::{self, Child},
    metrics::Metrics,
    peers::Peer,
    security::Security,
    server::{Protection, Server},
    usage::Usage,
};

/// A server that the bench started, or the relay of `--relay`.
#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) server: Server,
    /// The relay's URL, or the peer's host and port.
    pub(crate) target: String,
    process: Process,
}

#[derive(Debug)]
enum Process {
    /// The relay of `--relay`. Its clients use the variables of this process.
    Given,
    Relay(Box<Relay>),
    Peer(Box<Peer>),
}

/// The process of a relay.
#[derive(Debug)]
struct Relay {
    child: Child,
    pid: u32,
    /// Address of the admin port.
    admin: String,
    security: Security,
}

/// The arguments of a relay's process.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct RelayArgs {
    /// The relay's name.
    #[arg(long)]
    relay_id: Option<String>,
    /// The nats-server of the relay's cluster.
    #[arg(long)]
    cluster: Option<String>,
    #[arg(long, default_value = "memory:")]
    store: String,
    #[arg(long, value_parser = duration::parse)]
    sentinel: Option<Duration>,
    /// Maximum number of queues in memory.
    #[arg(long)]
    max_queues: Option<usize>,
    #[arg(long, requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    #[arg(long, requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The rules.
    #[arg(long)]
    auth: Option<PathBuf>,
}

impl Broker {
    /// Returns the relay of `--relay`, which must answer.
    pub(crate) async fn given(url: &str) -> Result<Self> {
        let relay = Self {
            server: Server::RELAY,
            target: url.to_owned(),
            process: Process::Given,
        };
        relay.client()?.relays().await?;
        Ok(relay)
    }

    /// Starts a server.
    pub(crate) async fn start(server: Server) -> Result<Self> {
        match server {
            Server::Relay(protection) => Self::start_relay(protection, &[]).await,
            Server::Nats | Server::Redis => {
                let peer = Peer::start(server).await?;
                Ok(Self {
                    server,
                    target: peer.target.clone(),
                    process: Process::Peer(Box::new(peer)),
                })
            }
            Server::Cluster(_) => bail!("a cluster is several servers"),
        }
    }

    /// Starts a plain relay with these arguments of [`RelayArgs`].
    pub(crate) async fn relay(args: &[String]) -> Result<Self> {
        Self::start_relay(Protection::None, args).await
    }

    async fn start_relay(protection: Protection, args: &[String]) -> Result<Self> {
        let security = Security::create(protection)?;
        let args = [args, &security.relay_args()].concat();
        let mut child = Child::start("relay", &args, [])?;
        let line = child.line().await?;
        let words: Vec<&str> = line.split(' ').collect();
        let [target, pid, admin] = words[..] else {
            bail!("the relay printed {line:?}");
        };
        Ok(Self {
            server: Server::Relay(protection),
            target: target.to_owned(),
            process: Process::Relay(Box::new(Relay {
                pid: pid.parse()?,
                admin: admin.to_owned(),
                child,
                security,
            })),
        })
    }

    /// Returns a client of the relay, with its TLS and credential.
    pub(crate) fn client(&self) -> Result<Client> {
        let config = match &self.process {
            Process::Relay(relay) => relay.security.client_config(),
            _ => ClientConfig::from_environment()?,
        };
        Ok(Client::with_config(&self.target, config)?)
    }

    /// Returns the variables of a process with clients of the server.
    pub(crate) fn client_environment(&self) -> Vec<(&'static str, OsString)> {
        match &self.process {
            Process::Relay(relay) => relay.security.environment().into(),
            _ => Vec::new(),
        }
    }

    /// Returns the credential of the clients of a relay that the bench started.
    pub(crate) fn credential(&self) -> Option<&str> {
        match &self.process {
            Process::Relay(relay) => relay.security.credential(),
            _ => None,
        }
    }

    /// Returns the server's usage so far; unknown for the relay of `--relay`.
    pub(crate) fn usage(&self) -> Usage {
        Usage::of(match &self.process {
            Process::Given => None,
            Process::Relay(relay) => Some(relay.pid),
            Process::Peer(peer) => peer.process.id(),
        })
    }

    /// Returns the relay's metrics; `None` for a peer and for `--relay`.
    pub(crate) async fn metrics(&self) -> Result<Option<Metrics>> {
        match self.admin() {
            Some(admin) => Metrics::read(admin).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the address of the admin port; `None` for a peer and for `--relay`.
    pub(crate) fn admin(&self) -> Option<&str> {
        match &self.process {
            Process::Relay(relay) => Some(&relay.admin),
            _ => None,
        }
    }

    /// Ends the server, unless it is the relay of `--relay`. A peer is killed.
    pub(crate) async fn stop(self) {
        match self.process {
            Process::Given => {}
            Process::Relay(relay) => relay.child.stop().await,
            // A peer that has ended already is no error.
            Process::Peer(mut peer) => drop(peer.process.kill().await),
        }
    }
}

/// The relay's process: prints its URL, its process id and its admin address, and serves until the
/// parent closes the input.
pub(crate) async fn serve_relay(args: &RelayArgs) -> Result<()> {
    child::raise_limits();
    let node = Node::start(args.config()).await?;
    let admin = node.admin_address().context("the admin port is on")?;
    println!("{} {} {admin}", node.url(), std::process::id());
    child::parent_closed().await;
    node.shutdown(Duration::ZERO).await;
    Ok(())
}

impl RelayArgs {
    /// Returns the configuration of a relay on any free ports.
    fn config(&self) -> NodeConfig {
        let mut relay = RelayConfig::default();
        relay.sentinel_interval = self.sentinel.unwrap_or(relay.sentinel_interval);
        relay.drain = Duration::ZERO;
        if let Some(max) = self.max_queues {
            (relay.max_queues, relay.max_cursors_per_stream) = (max, max);
        }
        if let Some(id) = &self.relay_id {
            relay.relay_id.clone_from(id);
        }
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let tls = self.tls_cert.clone().zip(self.tls_key.clone());
        NodeConfig {
            tls: tls.map(|(certificate, key)| ServerTls {
                certificate,
                key,
                client_ca: None,
            }),
            access: self.auth.clone().map(|rules| AccessFiles {
                rules,
                audit_log: None,
            }),
            cluster: self.cluster.clone().map(|url| ClusterConfig {
                nats: NatsConfig {
                    servers: vec![url],
                    ..NatsConfig::default()
                },
                ..ClusterConfig::default()
            }),
            listen: any_port,
            admin_listen: Some(any_port),
            store: self.store.clone(),
            relay,
            ..NodeConfig::default()
        }
    }
}
