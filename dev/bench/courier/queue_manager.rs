//! Two queue files, each hosted by a process with a relay.
//!
//! A send is one transaction: begin, send, commit. The consumer at B has four tasks, which receive in
//! transactions of up to 32 messages, after a wake-up of B's relay. Publisher and consumer open the
//! queue files themselves, as applications do.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use reveille::{
    Client, ListenerId, Node, NodeConfig, QueuesConfig, SubscribeOptions, Subscription,
    courier::{Destination, QueueManager, QueueManagerConfig},
    queue::{SqliteQueue, WorkQueue as _},
};
use tokio::{
    sync::{Mutex, mpsc},
    task::JoinSet,
};

use super::machines::{Handled, Machines, Target, freeze};
use crate::{args::QueueHostArgs, child, child::Child, usage::Usage};

/// The host processes of two machines, a publisher at A and a consumer at B.
pub(super) struct QueueFiles {
    manager: QueueManager,
    local: Destination,
    remote: Destination,
    stored: Destination,
    stored_queue: SqliteQueue,
    /// Locked for the end only. Empty afterwards.
    hosts: Mutex<Vec<Host>>,
    pids: [u32; 2],
}

/// The process that hosts a queue file.
struct Host {
    process: Child,
    url: String,
    pid: u32,
}

/// The queue of A without a consumer, and the queues of B with and without one.
const LOCAL: &str = "local";
const IN: &str = "in";
const STORED: &str = "stored";
/// Name of the queue file in its machine's directory.
const FILE: &str = "queues.db";
/// Maximum number of messages of one transaction of the consumer.
const BATCH: usize = 32;
/// Number of tasks of the consumer.
const TASKS: usize = 4;

impl QueueFiles {
    pub(super) async fn start(
        directory: &Path,
        handled: mpsc::UnboundedSender<Handled>,
    ) -> Result<Self> {
        let (a, b) = (directory.join("a"), directory.join("b"));
        let host_a = Host::start(&a).await?;
        let host_b = Host::start(&b).await?;
        let manager = open(&a, &host_a).await?;
        manager.queue(LOCAL)?.create().await?;
        let authority = host_b.url.split_once("://").map_or("", |(_, rest)| rest);
        let at_b = |queue| manager.destination(&format!("reveille://{authority}/{queue}"));
        let (remote, stored) = (at_b(IN)?, at_b(STORED)?);
        let consumer = open(&b, &host_b).await?;
        let queue = consumer.queue(IN)?;
        queue.create().await?;
        let stored_queue = consumer.queue(STORED)?;
        stored_queue.create().await?;
        let options = SubscribeOptions::new(ListenerId::new("bench")?, [queue.address().clone()]);
        let wakes = Client::new(&host_b.url)?.subscribe(options)?;
        tokio::spawn(async move {
            // The bench sees the end of the channel.
            if let Err(error) = consume(&consumer, wakes, handled).await {
                tracing::warn!("the consumer has ended: {error:#}");
            }
        });
        Ok(Self {
            local: manager.destination(LOCAL)?,
            remote,
            stored,
            stored_queue,
            manager,
            pids: [host_a.pid, host_b.pid],
            hosts: Mutex::new(vec![host_a, host_b]),
        })
    }
}

#[async_trait]
impl Machines for QueueFiles {
    async fn send(&self, target: Target, body: Vec<u8>) -> Result<()> {
        let destination = match target {
            Target::Local => &self.local,
            Target::Remote => &self.remote,
            Target::Stored => &self.stored,
        };
        let mut transaction = self.manager.begin();
        transaction.send(destination, body).await?;
        transaction.commit().await?;
        Ok(())
    }

    async fn freeze(&self, frozen: bool) -> Result<()> {
        freeze(self.pids[1], frozen)
    }

    async fn stored(&self) -> Result<u64> {
        Ok(self.stored_queue.depth().await?)
    }

    async fn usage(&self) -> [Usage; 3] {
        let [a, b] = self.pids.map(|pid| Usage::of(Some(pid)));
        [a, b, Usage::own()]
    }

    async fn stop(&self) {
        for host in self.hosts.lock().await.drain(..) {
            host.process.stop().await;
        }
    }
}

impl Host {
    async fn start(directory: &Path) -> Result<Self> {
        std::fs::create_dir(directory)
            .with_context(|| format!("{} cannot be created", directory.display()))?;
        let path = directory.join(FILE);
        let path = path.to_str().context("the path is not UTF-8")?;
        let mut process = Child::start("queue-host", &["--path".to_owned(), path.to_owned()])?;
        let line = process.line().await?;
        let (url, pid) = line.split_once(' ').context("no process id")?;
        Ok(Self {
            url: url.to_owned(),
            pid: pid.parse()?,
            process,
        })
    }
}

/// Opens the queue file of a machine as an application.
async fn open(directory: &Path, host: &Host) -> Result<QueueManager> {
    let config = QueueManagerConfig::default();
    let manager = QueueManager::open(directory.join(FILE), config).await?;
    let publisher = Client::new(&host.url)?.publisher("bench");
    Ok(manager.with_notifier(Arc::new(publisher)))
}

/// Receives until the bench has ended.
async fn consume(
    manager: &QueueManager,
    mut wakes: Subscription,
    handled: mpsc::UnboundedSender<Handled>,
) -> Result<()> {
    while let Some(wake) = wakes.next().await {
        wake?;
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            tasks.spawn(drain(manager.clone(), handled.clone()));
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
    }
    Ok(())
}

/// Receives until the queue is empty.
async fn drain(manager: QueueManager, handled: mpsc::UnboundedSender<Handled>) -> Result<()> {
    loop {
        let mut transaction = manager.begin();
        let messages = transaction.receive_many(IN, BATCH).await?;
        if messages.is_empty() {
            return Ok(());
        }
        for message in &messages {
            // The bench has ended if the channel is closed.
            let _ = handled.send(Handled::now(&message.body)?);
        }
        transaction.commit().await?;
    }
}

/// The process of a host: prints its URL and process id, and serves until the parent closes the
/// input.
pub(crate) async fn serve(args: &QueueHostArgs) -> Result<()> {
    let config = NodeConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        admin_listen: None,
        queues: Some(QueuesConfig {
            path: args.path.clone(),
            ..QueuesConfig::default()
        }),
        ..NodeConfig::default()
    };
    let node = Node::start(config).await?;
    println!("{} {}", node.url(), std::process::id());
    child::parent_closed().await;
    node.shutdown(Duration::ZERO).await;
    Ok(())
}
