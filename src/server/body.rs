//! A request's body: complete within a deadline, and within what may be held unfinished.
//!
//! Follows the messages' lengths and copies nothing. A stream of requests may be silent between two
//! messages for as long as it likes; a message that was begun has a deadline, as a single request
//! has. A drain ends what is unfinished at once: it may never be complete.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
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

/// The body of one call.
pub(super) struct RequestBody {
    incoming: Incoming,
    call: Call,
    activity: Arc<Activity>,
    messages: Messages,
    room: Room,
    /// Set while more is awaited that must come. Not on the way of a request that came at once.
    overdue: Option<BoxFuture<'static, Overdue>>,
    ended: bool,
}

/// Follows the messages in a body (a flag, four bytes of length, the message).
#[derive(Debug, Default)]
struct Messages {
    prefix: [u8; PREFIX],
    /// Bytes of the present message's prefix that have come.
    filled: usize,
    /// Bytes of the present message that have not.
    left: usize,
}

/// Room for the present message in what may be held unfinished.
enum Room {
    NotNeeded,
    Awaited(BoxFuture<'static, Result<Reservation, Exhausted>>),
    Held(#[expect(dead_code, reason = "held for its drop")] Reservation),
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

impl RequestBody {
    pub(super) fn new(incoming: Incoming, call: Call, activity: Arc<Activity>) -> Self {
        Self {
            incoming,
            call,
            activity,
            messages: Messages::default(),
            room: Room::NotNeeded,
            overdue: None,
            ended: false,
        }
    }

    /// Returns whether more of the body must come, and not only may.
    fn is_unfinished(&self) -> bool {
        !self.call.kind.takes_many() || self.messages.is_unfinished()
    }

    fn took(&mut self, data: &[u8]) {
        let begins = !self.messages.is_unfinished();
        let ends = self.messages.take(data);
        if ends {
            self.room = Room::NotNeeded;
        }
        if self.call.kind.takes_many() && (begins || ends) {
            self.overdue = None;
        }
        // What is beyond the limit is refused by tonic when it is handed on.
        if matches!(self.room, Room::NotNeeded)
            && let Some(length) = self.messages.unfinished_length()
            && length as usize <= self.call.limit
        {
            self.room = Room::Awaited(Box::pin(self.activity.budget().clone().reserve(length)));
        }
    }

    /// Waits for room for the present message, where it needs any.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Exhausted>> {
        if let Room::Awaited(room) = &mut self.room {
            let reserved = std::task::ready!(room.as_mut().poll(cx));
            self.room = Room::Held(reserved?);
        }
        Poll::Ready(Ok(()))
    }

    /// Waits until what is unfinished is overdue.
    fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>>>> {
        let draining = || -> BoxFuture<'static, Overdue> {
            Box::pin(overdue(self.activity.draining().clone()))
        };
        let overdue = self.overdue.get_or_insert_with(draining);
        let status = match std::task::ready!(overdue.as_mut().poll(cx)) {
            Overdue::Draining => Status::unavailable("the relay is shutting down"),
            Overdue::Late if matches!(self.room, Room::Awaited(_)) => return self.exhausted(),
            Overdue::Late => {
                self.activity.note(Incident::LateRequest);
                Status::unavailable("request: was not complete within 5 s")
            }
        };
        self.end_with(status)
    }

    #[cold]
    fn exhausted(&mut self) -> Poll<Option<Result<Frame<Bytes>>>> {
        self.activity.note(Incident::OverBudget);
        self.end_with(Status::resource_exhausted(
            "request: the limit is 4 MiB of unfinished requests a connection and 64 MiB in all; \
             send fewer at one time, or smaller ones",
        ))
    }

    fn end_with(&mut self, status: Status) -> Poll<Option<Result<Frame<Bytes>>>> {
        self.ended = true;
        self.room = Room::NotNeeded;
        self.overdue = None;
        Poll::Ready(Some(Err(status.into())))
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
        self.ended = true;
        Poll::Ready(None)
    }
}

async fn overdue(draining: CancellationToken) -> Overdue {
    tokio::select! {
        () = draining.cancelled() => Overdue::Draining,
        () = tokio::time::sleep(DEADLINE) => Overdue::Late,
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>>>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        match this.poll_room(cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(Exhausted)) => return this.exhausted(),
            Poll::Pending => return this.poll_overdue(cx),
        }
        match Pin::new(&mut this.incoming).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    this.took(data);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending if this.is_unfinished() => this.poll_overdue(cx),
            Poll::Pending => this.poll_idle(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Messages {
    /// Takes bytes of the body. Returns whether a message has ended.
    fn take(&mut self, mut bytes: &[u8]) -> bool {
        let mut ended = false;
        while !bytes.is_empty() {
            if self.filled < PREFIX {
                let count = bytes.len().min(PREFIX - self.filled);
                self.prefix[self.filled..self.filled + count].copy_from_slice(&bytes[..count]);
                self.filled += count;
                bytes = &bytes[count..];
                if self.filled < PREFIX {
                    break;
                }
                self.left = self.length() as usize;
            }
            let count = bytes.len().min(self.left);
            self.left -= count;
            bytes = &bytes[count..];
            if self.left == 0 {
                self.filled = 0;
                ended = true;
            }
        }
        ended
    }

    fn is_unfinished(&self) -> bool {
        self.filled > 0
    }

    /// Returns the length of a message that has begun and not ended, once it is known.
    fn unfinished_length(&self) -> Option<u32> {
        (self.filled == PREFIX).then(|| self.length())
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
            let mut messages = Messages::default();
            for (at, bytes) in body.chunks(piece).enumerate() {
                messages.take(bytes);
                let taken = ((at + 1) * piece).min(body.len());
                let boundary = [8, 13, body.len()].contains(&taken);
                assert_eq!(messages.is_unfinished(), !boundary, "{taken} by {piece}");
            }
        }
    }

    #[test]
    fn a_length_is_known_once_all_of_it_has_come() {
        let mut messages = Messages::default();
        assert!(!messages.take(&[0, 0, 0, 1]));
        assert_eq!(messages.unfinished_length(), None);
        assert!(!messages.take(&[2, 9]));
        assert_eq!(messages.unfinished_length(), Some(258));
        assert!(messages.take(&[7; 257]));
        assert_eq!(messages.unfinished_length(), None);
    }
}
