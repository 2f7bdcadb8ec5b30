//! One connection: hyper's HTTP/2 with the limits for long streams, which run as parts of its bundle.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hyper::server::conn::http2;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tonic::service::Routes;

use super::{
    activity::{Activity, Ending},
    incidents::Incident,
    service::ConnectionService,
    transport::{SlicedIo, Transport},
};
use crate::{
    base::{
        causes::causes,
        task::{TaskGroup, Work, spend},
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
    routes: Routes,
    activity: Activity,
    access: Access,
) -> Result<(), hyper::Error> {
    let activity = Arc::new(activity);
    let io = SlicedIo::new(stream, Arc::clone(&activity));
    let service = ConnectionService::new(routes, Arc::clone(&activity), access);
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

/// Runs a connection's streams in its bundle.
#[derive(Debug, Clone)]
struct StreamExecutor {
    bundle: TaskGroup,
    activity: Arc<Activity>,
}

pin_project! {
    // One stream. It ends early if the peer does not read the answer to a unary request in time,
    // which resets the stream and frees its memory.
    struct ServedStream<F> {
        #[pin]
        stream: F,
        activity: Arc<Activity>,
        // Set once an answer is ready and not sent at once.
        overdue: Option<Pin<Box<Sleep>>>,
    }
}

/// Time to read an answer: 1 MiB at 300 kbit/s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        // A peer that opens many streams at once takes turns with the other connections.
        spend(Work::Request);
        self.bundle.add(ServedStream {
            stream,
            activity: Arc::clone(&self.activity),
            overdue: None,
        });
    }
}

impl<F: Future<Output = ()>> Future for ServedStream<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        if this.stream.poll(cx).is_ready() {
            this.activity.take_unary_answer();
            return Poll::Ready(());
        }
        // The streams of a connection are polled one after another, so the answer is this stream's.
        if this.activity.take_unary_answer() {
            *this.overdue = Some(Box::pin(tokio::time::sleep(ANSWER_TIMEOUT)));
        }
        let Some(overdue) = this.overdue else {
            return Poll::Pending;
        };
        std::task::ready!(overdue.as_mut().poll(cx));
        this.activity.note(Incident::UnreadAnswer);
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::relay::server::http2::incidents::Incidents;

    #[tokio::test(start_paused = true)]
    async fn a_unary_answer_that_is_not_taken_ends_its_stream_alone() {
        let incidents = Arc::new(Incidents::new());
        let activity = Activity::for_test(Arc::clone(&incidents), CancellationToken::new());
        let streams = StreamExecutor {
            bundle: TaskGroup::default(),
            activity: Arc::clone(&activity),
        };
        // As in hyper: the service returns its answer, and the peer's window stays closed.
        let (unary, unary_ended) = tokio::sync::oneshot::channel::<()>();
        hyper::rt::Executor::execute(&streams, async move {
            let _ended = unary;
            activity.note_unary_answer();
            std::future::pending::<()>().await;
        });
        let (open, open_ended) = tokio::sync::oneshot::channel::<()>();
        hyper::rt::Executor::execute(&streams, async move {
            let _ended = open;
            std::future::pending::<()>().await;
        });
        let start = tokio::time::Instant::now();
        let ended = streams.bundle.clone().run(unary_ended).await;
        assert!(ended.is_err(), "dropped");
        assert_eq!(start.elapsed().as_secs(), ANSWER_TIMEOUT.as_secs());
        assert_eq!(incidents.count(Incident::UnreadAnswer), 1);
        drop(open_ended);
    }
}
