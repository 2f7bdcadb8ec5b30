//! The peers' processes: each starts a server, and kills it when the parent closes the input.
//!
//! Without this process a server would outlive a killed parent. Each prints the server's address
//! and process id.

use std::{net::TcpListener, process::Stdio};

use anyhow::{Context, Result, bail};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader, Lines},
    process::{Child, Command},
};

use super::{args::NatsArgs, child};

/// By default a nats-server disconnects a subscriber that is 10 s or 64 MB behind, which loses
/// messages. In a burst all subscribers are that far behind.
const NATS_CONFIG: &str = "write_deadline: \"120s\"\nmax_pending: 1GB\n";
/// By default a redis-server disconnects a subscriber that is 32 MB behind, or 8 MB for a minute.
/// The server stores nothing.
const REDIS_ARGS: [&str; 10] = [
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
/// Attempts to start redis-server: another program may take the free port in between.
const ATTEMPTS: usize = 5;

/// Runs a nats-server.
pub(super) async fn serve_nats(args: &NatsArgs) -> Result<()> {
    child::raise_limits();
    let port = match args.port {
        0 => "-1".to_owned(),
        port => port.to_string(),
    };
    let mut server = Command::new(&args.program)
        .args(["--addr", "127.0.0.1", "--port", &port])
        .args(["--config", "/dev/stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("nats-server cannot be started")?;
    let mut settings = server.stdin.take().context("its input is piped")?;
    settings.write_all(NATS_CONFIG.as_bytes()).await?;
    drop(settings);
    let mut log = BufReader::new(server.stderr.take().context("its log is piped")?).lines();
    let listening = "Listening for client connections on ";
    let Some(line) = find(&mut log, listening).await? else {
        bail!("nats-server ended before it listened");
    };
    let address = line.rsplit(listening).next().unwrap_or_default().trim();
    hold(server, log, address, "nats-server").await
}

/// Runs a redis-server.
pub(super) async fn serve_redis() -> Result<()> {
    child::raise_limits();
    for _ in 0..ATTEMPTS {
        // redis-server cannot choose a free port.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut server = Command::new("redis-server")
            .args(["--port", &port.to_string()])
            .args(REDIS_ARGS)
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

/// Returns the next line that contains `text`; `None` if the log ends before.
async fn find(
    log: &mut Lines<BufReader<impl AsyncRead + Unpin>>,
    text: &str,
) -> Result<Option<String>> {
    while let Some(line) = log.next_line().await? {
        if line.contains(text) {
            return Ok(Some(line));
        }
    }
    Ok(None)
}

/// Prints the server's address, and kills the server when the parent closes the input.
async fn hold(
    mut server: Child,
    mut log: Lines<BufReader<impl AsyncRead + Unpin>>,
    address: &str,
    name: &str,
) -> Result<()> {
    let pid = server.id().with_context(|| format!("{name} has ended"))?;
    println!("{address} {pid}");
    tokio::select! {
        () = child::parent_closed() => {}
        // Reads the log to its end, so that the server never blocks on it.
        () = async { while let Ok(Some(_)) = log.next_line().await {} } => {
            bail!("{name} ended unexpectedly");
        }
    }
    let killed = server.kill().await;
    killed.with_context(|| format!("{name} cannot be killed"))
}
