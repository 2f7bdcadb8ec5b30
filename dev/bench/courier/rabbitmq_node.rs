//! Nodes of RabbitMQ in temporary directories, as child processes.
//!
//! A shell starts each process, and kills it when its own standard input closes. So no process
//! outlives the bench, also if the bench is killed while a node starts. The nodes' name server (epmd)
//! is started in the same way: otherwise the first node would start a daemon that stays.

use std::{
    collections::VecDeque,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    net::TcpStream,
    process::{Child, ChildStdout, Command},
    time::{sleep, timeout},
};

use crate::{broker, usage::Usage};

/// A running node.
#[derive(Debug)]
pub(super) struct Node {
    process: Guarded,
}

/// The name server of all nodes.
#[derive(Debug)]
pub(super) struct NameServer {
    process: Guarded,
    port: u16,
}

/// A process that ends when this is dropped, shortly afterwards.
#[derive(Debug)]
struct Guarded {
    /// It must not be killed: its child would stay.
    shell: Child,
    pid: u32,
    log: Option<Lines<BufReader<ChildStdout>>>,
}

/// The settings of a node.
#[derive(Debug)]
pub(super) struct NodeSettings<'a> {
    pub(super) name: &'static str,
    /// A new directory for its files.
    pub(super) directory: &'a Path,
    pub(super) port: u16,
    /// Settings in Erlang's terms.
    pub(super) config: String,
}

/// Prints the process id of the command `$@`, runs it, and kills it when the standard input closes.
/// Then it deletes the command's directory, which the process may fill until its end, and the
/// directory above if it is empty. The shell closes its output, so that the log ends with the command.
const GUARD: &str = "\
sh -c 'echo $$; exec \"$@\"' sh \"$@\" < /dev/null &
exec > /dev/null
read -r line
kill -9 $!
wait
rm -rf \"$DIRECTORY\" && rmdir \"${DIRECTORY%/*}\"";

/// A node starts in about five seconds on an idle machine.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Longest wait for the end of a killed process.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of lines of the log that the error of a failed start shows.
const LOG_TAIL: usize = 20;

impl NameServer {
    /// Starts epmd, with a new directory.
    pub(super) async fn start(directory: &Path) -> Result<Self> {
        let port = free_port()?;
        let mut command = guarded(Path::new("epmd"), directory)?;
        command
            .args(["-port", &port.to_string()])
            .args(["-address", "127.0.0.1"]);
        let process = Guarded::start(command).await?;
        let ready = timeout(START_TIMEOUT, async {
            while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
                sleep(Duration::from_millis(20)).await;
            }
        });
        ready.await.context("epmd does not listen")?;
        Ok(Self { process, port })
    }

    pub(super) async fn stop(&mut self) {
        self.process.stop().await;
    }
}

impl Node {
    /// Starts a node, and waits until it accepts connections.
    pub(super) async fn start(settings: &NodeSettings<'_>, names: &NameServer) -> Result<Self> {
        let mut process = Guarded::start(command(settings, names)?).await?;
        let mut log = process.log.take().context("its log is read once")?;
        let ready = timeout(START_TIMEOUT, started(&mut log)).await;
        ready.context("rabbitmq-server does not start")??;
        // Reads the log to its end, so that the node never blocks on it.
        tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
        Ok(Self { process })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid
    }

    pub(super) fn usage(&self) -> Usage {
        Usage::of(Some(self.process.pid))
    }

    pub(super) async fn stop(&mut self) {
        self.process.stop().await;
    }
}

impl Guarded {
    /// Starts a command of [`guarded`].
    async fn start(mut command: Command) -> Result<Self> {
        let mut shell = command.spawn().context("sh cannot be started")?;
        let log = shell.stdout.take().context("its output is piped")?;
        let mut log = BufReader::new(log).lines();
        let pid = log.next_line().await?.context("sh has ended")?;
        Ok(Self {
            shell,
            pid: pid.parse()?,
            log: Some(log),
        })
    }

    /// Ends the process, and waits until it has ended.
    async fn stop(&mut self) {
        drop(self.shell.stdin.take());
        // An error leaves the process to the shell.
        let _ = timeout(STOP_TIMEOUT, self.shell.wait()).await;
    }
}

/// Reads a node's log until the node accepts connections.
async fn started(log: &mut Lines<BufReader<ChildStdout>>) -> Result<()> {
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
}

/// Returns the command of a program that [`GUARD`] ends; `directory` is created and is its own.
fn guarded(program: &Path, directory: &Path) -> Result<Command> {
    std::fs::create_dir(directory)
        .with_context(|| format!("{} cannot be created", directory.display()))?;
    let mut command = Command::new("sh");
    command
        .args(["-c", GUARD, "sh"])
        .arg(program)
        .current_dir(directory)
        // Settings of this machine's own nodes must not reach these.
        .env_clear()
        .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
        .env("DIRECTORY", directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // An interrupt from the terminal goes to the bench only.
        .process_group(0);
    Ok(command)
}

/// Returns the command of a node. The script replaces itself by the Erlang machine, so that the
/// process id is the node's.
fn command(settings: &NodeSettings<'_>, names: &NameServer) -> Result<Command> {
    let mut command = guarded(&script()?, settings.directory)?;
    let file = |name: &str, text: &str| -> Result<PathBuf> {
        let path = settings.directory.join(name);
        std::fs::write(&path, text)
            .with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(path)
    };
    command
        .arg("-noinput")
        .env("HOME", settings.directory)
        .env("ERL_EPMD_PORT", names.port.to_string())
        .env("ERL_AFLAGS", "-start_epmd false")
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
        // The script then runs no shell beside the Erlang machine.
        .env("RABBITMQ_ALLOW_INPUT", "1");
    Ok(command)
}

/// Returns RabbitMQ's script. Debian's command of the same name is a link to a wrapper, beside the
/// script, that changes the user.
fn script() -> Result<PathBuf> {
    let found = broker::program("rabbitmq-server")?;
    let found = found.canonicalize()?;
    Ok(found.with_file_name("rabbitmq-server"))
}

/// Returns a free port. Another program may take it before the node does; the node then fails.
pub(super) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dropped_process_ends_and_its_directory_is_deleted() {
        let above = tempfile::tempdir().expect("a directory");
        let directory = above.path().join("run").join("node");
        std::fs::create_dir(above.path().join("run")).expect("created");
        let mut command = guarded(Path::new("sleep"), &directory).expect("created");
        command.arg("1000");
        let process = Guarded::start(command).await.expect("started");
        let proc = PathBuf::from(format!("/proc/{}/cmdline", process.pid));
        let runs = || std::fs::read_to_string(&proc).is_ok_and(|line| line.contains("1000"));
        assert!(directory.is_dir());
        drop(process);
        let ended = timeout(Duration::from_secs(10), async {
            while runs() || above.path().join("run").exists() {
                sleep(Duration::from_millis(10)).await;
            }
        });
        ended.await.expect("it has ended");
    }

    #[tokio::test]
    async fn the_error_of_a_failed_start_shows_the_end_of_the_log() {
        let above = tempfile::tempdir().expect("a directory");
        let directory = above.path().join("node");
        let mut command = guarded(Path::new("printf"), &directory).expect("created");
        command.arg("no port\nno disk\n");
        let mut process = Guarded::start(command).await.expect("started");
        let mut log = process.log.take().expect("a log");
        let error = started(&mut log).await.expect_err("ended").to_string();
        assert!(error.ends_with("no port\nno disk"), "{error}");
    }
}
