//! A request's body, with a deadline and a budget for unfinished messages.
//!
//! Passes on complete messages only. The received part of an unfinished message is held here and
//! counted, and a message that declares more than its limit ends the body at once. tonic allocates
//! a whole message as soon as it knows its length; so it never allocates for missing bytes. A
//! message that arrives in one piece is passed on as it is, neither copied nor counted.
//!
//! A stream of requests may be silent between two messages without limit. An unfinished message has
//! a deadline, as a single request has; a hand-over's is renewed while bytes arrive, because its line
//! may be slow. A drain ends it at once, because it may never be complete.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures_core::future::BoxFuture;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{
    activity::Activity,
    budget::{Exhausted, Reservation},
    calls::{Call, CallKind},
    incidents::Incident,
};
use crate::{
    error::{Error, ErrorKind},
    wire::to_status,
};

/// The body of one call.
pub(super) struct RequestBody {
    /// `None` once the body has ended.
    incoming: Option<Incoming>,
    call: Call,
    activity: Arc<Activity>,
    messages: MessageScanner,
    /// Received bytes of the current, unfinished message.
    partial: BytesMut,
    reservation: Option<Reservation>,
    /// Number of messages passed on.
    handed_on: u64,
    /// Largest number of bytes passed on at once since the reader was last replaced.
    largest_chunk: usize,
    /// The error that ends the body after the messages passed on.
    refusal: Option<Status>,
    /// Bytes of an unfinished message since its deadline was set.
    progress: usize,
    /// Deadline of an unfinished message. Not set for a request that arrived at once.
    abort: Option<BoxFuture<'static, AbortReason>>,
}

/// Follows the messages in a body (a flag, four bytes of length, the message).
#[derive(Debug)]
pub(crate) struct MessageScanner {
    /// Maximum length of a message.
    limit: usize,
    prefix: [u8; PREFIX],
    /// Received bytes of the current message's prefix.
    filled: usize,
    /// Missing bytes of the current message.
    remaining: usize,
}

/// The result of scanning some bytes of a body.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scanned {
    /// End of the last complete message; 0 without one.
    pub(crate) complete: usize,
    /// Number of messages completed by these bytes.
    pub(crate) count: u64,
    /// The declared length of a message beyond the limit. Later bytes are not scanned.
    pub(crate) oversized: Option<u32>,
}

/// Reason to stop waiting for the rest of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AbortReason {
    Deadline,
    Draining,
}

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

const PREFIX: usize = 5;
/// Time to complete a request: 1 MiB at 2 Mbit/s. A client gives up after 5 s as well.
const DEADLINE: Duration = Duration::from_secs(5);
/// Bytes that renew the deadline of a hand-over: the slowest line has 0.8 KiB/s.
const PROGRESS: usize = 4 * 1024;
/// Suggested wait when the budget is used up: unfinished requests complete or time out until then.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Bytes of unfinished requests that a connection may hold while the process is short of memory: some
/// messages of open streams that arrive in pieces.
const SHORT_SHARE: usize = 64 * 1024;
/// Time to receive the rest of a refused request: some round trips on a bad network.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(2);

impl RequestBody {
    pub(super) fn new(incoming: Incoming, call: Call, activity: Arc<Activity>) -> Self {
        Self {
            incoming: Some(incoming),
            call,
            activity,
            messages: MessageScanner::new(call.limit),
            partial: BytesMut::new(),
            reservation: None,
            handed_on: 0,
            largest_chunk: 0,
            refusal: None,
            progress: 0,
            abort: None,
        }
    }

    /// Returns whether the peer must send more of the body.
    fn is_unfinished(&self) -> bool {
        !self.call.kind.is_client_streaming() || self.messages.is_unfinished()
    }

    /// Returns whether the reader got more than `more_than` bytes at once and has read all of its
    /// messages, `read` in number. Resets the size then.
    pub(super) fn reader_finished_large_chunk(&mut self, more_than: usize, read: u64) -> bool {
        let finished = self.largest_chunk > more_than && self.handed_on == read;
        if finished {
            self.largest_chunk = 0;
        }
        finished
    }

    /// Processes received bytes; returns the complete messages.
    fn on_data(&mut self, mut data: Bytes) -> Bytes {
        let begins = !self.messages.is_unfinished();
        let scanned = self.messages.scan(&data);
        self.progress += data.len();
        let has_progress = self.call.is_hand_over() && self.progress >= PROGRESS;
        if has_progress
            || (self.call.kind.is_client_streaming() && (begins || scanned.complete > 0))
        {
            self.abort = None;
            self.progress = 0;
        }
        let rest = data.split_off(scanned.complete);
        let whole = match scanned.complete {
            0 => Bytes::new(),
            _ if self.partial.is_empty() => data,
            _ => {
                self.partial.extend_from_slice(&data);
                std::mem::take(&mut self.partial).freeze()
            }
        };
        if scanned.complete > 0 {
            self.reservation = None;
            self.handed_on += scanned.count;
            self.largest_chunk = self.largest_chunk.max(whole.len());
        }
        if let Some(length) = scanned.oversized {
            self.refuse(too_large(self.call.limit, length));
        } else if !rest.is_empty() {
            self.hold(&rest);
        }
        whole
    }

