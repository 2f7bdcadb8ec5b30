//! A request's body: it must arrive in time.
//!
//! The single request of a call has a deadline, which arriving bytes renew, because its line may be
//! slow. A stream of requests may be silent for any time. A message is received up to the limit of its
//! call before it is decoded; of a stream, tonic checks the limit when it knows the length.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming};
use tokio::time::{Sleep, sleep, timeout};
use tonic::Status;

use super::{activity::Activity, incidents::Incident};
use crate::{
    base::text::opaque_debug,
    relay::server::access::{Call, CallKind, Right},
};

/// The body of one call.
pub(crate) struct RequestBody {
    /// `None` once the body has ended.
    incoming: Option<Incoming>,
    call: Call,
    activity: Arc<Activity>,
    /// Bytes received so far.
    received: usize,
    /// Bytes received when the deadline was set.
    renewed_at: usize,
    /// Not set for a request that arrived at once.
    deadline: Option<Pin<Box<Sleep>>>,
}

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Time in which [`PROGRESS`] more bytes must arrive.
const DEADLINE: Duration = Duration::from_secs(5);
/// A stream of reflection ends after this time, as its service knows no caller, so that none could be
/// revoked. A tool opens one when it needs it.
const REFLECTION_LASTS: Duration = Duration::from_secs(15);
/// The slowest line has 0.8 KiB/s.
const PROGRESS: usize = 4 * 1024;
/// Bytes before a message: whether it is compressed, and its length.
const FRAMING: usize = 5;
/// Bytes of a request whose caller is not known yet: a check of the health, or of KEDA with 64 of the
/// longest queues.
pub(crate) const UNKNOWN_BYTES: usize = 18 * 1024;
/// Bytes of a single request that are received while the process is short of memory.
const SHORT_SHARE: usize = 64 * 1024;
/// Time to receive the rest of a refused request: some round trips on a bad network.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(2);

impl RequestBody {
    pub(crate) fn new(incoming: Incoming, call: Call, activity: Arc<Activity>) -> Self {
        Self {
            incoming: Some(incoming),
            call,
            activity,
            received: 0,
            renewed_at: 0,
            deadline: None,
        }
    }

    /// Counts received bytes.
    ///
    /// # Errors
    /// The refusal of a large request while memory is short.
    #[allow(clippy::result_large_err, reason = "a status is an answer")]
    fn receive(&mut self, bytes: usize) -> Result<(), Status> {
        self.received += bytes;
        if self.call.kind == CallKind::ClientStream {
            return Ok(());
        }
        if self.received - self.renewed_at >= PROGRESS {
            self.renewed_at = self.received;
            self.deadline = None;
        }
        if self.received > self.call.most + FRAMING {
            let text = format!("request: the limit is {} bytes", self.call.most);
            return Err(Status::resource_exhausted(text));
        }
        if self.received > SHORT_SHARE && self.activity.shared.memory.is_short() {
            self.activity.note(Incident::ShortOfMemory);
            let text = "request: memory is short; try again";
            return Err(Status::unavailable(text));
        }
        Ok(())
    }

    /// Waits until the rest must be given up.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>>>> {
        let wait = match (self.call.kind, self.call.right) {
            (CallKind::ClientStream, Right::Known) => REFLECTION_LASTS,
            // The service ends it.
            (CallKind::ClientStream, _) => return Poll::Pending,
            (CallKind::Unary | CallKind::ServerStream, _) => DEADLINE,
        };
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(wait)));
        std::task::ready!(deadline.as_mut().poll(cx));
        if self.call.kind == CallKind::ClientStream {
            self.incoming = None;
            return Poll::Ready(None);
        }
        self.activity.note(Incident::LateRequest);
        let text = "request: no 4 KiB more of it arrived within 5 s";
        self.fail(Status::unavailable(text))
    }

    fn fail(&mut self, status: Status) -> Poll<Option<Result<Frame<Bytes>>>> {
        self.discard();
        Poll::Ready(Some(Err(status.into())))
    }

    fn discard(&mut self) {
        if let Some(incoming) = self.incoming.take()
            && self.call.kind != CallKind::ClientStream
        {
            discard_body(incoming, &self.activity);
        }
    }
}

/// The service may answer before it has read all of a request, such as one beyond its limit.
impl Drop for RequestBody {
    fn drop(&mut self) {
        self.discard();
    }
}

/// Reads the rest of a refused request, for a limited time. Otherwise h2 would reset the stream at
/// once. h2 remembers few reset streams, resets forgotten ones again for each further frame, and
/// closes a connection with too many resets, including its valid streams.
pub(super) fn discard_body(mut incoming: Incoming, activity: &Arc<Activity>) {
    if incoming.is_end_stream() {
        return;
    }
    activity.bundle.add(async move {
        let end = std::future::poll_fn(|cx| {
            while let Some(Ok(_)) = std::task::ready!(Pin::new(&mut incoming).poll_frame(cx)) {}
            Poll::Ready(())
        });
        // Ends with the request, or when the peer must have received the refusal.
        let _ = timeout(DISCARD_TIMEOUT, end).await;
    });
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>>>> {
        let this = &mut *self;
        let Some(incoming) = &mut this.incoming else {
            return Poll::Ready(None);
        };
        match Pin::new(incoming).poll_frame(cx) {
            Poll::Pending => this.poll_deadline(cx),
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                match this.receive(bytes) {
                    Ok(()) => Poll::Ready(Some(Ok(frame))),
                    Err(status) => this.fail(status),
                }
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(None) => {
                this.incoming = None;
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Incoming::is_end_stream)
    }
}

opaque_debug!(RequestBody: call, received);
