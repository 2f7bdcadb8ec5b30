//! The relay for one test.

use std::{net::SocketAddr, time::Duration};

use crate::{
    client::Client,
    error::{Error, ErrorKind, Result},
    relay::{Node, NodeConfig},
    types::{Accepted, Notification, Notifier, QueueAddress},
};

/// A relay for one test, on a free loopback port. Dropping it ends the relay.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> reveille::Result<()> {
/// use reveille::{ListenerId, QueueAddress, SubscribeOptions, testing::TestRelay};
///
/// let relay = TestRelay::start().await?;
/// let orders: QueueAddress = "acct/orders".parse()?;
/// let options = SubscribeOptions::new(ListenerId::new("worker-1")?, [orders.clone()]);
/// let mut listener = relay.client()?.subscribe(options)?;
/// let catch_up = listener.next().await.expect("a catch-up")?; // earlier events are unknown
/// relay.wake(&orders).await?;
/// assert_eq!(listener.next().await.expect("woken")?.notifications, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TestRelay {
    node: Option<Node>,
    config: NodeConfig,
}

impl TestRelay {
    /// Starts a relay with the default configuration on a free port, with a store in memory.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub async fn start() -> Result<Self> {
        Self::with_config(NodeConfig::default()).await
    }

    /// Starts a relay with a configuration, whose addresses are replaced by free loopback ports.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub async fn with_config(mut config: NodeConfig) -> Result<Self> {
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        (config.listen, config.admin_listen) = (any_port, Some(any_port));
        let node = Node::start(config.clone()).await?;
        (config.listen, config.admin_listen) = (node.address(), node.admin_address());
        Ok(Self {
            node: Some(node),
            config,
        })
    }

    /// Returns the relay's URL, which stays the same after restarts.
    pub fn url(&self) -> String {
        let scheme = self.config.tls.as_ref().map_or("http", |_| "https");
        format!("{scheme}://{}", self.config.listen)
    }

    /// Returns the address for health checks and metrics.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.config.admin_listen
    }

    /// Returns a client of this relay, which must not have TLS: such a client needs the authority
    /// (see [`ClientConfig::tls`](crate::ClientConfig::tls)).
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn client(&self) -> Result<Client> {
        Client::new(&self.url())
    }

    /// Notifies a queue's address, as a publisher does.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] while the relay is stopped.
    pub async fn wake(&self, queue: &QueueAddress) -> Result<Accepted> {
        let node = self.node.as_ref().ok_or_else(stopped)?;
        let publisher = node.relay().publisher("test");
        let accepted = publisher
            .notify(vec![Notification::new(queue.clone())])
            .await?;
        Ok(accepted.first().copied().unwrap_or_default())
    }

    /// Stops the relay gracefully; [`TestRelay::restart`] starts it again.
    pub async fn stop(&mut self) {
        if let Some(node) = self.node.take() {
            node.shutdown(Duration::from_secs(5)).await;
        }
    }

    /// Restarts the relay on the same addresses, with a new epoch and no state. A store in memory is
    /// empty again; a store on disk keeps its data.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await;
        self.node = Some(Node::start(self.config.clone()).await?);
        Ok(())
    }

    /// Returns the node; `None` while the relay is stopped.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }
}

fn stopped() -> Error {
    Error::new(ErrorKind::Closed, "the test relay is stopped")
}
