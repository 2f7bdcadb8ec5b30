//! A connection's byte stream below HTTP/2.
//!
//! Replays the preface that was read already. Lets the streams run after every 16 KiB read, because
//! h2 itself reads as long as bytes are available.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{activity::Activity, preface::PREFACE, transport::Transport};
use crate::base::task::{Work, spend};

/// A connection whose preface was read already, and is replayed to HTTP/2.
#[derive(Debug)]
pub(crate) struct SlicedIo {
    stream: Transport,
    /// Replayed bytes of the preface.
    preface_read: usize,
    activity: Arc<Activity>,
}

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
