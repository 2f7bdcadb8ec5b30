//! A response stream through its life: none, opening, open.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use futures_core::Stream;
use tonic::{Response, Status, Streaming};

type Opening<T> = Pin<Box<dyn Future<Output = Result<Response<Streaming<T>>, Status>> + Send>>;

/// The stream that a driver holds.
pub(super) enum Inbound<T> {
    None,
    Opening(Opening<T>),
    Open(Box<Streaming<T>>),
}

/// What came of polling it.
pub(super) enum Arrival<T> {
    /// It is open now.
    Opened,
    Message(T),
    /// It ended or could not be opened.
    Broken(Option<Status>),
}

impl<T> Inbound<T> {
    pub(super) fn open(
        call: impl Future<Output = Result<Response<Streaming<T>>, Status>> + Send + 'static,
    ) -> Self {
        Self::Opening(Box::pin(call))
    }

    /// Pending where there is no stream, too: the driver's timer decides then.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Arrival<T>> {
        match self {
            Self::None => Poll::Pending,
            Self::Opening(opening) => match std::task::ready!(opening.as_mut().poll(cx)) {
                Ok(response) => {
                    *self = Self::Open(Box::new(response.into_inner()));
                    Poll::Ready(Arrival::Opened)
                }
                Err(status) => Poll::Ready(self.broken(Some(status))),
            },
            Self::Open(stream) => match std::task::ready!(Pin::new(stream).poll_next(cx)) {
                Some(Ok(message)) => Poll::Ready(Arrival::Message(message)),
                Some(Err(status)) => Poll::Ready(self.broken(Some(status))),
                None => Poll::Ready(self.broken(None)),
            },
        }
    }

    fn broken(&mut self, status: Option<Status>) -> Arrival<T> {
        if let Some(status) = &status {
            tracing::debug!(%status, "stream broken");
        }
        *self = Self::None;
        Arrival::Broken(status)
    }
}

impl<T> std::fmt::Debug for Inbound<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Opening(_) => "Opening",
            Self::Open(_) => "Open",
        })
    }
}
