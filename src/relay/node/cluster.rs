//! The settings of a relay in a cluster, and the rules that they share with other settings.

use std::{sync::Arc, time::Duration};

use crate::{
    base::fnv::fnv1a,
    coordination::flag::Flags,
    error::{Error, Result},
    relay::{
        nats::{ClusterDriver, NatsConfig, NatsConnection},
        runtime::{ClusterAck, Relay},
        server::StatsSource,
    },
    store::BlobStore,
};

/// Makes a relay a member of a cluster of relays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterConfig {
    /// The broker by which the relays of the cluster hear each other.
    pub nats: NatsConfig,
    /// When a publisher has its answer.
    pub ack: ClusterAck,
}

/// C15: hands the timers of a relay that ends over to the others.
pub(super) async fn hand_over_timers(relay: &Relay) {
    let handed = relay.hand_over_timers().await;
    if handed.taken > 0 {
        tracing::info!(
            timers = handed.taken,
            "other relays have taken over delayed wake-ups"
        );
    }
    if handed.lost > 0 {
        tracing::warn!(
            timers = handed.lost,
            "no other relay has taken over these delayed wake-ups: the sentinel checks their queues"
        );
    }
}

impl ClusterConfig {
    /// Checks all rules that need neither a file nor the broker. Warns of settings that a cluster
    /// works with, but not well.
    ///
    /// # Errors
    /// `Invalid`, with the setting and its rule.
    pub(super) fn check(&self, store: &str, sentinel: Duration) -> Result<()> {
        self.nats.check()?;
        if store.starts_with("memory:") {
            let rule = "must be shared by all relays of the cluster, so not `memory:`";
            return Err(Error::invalid("store", rule));
        }
        if store.starts_with("sqlite:") {
            tracing::warn!(
                "the store is a file, but all relays of a cluster must share one store: use a \
                 container of a cloud, unless all relays run on this machine"
            );
        }
        if sentinel.is_zero() {
            tracing::warn!(
                "a cluster without the sentinel: a wake-up that is lost between relays is not \
                 made up for; set --sentinel"
            );
        }
        Ok(())
    }

    /// Connects to the broker, and starts the task of the cluster.
    ///
    /// # Errors
    /// `Invalid` or `Denied` if the settings do not fit the broker.
    pub(super) async fn start(
        &self,
        relay: &Relay,
        flags: &Flags,
        store: &dyn BlobStore,
        stats: &StatsSource,
    ) -> Result<Option<ClusterDriver>> {
        let Some(runner) = relay.cluster_runner() else {
            return Ok(None);
        };
        let store = store_hash(&store.to_string());
        let life = runner.run(|node, _, _| {
            node.link_mut().store = store;
            node.link().config.life
        });
        let connection = NatsConnection::connect(&self.nats, life).await?;
        Ok(Some(ClusterDriver::start(
            connection,
            relay,
            runner,
            flags.clone(),
            Arc::new(stats.clone()),
        )))
    }
}

/// Returns the hash of the store's name. A file has one name in all working directories.
fn store_hash(store: &str) -> u64 {
    let file = store.strip_prefix("sqlite:");
    let file = file.and_then(|path| std::fs::canonicalize(path).ok());
    let name = file.map_or_else(|| store.to_owned(), |path| path.display().to_string());
    fnv1a(name.bytes())
}
