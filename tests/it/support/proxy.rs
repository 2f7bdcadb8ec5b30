//! A proxy in front of a storage service that cuts, delays, repeats and refuses requests.
//!
//! Faults are planned for single requests ([`Proxy::plan`]), or drawn with a seed and a percentage
//! ([`Proxy::set`]). A client connection carries one request and is closed, so the end of the answer
//! is the end of the connection. The library's unit tests include this file as well; it uses std
//! with one thread per connection, and no runtime.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// A running proxy; accepts no more connections after drop.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    shared: Arc<ProxyServer>,
}

/// The fault of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection is cut, and the service receives nothing.
    CutBefore,
    /// The connection is cut on both sides after half of the body, or after half of the head if
    /// there is no body.
    CutWithin,
    /// The service handles the request, and the connection is cut instead of the answer.
    CutAfter,
    /// The request is sent twice, and the second answer is returned.
    Repeat,
    /// The service receives nothing, and the proxy answers with this status.
    Answer(u16),
    /// The request is delayed by this time.
    Delay(Duration),
}

/// The percentage of requests with each fault; 0 by default.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    pub(crate) cut_before: u32,
    pub(crate) cut_within: u32,
    pub(crate) cut_after: u32,
    pub(crate) repeat: u32,
    /// Answered with 503.
    pub(crate) busy: u32,
    /// The maximum random delay of each request.
    pub(crate) delay: Duration,
}

/// A recorded request.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// `METHOD PATH?QUERY`.
    pub(crate) request: String,
    pub(crate) fault: Option<Fault>,
}

#[derive(Debug)]
struct ProxyServer {
    target: u16,
    script: Mutex<FaultScript>,
    stopped: AtomicBool,
}

#[derive(Debug)]
struct FaultScript {
    /// Methods, and the headers that are removed from their requests.
    stripped: Vec<(&'static str, &'static str)>,
    planned: Vec<(String, Fault)>,
    faults: Faults,
    rng: fastrand::Rng,
    seen: Vec<Seen>,
}

/// A request, parsed as far as the proxy needs.
#[derive(Debug)]
struct Request {
    /// `METHOD PATH?QUERY`.
    line: String,
    /// The head, with a header that tells the service to close the connection.
    head: Vec<u8>,
    /// The length of the whole body.
    length: usize,
    /// The part of the body that was read so far.
    body: Vec<u8>,
}

impl Proxy {
    /// Starts a proxy to a port of this machine.
    pub(crate) fn start(target: u16, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let shared = Arc::new(ProxyServer {
            target,
            script: Mutex::new(FaultScript {
                stripped: Vec::new(),
                planned: Vec::new(),
                faults: Faults::default(),
                rng: fastrand::Rng::with_seed(seed),
                seen: Vec::new(),
            }),
            stopped: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if serving.stopped.load(Ordering::Acquire) {
                    return;
                }
                let shared = Arc::clone(&serving);
                // Errors of connections are expected.
                std::thread::spawn(move || shared.serve(client).unwrap_or_default());
            }
        });
        Self { port, shared }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Plans a fault for the next request with this method and `part` in its path. Planned faults
    /// come before random ones.
    pub(crate) fn plan(&self, method: &str, part: &str, fault: Fault) {
        let pattern = format!("{method} {part}");
        self.shared.script().planned.push((pattern, fault));
    }

    /// Sets the percentages of random faults.
    pub(crate) fn set(&self, faults: Faults) {
        self.shared.script().faults = faults;
    }

    /// Removes a header, named in lower case, from all requests with this method, to simulate a
    /// service that ignores it.
    pub(crate) fn strip(&self, method: &'static str, header: &'static str) {
        self.shared.script().stripped.push((method, header));
    }

    /// Returns the requests so far with their faults.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.script().seen.clone()
    }

    /// Returns the number of requests with this fault.
    pub(crate) fn count(&self, fault: Fault) -> usize {
        let script = self.shared.script();
        script
            .seen
            .iter()
            .filter(|seen| seen.fault == Some(fault))
            .count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        // The thread waits for a connection; this one wakes it.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl ProxyServer {
    fn script(&self) -> MutexGuard<'_, FaultScript> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves one request.
    fn serve(&self, mut client: TcpStream) -> std::io::Result<()> {
        let Some(mut request) = Request::read(&mut client)? else {
            return Ok(());
        };
        request.strip(&self.script().stripped);
        let (fault, delay) = self.script().next_fault(&request.line);
        std::thread::sleep(delay);
        match fault {
            Some(Fault::CutBefore) => return Ok(()),
            Some(Fault::CutWithin) => {
                let half = request.length / 2;
                request.read_body(&mut client, half)?;
                let mut service = self.connect()?;
                match request.length {
                    // Without a body, half of the head.
                    0 => service.write_all(&request.head[..request.head.len() / 2])?,
                    _ => {
                        service.write_all(&request.head)?;
                        service.write_all(&request.body[..half])?;
                    }
                }
                return service.shutdown(Shutdown::Both);
            }
            _ => request.read_body(&mut client, request.length)?,
        }
        let answer = match fault {
            Some(Fault::Answer(status)) => refusal(status).into_bytes(),
            Some(Fault::Repeat) => {
                self.forward(&request)?;
                self.forward(&request)?
            }
            _ => self.forward(&request)?,
        };
        if fault == Some(Fault::CutAfter) {
            return Ok(());
        }
        client.write_all(&answer)?;
        client.shutdown(Shutdown::Write)
    }

    /// Sends the request to the service; returns the whole answer.
    fn forward(&self, request: &Request) -> std::io::Result<Vec<u8>> {
        let mut service = self.connect()?;
        service.write_all(&request.head)?;
        service.write_all(&request.body)?;
        let mut answer = Vec::new();
        service.read_to_end(&mut answer)?;
        Ok(answer)
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        TcpStream::connect(("127.0.0.1", self.target))
    }
}

