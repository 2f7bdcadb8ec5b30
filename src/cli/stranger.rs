//! Recognises what answers on an address that was taken for a relay's: its admin port, TLS, or a
//! server of another protocol.
//!
//! Asked only after a call has failed, so that it costs a working relay nothing.

use std::time::Duration;

use reveille::{Error, ErrorKind};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// A server that speaks answers at once; a relay's own port says nothing that is read here.
const ANSWERS: Duration = Duration::from_millis(300);
/// Enough to know a protocol by.
const HEAD: usize = 512;

/// Returns the error that names what is there instead of a relay; `None` where that is not known
/// within `left`.
pub(super) async fn named(relay: &str, left: Duration) -> Option<Error> {
    let answer = tokio::time::timeout(left.min(ANSWERS * 2), ask(relay)).await;
    let what = describe(&answer.ok()??)?;
    let message = format!("relay `{relay}`: {what}");
    Some(Error::new(ErrorKind::Unavailable, message))
}

/// Asks as a probe of health does, and returns the beginning of the answer.
async fn ask(relay: &str) -> Option<Vec<u8>> {
    let (_, rest) = relay.split_once("://")?;
    let mut stream = TcpStream::connect(rest.split('/').next()?).await.ok()?;
    let request = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.ok()?;
    let mut answer = Vec::new();
    while answer.len() < HEAD {
        let read = tokio::time::timeout(ANSWERS, stream.read_buf(&mut answer)).await;
        if !matches!(read, Ok(Ok(1..))) {
            break;
        }
    }
    Some(answer)
}

fn describe(answer: &[u8]) -> Option<String> {
    if answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(b"\r\n\r\nok\n") {
        let what = "that is an admin port; a relay's clients use its other port, 7600 by default";
        return Some(what.to_owned());
    }
    if answer.starts_with(b"HTTP/1") {
        return Some("an HTTP/1 server answers there, and no relay".to_owned());
    }
    // Alerts and handshakes of TLS begin so.
    if let [0x15 | 0x16, 0x03, ..] = answer {
        return Some("TLS is spoken there, and no plain text".to_owned());
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
    fn what_answers_is_told_by_its_first_bytes() {
        for (answer, words) in [
            (
                &b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n"[..],
                Some("admin port"),
            ),
            (b"HTTP/1.1 404 Not Found\r\n\r\n", Some("HTTP/1 server")),
            (b"SSH-2.0-OpenSSH_9.6\r\n", Some("\"SSH-2.0-OpenSSH_9.6\"")),
            (&[0x15, 0x03, 0x01, 0, 2, 2, 70], Some("TLS")),
            // SETTINGS: it is a relay, or speaks as one.
            (&[0, 0, 0x12, 4, 0, 0, 0, 0, 0], None),
            (b"", None),
        ] {
            let described = describe(answer);
            match words {
                Some(words) => assert!(described.expect(words).contains(words)),
                None => assert_eq!(described, None),
            }
        }
    }
}
