//! The first line of a server: it shows whether NATS runs there, and with which TLS.
//!
//! Read only where a connection failed, to name the reason.

use std::io;

use async_nats::ServerAddr;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    time::timeout,
};

use super::options::CONNECT_TIMEOUT;

/// What a server answers to a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Greeting {
    /// NATS: it begins with a line `INFO {...}`.
    Nats { tls: ServerTls },
    /// A server that is not NATS.
    Other,
    /// The server accepts a connection and says nothing.
    Silent,
    /// No connection was made.
    Unreachable(String),
}

/// TLS as the server announces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ServerTls {
    pub(super) is_offered: bool,
    pub(super) needs_client_certificate: bool,
}

/// A line of a server with many addresses has a few KiB.
const LINE: u64 = 64 * 1024;

/// Connects to a server, and reads its first line.
pub(super) async fn greeting(server: &ServerAddr) -> Greeting {
    let stream = match timeout(CONNECT_TIMEOUT, connect(server)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Greeting::Unreachable(error.to_string()),
        Err(_) => return Greeting::Unreachable("no connection within 1 s".to_owned()),
    };
    let mut stream = BufReader::new(stream.take(LINE));
    if let Ok(first) = timeout(CONNECT_TIMEOUT, first_line(&mut stream)).await {
        return first;
    }
    // A server of another protocol waits for a request. It answers an unknown one, or closes.
    let mut socket = stream.into_inner().into_inner();
    if socket.write_all(b"PING\r\n\r\n").await.is_err() {
        return Greeting::Other;
    }
    let mut stream = BufReader::new(socket.take(LINE));
    let second = timeout(CONNECT_TIMEOUT, first_line(&mut stream)).await;
    second.unwrap_or(Greeting::Silent)
}

async fn connect(server: &ServerAddr) -> io::Result<TcpStream> {
    let addresses: Vec<_> = server.socket_addrs().await?.collect();
    TcpStream::connect(&addresses[..]).await
}

async fn first_line(stream: &mut (impl tokio::io::AsyncBufRead + Unpin)) -> Greeting {
    let mut line = Vec::new();
    match stream.read_until(b'\n', &mut line).await {
        Ok(_) => of_line(&line),
        Err(_) => Greeting::Other,
    }
}

fn of_line(line: &[u8]) -> Greeting {
    let info = line.strip_prefix(b"INFO ");
    let info = info.and_then(|json| serde_json::from_slice::<serde_json::Value>(json).ok());
    let Some(info) = info else {
        return Greeting::Other;
    };
    let is = |name: &str| info.get(name).and_then(serde_json::Value::as_bool) == Some(true);
    Greeting::Nats {
        tls: ServerTls {
            is_offered: is("tls_required") || is("tls_available"),
            needs_client_certificate: is("tls_verify"),
        },
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn nats_is_known_by_its_first_line() {
        let tls = |is_offered, needs_client_certificate| Greeting::Nats {
            tls: ServerTls {
                is_offered,
                needs_client_certificate,
            },
        };
        for (line, greeting) in [
            (&b"INFO {\"max_payload\":1024}\r\n"[..], tls(false, false)),
            (b"INFO {\"tls_available\":true}\r\n", tls(true, false)),
            (
                b"INFO {\"tls_required\":true,\"tls_verify\":true}\r\n",
                tls(true, true),
            ),
            (b"HTTP/1.1 400 Bad Request\r\n", Greeting::Other),
            (b"INFO nonsense\r\n", Greeting::Other),
            (b"-ERR unknown command\r\n", Greeting::Other),
            (b"", Greeting::Other),
        ] {
            assert_eq!(of_line(line), greeting, "{}", line.escape_ascii());
        }
    }

    /// Runs a server for one connection: it waits for a request of its peer and sends the answer.
    async fn answering(answer: Option<&'static [u8]>) -> ServerAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async move {
            let (mut peer, _) = listener.accept().await.expect("a peer");
            peer.read_exact(&mut [0]).await.expect("a request");
            match answer {
                Some(answer) => peer.write_all(answer).await.expect("sent"),
                None => std::future::pending().await,
            }
        });
        format!("nats://{address}").parse().expect("an address")
    }

    #[tokio::test]
    async fn a_server_that_waits_for_a_request_is_told_from_one_that_hangs() {
        let http = answering(Some(b"HTTP/1.1 400 Bad Request\r\n")).await;
        assert_eq!(greeting(&http).await, Greeting::Other);
        assert_eq!(greeting(&answering(None).await).await, Greeting::Silent);
    }
}