    /// Holds the received part of an unfinished message if the budget has room.
    fn hold(&mut self, rest: &[u8]) {
        let budget = self.activity.budget();
        let reservation = self.reservation.get_or_insert_with(|| budget.reservation());
        let is_short = self.activity.shared().memory.is_short();
        match reservation.resize(self.partial.len() + rest.len()) {
            Ok(()) if !is_short || budget.bytes() <= SHORT_SHARE => {
                self.partial.extend_from_slice(rest);
            }
            Ok(()) | Err(Exhausted) => {
                self.activity.note(Incident::OverBudget);
                self.refuse(no_room());
            }
        }
    }

    #[cold]
    fn refuse(&mut self, status: Status) {
        self.refusal = Some(status);
        self.partial = BytesMut::new();
        self.reservation = None;
    }

    /// Waits until the unfinished message must be given up.
    fn poll_abort(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>>>> {
        let draining = || -> BoxFuture<'static, AbortReason> {
            Box::pin(abort_reason(self.activity.draining().clone()))
        };
        let abort = self.abort.get_or_insert_with(draining);
        let status = match std::task::ready!(abort.as_mut().poll(cx)) {
            AbortReason::Draining => Status::unavailable("the relay is shutting down"),
            AbortReason::Deadline => {
                self.activity.note(Incident::LateRequest);
                Status::unavailable("request: not complete within 5 s")
            }
        };
        self.end_with(status)
    }

    fn end_with(&mut self, status: Status) -> Poll<Option<Result<Frame<Bytes>>>> {
        if let Some(incoming) = self.incoming.take() {
            discard_body(incoming, &self.activity);
        }
        self.partial = BytesMut::new();
        self.reservation = None;
        self.abort = None;
        Poll::Ready(Some(Err(status.into())))
    }

    /// The peer has ended the body.
    fn poll_end(&mut self) -> Poll<Option<Result<Frame<Bytes>>>> {
        if self.messages.is_unfinished() {
            let text = "request: ends in the middle of a message";
            return self.end_with(Status::invalid_argument(text));
        }
        Poll::Ready(None)
    }

    /// Waits between two messages. A drain ends a stream whose service does not handle it, and so
    /// does the age of the connection.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>>>> {
        if self.call.kind != CallKind::OtherStream {
            return Poll::Pending;
        }
        let draining = || -> BoxFuture<'static, AbortReason> {
            let ending = self.activity.ending_soon().clone();
            Box::pin(async move {
                ending.cancelled_owned().await;
                AbortReason::Draining
            })
        };
        let drained = self.abort.get_or_insert_with(draining);
        std::task::ready!(drained.as_mut().poll(cx));
        self.incoming = None;
        Poll::Ready(None)
    }
}

async fn abort_reason(draining: CancellationToken) -> AbortReason {
    tokio::select! {
        () = draining.cancelled() => AbortReason::Draining,
        () = tokio::time::sleep(DEADLINE) => AbortReason::Deadline,
    }
}

/// Reads the rest of a refused request, for a limited time.
pub(super) fn discard_body(incoming: Incoming, activity: &Arc<Activity>) {
    if !incoming.is_end_stream() {
        let discard = discard(incoming, Arc::clone(activity));
        activity.bundle().add(discard);
    }
}

/// Reads the rest of a refused request. Otherwise h2 would reset the stream at once. h2 remembers
/// few reset streams, resets forgotten ones again for each further frame, and closes a connection
/// with too many resets, including its valid streams.
async fn discard(mut incoming: Incoming, activity: Arc<Activity>) {
    let end = std::future::poll_fn(|cx| {
        while let Some(Ok(frame)) = std::task::ready!(Pin::new(&mut incoming).poll_frame(cx)) {
            activity.note_read(frame.data_ref().map_or(0, Bytes::len));
        }
        Poll::Ready(())
    });
    // Ends with the request, or when the peer must have received the refusal.
    let _ = tokio::time::timeout(DISCARD_TIMEOUT, end).await;
}

/// The codec's error for a message beyond its limit.
fn too_large(limit: usize, length: u32) -> Status {
    Status::resource_exhausted(format!("request: the limit is {limit} bytes, got {length}"))
}

