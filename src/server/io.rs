//! A connection's bytes on their way to and from HTTP/2.
//!
//! Hands the preface on that was read already, ends a connection that floods control frames, and
//! one that does not end a frame or a header block in time: neither hyper nor h2 limits these. And
//! lets the streams run between two reads of much: h2 itself reads as long as there is something.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::Sleep,
};

use super::{activity::Activity, frames::FrameWatch, incidents::Incident, preface::PREFACE};

/// A connection whose preface was read, and is read once more by HTTP/2.
#[derive(Debug)]
pub(super) struct GuardedIo {
    stream: TcpStream,
    /// Bytes of the preface that were handed on.
    given: usize,
    frames: FrameWatch,
    /// Bytes that were read since the streams had their turn.
    read: usize,
    /// Set while a frame or a header block is unfinished and nothing more has come.
    stalled: Option<Pin<Box<Sleep>>>,
    activity: Arc<Activity>,
}

/// For one frame, of 16 KiB at most, or for one header block.
const FRAME_DEADLINE: Duration = Duration::from_secs(5);
/// Bytes of one turn. h2 takes most of a millisecond for as many of the shortest frames, and a
/// connection has eight turns before others have theirs. What the streams have not read by then
/// counts as unread (see `connection`).
const TURN: usize = 16 * 1024;

impl GuardedIo {
    pub(super) fn new(stream: TcpStream, activity: Arc<Activity>) -> Self {
        Self {
            stream,
            given: 0,
            frames: FrameWatch::default(),
            read: 0,
            stalled: None,
            activity,
        }
    }

    fn took(&mut self, bytes: &[u8]) -> io::Result<()> {
        let activity = &self.activity;
        let received = self.frames.received(bytes, || activity.now());
        if received.progress {
            self.stalled = None;
        }
        if received.flood {
            self.activity.note(Incident::Flood);
            let text = "too many control frames";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(())
    }

    /// Polls the deadline of what is unfinished, where nothing more has come.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.frames.is_unfinished() {
            return Poll::Pending;
        }
        let deadline = || Box::pin(tokio::time::sleep(FRAME_DEADLINE));
        let stalled = self.stalled.get_or_insert_with(deadline);
        std::task::ready!(stalled.as_mut().poll(cx));
        self.activity.note(Incident::StalledFrame);
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "a frame was not complete within 5 s",
        )))
    }
}

impl AsyncRead for GuardedIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = &PREFACE[self.given..];
        if !rest.is_empty() {
            let count = rest.len().min(buf.remaining());
            buf.put_slice(&rest[..count]);
            self.given += count;
            return Poll::Ready(Ok(()));
        }
        if self.read >= TURN {
            self.read = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            Poll::Ready(Ok(())) => {
                let bytes = &buf.filled()[before..];
                self.read += bytes.len();
                Poll::Ready(self.took(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                self.read = 0;
                self.poll_stalled(cx)
            }
        }
    }
}

impl AsyncWrite for GuardedIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let count = std::task::ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        self.frames.sent(&buf[..count]);
        Poll::Ready(Ok(count))
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
        let count = std::task::ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, bufs))?;
        let mut left = count;
        for buf in bufs {
            let sent = buf.len().min(left);
            self.frames.sent(&buf[..sent]);
            left -= sent;
        }
        Poll::Ready(Ok(count))
    }
}
