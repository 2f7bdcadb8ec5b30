//! The real binary as a process: `serve` on free ports, and other verbs that run to their end.

use std::{
    fs::OpenOptions,
    net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket},
    ops::Range,
    path::PathBuf,
    process::{Output, Stdio},
    sync::Mutex,
    time::Duration,
};

use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::support::{get, until, within};

/// A `reveille serve` process; killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Binary {
    child: Child,
    address: String,
    admin: String,
    home: TempDir,
    /// Further arguments, and the environment.
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
}

/// Writes a file with this `[serve.limits]`; returns its path, for `--config`.
pub(crate) fn limits(keys: &str) -> String {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let name: String = keys
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    // Tests with the same limits write it at one time.
    let file = tempfile::NamedTempFile::new_in(directory).expect("a file");
    std::fs::write(&file, format!("[serve.limits]\n{keys}\n")).expect("written");
    let path = directory.join(format!("{name}.toml"));
    file.persist(&path).expect("renamed");
    path.to_str().expect("text").to_owned()
}

impl Binary {
    /// Starts a relay with a new file for its flags, and waits until it is ready.
    pub(crate) async fn serve() -> Self {
        Self::serve_with(&[], &[]).await
    }

    /// Starts a relay with further arguments and this environment, which its verbs get as well.
    pub(crate) async fn serve_with(arguments: &[&str], variables: &[(String, String)]) -> Self {
        Self::serve_at(free_address(), arguments, variables).await
    }

    /// Starts a relay with further arguments, whose gRPC port is on this address.
    pub(crate) async fn serve_on(ip: IpAddr, arguments: &[&str]) -> Self {
        Self::serve_at(free_address_on(ip), arguments, &[]).await
    }

    async fn serve_at(address: String, arguments: &[&str], variables: &[(String, String)]) -> Self {
        let (home, admin) = (tempfile::tempdir().expect("a directory"), free_address());
        let arguments: Vec<_> = arguments.iter().map(|&text| text.to_owned()).collect();
        let child = start(&home, &address, &admin, &arguments, variables);
        let relay = Self {
            child,
            address,
            admin,
            home,
            arguments,
            variables: variables.to_vec(),
        };
        relay.ready().await;
        relay
    }

    /// Starts a relay whose log goes into a pipe without a reader.
    pub(crate) async fn serve_with_stalled_log(variables: &[(String, String)]) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let (address, admin) = (free_address(), free_address());
        let mut command = serve(&home, &address, &admin);
        command
            .envs(variables.iter().cloned())
            .stderr(Stdio::piped());
        let relay = Self {
            child: command.spawn().expect("it starts"),
            address,
            admin,
            home,
            arguments: Vec::new(),
            variables: variables.to_vec(),
        };
        relay.ready().await;
        relay
    }

    /// Starts a relay with this limit on open files.
    pub(crate) async fn serve_with_open_files(count: usize) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let (address, admin) = (free_address(), free_address());
        let relay = serve(&home, &address, &admin);
        let relay = relay.as_std();
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("ulimit -n {count}; exec \"$@\""), "sh"])
            .arg(relay.get_program())
            .args(relay.get_args())
            .env("HOME", home.path())
            .env("XDG_DATA_HOME", home.path())
            .stdin(Stdio::null())
            .stderr(log_file(&home))
            .kill_on_drop(true);
        let relay = Self {
            child: command.spawn().expect("it starts"),
            address,
            admin,
            home,
            arguments: Vec::new(),
            variables: Vec::new(),
        };
        relay.ready().await;
        relay
    }

    /// Sends SIGTERM to the relay, as a supervisor does, and waits until it has ended.
    pub(crate) async fn terminate(&mut self) -> std::process::ExitStatus {
        self.signal("TERM").await;
        self.ended().await
    }

    /// Waits until the relay has ended.
    pub(crate) async fn ended(&mut self) -> std::process::ExitStatus {
        within("the relay's end", self.child.wait())
            .await
            .expect("its status")
    }

    /// Sends SIGTERM to the relay.
    pub(crate) async fn send_terminate(&self) {
        self.signal("TERM").await;
    }

    /// Ends the relay as a supervisor does, and starts it again on the same ports and file.
    pub(crate) async fn restart(&mut self) {
        assert!(self.terminate().await.success(), "{}", self.log());
        self.start().await;
    }

    /// Starts the relay that has ended again, on the same ports and file.
    pub(crate) async fn start(&mut self) {
        let (address, admin) = (&self.address, &self.admin);
        self.child = start(&self.home, address, admin, &self.arguments, &self.variables);
        self.ready().await;
    }

    /// Sends SIGHUP to the relay.
    pub(crate) async fn hang_up(&self) {
        self.signal("HUP").await;
    }

    /// Stops its execution, with all connections open, until [`Binary::resume`].
    pub(crate) async fn freeze(&self) {
        self.signal("STOP").await;
    }

    pub(crate) async fn resume(&self) {
        self.signal("CONT").await;
    }

    async fn signal(&self, name: &str) {
        let id = self.child.id().expect("it runs").to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status().await;
        assert!(sent.expect("kill runs").success(), "no process {id}");
    }

    /// Kills the relay as `kill -9` does, and starts it again on the same ports and file.
    pub(crate) async fn crash(&mut self) {
        self.child.kill().await.expect("killed");
        let (address, admin) = (&self.address, &self.admin);
        self.child = start(&self.home, address, admin, &self.arguments, &self.variables);
        self.ready().await;
    }

    /// Returns the path of the relay's store.
    pub(crate) fn store(&self) -> PathBuf {
        self.home.path().join("reveille/reveille.db")
    }

    /// Returns the relay's log.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(log(&self.home)).expect("a log")
    }

    /// Returns the address of the admin port.
    pub(crate) fn admin(&self) -> std::net::SocketAddr {
        self.admin.parse().expect("an address")
    }

    pub(crate) fn url(&self) -> String {
        let set = self.variables.iter().map(|(name, _)| name.as_str());
        let typed = self.arguments.iter().map(String::as_str);
        let has_tls = set
            .chain(typed)
            .any(|name| matches!(name, "REVEILLE_TLS_CERT" | "--tls-cert"));
        let scheme = if has_tls { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Returns the process's resident memory in KiB.
    #[cfg(target_os = "linux")]
    pub(crate) fn resident(&self) -> u64 {
        let id = self.child.id().expect("it runs");
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        number
            .and_then(|n| n.parse().ok())
            .expect("a number of KiB")
    }

    /// Returns the processor time that the process has used.
    #[cfg(target_os = "linux")]
    pub(crate) fn processor(&self) -> Duration {
        processor_of(&self.child.id().expect("it runs").to_string())
    }

    /// Returns the command of a verb with this relay.
    pub(crate) fn verb(&self, arguments: &[&str]) -> Command {
        let mut command = reveille(&self.home, arguments);
        command
            .envs(self.variables.iter().cloned())
            .env("REVEILLE_RELAY", self.url());
        command
    }

    /// Runs a verb to its end.
    pub(crate) async fn run(&self, arguments: &[&str]) -> Output {
        within("the verb's end", self.verb(arguments).output())
            .await
            .expect("it starts")
    }

    async fn ready(&self) {
        let admin = self.admin();
        until("ready", async || {
            let connected = tokio::net::TcpStream::connect(&self.admin).await;
            connected.is_ok() && get(admin, "/readyz").await.0 == 200
        })
        .await;
    }
}

/// Returns the processor time that a process of this id, or `self`, has used.
#[cfg(target_os = "linux")]
pub(crate) fn processor_of(process: &str) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    // The name is in parentheses. User and system time are fields 14 and 15.
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    ticks(fields.split_whitespace().skip(11).take(2))
}