/// Not RESOURCE_EXHAUSTED, which a client attributes to its request's size.
fn no_room() -> Status {
    let text = "request: unfinished requests use the whole budget (16 MiB for a connection, 64 MiB \
                in all beyond 1 MiB each), or memory is short; try again";
    to_status(Error::new(ErrorKind::Unavailable, text).with_retry_after(RETRY_AFTER))
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>>>> {
        let this = &mut *self;
        loop {
            if let Some(status) = this.refusal.take() {
                return this.end_with(status);
            }
            let Some(incoming) = &mut this.incoming else {
                return Poll::Ready(None);
            };
            let frame = match Pin::new(incoming).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error.into()))),
                Poll::Ready(None) => return this.poll_end(),
                Poll::Pending if this.is_unfinished() => return this.poll_abort(cx),
                Poll::Pending => return this.poll_idle(cx),
            };
            let whole = match frame.into_data() {
                Ok(data) => {
                    this.activity.note_read(data.len());
                    this.on_data(data)
                }
                Err(other) => return Poll::Ready(Some(Ok(other))),
            };
            if !whole.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(whole))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let open = self.refusal.is_some() || self.messages.is_unfinished();
        let ended = |incoming: &Incoming| !open && incoming.is_end_stream();
        self.incoming.as_ref().is_none_or(ended)
    }

    /// No hint, as the received bytes may be more than the bytes passed on.
    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

impl MessageScanner {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            prefix: [0; PREFIX],
            filled: 0,
            remaining: 0,
        }
    }

    /// Scans bytes of the body, up to a message that is too large.
    pub(crate) fn scan(&mut self, bytes: &[u8]) -> Scanned {
        let mut scanned = Scanned::default();
        let mut at = 0;
        while at < bytes.len() {
            if self.filled < PREFIX {
                let count = (bytes.len() - at).min(PREFIX - self.filled);
                self.prefix[self.filled..self.filled + count]
                    .copy_from_slice(&bytes[at..at + count]);
                self.filled += count;
                at += count;
                if self.filled < PREFIX {
                    break;
                }
                self.remaining = self.length() as usize;
                if self.remaining > self.limit {
                    scanned.oversized = Some(self.length());
                    break;
                }
            }
            let count = (bytes.len() - at).min(self.remaining);
            self.remaining -= count;
            at += count;
            if self.remaining == 0 {
                self.filled = 0;
                scanned.complete = at;
                scanned.count += 1;
            }
        }
        scanned
    }

    pub(crate) fn is_unfinished(&self) -> bool {
        self.filled > 0
    }

    fn length(&self) -> u32 {
        let [_, length @ ..] = self.prefix;
        u32::from_be_bytes(length)
    }
}

impl std::fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestBody")
            .field("call", &self.call)
            .field("messages", &self.messages)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_in_pieces_of_any_size() {
        let body = [
            &[0, 0, 0, 0, 3, 7, 7, 7][..],
            &[0; 5],
            &[0, 0, 0, 1, 0],
            &[7; 256],
        ]
        .concat();
        for piece in 1..=body.len() {
            let mut messages = MessageScanner::new(256);
            let (mut handed_on, mut count) = (0, 0);
            for (at, bytes) in body.chunks(piece).enumerate() {
                let scanned = messages.scan(bytes);
                assert_eq!(scanned.oversized, None);
                count += scanned.count;
                if scanned.complete > 0 {
                    handed_on = at * piece + scanned.complete;
                }
                let come = ((at + 1) * piece).min(body.len());
                let whole = [8, 13, body.len()].into_iter().filter(|end| *end <= come);
                assert_eq!(
                    handed_on,
                    whole.max().unwrap_or_default(),
                    "{come} by {piece}"
                );
                let unfinished = handed_on < come;
                assert_eq!(messages.is_unfinished(), unfinished, "{come} by {piece}");
            }
            assert_eq!(count, 3);
        }
    }

    #[test]
    fn a_message_beyond_the_limit_ends_the_scan_once_its_length_is_known() {
        let whole = [0, 0, 0, 0, 1, 7];
        let body = [&whole[..], &[0, 0, 0, 1, 0], &[7; 256]].concat();
        for piece in 1..=body.len() {
            let mut messages = MessageScanner::new(255);
            let mut come = 0;
            let beyond = body.chunks(piece).find_map(|bytes| {
                come += bytes.len();
                messages.scan(bytes).oversized
            });
            assert_eq!(beyond, Some(256), "by {piece}");
            assert!(come >= 11 && come - piece < 11, "{come} by {piece}");
        }
        let scanned = MessageScanner::new(255).scan(&body);
        let expected = Scanned {
            complete: whole.len(),
            count: 1,
            oversized: Some(256),
        };
        assert_eq!(scanned, expected);
        assert_eq!(MessageScanner::new(256).scan(&body).complete, body.len());
    }
}
