//! Azurite, the emulator of Azure Storage, as a child process of the tests.
//!
//! [`azurite`] starts one for all tests of a test binary, in memory and on free ports. A test that
//! kills Azurite starts another one with [`Azurite::on_disk`]. `tests/run` installs Azurite; without
//! it a test fails with a message. The library's unit tests include this file as well, so it uses
//! only std. No process outlives the tests, however they end: Azurite exits with its standard input.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, SystemTime},
};

/// A running Azurite; killed on drop.
#[derive(Debug)]
pub(crate) struct Azurite {
    child: Child,
    /// The lines of its output: its addresses, and one line per request.
    printed: Arc<Mutex<Vec<String>>>,
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
/// Runs Azurite in the node process itself, and exits with its standard input.
const START: &str = "process.stdin.resume().on('end', () => process.exit(0)); \
                     require(process.env.AZURITE)";

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

/// Returns the Azurite that all tests of this process share.
pub(crate) fn azurite() -> &'static Azurite {
    static SHARED: OnceLock<Azurite> = OnceLock::new();
    SHARED.get_or_init(|| Azurite::start([0; 3], None))
}

impl Azurite {
    /// Starts an Azurite that stores everything below `directory`, so that it can be restarted.
    pub(crate) fn on_disk(directory: &Path) -> Self {
        Self::start([0; 3], Some(directory.to_owned()))
    }

    /// Kills it as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
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

    /// Returns the answered requests so far, as `METHOD PATH?QUERY STATUS`.
    pub(crate) fn requests(&self) -> Vec<String> {
        let printed = self.printed.lock().unwrap_or_else(PoisonError::into_inner);
        printed.iter().filter_map(|line| request(line)).collect()
    }

    /// Starts Azurite on these ports (0: any free port), and waits until it listens.
    fn start(ports: [u16; 3], directory: Option<PathBuf>) -> Self {
        let mut command = command(ports, directory.as_deref());
        let mut child = command.spawn().expect("node starts");
        let output = child.stdout.take().expect("piped");
        let printed = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&printed);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                lines
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(line);
            }
        });
        let mut azurite = Self {
            child,
            printed,
            ports,
            directory,
        };
        azurite.ports = ["Blob", "Queue", "Table"].map(|service| azurite.listening(service));
        azurite
    }

    /// Waits until a service listens; returns its port.
    fn listening(&mut self, service: &str) -> u16 {
        let words = format!("Azurite {service} service is successfully listening at ");
        let began = SystemTime::now();
        loop {
            let printed = self.printed.lock().unwrap_or_else(PoisonError::into_inner);
            let port = printed.iter().find_map(|line| {
                let address = line.strip_prefix(&words)?;
                address.rsplit(':').next()?.trim().parse().ok()
            });
            if let Some(port) = port {
                return port;
            }
            let ended = self.child.try_wait().expect("a child process").is_some();
            let late = began.elapsed().is_ok_and(|waited| waited > START_TIMEOUT);
            assert!(!ended && !late, "Azurite does not start: {printed:#?}");
            drop(printed);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn endpoint(&self, port: u16) -> String {
        format!("http://127.0.0.1:{port}/{ACCOUNT}")
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(ports: [u16; 3], directory: Option<&Path>) -> Command {
    let mut command = Command::new("node");
    command
        .args(["-e", START, "azurite", "--disableTelemetry"])
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
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
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
