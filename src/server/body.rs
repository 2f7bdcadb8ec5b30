//! A request's body: complete within a deadline, and within what may be held unfinished.
//!
//! Hands on whole messages only; what has come of an unfinished one is held here and counted, and
//! one that declares more than its limit ends the body at once. So tonic, which makes room for all
//! of a message as soon as it knows its length, never does so for what may not come. A message that
//! comes in one piece is handed on as it is, neither copied nor counted.
//!
//! A stream of requests may be silent between two messages for as long as it likes; a message that
//! was begun has a deadline, as a single request has. A drain ends what is unfinished at once: it
//! may never be complete.

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
    messages: Messages,
    /// What has come of the present message, where it is unfinished.
    held: BytesMut,
    room: Option<Reservation>,
    /// Messages that were handed on, and the most bytes of them at once since this was asked.
    handed_on: u64,
    most: usize,
    /// With which the body ends, after what was handed on.
    refusal: Option<Status>,
    /// Set while more is awaited that must come. Not on the way of a request that came at once.
    overdue: Option<BoxFuture<'static, Overdue>>,
}

/// Follows the messages in a body (a flag, four bytes of length, the message).
#[derive(Debug)]
struct Messages {
    /// The greatest length of a message.
    limit: usize,
    prefix: [u8; PREFIX],
    /// Bytes of the present message's prefix that have come.
    filled: usize,
    /// Bytes of the present message that have not.
    left: usize,
}

/// What some bytes of a body contained.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Taken {
    /// Where the last message ends that is whole now; 0 where none is.
    whole: usize,
    /// Messages that are whole now.
    count: u64,
    /// The length that a message declares beyond the limit. What follows is no message.
    beyond: Option<u32>,
}

/// Why a request is not waited for any longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overdue {
    Late,
    Draining,
}

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

const PREFIX: usize = 5;
/// For a request of 1 MiB at 2 Mbit/s; a client gives a request up after 5 s as well.
const DEADLINE: Duration = Duration::from_secs(5);
/// Unfinished requests come to their end or their deadline, and free their room.
const ROOM_AFTER: Duration = Duration::from_secs(1);
/// Some round trips over a bad line.
const ON_ITS_WAY: Duration = Duration::from_secs(2);

impl RequestBody {
    pub(super) fn new(incoming: Incoming, call: Call, activity: Arc<Activity>) -> Self {
        Self {
            incoming: Some(incoming),
            call,
            activity,
            messages: Messages::new(call.limit),
            held: BytesMut::new(),
            room: None,
            handed_on: 0,
            most: 0,
            refusal: None,
            overdue: None,
        }
    }

    /// Returns whether more of the body must come, and not only may.
    fn is_unfinished(&self) -> bool {
        !self.call.kind.takes_many() || self.messages.is_unfinished()
    }

    /// Returns whether its reader was handed more than this at once and has read all of it, which
    /// is so many messages; forgets it then.
    pub(super) fn has_handed_on(&mut self, more_than: usize, read: u64) -> bool {
        let has = self.most > more_than && self.handed_on == read;
        if has {
            self.most = 0;
        }
        has
    }

    /// Takes bytes that have come; returns the messages that are whole now.
    fn took(&mut self, mut data: Bytes) -> Bytes {
        let begins = !self.messages.is_unfinished();
        let taken = self.messages.take(&data);
        if self.call.kind.takes_many() && (begins || taken.whole > 0) {
            self.overdue = None;
        }
        let rest = data.split_off(taken.whole);
        let whole = match taken.whole {
            0 => Bytes::new(),
            _ if self.held.is_empty() => data,
            _ => {
                self.held.extend_from_slice(&data);
                std::mem::take(&mut self.held).freeze()
            }
        };
        if taken.whole > 0 {
            self.room = None;
            self.handed_on += taken.count;
            self.most = self.most.max(whole.len());
        }
        if let Some(length) = taken.beyond {
            self.refuse(too_large(self.call.limit, length));
        } else if !rest.is_empty() {
            self.hold(&rest);
        }
        whole
    }

    /// Keeps what has come of an unfinished message, where there is room.
    fn hold(&mut self, rest: &[u8]) {
        let budget = self.activity.budget();
        let room = self.room.get_or_insert_with(|| budget.reservation());
        match room.resize(self.held.len() + rest.len()) {
            Ok(()) => self.held.extend_from_slice(rest),
            Err(Exhausted) => {
                self.activity.note(Incident::OverBudget);
                self.refuse(no_room());
            }
        }
    }

    #[cold]
    fn refuse(&mut self, status: Status) {
        self.refusal = Some(status);
        self.held = BytesMut::new();
        self.room = None;
    }

