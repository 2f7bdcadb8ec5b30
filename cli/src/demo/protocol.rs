//! The messages of the demo's child processes, one JSON object a line, and the relay's process.
//! Listeners write them to their parent; workers of agents append them to a file.
//!
//! A child process ends when its standard input closes, so it ends with its parent in any case.

use std::{
    io::Write,
    time::{Duration, SystemTime},
};

use reveille::{
    Node, NodeConfig,
    listener::{ListenerMode, QueryState},
    testing::QueueUsage,
};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;

use super::Mode;

/// A message of a listener's process. Any line from the parent requests a state.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ChildEvent {
    /// The listener waits for the flag.
    Parked,
    /// The flag has released the listener.
    Released {
        /// Time since the unleash. Large for a listener that started late.
        after_us: u64,
    },
    /// The listener's state at this moment.
    State(FleetState),
    /// A worker of an agent has ended.
    Ended { pid: u32, state: FleetState },
    /// The first line of a worker of an agent.
    Started {
        pid: u32,
        /// Time since 1970.
        at_us: u64,
    },
}

/// The state of one listener, or the sum of several.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FleetState {
    /// Number of listeners that have finished their start.
    pub(super) ready: usize,
    /// Number of dequeue tasks, or of running workers of agents.
    pub(super) tasks: usize,
    /// Number of workers that agents have started.
    pub(super) starts: usize,
    pub(super) puts: u64,
    pub(super) deletes: u64,
    /// Storage transactions of all kinds.
    pub(super) transactions: u64,
}

/// Serves a relay on a free port, and prints its URL, and that of its console.
pub(super) async fn serve_relay(store: &str, console: bool) -> anyhow::Result<()> {
    let any_port = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let config = NodeConfig {
        listen: any_port,
        admin_listen: console.then_some(any_port),
        store: store.to_owned(),
        ..NodeConfig::default()
    };
    let node = Node::start(config).await?;
    print_line(&node.url())?;
    if let Some(console) = node.console_url() {
        print_line(&console)?;
    }
    parent_ended().await;
    node.shutdown(Duration::from_millis(500)).await;
    Ok(())
}

/// Sends a message to the parent.
pub(super) fn send(event: &ChildEvent) -> anyhow::Result<()> {
    print_line(&serde_json::to_string(event)?)
}

pub(super) fn print_line(line: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}")?;
    Ok(stdout.flush()?)
}

pub(super) async fn parent_ended() {
    let mut byte = [0; 1];
    let mut stdin = tokio::io::stdin();
    while matches!(stdin.read(&mut byte).await, Ok(1..)) {}
}

impl ChildEvent {
    /// Returns the first line of this process.
    pub(super) fn started() -> Self {
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self::Started {
            pid: std::process::id(),
            at_us: u64::try_from(at.unwrap_or_default().as_micros()).unwrap_or_default(),
        }
    }
}

impl FleetState {
    /// Returns the state of one listener.
    pub(super) fn of(mode: Mode, listener: &QueryState) -> Self {
        let ready = match mode {
            // A group member without work is not woken, so it may have made no get.
            Mode::Pushed | Mode::Agents => listener.mode == ListenerMode::Pushed,
            Mode::Polling => listener.stats.gets > 0,
        };
        Self {
            ready: usize::from(ready),
            tasks: listener.active_dequeue_tasks,
            ..Self::default()
        }
    }

    /// Adds the transactions of a queue.
    pub(super) fn with_usage(self, usage: &QueueUsage) -> Self {
        Self {
            puts: self.puts + usage.puts,
            deletes: self.deletes + usage.deletes,
            transactions: self.transactions + usage.total(),
            ..self
        }
    }

    /// Adds the state of other listeners.
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            ready: self.ready + other.ready,
            tasks: self.tasks + other.tasks,
            starts: self.starts + other.starts,
            puts: self.puts + other.puts,
            deletes: self.deletes + other.deletes,
            transactions: self.transactions + other.transactions,
        }
    }
}
