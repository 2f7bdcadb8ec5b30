//! The peers: their processes, and their well-kept clients as applications use them.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use futures_util::StreamExt as _;
use redis::{AsyncConnectionConfig, aio::MultiplexedConnection};
use tempfile::TempDir;
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    time::{Instant, sleep},
};

use crate::server::Server;

/// A running peer, killed on drop.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) target: String,
    pub(crate) process: Child,
    _directory: TempDir,
}

/// By default a nats-server disconnects a subscriber that is 10 s or 64 MB behind, which loses
/// messages. In a burst all subscribers are that far behind.
const NATS_CONFIG: &str = "write_deadline: \"120s\"\nmax_pending: 1GB\n";
/// By default a redis-server disconnects a subscriber that is 32 MB behind, or 8 MB for a minute.
/// The server stores nothing.
const REDIS_CONFIG: &str = "save \"\"\nappendonly no\nmaxclients 100000\n\
                            client-output-buffer-limit pubsub 0 0 0\n";
/// Capacity of a NATS subscription's buffer, beyond which it drops messages. It is larger than any
/// run, as dropped messages make the sums wrong.
const NATS_CAPACITY: usize = 16 * 1024 * 1024;
/// Attempts to start a peer: another program may take the free port in between.
const ATTEMPTS: usize = 5;
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// The nats-server of the tests, below cargo's target directory.
const TESTS_SERVER: &str = "test-env/venv/bin/nats-server";

impl Peer {
    pub(crate) async fn start(server: Server) -> Result<Self> {
        for _ in 0..ATTEMPTS {
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let directory = TempDir::new()?;
            let config = directory.path().join("config");
            let mut command = match server {
                Server::Redis => {
                    let port = format!("bind 127.0.0.1\nport {port}\n");
                    std::fs::write(&config, port + REDIS_CONFIG)?;
                    Command::new(program("redis-server")?)
                }
                _ => {
                    let port = format!("listen: 127.0.0.1:{port}\n");
                    std::fs::write(&config, port + NATS_CONFIG)?;
                    let mut command = Command::new(program("nats-server")?);
                    command.arg("--config");
                    command
                }
            };
            let mut process = command
                .arg(&config)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .kill_on_drop(true)
                .spawn()
                .with_context(|| format!("{server} cannot be started"))?;
            let target = format!("127.0.0.1:{port}");
            if listens(&mut process, &target).await? {
                return Ok(Self {
                    target,
                    process,
                    _directory: directory,
                });
            }
        }
        bail!("{server} ended before it listened, {ATTEMPTS} times")
    }
}

/// Waits until a peer listens. Returns false if it has ended.
async fn listens(process: &mut Child, target: &str) -> Result<bool> {
    let began = Instant::now();
    while began.elapsed() < START_TIMEOUT {
        if process.try_wait()?.is_some() {
            return Ok(false);
        }
        if TcpStream::connect(target).await.is_ok() {
            return Ok(true);
        }
        sleep(Duration::from_millis(10)).await;
    }
    bail!("no server listens at {target}")
}

/// Returns the path of a peer's program: on the PATH, or that of the tests.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&path).map(|directory| directory.join(name));
    if let Some(found) = files.find(|file| file.is_file()) {
        return Ok(found);
    }
    let this = std::env::current_exe().context("the path of this program is unknown")?;
    let mut of_tests = this.ancestors().map(|path| path.join(TESTS_SERVER));
    let of_tests =
        of_tests.find(|path| path.file_name() == Path::new(name).file_name() && path.is_file());
    of_tests.with_context(|| {
        format!(
            "{name} is not on the PATH: install it, on Debian and Ubuntu with \
             `apt-get install {name}`"
        )
    })
}

/// Connects to a nats-server.
pub(crate) async fn connect_nats(target: &str) -> Result<async_nats::Client> {
    let options = async_nats::ConnectOptions::new().subscription_capacity(NATS_CAPACITY);
    let connected = options.connect(format!("nats://{target}")).await;
    connected.with_context(|| format!("nats-server at {target} cannot be reached"))
}

/// Waits until a nats-server has read all commands of a client: a written command may not have been
/// read, and the answer to a later request shows that it was.
pub(crate) async fn nats_barrier(client: &async_nats::Client) -> Result<()> {
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await?;
    client.publish(inbox, "".into()).await?;
    client.flush().await?;
    answers.next().await.context("nats-server has ended")?;
    Ok(())
}

/// Returns a client of a redis-server.
pub(crate) fn redis_client(target: &str) -> Result<redis::Client> {
    Ok(redis::Client::open(format!("redis://{target}"))?)
}

/// Connects to a redis-server for publishing, without a time-out of answers.
pub(crate) async fn connect_redis(target: &str) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let client = redis_client(target)?;
    let connected = client.get_multiplexed_async_connection_with_config(&config);
    connected
        .await
        .with_context(|| format!("redis-server at {target} cannot be reached"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_missing_peer_names_its_package() {
        let error = program("no-such-server").expect_err("missing").to_string();
        assert!(error.contains("apt-get install no-such-server"), "{error}");
    }
}
