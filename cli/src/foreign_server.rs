//! Identifies a server that is not a relay's gRPC port: an admin port, TLS, or another protocol.
//!
//! Runs only after a call has failed, so that it costs a working relay nothing.

use std::time::Duration;

use reveille::{Error, ErrorKind};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Time-out of a read. Other servers answer at once; a relay's gRPC port sends nothing to this
/// probe that [`describe`] recognises.
const READ_TIMEOUT: Duration = Duration::from_millis(300);
/// Bytes to read: enough to recognise a protocol.
const HEAD: usize = 512;

/// Returns an error that names the server at this address; `None` if it is not recognised within
/// `left`.
pub(super) async fn identify(relay: &str, left: Duration) -> Option<Error> {
    let answer = tokio::time::timeout(left.min(READ_TIMEOUT * 2), probe(relay)).await;
    let answer = answer.ok()??;
    let server = match relay.starts_with("https://") {
        // Only a TLS server answers plain text so: the client's own error says more.
        true if is_tls(&answer) => return None,
        true if answer.is_empty() => {
            "the server there does not speak TLS: write http://".to_owned()
        }
        _ => describe(&answer)?,
    };
    let message = format!("relay `{relay}`: {server}");
    Some(Error::new(ErrorKind::Unavailable, message))
}

/// Sends an HTTP/1 health probe, and returns the first bytes of the answer.
async fn probe(relay: &str) -> Option<Vec<u8>> {
    let (_, rest) = relay.split_once("://")?;
    let mut stream = TcpStream::connect(rest.split('/').next()?).await.ok()?;
    let request = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.ok()?;
    let mut answer = Vec::new();
    while answer.len() < HEAD {
        let read = tokio::time::timeout(READ_TIMEOUT, stream.read_buf(&mut answer)).await;
        if !matches!(read, Ok(Ok(1..))) {
            break;
        }
    }
    Some(answer)
}

/// Returns whether these are the first bytes of a TLS alert or handshake.
fn is_tls(answer: &[u8]) -> bool {
    matches!(answer, [0x15 | 0x16, 0x03, ..])
}

fn describe(answer: &[u8]) -> Option<String> {
    if answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(b"\r\n\r\nok\n") {
        let text = "this is an admin port; clients use the relay's gRPC port, 7600 by default";
        return Some(text.to_owned());
    }
    if answer.starts_with(b"HTTP/1") {
        return Some("an HTTP/1 server answers there, not a relay".to_owned());
    }
    if is_tls(answer) {
        return Some("a TLS server answers there: write https://".to_owned());
    }
    let line = answer.split(|byte| *byte == b'\n').next()?;
    let text = std::str::from_utf8(line).ok()?.trim_end();
    let is_text = text.len() > 2 && text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let shown: String = text.chars().take(60).collect();
    is_text.then(|| format!("a server of another protocol answers there: {shown:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_recognised_by_its_first_bytes() {
        for (answer, part) in [
            (
                &b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n"[..],
                Some("admin port"),
            ),
            (b"HTTP/1.1 404 Not Found\r\n\r\n", Some("HTTP/1 server")),
            (b"SSH-2.0-OpenSSH_9.6\r\n", Some("\"SSH-2.0-OpenSSH_9.6\"")),
            (&[0x15, 0x03, 0x01, 0, 2, 2, 70], Some("TLS")),
            // A SETTINGS frame of HTTP/2: it may be a relay.
            (&[0, 0, 0x12, 4, 0, 0, 0, 0, 0], None),
            (b"", None),
        ] {
            let described = describe(answer);
            match part {
                Some(part) => assert!(described.expect(part).contains(part)),
                None => assert_eq!(described, None),
            }
        }
    }
}
