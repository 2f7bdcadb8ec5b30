//! Real NATS servers, as child processes of the tests.
//!
//! `tests/run` installs the server into the tests' Python environment; without it a test fails with
//! a message. The library's unit tests include this file as well. `tests/clear_up.py` ends the
//! servers of a test run that was killed.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, SystemTime},
};

use tempfile::TempDir;

/// A running server on a port of this machine; killed on drop.
#[derive(Debug)]
pub(crate) struct NatsServer {
    child: Child,
    home: TempDir,
    port: u16,
    cluster_port: u16,
}

/// The limit for the start, sufficient on a machine that compiles at the same time.
const START_TIMEOUT: Duration = Duration::from_secs(60);

impl NatsServer {
    /// Starts a server with default settings.
    pub(crate) fn start() -> Self {
        Self::with_config("")
    }

    /// Starts a server with settings of a configuration file of NATS.
    pub(crate) fn with_config(config: &str) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        std::fs::write(home.path().join("nats.conf"), config).expect("written");
        let child = spawn(home.path(), 0);
        let mut server = Self {
            child,
            home,
            port: 0,
            cluster_port: 0,
        };
        server.wait();
        server
    }

    /// Returns the URL for clients, without TLS.
    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Returns the URL for clients, with TLS.
    pub(crate) fn tls_url(&self) -> String {
        format!("tls://127.0.0.1:{}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the port for the routes of other servers; 0 if the configuration has no `cluster`.
    pub(crate) fn cluster_port(&self) -> u16 {
        self.cluster_port
    }

    /// Returns what the server has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.home.path().join("nats.log")).unwrap_or_default()
    }

    /// Kills it as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Ends it as an operator does, and waits for its end.
    pub(crate) fn terminate(&mut self) {
        self.signal("TERM");
        self.child.wait().expect("it ends");
    }

    /// Starts it again on the same port, after [`NatsServer::kill`] or [`NatsServer::terminate`].
    pub(crate) fn restart(&mut self) {
        self.child = spawn(self.home.path(), self.port);
        self.wait();
    }

    /// As [`NatsServer::restart`], with another configuration.
    pub(crate) fn restart_with(&mut self, config: &str) {
        std::fs::write(self.home.path().join("nats.conf"), config).expect("written");
        self.restart();
    }

    /// Stops its execution, with all connections open, until [`NatsServer::resume`].
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
    }

    pub(crate) fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.expect("kill starts").success(), "{name}");
    }

    /// Waits until it listens, and reads its ports.
    fn wait(&mut self) {
        let name = format!("nats-server_{}.ports", self.child.id());
        let file = self.home.path().join(name);
        let began = SystemTime::now();
        loop {
            let ports = std::fs::read_to_string(&file).unwrap_or_default();
            // The file is complete with its last brace.
            if let Some(port) = port(&ports, "nats").filter(|_| ports.trim_end().ends_with('}')) {
                self.port = port;
                self.cluster_port = self::port(&ports, "cluster").unwrap_or_default();
                return;
            }
            let ended = self.child.try_wait().expect("a child process").is_some();
            let late = began.elapsed().is_ok_and(|waited| waited > START_TIMEOUT);
            assert!(!ended && !late, "NATS does not start: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the server on a port; 0 is any free one.
fn spawn(home: &Path, port: u16) -> Child {
    let port = match port {
        0 => "-1".to_owned(),
        port => port.to_string(),
    };
    Command::new(installed())
        .args(["-a", "127.0.0.1", "-p", &port])
        .arg("-c")
        .arg(home.join("nats.conf"))
        .arg("--ports_file_dir")
        .arg(home)
        .arg("-l")
        .arg(home.join("nats.log"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("nats-server starts")
}

/// Reads the first port of a kind from the ports file, such as
/// `{"nats":["nats://127.0.0.1:4222"],"cluster":["nats://127.0.0.1:6222"]}`.
fn port(ports: &str, kind: &str) -> Option<u16> {
    let (_, rest) = ports.split_once(&format!("\"{kind}\""))?;
    let (_, rest) = rest.split_once("://127.0.0.1:")?;
    let end = rest.find(|c: char| !c.is_ascii_digit())?;
    rest[..end].parse().ok()
}

/// Returns the server of the tests' environment, below cargo's target directory.
pub(crate) fn installed() -> PathBuf {
    const SERVER: &str = "test-env/venv/bin/nats-server";
    let program = std::env::current_exe().expect("a program");
    let found = program.ancestors().map(|directory| directory.join(SERVER));
    let found = found.into_iter().find(|file| file.exists());
    found.unwrap_or_else(|| panic!("no {SERVER} below the target directory: run tests/run once"))
}
