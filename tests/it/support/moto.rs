//! Moto's in-memory implementation of Amazon S3, as a child process of the tests.
//!
//! `tests/run` installs it into the tests' Python environment; without it a test fails with a
//! message. The library's unit tests include this file as well, so it uses only std. The server
//! exits with its standard input, so it does not outlive the tests.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

/// A running server; killed on drop.
#[derive(Debug)]
pub(crate) struct Moto {
    child: Child,
    port: u16,
}

/// Runs the server, and exits with its standard input. It serves one request at a time: S3 compares
/// an ETag and writes atomically, but in moto another thread may write between the two steps.
const START: &str = "
import os, sys, threading
from moto.server import DomainDispatcherApplication, main
turn, call = threading.Lock(), DomainDispatcherApplication.__call__
def one_at_a_time(self, *args):
    with turn:
        return call(self, *args)
DomainDispatcherApplication.__call__ = one_at_a_time
def watch():
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=watch, daemon=True).start()
main(['-H', '127.0.0.1', '-p', '0'])
";

/// Returns the server that all tests of this process share.
pub(crate) fn moto() -> &'static Moto {
    static SHARED: OnceLock<Moto> = OnceLock::new();
    SHARED.get_or_init(Moto::start)
}

impl Moto {
    fn start() -> Self {
        let mut child = Command::new(python())
            .args(["-c", START])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("python starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut printed = Vec::new();
        let port = loop {
            let line = lines.next().and_then(Result::ok);
            let line = line.unwrap_or_else(|| panic!("moto does not start: {printed:#?}"));
            let port = line.split_once("Running on http://127.0.0.1:");
            if let Some((_, port)) = port {
                break port.trim().parse().expect("a port");
            }
            printed.push(line);
        };
        // It prints a line per request. They are read, so that a full pipe does not block it.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self { child, port }
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
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the Python of the tests' environment, below cargo's target directory.
fn python() -> PathBuf {
    const PYTHON: &str = "test-env/venv/bin/python";
    let program = std::env::current_exe().expect("a program");
    let found = program.ancestors().map(|directory| directory.join(PYTHON));
    let found = found.into_iter().find(|file| file.exists());
    found.unwrap_or_else(|| panic!("no {PYTHON} below the target directory: run tests/run once"))
}
