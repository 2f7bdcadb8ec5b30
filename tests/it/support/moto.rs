//! Moto's in-memory implementation of Amazon S3, as a child process of the tests.
//!
//! `tests/run` starts one for all tests; [`moto`] finds it, and starts another one for a process of tests
//! that runs without `tests/run`. `tests/run` installs it into the tests' Python environment; without
//! it a test fails with a message. The library's unit tests include this file as well, so it uses only
//! std. The server exits with its standard input, so it does not outlive the tests.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::{Duration, SystemTime},
};

/// A running server; killed on drop.
#[derive(Debug)]
pub(crate) struct Moto {
    /// The process, if this process started it.
    child: Option<Child>,
    port: u16,
}

/// The path of the file with the output of the server that `tests/run` has started.
const SHARED: &str = "REVEILLE_TEST_MOTO";
/// The limit for its start, sufficient on a machine that compiles at the same time.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the server that all tests share.
pub(crate) fn moto() -> &'static Moto {
    static MOTO: OnceLock<Moto> = OnceLock::new();
    MOTO.get_or_init(|| match std::env::var_os(SHARED) {
        Some(output) => Moto::started_by_the_script(Path::new(&output)),
        None => Moto::start(),
    })
}

impl Moto {
    fn start() -> Self {
        let mut child = Command::new(python())
            .args(["-c", include_str!("moto_server.py")])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("python starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut printed = String::new();
        let port = loop {
            let line = lines.next().and_then(Result::ok);
            let line = line.unwrap_or_else(|| panic!("moto does not start: {printed}"));
            printed += &format!("{line}\n");
            if let Some(port) = port_in(&printed) {
                break port;
            }
        };
        // It prints a line per request. They are read, so that a full pipe does not block it.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        let child = Some(child);
        Self { child, port }
    }

    /// Waits until the server listens.
    fn started_by_the_script(output: &Path) -> Self {
        let began = SystemTime::now();
        loop {
            let printed = std::fs::read_to_string(output);
            let printed = printed.unwrap_or_else(|error| panic!("{SHARED}: {error}"));
            if let Some(port) = port_in(&printed) {
                return Self { child: None, port };
            }
            let late = began.elapsed().is_ok_and(|waited| waited > START_TIMEOUT);
            assert!(!late, "moto does not start: {printed}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the environment variables for this server.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        Self::environment_through(self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the environment variables for a proxy on this port.
    pub(crate) fn environment_through(port: u16) -> Vec<(String, String)> {
        let pairs = [
            ("AWS_ENDPOINT", &*format!("http://127.0.0.1:{port}")),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "c2VjcmV0"),
        ];
        pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec()
    }

    pub(crate) fn create_bucket(&self, name: &str) {
        assert_eq!(self.by_hand("PUT", name, ""), 200);
    }

    /// Sends a request for `BUCKET/OBJECT` without the code under test; returns its status. Moto
    /// needs a signature but does not check it.
    pub(crate) fn by_hand(&self, method: &str, path: &str, body: &str) -> u16 {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        let length = body.len();
        let request = format!(
            "{method} /{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\
             Authorization: AWS key:signature\r\nConnection: close\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        status.unwrap_or_else(|| panic!("{answer}"))
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the port by the server's complete line of output.
fn port_in(printed: &str) -> Option<u16> {
    let (_, rest) = printed.split_once("Running on http://127.0.0.1:")?;
    let (port, _) = rest.split_once('\n')?;
    port.trim().parse().ok()
}

/// Returns the Python of the tests' environment, below cargo's target directory.
fn python() -> PathBuf {
    const PYTHON: &str = "test-env/venv/bin/python";
    let program = std::env::current_exe().expect("a program");
    let found = program.ancestors().map(|directory| directory.join(PYTHON));
    let found = found.into_iter().find(|file| file.exists());
    found.unwrap_or_else(|| panic!("no {PYTHON} below the target directory: run tests/run once"))
}
