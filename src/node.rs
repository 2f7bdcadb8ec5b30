//! A whole relay: configuration in, addresses out, until it is shut down.
//!
//! Puts the parts together and owns their order of starting and ending; decides nothing else.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use crate::{
    console::{Console, Figures, Subject},
    error::Result,
    relay::{Relay, RelayConfig},
    server::{Health, Server, ServerConfig, Services},
};

/// How a relay is served.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The relay itself.
    pub relay: RelayConfig,
    /// Where gRPC is served; port 0 is any free one.
    pub listen: SocketAddr,
    /// Where health and metrics are served; `None`: nowhere.
    pub admin_listen: Option<SocketAddr>,
    /// Where flags are kept: `memory:` or `sqlite:PATH`.
    pub store: String,
    /// Connections at one time; further ones wait until one ends.
    pub max_connections: usize,
    /// How often watched flags are read again, in case another program wrote them.
    pub flag_refresh: Duration,
}

/// A relay that is served. Dropping it ends it at once; [`Node::shutdown`] ends it gracefully.
#[derive(Debug)]
pub struct Node {
    relay: Relay,
    server: Server,
    console: Option<Console>,
    health: Health,
    store: String,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            relay: RelayConfig::default(),
            listen: SocketAddr::from(([127, 0, 0, 1], 7600)),
            admin_listen: Some(SocketAddr::from(([127, 0, 0, 1], 7601))),
            store: "memory:".to_owned(),
            max_connections: 100_000,
            flag_refresh: Duration::from_secs(10),
        }
    }
}

impl Node {
    /// Opens the store, starts the relay and listens.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a configuration that breaks a rule, [`ErrorKind::Unavailable`]
    /// where the store cannot be opened or an address cannot be listened on.
    pub async fn start(config: NodeConfig) -> Result<Self> {
        let relay = Relay::start(config.relay)?;
        let draining = CancellationToken::new();
        let services = Services {
            relay: relay.clone(),
            draining: draining.clone(),
        };
        let (routes, health) = services.routes().await?;
        let server_config = ServerConfig {
            listen: config.listen,
            max_connections: config.max_connections,
        };
        let server = Server::start(&server_config, routes, draining)?;
        let console = match config.admin_listen {
            Some(listen) => {
                let subject = Watched {
                    relay: relay.clone(),

                    connections: server.connections(),
                };
                Some(Console::start(listen, Arc::new(subject)).await?)
            }
            None => None,
        };
        Ok(Self {
            relay,
            server,
            console,
            health,
            store: config.store,
        })
    }

    /// Returns where gRPC is served.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns the URL for clients.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Returns where health and metrics are served.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.console.as_ref().map(Console::address)
    }

    /// Returns the relay's life: another one after each start.
    pub fn epoch(&self) -> &str {
        self.relay.epoch()
    }

    /// Returns the store's name, without secrets.
    pub fn store(&self) -> String {
        self.store.to_string()
    }

    /// Returns the relay itself, for publishers and subscribers of this process.
    pub fn relay(&self) -> &Relay {
        &self.relay
    }

    /// Ends gracefully: takes no more, says Goodbye on every stream, and closes what is left after
    /// `grace`.
    pub async fn shutdown(self, grace: Duration) {
        self.health.set(false).await;
        self.relay.drain();
        self.server.shutdown(grace).await;
        self.relay.shutdown().await;
    }
}

/// What the console asks of this node.
struct Watched {
    relay: Relay,
    connections: Arc<std::sync::atomic::AtomicU64>,
}

#[async_trait]
impl Subject for Watched {
    async fn unready(&self) -> Option<String> {
        if self.relay.is_draining() {
            return Some("shutting down".to_owned());
        }
        None
    }

    fn figures(&self) -> Figures {
        use std::sync::atomic::Ordering::Relaxed;
        let (hub, sent) = self.relay.stats();
        Figures {
            notifications: hub.notified,
            wakes: sent.wakes.load(Relaxed),
            entries: sent.entries.load(Relaxed),
            told: sent.notifications.load(Relaxed),
            heartbeats: sent.heartbeats.load(Relaxed),
            timed: hub.timed,
            fanned_out: hub.fanned_out,
            forgotten: hub.forgotten,
            queues: hub.queues,
            subscriptions: hub.subscriptions,
            connections: self.connections.load(Relaxed),
            watchers: 0,
        }
    }
}