impl FaultScript {
    /// Records a request; returns its fault and delay.
    fn next_fault(&mut self, line: &str) -> (Option<Fault>, Duration) {
        let planned = self.planned.iter().position(|(pattern, _)| {
            let (method, part) = pattern.split_once(' ').unwrap_or((pattern, ""));
            line.starts_with(method) && line.contains(part)
        });
        let fault = match planned {
            Some(at) => Some(self.planned.remove(at).1),
            None => self.drawn(),
        };
        let most = u64::try_from(self.faults.delay.as_micros()).unwrap_or(u64::MAX);
        let delay = match fault {
            Some(Fault::Delay(delay)) => delay,
            _ => Duration::from_micros(self.rng.u64(0..=most)),
        };
        let request = line.to_owned();
        self.seen.push(Seen { request, fault });
        (fault, delay)
    }

    fn drawn(&mut self) -> Option<Fault> {
        let faults = self.faults;
        let mut drawn = self.rng.u32(0..100);
        for (percent, fault) in [
            (faults.cut_before, Fault::CutBefore),
            (faults.cut_within, Fault::CutWithin),
            (faults.cut_after, Fault::CutAfter),
            (faults.repeat, Fault::Repeat),
            (faults.busy, Fault::Answer(503)),
        ] {
            if drawn < percent {
                return Some(fault);
            }
            drawn -= percent;
        }
        None
    }
}

impl Request {
    /// Reads a request's head; `None` if the connection ends first.
    fn read(client: &mut TcpStream) -> std::io::Result<Option<Self>> {
        const END: &[u8] = b"\r\n\r\n";
        let mut bytes = Vec::new();
        let mut chunk = [0; 16 * 1024];
        let end = loop {
            if let Some(at) = bytes.windows(END.len()).position(|four| four == END) {
                break at;
            }
            let count = client.read(&mut chunk)?;
            if count == 0 {
                return Ok(None);
            }
            bytes.extend_from_slice(&chunk[..count]);
        };
        let body = bytes.split_off(end + END.len());
        let text = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let mut head = format!("{first}\r\nConnection: close\r\n");
        let mut length = 0;
        for line in lines {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            match name.to_ascii_lowercase().as_str() {
                "connection" => continue,
                "content-length" => length = value.trim().parse().expect("a length"),
                "transfer-encoding" => panic!("a body without a length: {text}"),
                _ => {}
            }
            head.push_str(line);
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        let line = first.rsplit_once(' ').map_or(first, |(line, _)| line);
        Ok(Some(Self {
            line: line.to_owned(),
            head: head.into_bytes(),
            length,
            body,
        }))
    }

    /// Removes headers from the head.
    fn strip(&mut self, stripped: &[(&str, &str)]) {
        let method = self.line.split(' ').next().unwrap_or_default().to_owned();
        let is_kept = |line: &&str| {
            let name = line.split(':').next().unwrap_or_default();
            let is_it =
                |(of, header): &(&str, &str)| *of == method && name.eq_ignore_ascii_case(header);
            !stripped.iter().any(is_it)
        };
        let head = String::from_utf8_lossy(&self.head);
        let kept: Vec<_> = head.split("\r\n").filter(is_kept).collect();
        self.head = kept.join("\r\n").into_bytes();
    }

    /// Reads until this much of the body has arrived.
    fn read_body(&mut self, client: &mut TcpStream, length: usize) -> std::io::Result<()> {
        let there = self.body.len();
        if there < length {
            self.body.resize(length, 0);
            client.read_exact(&mut self.body[there..])?;
        }
        Ok(())
    }
}

/// Returns the answer of a service that is busy, or that refuses the credential.
fn refusal(status: u16) -> String {
    let code = match status {
        403 => "AuthorizationPermissionMismatch",
        _ => "ServerBusy",
    };
    let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
    let length = body.len();
    format!(
        "HTTP/1.1 {status} Refused\r\nContent-Type: application/xml\r\nContent-Length: {length}\r\n\
         x-ms-error-code: {code}\r\nConnection: close\r\n\r\n{body}"
    )
}
