//! The first bytes of a connection: read under a deadline, before anything is allocated for it.
//!
//! Nothing below ends a peer that connects and says nothing (RELIABILITY, section 0), and a peer
//! that speaks something else is told nothing and closed.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// HTTP/2's connection preface (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// As long as an honest client needs over a bad line.
const DEADLINE: Duration = Duration::from_secs(5);

/// A connection whose preface was read, and is read once more.
#[derive(Debug)]
pub(super) struct Prefaced {
    stream: TcpStream,
    /// Bytes of the preface that were handed on.
    given: usize,
}

/// Reads the preface.
pub(super) async fn read(mut stream: TcpStream) -> io::Result<Prefaced> {
    let mut bytes = [0; PREFACE.len()];
    let read = async {
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
    };
    tokio::time::timeout(DEADLINE, read)
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no HTTP/2 preface within 5 s"))??;
    Ok(Prefaced { stream, given: 0 })
}

impl AsyncRead for Prefaced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = &PREFACE[self.given..];
        if rest.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let count = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..count]);
        self.given += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Prefaced {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }
}
