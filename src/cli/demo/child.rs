//! The demo's own processes: each tells what happens to it, one JSON object a line, and ends when
//! its parent does.

use std::{
    io::Write,
    time::{Duration, SystemTime},
};

use anyhow::Context;
use reveille::{
    Client, FlagName, FlagWatch, ListenerId, Node, NodeConfig, QueueAddress, SubscribeOptions,
};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;

use super::{FLAG, QUEUE};

/// What a listener's process tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Told {
    /// It was woken.
    Woken {
        reason: String,
        notifications: u64,
        /// From the publisher's call to here.
        after_us: u64,
    },
    /// It was released by the flag.
    Released {
        generation: u64,
        /// From the unleash to here; a late starter's is large.
        after_us: u64,
    },
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

/// Listens on the queue and waits for the flag, both at once.
pub(super) async fn listener(relay: &str, id: &str) -> anyhow::Result<()> {
    let client = Client::new(relay)?;
    let id = ListenerId::new(id)?;
    let queue: QueueAddress = QUEUE.parse()?;
    let mut options = SubscribeOptions::new(id.clone(), [queue]);
    options.heartbeat = Duration::from_secs(1);
    let mut wakes = client.subscribe(options)?;
    let mut watch = client.watch_flag(FlagName::new(FLAG)?, id);
    let mut released = false;
    let mut ended = std::pin::pin!(parent_ended());
    loop {
        tokio::select! {
            () = &mut ended => return Ok(()),
            work = wakes.next() => {
                let work = work.context("the subscription ended")??;
                let told = Told::Woken {
                    reason: work.reason.to_string(),
                    notifications: work.notifications,
                    after_us: since(work.published_at),
                };
                say(&serde_json::to_string(&told)?)?;
            }
            state = FlagWatch::next(&mut watch), if !released => {
                let state = state.context("the watch ended")??;
                if state.set {
                    released = true;
                    let told = Told::Released { generation: state.generation, after_us: since(state.set_at) };
                    say(&serde_json::to_string(&told)?)?;
                    watch.ack(state.generation).await?;
                }
            }
        }
    }
}

fn since(at: Option<SystemTime>) -> u64 {
    let span = at.and_then(|at| at.elapsed().ok()).unwrap_or_default();
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

fn say(line: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}")?;
    Ok(stdout.flush()?)
}

/// Ends when standard input does: with the parent, however it ends.
async fn parent_ended() {
    let mut byte = [0; 1];
    let mut stdin = tokio::io::stdin();
    while matches!(stdin.read(&mut byte).await, Ok(1..)) {}
}
