//! A complete relay node: its configuration, start and shutdown.
//!
//! Assembles the parts and defines their order of starting and ending. Contains no other logic.

#[cfg(feature = "nats")]
mod cluster;
mod metrics;
#[cfg(feature = "courier")]
mod queues;

#[cfg(feature = "courier")]
use std::path::PathBuf;
use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

#[cfg(feature = "nats")]
pub use self::cluster::ClusterConfig;
use self::metrics::RelayStatus;
#[cfg(feature = "courier")]
pub use self::queues::{QueueNode, QueueNodeConfig};
#[cfg(feature = "nats")]
use crate::relay::nats::ClusterDriver;
use crate::{
    base::{clock::wall, task::Scope},
    console::{Console, ConsolePort, StatusSource},
    coordination::flag::{self, Flags, FlagsConfig, WallClock},
    error::{Error, Result},
    relay::{
        console::{self, ConsoleMode},
        runtime::{Relay, RelayConfig},
        server::{
            Access, AccessFiles, ConsoleDoor, LISTS_AT_ONCE, LocalCalls, MAX_CALLS, Port, Server,
            ServerConfig, ServerLimits, ServerTls, Services, StatsSource,
        },
    },
    store::{self, BlobStore},
};
#[cfg(feature = "courier")]
use crate::{
    courier::{Host, HostConfig, QueueManager, QueueManagerConfig},
    types::{ListenerId, Selector, SubscribeOptions},
};

/// The configuration of a relay node.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The relay's configuration.
    pub relay: RelayConfig,
    /// Address of the gRPC port; port 0 is any free one.
    pub listen: SocketAddr,
    /// TLS on the gRPC port. Default: plain text.
    pub tls: Option<ServerTls>,
    /// Who may do what. Default: every caller may do everything.
    pub access: Option<AccessFiles>,
    /// Address of the admin port with health and metrics; `None`: no such port.
    pub admin_listen: Option<SocketAddr>,
    /// The store of the flags: `memory:`, `sqlite:PATH` or a container of a cloud, as accepted by
    /// [`store::open`](crate::store::open). Relays on one store have the same flags.
    pub store: String,
    /// Host names that requests to the admin port may state, in addition to IP addresses and
    /// `localhost`. Requests with another host are refused.
    pub admin_hosts: Vec<String>,
    /// What the page on the admin port may do. Default: act on loopback and where callers must be
    /// known, otherwise show.
    pub console: Option<ConsoleMode>,
    /// The limits of connections, streams and memory.
    pub limits: ServerLimits,
    /// Serves reflection, with which tools read the services of the gRPC port.
    pub reflection: bool,
    /// Returns the number of log lines that were dropped because their reader stalled, for the
    /// metrics.
    pub log_lines_dropped: Option<fn() -> u64>,
    /// Interval of listing the flags, in case another program wrote one that is watched; zero is
    /// never.
    pub flag_refresh: Duration,
    /// Maximum flags set at one time; setting a further one is refused without any effect.
    pub max_flags: usize,
    /// Maximum distinct flags that clients watch at one time; a watch of a further one is refused.
    pub max_watched_flags: usize,
    /// Hosts the queues of this directory: moves their messages to other machines and takes messages
    /// over from other machines, on the gRPC port. Default: none.
    #[cfg(feature = "courier")]
    pub queues: Option<QueuesConfig>,
    /// Makes the relay a member of a cluster of relays. Default: none; the relay then connects to no
    /// broker.
    #[cfg(feature = "nats")]
    pub cluster: Option<ClusterConfig>,
}

/// The queues that a node hosts.
#[cfg(feature = "courier")]
#[derive(Debug, Clone, Default)]
pub struct QueuesConfig {
    /// The queue file.
    pub path: PathBuf,
    /// The limits, routes and names of the queues.
    pub manager: QueueManagerConfig,
    /// The hand-over to other machines.
    pub host: HostConfig,
}

