//! The first bytes of a connection: read before anything is allocated for it.
//!
//! A peer that speaks something else is told nothing and closed. The caller sets the deadline.

use std::io;

use tokio::{io::AsyncReadExt, net::TcpStream};

/// HTTP/2's connection preface (RFC 9113, section 3.4).
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Reads the preface.
pub(super) async fn read(stream: &mut TcpStream) -> io::Result<()> {
    let mut bytes = [0; PREFACE.len()];
    // Byte by byte of what differs first, so that another protocol is refused at once.
    let mut filled = 0;
    while filled < bytes.len() {
        let count = stream.read(&mut bytes[filled..]).await?;
        filled += count;
        if count == 0 || bytes[..filled] != PREFACE[..filled] {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "no HTTP/2 preface",
            ));
        }
    }
    Ok(())
}
