//! The queue file of machine A, and a relay that is notified of its messages.
//!
//! A send is one transaction: begin, send, commit. The relay is a separate process; the publisher
//! opens the queue file itself, as an application does.

use std::{path::Path, sync::Arc};

use anyhow::{Result, bail};
use async_trait::async_trait;
use reveille::{
    Client,
    courier::{Destination, QueueManager, QueueManagerConfig},
    queue::WorkQueue as _,
};
use tokio::sync::Mutex;

use super::machines::{Machines, Target};
use crate::{args::Server, broker::Broker, usage::Usage};

/// The queue file of A.
pub(super) struct QueueFiles {
    manager: QueueManager,
    local: Destination,
    /// Locked for reading the usage and for the end. `None` afterwards.
    relay: Mutex<Option<Broker>>,
}

/// The queue of A without a consumer.
const LOCAL: &str = "local";
/// Name of the queue file in its machine's directory.
const FILE: &str = "queues.db";

impl QueueFiles {
    pub(super) async fn start(directory: &Path) -> Result<Self> {
        let relay = Broker::start(Server::Reveille, None).await?;
        let config = QueueManagerConfig::default();
        let manager = QueueManager::open(directory.join(FILE), config).await?;
        let publisher = Client::new(&relay.target)?.publisher("bench");
        let manager = manager.with_notifier(Arc::new(publisher));
        manager.queue(LOCAL)?.create().await?;
        Ok(Self {
            local: manager.destination(LOCAL)?,
            manager,
            relay: Mutex::new(Some(relay)),
        })
    }
}

#[async_trait]
impl Machines for QueueFiles {
    fn hands_over(&self) -> bool {
        false
    }

    async fn send(&self, target: Target, body: Vec<u8>) -> Result<()> {
        if target == Target::Remote {
            bail!("the hand-over is not measured");
        }
        let mut transaction = self.manager.begin();
        transaction.send(&self.local, body).await?;
        transaction.commit().await?;
        Ok(())
    }

    async fn usage(&self) -> [Usage; 3] {
        let relay = self.relay.lock().await;
        let relay = relay.as_ref().map(Broker::usage).unwrap_or_default();
        [relay, Usage::default(), Usage::own()]
    }

    async fn stop(&self) {
        let relay = self.relay.lock().await.take();
        if let Some(relay) = relay {
            relay.stop().await;
        }
    }
}