/// A running relay node. Dropping it ends it at once; [`Node::shutdown`] ends it gracefully.
#[derive(Debug)]
pub struct Node {
    relay: Relay,
    server: Server,
    has_tls: bool,
    access: Access,
    console: Option<Console>,
    door: ConsoleDoor,
    store: Arc<dyn BlobStore>,
    flags: Flags,
    #[cfg(feature = "courier")]
    queues: Option<Arc<Host>>,
    #[cfg(feature = "nats")]
    cluster: Option<ClusterDriver>,
    /// Runs the flags' timers.
    scope: Scope,
}

/// With a shorter interval a relay would do little else than read flags.
const SHORTEST_REFRESH: Duration = Duration::from_millis(100);

impl Default for NodeConfig {
    fn default() -> Self {
        let flags = FlagsConfig::default();
        Self {
            relay: RelayConfig::default(),
            listen: SocketAddr::from(([127, 0, 0, 1], 7600)),
            tls: None,
            access: None,
            admin_listen: Some(SocketAddr::from(([127, 0, 0, 1], 7601))),
            store: "memory:".to_owned(),
            admin_hosts: Vec::new(),
            console: None,
            limits: ServerLimits::default(),
            reflection: true,
            log_lines_dropped: None,
            flag_refresh: Duration::from_secs(10),
            max_flags: flags.max_flags,
            max_watched_flags: flags.max_watched_flags,
            #[cfg(feature = "courier")]
            queues: None,
            #[cfg(feature = "nats")]
            cluster: None,
        }
    }
}

/// Returns what the page may do.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if anybody on the network could act.
fn console_mode(config: &NodeConfig) -> Result<ConsoleMode> {
    let is_safe = config.access.is_some()
        || config
            .admin_listen
            .is_none_or(|listen| listen.ip().is_loopback());
    match config.console {
        Some(ConsoleMode::Act) if !is_safe => Err(Error::invalid(
            "console",
            "may act on loopback only, or where callers must be known: state --auth",
        )),
        Some(stated) => Ok(stated),
        None if is_safe => Ok(ConsoleMode::Act),
        None => Ok(ConsoleMode::Read),
    }
}

fn server_config(config: &NodeConfig, access: &Access) -> ServerConfig {
    ServerConfig {
        listen: config.listen,
        limits: config.limits.clone(),
        stream_max_age: config.relay.stream_max_age,
        tls: config.tls.clone(),
        access: access.clone(),
    }
}

