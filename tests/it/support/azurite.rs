//! Azurite, the emulator of Azure Storage, as a child process of the tests.
//!
//! `tests/run` starts one for all tests, in memory and on free ports; [`azurite`] finds it, and starts
//! another one for a process of tests that runs without `tests/run`. A test that kills Azurite starts
//! its own with [`Azurite::on_disk`]. `tests/run` installs Azurite; without it a test fails with a
//! message. The library's unit tests include this file as well. No process outlives the tests, however
//! they end: Azurite exits with its standard input.

use std::{
    fs::File,
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::{Duration, SystemTime},
};

/// A running Azurite; killed on drop.
#[derive(Debug)]
pub(crate) struct Azurite {
    /// The process, if this process started it.
    child: Option<Child>,
    /// Its output: its addresses, and one line per request.
    output: File,
    /// The length of the output when this process began to use it.
    before: u64,
    /// The ports for blobs, queues and tables.
    ports: [u16; 3],
    directory: Option<PathBuf>,
}

/// The account of every Azurite.
pub(crate) const ACCOUNT: &str = "devstoreaccount1";
pub(crate) const KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// The limit for the start, sufficient on a machine that compiles at the same time.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The path of the file with the output of the Azurite that `tests/run` has started.
const SHARED: &str = "REVEILLE_TEST_AZURITE";

/// Sends one request with a Shared Key signature: METHOD PATH, the body from stdin. Prints the
/// status.
const BY_HAND: &str = r#"
import base64, email.utils, hashlib, hmac, sys, urllib.error, urllib.request
endpoint, account, key, method, path = sys.argv[1:]
path, _, query = path.partition("?")
body = sys.stdin.buffer.read() if method == "PUT" else None
date = email.utils.formatdate(usegmt=True)
headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
if not query and method == "PUT":
    headers["x-ms-blob-type"] = "BlockBlob"
signed = [method] + [""] * 11
if body:
    signed[3], signed[5] = str(len(body)), "text/plain"
text = "\n".join(signed) + "\n" + "".join(f"{k}:{v}\n" for k, v in sorted(headers.items()))
text += f"/{account}/{account}/{path}" + (f"\n{query.replace('=', ':')}" if query else "")
digest = hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()
headers["Authorization"] = f"SharedKey {account}:{base64.b64encode(digest).decode()}"
headers["Content-Type"] = "text/plain" if body else ""
if not body:
    del headers["Content-Type"]
    body = None
if method == "PUT" and body is None:
    headers["Content-Length"] = "0"
url = f"{endpoint}/{path}" + (f"?{query}" if query else "")
no_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    print(no_proxy.open(urllib.request.Request(url, data=body, method=method, headers=headers)).status)
except urllib.error.HTTPError as error:
    print(error.code)
"#;

/// Returns the Azurite that all tests share.
pub(crate) fn azurite() -> &'static Azurite {
    static AZURITE: OnceLock<Azurite> = OnceLock::new();
    AZURITE.get_or_init(|| match std::env::var_os(SHARED) {
        Some(output) => Azurite::started_by_the_script(Path::new(&output)),
        None => Azurite::start([0; 3], None),
    })
}

impl Azurite {
    /// Starts an Azurite that stores everything below `directory`, so that it can be restarted.
    pub(crate) fn on_disk(directory: &Path) -> Self {
        Self::start([0; 3], Some(directory.to_owned()))
    }

