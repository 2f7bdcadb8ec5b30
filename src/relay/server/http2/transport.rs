//! A connection's bytes below HTTP/2: in plain text or over TLS.
//!
//! The preface is read and checked before anything is allocated for the connection, and then replayed. A
//! connection with another protocol is closed without an answer. The streams run after every 16 KiB
//! read, because h2 itself reads as long as bytes are available.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use super::activity::Activity;
use crate::base::task::{Work, spend};

/// A socket, without TLS or with it.
pub(super) type Transport = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// A connection whose preface was read already, and is replayed to HTTP/2.
#[derive(Debug)]
pub(crate) struct SlicedIo {
    stream: Transport,
    /// Replayed bytes of the preface.
    preface_read: usize,
    activity: Arc<Activity>,
}

/// HTTP/2's connection preface (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The type of a TLS record with a handshake (RFC 8446, section 5.1).
const TLS: &[u8] = &[22];

/// Bytes read before the streams run, in one poll of the connection: it polls its socket again for
/// each stream that it accepts. Bytes that the streams have not read by then count as unread (see
/// `connection`).
const READ_SLICE: usize = 16 * 1024;

impl SlicedIo {
    pub(crate) fn new(stream: Transport, activity: Arc<Activity>) -> Self {
        Self {
            stream,
            preface_read: 0,
            activity,
        }
    }
}

impl AsyncRead for SlicedIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = &PREFACE[self.preface_read..];
        if !rest.is_empty() {
            let count = rest.len().min(buf.remaining());
            buf.put_slice(&rest[..count]);
            self.preface_read += count;
            return Poll::Ready(Ok(()));
        }
        if self.activity.slice_read() >= READ_SLICE {
            spend(Work::Slice);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        std::task::ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.activity.add_to_slice(buf.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SlicedIo {
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

/// Reads and checks the preface. The caller sets the deadline.
///
/// # Errors
/// `UnexpectedEof` if the peer ends first, `InvalidData` if it speaks another protocol.
pub(super) async fn read_preface(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
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
