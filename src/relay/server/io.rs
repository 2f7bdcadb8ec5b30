//! A connection's byte stream below HTTP/2.
//!
//! Replays the preface that was read already. Ends a connection that floods control frames or does
//! not complete a frame or a header block in time: neither hyper nor h2 limits these. Lets the
//! streams run after every 16 KiB read, because h2 itself reads as long as bytes are available.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

use super::{
    activity::Activity, frames::FrameWatch, incidents::Incident, preface::PREFACE,
    transport::Transport,
};

/// A connection whose preface was read already, and is replayed to HTTP/2.
#[derive(Debug)]
pub(super) struct GuardedIo {
    stream: Transport,
    /// Replayed bytes of the preface.
    preface_read: usize,
    frames: FrameWatch,
    /// Set while a frame or a header block is incomplete and no more bytes are available.
    stalled: Option<Pin<Box<Sleep>>>,
    activity: Arc<Activity>,
}

/// Time to complete one frame, of at most 16 KiB, or one header block.
const FRAME_DEADLINE: Duration = Duration::from_secs(5);
/// Bytes read before the streams run, in one poll of the connection: it polls its socket again for
/// each stream that it accepts. h2 needs most of a millisecond for this many bytes of the
/// shortest frames, and a connection reads eight slices before other connections run. Bytes that
/// the streams have not read by then count as unread (see `connection`).
const READ_SLICE: usize = 16 * 1024;

impl GuardedIo {
    pub(super) fn new(stream: Transport, activity: Arc<Activity>) -> Self {
        Self {
            stream,
            preface_read: 0,
            frames: FrameWatch::default(),
            stalled: None,
            activity,
        }
    }

    fn on_read(&mut self, bytes: &[u8]) -> io::Result<()> {
        let activity = &self.activity;
        let received = self.frames.received(bytes, || activity.now());
        if received.data > 0 {
            activity.note_received(received.data);
        }
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

    /// Polls the deadline of an incomplete frame or header block.
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
        let rest = &PREFACE[self.preface_read..];
        if !rest.is_empty() {
            let count = rest.len().min(buf.remaining());
            buf.put_slice(&rest[..count]);
            self.preface_read += count;
            return Poll::Ready(Ok(()));
        }
        if self.activity.slice_read() >= READ_SLICE {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            Poll::Ready(Ok(())) => {
                let bytes = &buf.filled()[before..];
                self.activity.add_to_slice(bytes.len());
                Poll::Ready(self.on_read(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.poll_stalled(cx),
        }
    }
}

impl AsyncWrite for GuardedIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.activity.note_write(written.is_pending());
        let count = std::task::ready!(written)?;
        let data = self.frames.sent(&buf[..count]);
        self.activity.note_sent(data);
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
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.activity.note_write(written.is_pending());
        let count = std::task::ready!(written)?;
        let (mut left, mut data) = (count, 0);
        for buf in bufs {
            let sent = buf.len().min(left);
            data += self.frames.sent(&buf[..sent]);
            left -= sent;
        }
        self.activity.note_sent(data);
        Poll::Ready(Ok(count))
    }
}
