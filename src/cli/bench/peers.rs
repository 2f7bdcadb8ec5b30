//! The peers' processes: each starts a server, and kills it when the parent lets go.
//!
//! A server by itself would outlive a parent that was killed. Each prints the server's address and
//! process id.

use std::{net::TcpListener, process::Stdio};

use anyhow::{Context, Result, bail};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader, Lines},
    process::{Child, Command},
};

use super::helper;

/// Lets the nats-server finish: by default it cuts off a subscriber that is 10 s or 64 MB behind,
/// which loses messages, and a burst brings all of its subscribers there.
const NATS: &str = "write_deadline: \"120s\"\nmax_pending: 1GB\n";
/// Lets the redis-server finish, for the same reason: by default it cuts off a subscriber that is 32
/// MB behind, or 8 MB for a minute. It stores nothing.
const REDIS: [&str; 10] = [
    "--bind",
    "127.0.0.1",
    "--save",
    "",
    "--appendonly",
    "no",
    "--client-output-buffer-limit",
    "pubsub 0 0 0",
    "--maxclients",
    "100000",
];
/// Another program may take the port that was free a moment ago.
const ATTEMPTS: usize = 5;

/// Holds a nats-server.
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
    settings.write_all(NATS.as_bytes()).await?;
    drop(settings);
    let mut log = BufReader::new(server.stderr.take().context("its log is piped")?).lines();
    let listening = "Listening for client connections on ";
    let Some(line) = find(&mut log, listening).await? else {
        bail!("nats-server ended before it listened");
    };
    let address = line.rsplit(listening).next().unwrap_or_default().trim();
    hold(server, log, address, "nats-server").await
}

/// Holds a redis-server.
pub(super) async fn serve_redis() -> Result<()> {
    helper::raise_limits();
    for _ in 0..ATTEMPTS {
        // It chooses no port by itself.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut server = Command::new("redis-server")
            .args(["--port", &port.to_string()])
            .args(REDIS)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("redis-server cannot be started")?;
        let mut log = BufReader::new(server.stdout.take().context("its log is piped")?).lines();
        if find(&mut log, "Ready to accept connections")
            .await?
            .is_some()
        {
            let address = format!("127.0.0.1:{port}");
            return hold(server, log, &address, "redis-server").await;
        }
    }
    bail!("redis-server ended before it listened, {ATTEMPTS} times")
}

/// Returns the next line that holds `words`; `None` where the log ends before.
async fn find(
    log: &mut Lines<BufReader<impl AsyncRead + Unpin>>,
    words: &str,
) -> Result<Option<String>> {
    while let Some(line) = log.next_line().await? {
        if line.contains(words) {
            return Ok(Some(line));
        }
    }
    Ok(None)
}

/// Prints where the server is, and kills it when the parent lets go.
async fn hold(
    mut server: Child,
    mut log: Lines<BufReader<impl AsyncRead + Unpin>>,
    address: &str,
    name: &str,
) -> Result<()> {
    let pid = server.id().with_context(|| format!("{name} has ended"))?;
    println!("{address} {pid}");
    tokio::select! {
        () = helper::abandoned() => {}
        // Its log is read on, so that it never waits for its reader.
        () = async { while let Ok(Some(_)) = log.next_line().await {} } => {
            bail!("{name} ended by itself");
        }
    }
    let killed = server.kill().await;
    killed.with_context(|| format!("{name} cannot be ended"))
}
