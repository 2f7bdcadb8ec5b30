//! What the demo's processes say to each other, one JSON object a line, and the relay among them.
//!
//! A process ends when its standard input does: with its parent, however that ends.

use std::{io::Write, time::Duration};

use reveille::{
    Node, NodeConfig,
    listener::{ListenerMode, QueryState},
    queue::QueueUsage,
};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;

use super::Way;

/// What a listener's process tells. A state is asked for by a line, whatever it says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Told {
    /// It waits for the flag.
    Parked,
    /// It was released by the flag.
    Released {
        /// From the unleash to here; a late starter's is large.
        after_us: u64,
    },
    /// What it does just now.
    State(State),
}

/// Listeners at one moment: one of them, or several together.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    /// How many have looked once and know how they will hear of work.
    pub(super) ready: usize,
    /// Dequeue tasks now.
    pub(super) tasks: usize,
    pub(super) puts: u64,
    pub(super) deletes: u64,
    /// Storage transactions of all kinds.
    pub(super) transactions: u64,
}

/// Serves a relay on a free port, and says where.
pub(super) async fn relay(store: &str) -> anyhow::Result<()> {
    let any_port = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let config = NodeConfig {
        listen: any_port,
        admin_listen: None,
        store: store.to_owned(),
        ..NodeConfig::default()
    };
    let node = Node::start(config).await?;
    say(&node.url())?;
    parent_ended().await;
    node.shutdown(Duration::from_millis(500)).await;
    Ok(())
}

/// Tells the parent.
pub(super) fn tell(told: &Told) -> anyhow::Result<()> {
    say(&serde_json::to_string(told)?)
}

fn say(line: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}")?;
    Ok(stdout.flush()?)
}

async fn parent_ended() {
    let mut byte = [0; 1];
    let mut stdin = tokio::io::stdin();
    while matches!(stdin.read(&mut byte).await, Ok(1..)) {}
}

impl State {
    /// Returns what one listener does.
    pub(super) fn of(way: Way, listener: &QueryState) -> Self {
        let ready = match way {
            // Those of its group that there is no work for are not woken.
            Way::Pushed => listener.mode == ListenerMode::Pushed,
            Way::Polling => listener.stats.gets > 0,
        };
        Self {
            ready: usize::from(ready),
            tasks: listener.active_dequeue_tasks,
            ..Self::default()
        }
    }

    /// Adds the transactions of a queue.
    pub(super) fn with(self, usage: &QueueUsage) -> Self {
        Self {
            puts: self.puts + usage.puts,
            deletes: self.deletes + usage.deletes,
            transactions: self.transactions + usage.total(),
            ..self
        }
    }

    /// Adds other listeners.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            ready: self.ready + other.ready,
            tasks: self.tasks + other.tasks,
            puts: self.puts + other.puts,
            deletes: self.deletes + other.deletes,
            transactions: self.transactions + other.transactions,
        }
    }
}
