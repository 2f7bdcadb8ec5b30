//! The server of one run: a relay, or a nats-server, in a process of its own.

use std::{net::SocketAddr, process::Stdio, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use reveille::{Node, NodeConfig, RelayConfig};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::Command,
};

use super::{
    RelayArgs, Side,
    helper::{self, Helper},
    usage::Usage,
};

/// A server that runs, or one that was named.
#[derive(Debug)]
pub(super) struct Broker {
    pub(super) side: Side,
    /// The relay's URL, or the nats-server's host and port.
    pub(super) target: String,
    pid: Option<u32>,
    helper: Option<Helper>,
}

/// Lets the nats-server finish: by default it cuts off a subscriber that is 10 s or 64 MB behind,
/// which loses messages, and a burst brings all of its subscribers there.
const PATIENT: &str = "write_deadline: \"120s\"\nmax_pending: 1GB\n";

impl Broker {
    /// Starts a server; `relay` is the URL of one that runs already.
    pub(super) async fn start(side: Side, relay: Option<&str>) -> Result<Self> {
        if let Some(relay) = relay {
            return Ok(Self {
                side,
                target: relay.to_owned(),
                pid: None,
                helper: None,
            });
        }
        let name = match side {
            Side::Reveille => "relay",
            Side::Nats | Side::RawNats => {
                ensure!(
                    is_on_path("nats-server"),
                    "nats-server is not on the PATH; on Debian and Ubuntu the package \
                     `nats-server` has it"
                );
                "nats"
            }
        };
        Self::spawn(side, name, &[]).await
    }

    /// Starts a relay that has somebody look unasked so often; 0 for never.
    pub(super) async fn relay(sentinel: Duration) -> Result<Self> {
        let sentinel = format!("{}ms", sentinel.as_millis());
        Self::spawn(
            Side::Reveille,
            "relay",
            &["--sentinel".to_owned(), sentinel],
        )
        .await
    }

    /// Starts a relay whose flags are in this store.
    pub(super) async fn relay_on(store: &str) -> Result<Self> {
        let args = ["--store".to_owned(), store.to_owned()];
        Self::spawn(Side::Reveille, "relay", &args).await
    }

    async fn spawn(side: Side, name: &'static str, args: &[String]) -> Result<Self> {
        let mut helper = Helper::start(name, args)?;
        let line = helper.line().await?;
        let (target, pid) = match line.split_once(' ') {
            Some((target, pid)) => (target.to_owned(), pid.parse().ok()),
            None => (line, helper.pid()),
        };
        Ok(Self {
            side,
            target,
            pid,
            helper: Some(helper),
        })
    }

    /// Returns what the server has used so far.
    pub(super) fn usage(&self) -> Usage {
        Usage::of(self.pid)
    }

    /// Ends the server, unless it was there before.
    pub(super) async fn stop(self) {
        if let Some(helper) = self.helper {
            helper.stop().await;
        }
    }
}

/// The relay's process: prints its URL, and serves until its parent lets go.
pub(super) async fn serve_relay(args: &RelayArgs) -> Result<()> {
    helper::raise_limits();
    let mut relay = RelayConfig::default();
    relay.sentinel_interval = args.sentinel.unwrap_or(relay.sentinel_interval);
    let config = NodeConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        admin_listen: None,
        store: args.store.clone(),
        relay,
        ..NodeConfig::default()
    };
    let node = Node::start(config).await?;
    println!("{}", node.url());
    helper::abandoned().await;
    node.shutdown(Duration::ZERO).await;
    Ok(())
}

/// The process that holds a nats-server: prints its address and process id, and kills it when the
/// parent lets go. A nats-server by itself would outlive a parent that was killed.
pub(super) async fn serve_nats() -> Result<()> {
    helper::raise_limits();
    let mut server = Command::new("nats-server")
        .args(["--addr", "127.0.0.1", "--port", "-1"])
        .args(["--config", "/dev/stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("nats-server cannot be started")?;
    let mut settings = server.stdin.take().context("its input is piped")?;
    settings.write_all(PATIENT.as_bytes()).await?;
    drop(settings);
    let mut lines = BufReader::new(server.stderr.take().context("its log is piped")?).lines();
    let address = loop {
        let Some(line) = lines.next_line().await? else {
            bail!("nats-server ended before it listened");
        };
        if let Some((_, address)) = line.split_once("Listening for client connections on ") {
            break address.trim().to_owned();
        }
    };
    let pid = server.id().context("nats-server has ended")?;
    println!("{address} {pid}");
    tokio::select! {
        () = helper::abandoned() => {}
        // Its log is read on, so that it never waits for its reader.
        () = async { while let Ok(Some(_)) = lines.next_line().await {} } => {
            bail!("nats-server ended by itself");
        }
    }
    server.kill().await.context("nats-server cannot be ended")
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}