impl Node {
    /// Opens the store, starts the relay and listens.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a configuration that breaks a rule,
    /// [`ErrorKind::Denied`](crate::ErrorKind::Denied) if the broker of the cluster refuses the
    /// login, [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the store cannot be
    /// opened or the node cannot listen on an address.
    pub async fn start(config: NodeConfig) -> Result<Self> {
        if !config.flag_refresh.is_zero() && config.flag_refresh < SHORTEST_REFRESH {
            return Err(Error::invalid(
                "flag_refresh",
                "must be 0 or at least 100ms",
            ));
        }
        let access = Access::load(config.access.as_ref())?;
        #[cfg(feature = "nats")]
        if let Some(cluster) = &config.cluster {
            cluster.check(&config.store, config.relay.sentinel_interval)?;
        }
        let mode = console_mode(&config)?;
        let server_config = server_config(&config, &access);
        // A relay that cannot serve must not become a member of its cluster.
        let port = Port::bind(&server_config)?;
        let admin_port = match config.admin_listen.map(ConsolePort::bind) {
            Some(bound) => Some(bound.await?),
            None => None,
        };
        let store = store::open(&config.store).await?;
        #[cfg(feature = "nats")]
        let ack = config.cluster.as_ref().map(|cluster| cluster.ack);
        #[cfg(not(feature = "nats"))]
        let ack = None;
        let relay = Relay::start_with(config.relay.clone(), ack)?;
        let scope = Scope::new();
        let flags = start_flags(&store, &config, &scope);
        let stats = StatsSource::new(relay.clone(), flags.clone(), Arc::clone(&store));
        #[cfg(feature = "nats")]
        let cluster = match &config.cluster {
            Some(cluster) => Box::pin(cluster.start(&relay, &flags, &*store, &stats)).await?,
            None => None,
        };
        #[cfg(feature = "courier")]
        let queues = host(&relay, config.queues.as_ref()).await?;
        let draining = CancellationToken::new();
        let door = ConsoleDoor::default();
        let services = Services {
            #[cfg(feature = "courier")]
            queues: queues.clone(),
            relay: relay.clone(),
            flags: flags.clone(),
            lists: Semaphore::new(LISTS_AT_ONCE),
            calls: Semaphore::new(MAX_CALLS),
            draining: draining.clone(),
            access: access.clone(),
            console: door.clone(),
            stats: stats.clone(),
            reflection: config.reflection,
        };
        let (routes, health) = services.routes()?;
        let calls = LocalCalls {
            routes: routes.clone(),
            access: access.clone(),
            door: door.clone(),
        };
        let limited = relay.clone();
        let limit = move |is_short| limited.hub().set_short_of_memory(is_short);
        let server = Server::start(port, &server_config, routes, draining, limit)?;
        stats.set_connections(server.connections());
        let status = Arc::new(RelayStatus {
            relay: relay.clone(),
            flags: flags.clone(),
            store: Arc::clone(&store),
            connections: server.connections(),
            access: access.clone(),
            log_lines_dropped: config.log_lines_dropped,
            #[cfg(feature = "courier")]
            queues: queues.clone(),
        });
        health.follow(Arc::clone(&status) as Arc<dyn StatusSource>);
        let console = admin_port.map(|port| {
            let pages = console::routes(relay.clone(), calls, mode);
            Console::serve(port, &config.admin_hosts, status, access.admission(), pages)
        });
        if let Some(console) = console.as_ref().filter(|_| mode != ConsoleMode::Off) {
            door.open_at(console.address());
        }
        Ok(Self {
            relay,
            has_tls: server_config.tls.is_some(),
            access,
            server,
            console,
            door,
            store,
            flags,
            #[cfg(feature = "courier")]
            queues,
            #[cfg(feature = "nats")]
            cluster,
            scope,
        })
    }

    /// Returns the address of the gRPC port.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns the URL for clients.
    pub fn url(&self) -> String {
        let scheme = if self.has_tls { "https" } else { "http" };
        format!("{scheme}://{}", self.address())
    }

    /// Reads the rules of access again, with all files that they name, and opens the audit log again.
    /// Returns whether they have changed. The node does the same every ten seconds.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) with the rule that a file breaks: what this
    /// file said before stays in use, and the others are applied.
    pub async fn reload_access(&self) -> Result<bool> {
        self.access.reload().await
    }