    /// Waits until what is unfinished is overdue.
    fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>>>> {
        let draining = || -> BoxFuture<'static, Overdue> {
            Box::pin(overdue(self.activity.draining().clone()))
        };
        let overdue = self.overdue.get_or_insert_with(draining);
        let status = match std::task::ready!(overdue.as_mut().poll(cx)) {
            Overdue::Draining => Status::unavailable("the relay is shutting down"),
            Overdue::Late => {
                self.activity.note(Incident::LateRequest);
                Status::unavailable("request: was not complete within 5 s")
            }
        };
        self.end_with(status)
    }

    fn end_with(&mut self, status: Status) -> Poll<Option<Result<Frame<Bytes>>>> {
        if let Some(incoming) = self.incoming.take() {
            self.activity.bundle().add(discard(incoming));
        }
        self.held = BytesMut::new();
        self.room = None;
        self.overdue = None;
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

    /// Nothing has come, and nothing must: only a drain ends a stream that does not know of it.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>>>> {
        if self.call.kind != CallKind::OtherStream {
            return Poll::Pending;
        }
        let draining = || -> BoxFuture<'static, Overdue> {
            let draining = self.activity.draining().clone();
            Box::pin(async move {
                draining.cancelled_owned().await;
                Overdue::Draining
            })
        };
        let drained = self.overdue.get_or_insert_with(draining);
        std::task::ready!(drained.as_mut().poll(cx));
        self.incoming = None;
        Poll::Ready(None)
    }
}

async fn overdue(draining: CancellationToken) -> Overdue {
    tokio::select! {
        () = draining.cancelled() => Overdue::Draining,
        () = tokio::time::sleep(DEADLINE) => Overdue::Late,
    }
}

/// Reads what is still on its way of a request that was refused. Otherwise its stream would be reset
/// at once: h2 remembers few such streams, resets those again that it has forgotten for each frame
/// that comes, and closes a connection with too many resets, honest streams and all.
async fn discard(mut incoming: Incoming) {
    let end = std::future::poll_fn(|cx| {
        while let Some(Ok(_)) = std::task::ready!(Pin::new(&mut incoming).poll_frame(cx)) {}
        Poll::Ready(())
    });
    // Its end, or the time in which the peer hears of the refusal.
    let _ = tokio::time::timeout(ON_ITS_WAY, end).await;
}

/// The codec's words for a message that is beyond its limit.
fn too_large(limit: usize, length: u32) -> Status {
    Status::resource_exhausted(format!("request: the limit is {limit} bytes, got {length}"))
}

/// No RESOURCE_EXHAUSTED: a client takes that for its request's size.
fn no_room() -> Status {
    let text = "request: others that are unfinished take all the room (16 MiB a connection, 64 MiB \
                of all beyond 1 MiB each); try again";
    to_status(Error::new(ErrorKind::Unavailable, text).with_retry_after(ROOM_AFTER))
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
                Poll::Pending if this.is_unfinished() => return this.poll_overdue(cx),
                Poll::Pending => return this.poll_idle(cx),
            };
            let whole = match frame.into_data() {
                Ok(data) => this.took(data),
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

    /// Says nothing: what comes in may be more than what is handed on.
    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

impl Messages {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            prefix: [0; PREFIX],
            filled: 0,
            left: 0,
        }
    }

    /// Takes bytes of the body, up to a message that is too large.
    fn take(&mut self, bytes: &[u8]) -> Taken {
        let mut taken = Taken::default();
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
                self.left = self.length() as usize;
                if self.left > self.limit {
                    taken.beyond = Some(self.length());
                    break;
                }
            }
            let count = (bytes.len() - at).min(self.left);
            self.left -= count;
            at += count;
            if self.left == 0 {
                self.filled = 0;
                taken.whole = at;
                taken.count += 1;
            }
        }
        taken
    }

    fn is_unfinished(&self) -> bool {
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
    fn messages_are_followed_however_the_body_is_cut() {
        let body = [
            &[0, 0, 0, 0, 3, 7, 7, 7][..],
            &[0; 5],
            &[0, 0, 0, 1, 0],
            &[7; 256],
        ]
        .concat();
        for piece in 1..=body.len() {
            let mut messages = Messages::new(256);
            let (mut handed_on, mut count) = (0, 0);
            for (at, bytes) in body.chunks(piece).enumerate() {
                let taken = messages.take(bytes);
                assert_eq!(taken.beyond, None);
                count += taken.count;
                if taken.whole > 0 {
                    handed_on = at * piece + taken.whole;
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
    fn a_message_beyond_the_limit_ends_what_is_taken_once_its_length_has_come() {
        let whole = [0, 0, 0, 0, 1, 7];
        let body = [&whole[..], &[0, 0, 0, 1, 0], &[7; 256]].concat();
        for piece in 1..=body.len() {
            let mut messages = Messages::new(255);
            let mut come = 0;
            let beyond = body.chunks(piece).find_map(|bytes| {
                come += bytes.len();
                messages.take(bytes).beyond
            });
            assert_eq!(beyond, Some(256), "by {piece}");
            assert!(come >= 11 && come - piece < 11, "{come} by {piece}");
        }
        let taken = Messages::new(255).take(&body);
        let expected = Taken {
            whole: whole.len(),
            count: 1,
            beyond: Some(256),
        };
        assert_eq!(taken, expected);
        assert_eq!(Messages::new(256).take(&body).whole, body.len());
    }
}
