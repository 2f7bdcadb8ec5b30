//! The settings of a relay in a cluster, and the rules that they share with other settings.

use std::time::Duration;

use crate::{
    error::{Error, ErrorKind, Result},
    relay::nats::{NatsConfig, NatsConnection},
    types::cluster::LifeId,
};

/// Makes a relay a member of a cluster of relays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterConfig {
    /// The broker by which the relays of the cluster hear each other.
    pub nats: NatsConfig,
    /// When a publisher has its answer.
    pub ack: ClusterAck,
}

/// When a relay of a cluster acknowledges a notification.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ClusterAck {
    /// When the broker has returned the frame that tells the other relays. While the broker cannot
    /// be reached, the answer is UNAVAILABLE.
    #[default]
    Broker,
    /// When this relay has counted it. A relay that ends before the other relays are told costs them
    /// one interval of the sentinel.
    Local,
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

    /// Connects to the broker, and hands the connection to the driver of the cluster.
    ///
    /// # Errors
    /// `Invalid` or `Denied` if the settings do not fit the broker.
    pub(super) async fn start(&self, epoch: &str) -> Result<()> {
        let life = LifeId::from_epoch(epoch)
            .ok_or_else(|| Error::new(ErrorKind::Internal, "the epoch names no life"))?;
        let connection = NatsConnection::connect(&self.nats, life).await?;
        // The driver of the cluster takes the connection here, with `self.ack`.
        connection.close().await;
        let message = "cluster: serving a cluster is not built yet";
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}
