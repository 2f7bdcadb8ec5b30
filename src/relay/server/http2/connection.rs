//! One connection: hyper's HTTP/2 with the limits for long streams.

use std::{future::Future, io, sync::Arc, task::Poll, time::Duration};

use hyper::server::conn::http2;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tonic::service::Routes;

use super::{
    activity::{Activity, Ending},
    certificate::Peer,
    io::SlicedIo,
    service::ConnectionService,
    streams::StreamExecutor,
    transport::Transport,
};
use crate::{base::causes::causes, relay::server::access::Access};

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
    routes: Routes,
    activity: Activity,
    access: Access,
    peer: Arc<Peer>,
) -> Result<(), hyper::Error> {
    let activity = Arc::new(activity);
    let io = SlicedIo::new(stream, Arc::clone(&activity));
    let service = ConnectionService::new(routes, Arc::clone(&activity), access, peer);
    let bundle = activity.bundle().clone();
    let mut builder = http2::Builder::new(StreamExecutor {
        bundle: bundle.clone(),
        activity: Arc::clone(&activity),
    });
    builder
        .timer(TokioTimer::new())
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
        match activity.take_ending() {
            Ending::None => {}
            Ending::Graceful => connection.as_mut().graceful_shutdown(),
            Ending::Closed => return Poll::Ready(Ok(())),
        }
        activity.begin_slice();
        let polled = connection.as_mut().poll(cx);
        if let Poll::Ready(Err(error)) = &polled
            && is_timeout(error)
        {
            activity.set_lost();
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
