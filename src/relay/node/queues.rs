//! A process that hosts a queue file without a relay.
//!
//! It serves the hand-over and the health service only. With the client of a relay it notifies the
//! listeners there, and is woken by the sends of other processes of this machine.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::QueuesConfig;
use crate::{
    client::{Client, PublisherOptions},
    courier::{Host, QueueManager},
    error::Result,
    relay::server::{
        Access, AccessFiles, Port, Server, ServerConfig, ServerLimits, ServerTls, queue_routes,
    },
    types::{ListenerId, Selector, SubscribeOptions, WakeStream},
};

/// The configuration of a [`QueueNode`].
#[derive(Debug, Clone)]
pub struct QueueNodeConfig {
    /// The queue file, its limits and its routes.
    pub queues: QueuesConfig,
    /// Address of the gRPC port; port 0 is any free one.
    pub listen: SocketAddr,
    /// TLS on the gRPC port. Default: plain text.
    pub tls: Option<ServerTls>,
    /// Who may hand messages over. Default: every machine.
    pub access: Option<AccessFiles>,
    /// The relay whose listeners are woken. Default: none. Then consumers of the queues poll, and
    /// messages to other machines that another process has sent wait for up to
    /// [`HostConfig::interval`](crate::courier::HostConfig::interval).
    pub relay: Option<Client>,
    /// The limits of connections, streams and memory.
    pub limits: ServerLimits,
}

/// A running host of a queue file, without a relay. Dropping it ends it at once;
/// [`QueueNode::shutdown`] ends it gracefully.
#[derive(Debug)]
pub struct QueueNode {
    host: Arc<Host>,
    server: Server,
    access: Access,
}

/// The name of the host at its relay.
const NAME: &str = "queues";
/// Time limit of a notification. While the relay does not answer, the host looks into the file for
/// other machines' messages this often only.
const NOTIFY_DEADLINE: Duration = Duration::from_secs(1);

impl Default for QueueNodeConfig {
    fn default() -> Self {
        Self {
            queues: QueuesConfig::default(),
            listen: SocketAddr::from(([127, 0, 0, 1], 7610)),
            tls: None,
            access: None,
            relay: None,
            limits: ServerLimits::default(),
        }
    }
}

impl QueueNode {
    /// Opens the queue file as its host, and listens.
    ///
    /// # Errors
    /// As [`QueueManager::host`]; [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the
    /// node cannot listen on its address.
    pub async fn start(config: QueueNodeConfig) -> Result<Self> {
        let access = Access::load(config.access.as_ref())?;
        let QueuesConfig {
            path,
            manager,
            host,
        } = config.queues;
        let mut manager = QueueManager::host(path, manager).await?;
        let mut wakes: Option<Box<dyn WakeStream>> = None;
        if let Some(relay) = config.relay {
            let options = PublisherOptions {
                name: NAME.to_owned(),
                deadline: NOTIFY_DEADLINE,
                ..PublisherOptions::default()
            };
            manager = manager.with_notifier(Arc::new(relay.publisher_with(options)));
            let selector = Selector::from(manager.outgoing_address()?);
            let options = SubscribeOptions::new(ListenerId::new(NAME)?, [selector]);
            wakes = Some(Box::new(relay.subscribe(options)?));
        }
        let host = Arc::new(Host::start(manager, host, wakes).await?);
        let draining = CancellationToken::new();
        let routes = queue_routes(Arc::clone(&host), draining.clone(), access.clone());
        let server = ServerConfig {
            listen: config.listen,
            limits: config.limits,
            stream_max_age: Duration::ZERO,
            tls: config.tls,
            access: access.clone(),
        };
        let server = Server::start(Port::bind(&server)?, &server, routes, draining, |_| ())?;
        Ok(Self {
            host,
            server,
            access,
        })
    }

    /// Returns the address of the gRPC port.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Reads the rules of access again, as [`Node::reload_access`](crate::Node::reload_access).
    ///
    /// # Errors
    /// As there.
    pub async fn reload_access(&self) -> Result<bool> {
        self.access.reload().await
    }

    /// Returns the hosted queues.
    pub fn manager(&self) -> &QueueManager {
        self.host.manager()
    }

    /// Ends gracefully: refuses new connections, ends the hand-over between two messages, and closes
    /// the remaining connections after `grace`.
    pub async fn shutdown(self, grace: Duration) {
        self.server.shutdown(grace).await;
        self.host.shutdown().await;
    }
}