/// Returns the processor time that all processes have used.
#[cfg(target_os = "linux")]
pub(crate) fn processor_of_all() -> Duration {
    let stat = std::fs::read_to_string("/proc/stat").expect("statistics");
    // `cpu`, then user, nice and system time.
    ticks(stat.split_whitespace().skip(1).take(3))
}

#[cfg(target_os = "linux")]
fn ticks<'a>(fields: impl Iterator<Item = &'a str>) -> Duration {
    let ticks: u64 = fields
        .map(|field| field.parse::<u64>().expect("a number"))
        .sum();
    // A tick is 10 ms on Linux.
    Duration::from_millis(10 * ticks)
}

/// Returns a command of the binary without the caller's settings.
pub(crate) fn reveille(home: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reveille"));
    command
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home.path())
        .env("XDG_DATA_HOME", home.path())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

fn start(
    home: &TempDir,
    address: &str,
    admin: &str,
    further: &[String],
    variables: &[(String, String)],
) -> Child {
    let mut command = serve(home, address, admin);
    command
        .args(further)
        .envs(variables.iter().cloned())
        .stderr(log_file(home));
    command.spawn().expect("it starts")
}

fn serve(home: &TempDir, address: &str, admin: &str) -> Command {
    let arguments = ["serve", "--listen", address, "--admin-listen", admin];
    reveille(home, &arguments)
}

fn log_file(home: &TempDir) -> std::fs::File {
    let file = OpenOptions::new().create(true).append(true).open(log(home));
    file.expect("a file")
}

fn log(home: &TempDir) -> PathBuf {
    home.path().join("relay.log")
}

/// Below the ports that systems give to connections and to port 0, and above those of well-known
/// services.
const PORTS: Range<u16> = 20_000..30_000;

/// The reserved ports of this process.
static RESERVED: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());

/// Returns a free address, which no other test gets until this process ends.
pub(crate) fn free_address() -> String {
    free_address_on(Ipv4Addr::LOCALHOST.into())
}

/// The tests use no UDP, so that a UDP socket of the same number reserves a port: the system gives it
/// to one process, and takes it back when that ends.
fn free_address_on(ip: IpAddr) -> String {
    loop {
        let port = fastrand::u16(PORTS);
        if let Ok(reserved) = UdpSocket::bind((Ipv4Addr::LOCALHOST, port))
            && let Ok(free) = TcpListener::bind((ip, port))
        {
            RESERVED.lock().expect("no panic").push(reserved);
            return free.local_addr().expect("bound").to_string();
        }
    }
}

/// Returns a process's stdout.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns a process's stderr.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
