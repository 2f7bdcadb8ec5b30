//! One connection: its bytes, in plain text or over TLS, and hyper's HTTP/2 with the limits for long streams,
//! which run as parts of its bundle.
//!
//! The preface is read and checked before anything is allocated for the connection, and then replayed. A
//! connection with another protocol is closed without an answer. The streams run after every 16 KiB
//! read, because h2 itself reads as long as bytes are available.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use hyper::{
    rt::{Sleep, Timer},
    server::conn::http2,
};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use super::{
    activity::Activity,
    service::{ConnectionService, ServiceRoutes},
};
use crate::{
    base::{
        causes::causes,
        task::{Work, spend},
    },
    relay::server::access::Access,
};

/// Maximum open streams of a connection. hyper's default is 200; tonic has none.
const MAX_STREAMS: u32 = 1_000;
/// Maximum buffered bytes of a stream whose peer does not read; hyper's default is 400 KiB.
const SEND_BUFFER: usize = 16 * 1024;
/// Resets that a peer may cause or leave pending before its connection is closed.
const ERROR_RESETS: usize = 1_024;
const PENDING_RESETS: usize = 20;
const HEADER_LIST: u32 = 8 * 1024;
const FRAME: u32 = 16 * 1024;
/// A request of 1 MiB takes 16 round trips.
const STREAM_WINDOW: u32 = 64 * 1024;
/// h2 adds up by how much each unread DATA frame is shorter than 256 bytes, and closes the
/// connection when the sum exceeds half of this window. So a stream may fill its window with requests
/// of 28 bytes, one in each frame: 2,341 of them add 521 KiB. Unread bytes use memory, so the window
/// is no wider.
const CONNECTION_WINDOW: u32 = 1152 * 1024;
/// A silent peer gets a PING after this time. Without an answer in time its connection is dead.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves a connection whose preface was read. Ends when the peer closes it, and as [`Activity`] says.
pub(crate) async fn serve(
    stream: Transport,
    routes: ServiceRoutes,
    activity: Activity,
    access: Access,
) -> Result<(), hyper::Error> {
    let activity = Arc::new(activity);
    let io = SlicedIo::new(stream, Arc::clone(&activity));
    let service = ConnectionService::new(routes, Arc::clone(&activity), access);
    let bundle = activity.bundle.clone();
    let mut builder = http2::Builder::new(bundle.clone());
    builder
        .timer(PingTimer)
        .max_concurrent_streams(MAX_STREAMS)
        .max_send_buf_size(SEND_BUFFER)
        .max_local_error_reset_streams(ERROR_RESETS)
        .max_pending_accept_reset_streams(PENDING_RESETS)
        .max_header_list_size(HEADER_LIST)
        .max_frame_size(FRAME)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT);
    let connection = builder.serve_connection(TokioIo::new(io), TowerToHyperService::new(service));
    // A part of the bundle, so it is polled only when it wakes: all connections share the token,
    // which is behind a lock.
    bundle.add(Arc::clone(&activity).end_in_time());
    let mut connection = std::pin::pin!(connection);
    let served = bundle.run(std::future::poll_fn(|cx| {
        if activity.is_closed.load(Relaxed) {
            return Poll::Ready(Ok(()));
        }
        if activity.is_going_away.load(Relaxed) {
            connection.as_mut().graceful_shutdown();
        }
        activity.slice_read.store(0, Relaxed);
        let polled = connection.as_mut().poll(cx);
        if let Poll::Ready(Err(error)) = &polled
            && is_timeout(error)
        {
            activity.is_lost.store(true, Relaxed);
        }
        polled
    }));
    served.await
}

/// Returns whether the peer did not answer a PING, or its system no packet.
fn is_timeout(error: &hyper::Error) -> bool {
    let timed_out = |cause: &(dyn std::error::Error + 'static)| {
        let error = cause.downcast_ref::<io::Error>();
        error.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
    };
    error.is_timeout() || causes(error).any(timed_out)
}

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
        if self.activity.slice_read.load(Relaxed) >= READ_SLICE {
            spend(Work::Slice);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        std::task::ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let read = buf.filled().len() - before;
        self.activity.slice_read.fetch_add(read, Relaxed);
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
        // A system call for one buffer is cheaper than one for several. Most frames are one.
        match bufs {
            [one] => Pin::new(&mut self.stream).poll_write(cx, one),
            _ => Pin::new(&mut self.stream).poll_write_vectored(cx, bufs),
        }
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

/// hyper's timer for its pings: a silent connection gets one together with another message, if one is sent
/// about then.
#[derive(Debug)]
struct PingTimer;

/// A ping's time and its time-out are kept within so much.
const PING_WITHIN: Duration = Duration::from_secs(1);

pin_project_lite::pin_project! {
    /// A wait that is over from [`PING_WITHIN`] before its deadline on, and wakes its connection as long
    /// after it: so a ping is one write with a heartbeat that is sent meanwhile.
    struct PingSleep {
        #[pin]
        late: tokio::time::Sleep,
    }
}

impl Future for PingSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let late = self.project().late;
        match late.deadline() - PING_WITHIN * 2 <= tokio::time::Instant::now() {
            true => Poll::Ready(()),
            false => late.poll(cx),
        }
    }
}

impl Sleep for PingSleep {}

impl Timer for PingTimer {
    fn sleep(&self, span: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + span)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        let late = tokio::time::sleep_until((deadline + PING_WITHIN).into());
        Box::pin(PingSleep { late })
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into()
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, deadline: Instant) {
        if let Some(sleep) = sleep.as_mut().downcast_mut_pin::<PingSleep>() {
            sleep.project().late.reset((deadline + PING_WITHIN).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_is_over_a_second_early_where_it_is_polled_and_wakes_a_second_late() {
        let span = Duration::from_secs(20);
        let mut sleep = PingTimer.sleep(span);
        let is_over = async |sleep: &mut Pin<Box<dyn Sleep>>| {
            std::future::poll_fn(|cx| Poll::Ready(sleep.as_mut().poll(cx).is_ready())).await
        };
        tokio::time::advance(Duration::from_millis(18_900)).await;
        assert!(!is_over(&mut sleep).await);
        tokio::time::advance(Duration::from_millis(200)).await;
        assert!(is_over(&mut sleep).await);
        let began = PingTimer.now();
        PingTimer.reset(&mut sleep, began + span);
        sleep.await;
        assert_eq!(PingTimer.now() - began, Duration::from_secs(21));
    }
}