    /// Returns the address of the admin port.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.console.as_ref().map(Console::address)
    }

    /// Returns the URL of the page for operators; `None` without one.
    pub fn console_url(&self) -> Option<String> {
        let address = self.door.address()?;
        Some(format!("http://{address}/"))
    }

    /// Returns the maximum number of connections.
    pub fn max_connections(&self) -> usize {
        self.server.connections().max()
    }

    /// Returns the maximum of this process's resident memory in bytes; `None` without a limit.
    pub fn max_memory(&self) -> Option<u64> {
        self.server.connections().memory.limit()
    }

    /// Returns the relay's epoch, which is new after each start.
    pub fn epoch(&self) -> &str {
        self.relay.epoch()
    }

    /// Returns the store's name, without secrets.
    pub fn store(&self) -> String {
        self.store.to_string()
    }

    /// Returns the relay, for publishers and subscribers of this process.
    pub fn relay(&self) -> &Relay {
        &self.relay
    }

    /// Returns the hosted queues.
    #[cfg(feature = "courier")]
    pub fn queues(&self) -> Option<&QueueManager> {
        self.queues.as_deref().map(Host::manager)
    }

    /// Waits until the node must end by itself; a node without a cluster never does.
    pub async fn failed(&self) -> Error {
        #[cfg(feature = "nats")]
        if let Some(cluster) = &self.cluster {
            return cluster.failed().await;
        }
        std::future::pending().await
    }

    /// Waits until a caller has asked for the end of this relay (`Admin.Drain`). The drain has begun
    /// then; [`Node::shutdown`] completes it.
    pub async fn drain_requested(&self) {
        self.relay.drain_began().await;
    }

    /// Ends gracefully: refuses new streams, and sends Goodbye on every stream within
    /// [`RelayConfig::drain`]. Then it refuses notifications, and closes the remaining connections
    /// after `grace`.
    pub async fn shutdown(self, grace: Duration) {
        self.access.record_own("drain", "the relay shuts down");
        // A drain that a caller has begun keeps its span.
        if !self.relay.is_draining() {
            self.relay.drain();
        }
        self.relay.all_streams_told(|| self.flags.watchers()).await;
        self.relay.refuse_notifications();
        // All streams end, so that groups pass their work on (C11) and busy listeners have timers.
        self.server.shutdown(grace).await;
        self.scope.shutdown().await;
        #[cfg(feature = "courier")]
        if let Some(queues) = self.queues {
            queues.shutdown().await;
        }
        // C15: timers are handed over here.
        #[cfg(feature = "nats")]
        if let Some(cluster) = self.cluster {
            cluster::hand_over_timers(&self.relay).await;
            cluster.leave().await;
        }
        self.relay.shutdown().await;
        if let Some(console) = self.console {
            console.shutdown().await;
        }
    }
}

fn start_flags(store: &Arc<dyn BlobStore>, config: &NodeConfig, scope: &Scope) -> Flags {
    let limits = FlagsConfig {
        max_flags: config.max_flags,
        max_watched_flags: config.max_watched_flags,
        ..FlagsConfig::default()
    };
    let flags = Flags::new(Arc::clone(store), limits);
    let wall: WallClock = Arc::new(wall);
    flag::start(&flags, config.flag_refresh, &wall, scope);
    flags
}

/// Opens the queue file and starts to host it. The relay is its notifier, and announces the messages
/// that other processes send.
#[cfg(feature = "courier")]
async fn host(relay: &Relay, queues: Option<&QueuesConfig>) -> Result<Option<Arc<Host>>> {
    let Some(queues) = queues else {
        return Ok(None);
    };
    let notifier = Arc::new(relay.publisher("queues"));
    let manager = QueueManager::host(&queues.path, queues.manager.clone()).await?;
    let manager = manager.with_notifier(notifier);
    let address = manager.outgoing_address()?;
    let options = SubscribeOptions::new(ListenerId::new("queues")?, [Selector::from(address)]);
    let wakes = relay.subscribe(options)?;
    let host = Host::start(manager, queues.host.clone(), Some(Box::new(wakes)));
    host.await.map(Arc::new).map(Some)
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };

    use super::*;

    async fn on_free_ports() -> Node {
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = NodeConfig {
            listen: any_port,
            admin_listen: Some(any_port),
            ..NodeConfig::default()
        };
        Node::start(config).await.expect("started")
    }

    #[tokio::test]
    async fn a_dropped_node_closes_its_port_and_its_connections() {
        let node = on_free_ports().await;
        let address = node.address();
        let mut held = TcpStream::connect(address).await.expect("it listens");
        drop(node);
        let closed = tokio::time::timeout(Duration::from_secs(4), held.read(&mut [0])).await;
        assert!(matches!(closed, Ok(Ok(0) | Err(_))), "{closed:?}");
        while TcpStream::connect(address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn half_a_request_on_the_admin_port_does_not_delay_the_shutdown() {
        let node = on_free_ports().await;
        let admin = node.admin_address().expect("it has one");
        let mut half = TcpStream::connect(admin).await.expect("it listens");
        half.write_all(b"GET /livez HTTP/1.1\r\n")
            .await
            .expect("sent");
        tokio::time::sleep(Duration::from_millis(100)).await;
        let ended = node.shutdown(Duration::from_secs(1));
        tokio::time::timeout(Duration::from_secs(20), ended)
            .await
            .expect("it ends");
    }
}
