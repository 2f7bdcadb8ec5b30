//! A connection's preface, read before anything is allocated for the connection.
//!
//! A connection with another protocol is closed without an answer. The caller sets the deadline.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// HTTP/2's connection preface (RFC 9113, section 3.4).
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The type of a TLS record with a handshake (RFC 8446, section 5.1).
const TLS: &[u8] = &[22];

/// Reads and checks the preface.
///
/// # Errors
/// `UnexpectedEof` if the peer ends first, `InvalidData` if it speaks another protocol.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let mut bytes = [0; PREFACE.len()];
    // Compares after each read, so that another protocol is refused at its first bytes.
    let mut filled = 0;
    while filled < bytes.len() {
        let count = stream.read(&mut bytes[filled..]).await?;
        filled += count;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if bytes[..filled] != PREFACE[..filled] {
            let what = match bytes[..filled].starts_with(TLS) {
                true => "TLS, but this port has none: connect to http://, or set --tls-cert",
                false => "another protocol than HTTP/2",
            };
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
    }
    Ok(())
}
