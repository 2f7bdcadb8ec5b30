//! Nodes of RabbitMQ in temporary directories, as child processes.
//!
//! Each process ends when its standard input closes, so that none outlives a killed bench. The node's
//! name server (epmd) is a child as well: otherwise the first node would start one that stays.

use std::{
    collections::VecDeque,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::TcpStream,
    process::{Child, Command},
    time::{sleep, timeout},
};

use crate::{broker, usage::Usage};

/// A running node.
#[derive(Debug)]
pub(super) struct Node {
    process: Child,
}

/// The name server of all nodes.
#[derive(Debug)]
pub(super) struct NameServer {
    /// A shell that ends epmd when its input closes. It must not be killed: epmd would stay.
    shell: Child,
    port: u16,
}

/// The settings of a node.
#[derive(Debug)]
pub(super) struct NodeSettings<'a> {
    pub(super) name: &'static str,
    /// An existing directory for its files.
    pub(super) directory: &'a Path,
    pub(super) port: u16,
    /// Settings in Erlang's terms.
    pub(super) config: String,
}

/// Runs epmd until the standard input closes. The shell gives /dev/null to a command in background.
const EPMD: &str = "epmd -port $ERL_EPMD_PORT -address 127.0.0.1 & read -r line; kill $!";
/// Ends the node when the standard input closes.
const HALT_AT_END_OF_INPUT: &str =
    "spawn(fun() -> io:get_line(\"\"), erlang:halt(0, [{flush, false}]) end).";
/// A node starts in about five seconds on an idle machine.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// A node that has not ended this long after its input closed is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of lines of the log that the error of a failed start shows.
const LOG_TAIL: usize = 20;

impl NameServer {
    pub(super) async fn start() -> Result<Self> {
        let port = free_port()?;
        let shell = Command::new("sh")
            .args(["-c", EPMD])
            .env("ERL_EPMD_PORT", port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // An interrupt from the terminal goes to the bench only.
            .process_group(0)
            .spawn()
            .context("epmd cannot be started")?;
        let server = Self { shell, port };
        let ready = timeout(START_TIMEOUT, async {
            while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
                sleep(Duration::from_millis(20)).await;
            }
        });
        ready.await.context("epmd does not listen")?;
        Ok(server)
    }

    pub(super) async fn stop(&mut self) {
        stop(&mut self.shell).await;
    }
}

impl Node {
    /// Starts a node, and waits until it accepts connections.
    pub(super) async fn start(settings: &NodeSettings<'_>, names: &NameServer) -> Result<Self> {
        let mut process = command(settings, names)?
            .spawn()
            .context("rabbitmq-server cannot be started")?;
        let log = process.stdout.take().context("its log is piped")?;
        let mut log = BufReader::new(log).lines();
        let ready = async {
            let mut tail = VecDeque::new();
            while let Some(line) = log.next_line().await? {
                if line.contains("Server startup complete") {
                    return Ok(());
                }
                tail.push_back(line);
                if tail.len() > LOG_TAIL {
                    tail.pop_front();
                }
            }
            let tail: Vec<_> = tail.into();
            bail!("rabbitmq-server has ended:\n{}", tail.join("\n"))
        };
        let ready = timeout(START_TIMEOUT, ready).await;
        ready.context("rabbitmq-server does not start")??;
        // Reads the log to its end, so that the node never blocks on it.
        tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
        Ok(Self { process })
    }

    pub(super) fn usage(&self) -> Usage {
        Usage::of(self.process.id())
    }

    pub(super) async fn stop(&mut self) {
        stop(&mut self.process).await;
    }
}

/// Returns the command of a node. It replaces itself by the Erlang machine, so that the process id
/// is the node's.
fn command(settings: &NodeSettings<'_>, names: &NameServer) -> Result<Command> {
    let file = |name: &str, text: &str| -> Result<PathBuf> {
        let path = settings.directory.join(name);
        std::fs::write(&path, text)
            .with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(path)
    };
    let mut command = Command::new(script()?);
    command
        .args(["-noshell", "-eval", HALT_AT_END_OF_INPUT])
        .current_dir(settings.directory)
        // Settings of this machine's own nodes must not reach these.
        .env_clear()
        .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
        .env("HOME", settings.directory)
        .env("ERL_EPMD_PORT", names.port.to_string())
        .env("RABBITMQ_CONF_ENV_FILE", file("rabbitmq-env.conf", "")?)
        .env("RABBITMQ_CONFIG_FILE", file("rabbitmq.conf", "")?)
        .env(
            "RABBITMQ_ADVANCED_CONFIG_FILE",
            file("advanced.config", &settings.config)?,
        )
        .env(
            "RABBITMQ_ENABLED_PLUGINS_FILE",
            file("enabled_plugins", "[rabbitmq_shovel].\n")?,
        )
        .env("RABBITMQ_NODENAME", format!("{}@localhost", settings.name))
        .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
        .env("RABBITMQ_NODE_PORT", settings.port.to_string())
        .env("RABBITMQ_DIST_PORT", free_port()?.to_string())
        .env(
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
            "-kernel inet_dist_use_interface {127,0,0,1}",
        )
        .env("RABBITMQ_MNESIA_BASE", settings.directory.join("mnesia"))
        .env("RABBITMQ_LOG_BASE", settings.directory.join("log"))
        .env("RABBITMQ_LOGS", "-")
        // The script runs the Erlang machine in its own process, which then reads the input.
        .env("RABBITMQ_ALLOW_INPUT", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true);
    Ok(command)
}

/// Returns RabbitMQ's script. Debian's command of the same name is a link to a wrapper, beside the
/// script, that changes the user.
fn script() -> Result<PathBuf> {
    let found = broker::program("rabbitmq-server")?;
    let found = found.canonicalize()?;
    Ok(found.with_file_name("rabbitmq-server"))
}

/// Closes the process's input, and waits until it has ended.
async fn stop(process: &mut Child) {
    drop(process.stdin.take());
    if timeout(STOP_TIMEOUT, process.wait()).await.is_err() {
        let _ = process.kill().await;
    }
}

/// Returns a free port. Another program may take it before the node does; the node then fails.
pub(super) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
