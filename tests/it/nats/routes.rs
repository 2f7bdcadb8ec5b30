//! Two NATS servers whose route can be cut, for the tests of parted brokers.

use std::time::Duration;

use async_nats::Client;
use futures_util::StreamExt as _;

use crate::support::{Wire, nats::NatsServer, until, within};

/// Two routed servers. The second one reaches the first through [`RoutedServers::route`].
#[derive(Debug)]
pub(crate) struct RoutedServers {
    pub(crate) first: NatsServer,
    pub(crate) second: NatsServer,
    pub(crate) route: Wire,
}

impl RoutedServers {
    pub(crate) async fn start() -> Self {
        // One connection for all subjects, and no address of one server at the other or at clients:
        // a server would go round the wire.
        let cluster = |routes: &str| {
            format!(
                "cluster {{ name: test, listen: \"127.0.0.1:-1\", pool_size: -1, no_advertise: \
                 true, {routes} }}"
            )
        };
        let first = NatsServer::with_config(&cluster(""));
        let route = Wire::to(([127, 0, 0, 1], first.cluster_port()).into()).await;
        let routes = format!("routes: [\"nats://{}\"]", route.address());
        let second = NatsServer::with_config(&cluster(&routes));
        Self {
            first,
            second,
            route,
        }
    }
}

/// Returns whether a message that a client of one server publishes reaches one of the other.
pub(crate) async fn passes(from: &Client, to: &Client) -> bool {
    let mut arriving = to.subscribe("probe").await.expect("subscribed");
    to.flush().await.expect("written");
    // A subscription takes effect at the other server a moment later.
    for _ in 0..20 {
        from.publish("probe", "".into()).await.expect("sent");
        let arrived = tokio::time::timeout(Duration::from_millis(20), arriving.next()).await;
        if arrived.is_ok() {
            return true;
        }
    }
    false
}

#[tokio::test]
async fn two_servers_are_parted_and_joined() {
    let servers = RoutedServers::start().await;
    let connect = async |server: &NatsServer| {
        let connected = within("a connection", async_nats::connect(server.url())).await;
        connected.expect("connected")
    };
    let first = connect(&servers.first).await;
    let second = connect(&servers.second).await;
    until("joined", async || passes(&first, &second).await).await;
    servers.route.cut();
    until("parted", async || !passes(&first, &second).await).await;
    assert!(!passes(&second, &first).await, "both ways");
    servers.route.mend();
    until("joined", async || passes(&first, &second).await).await;
}