    /// Kills it as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        let child = self.child.as_mut().expect("this test started it");
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    }

    /// Restarts it on the same ports and directory, after [`Azurite::kill`].
    pub(crate) fn restart(&mut self) {
        *self = Self::start(self.ports, self.directory.take());
    }

    /// Returns the endpoint of its queues.
    pub(crate) fn queue_endpoint(&self) -> String {
        self.endpoint(self.ports[1])
    }

    /// Returns the endpoint of its blobs.
    pub(crate) fn blob_endpoint(&self) -> String {
        self.endpoint(self.ports[0])
    }

    /// Returns the connection string.
    pub(crate) fn connection_string(&self) -> String {
        format!(
            "DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};\
             BlobEndpoint={};QueueEndpoint={}",
            self.blob_endpoint(),
            self.queue_endpoint()
        )
    }

    /// Returns a connection string whose blob endpoint has another port of this machine.
    pub(crate) fn connection_string_through(&self, port: u16) -> String {
        let through = self.endpoint(port);
        self.connection_string()
            .replace(&self.blob_endpoint(), &through)
    }

    /// Returns the port of its blobs.
    pub(crate) fn blob_port(&self) -> u16 {
        self.ports[0]
    }

    /// Returns the port of its queues.
    pub(crate) fn queue_port(&self) -> u16 {
        self.ports[1]
    }

    /// Creates a container if it does not exist.
    pub(crate) fn create_container(&self, name: &str) {
        let status = self.by_hand("PUT", &format!("{name}?restype=container"), "");
        assert!(matches!(status, 201 | 409), "{status}");
    }

    /// Sends a request for `CONTAINER/BLOB` without the code under test; returns its status. Python
    /// signs it, because std has no HMAC.
    pub(crate) fn by_hand(&self, method: &str, path: &str, body: &str) -> u16 {
        let mut python = Command::new("python3")
            .args(["-c", BY_HAND, &self.blob_endpoint(), ACCOUNT, KEY])
            .args([method, path])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let mut input = python.stdin.take().expect("piped");
        input.write_all(body.as_bytes()).expect("it reads");
        drop(input);
        let output = python.wait_with_output().expect("it ends");
        let stdout = String::from_utf8_lossy(&output.stdout);
        stdout.trim().parse().expect("a status")
    }

    /// Returns whether this number of messages is on its disk. Azurite writes every few seconds and
    /// loses the rest when it is killed, unlike the service.
    pub(crate) fn has_written_down(&self, messages: usize) -> bool {
        let directory = self.directory.as_deref().expect("one on disk");
        let [kept, extents] = ["", "_extent"].map(|part| {
            let file = directory.join(format!("__azurite_db_queue{part}__.json"));
            std::fs::read_to_string(file).unwrap_or_default()
        });
        kept.matches("\"messageId\":\"").count() == messages && extents.contains("\"locationId\"")
    }

    /// Returns the requests that were answered since this process began to use it, as
    /// `METHOD PATH?QUERY STATUS`.
    pub(crate) fn requests(&self) -> Vec<String> {
        let printed = self.printed(self.before);
        printed.lines().filter_map(request).collect()
    }

    /// Starts Azurite on these ports (0: any free port), and waits until it listens.
    fn start(ports: [u16; 3], directory: Option<PathBuf>) -> Self {
        let output = tempfile::tempfile().expect("a file");
        let mut command = command(ports, directory.as_deref());
        let child = command.stdout(output.try_clone().expect("a handle"));
        let child = child.spawn().expect("node starts");
        Self::listening(Some(child), output, directory)
    }

    fn started_by_the_script(output: &Path) -> Self {
        let output = File::open(output);
        let output = output.unwrap_or_else(|error| panic!("{SHARED}: {error}"));
        let mut azurite = Self::listening(None, output, None);
        azurite.before = azurite.output.metadata().expect("its length").len();
        azurite
    }

    /// Waits until it listens.
    fn listening(child: Option<Child>, output: File, directory: Option<PathBuf>) -> Self {
        let mut azurite = Self {
            child,
            output,
            before: 0,
            ports: [0; 3],
            directory,
        };
        azurite.ports = ["Blob", "Queue", "Table"].map(|service| azurite.port_of(service));
        azurite
    }

    /// Waits until a service listens; returns its port.
    fn port_of(&mut self, service: &str) -> u16 {
        let words = format!("Azurite {service} service is successfully listening at ");
        let began = SystemTime::now();
        loop {
            let printed = self.printed(0);
            let port = printed.lines().find_map(|line| {
                let address = line.strip_prefix(&words)?;
                address.rsplit(':').next()?.trim().parse().ok()
            });
            if let Some(port) = port {
                return port;
            }
            let ended = self.child.as_mut().map(Child::try_wait);
            let ended = ended.is_some_and(|ended| ended.expect("a child process").is_some());
            let late = began.elapsed().is_ok_and(|waited| waited > START_TIMEOUT);
            assert!(!ended && !late, "Azurite does not start: {printed}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the complete lines of its output from this position on. It writes at the position of
    /// the same open file, which this does not move.
    fn printed(&self, mut position: u64) -> String {
        let (mut read, mut part) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            match self.output.read_at(&mut part, position).expect("readable") {
                0 => break,
                count => {
                    read.extend_from_slice(&part[..count]);
                    position += count as u64;
                }
            }
        }
        let complete = read.iter().rposition(|byte| *byte == b'\n');
        read.truncate(complete.map_or(0, |end| end + 1));
        String::from_utf8(read).expect("text")
    }

    fn endpoint(&self, port: u16) -> String {
        format!("http://127.0.0.1:{port}/{ACCOUNT}")
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have been killed already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn command(ports: [u16; 3], directory: Option<&Path>) -> Command {
    let mut command = Command::new("node");
    command
        .args(["-e", include_str!("azurite.js")])
        .args(["azurite", "--disableTelemetry"])
        .env("AZURITE", installed());
    for (service, port) in ["blob", "queue", "table"].iter().zip(ports) {
        command
            .arg(format!("--{service}Port"))
            .arg(port.to_string());
    }
    match directory {
        Some(directory) => command.arg("--location").arg(directory),
        None => command.arg("--inMemoryPersistence"),
    };
    command.stdin(Stdio::piped());
    command
}

/// Returns the path where `tests/run` has installed it, below cargo's target directory.
fn installed() -> PathBuf {
    const AZURITE: &str = "test-env/azurite/node_modules/azurite/dist/src/azurite.js";
    let program = std::env::current_exe().expect("a program");
    let found = program.ancestors().map(|directory| directory.join(AZURITE));
    let found = found.into_iter().find(|file| file.exists());
    found.unwrap_or_else(|| panic!("no {AZURITE} below the target directory: run tests/run once"))
}

/// Parses a line of the access log: `... "METHOD PATH HTTP/1.1" STATUS ...`.
fn request(line: &str) -> Option<String> {
    let (_, rest) = line.split_once('"')?;
    let (request, rest) = rest.split_once(" HTTP/1.1\" ")?;
    let status = rest.split(' ').next()?;
    Some(format!("{request} {status}"))
}
