//! The requests of a stream, read with little memory between two requests.
//!
//! tonic's reader keeps its largest buffer while its stream is open. So the reader is replaced
//! after a large message, once it has read all bytes that it was given.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_core::Stream;
use hyper::body::{Body, Frame, SizeHint};
use tonic::{Request, Status, Streaming, codec::Codec as _};

use super::body::RequestBody;
use crate::{
    base::sync::lock,
    types::Limits,
    wire::{Codec, NotifyRequest, proto},
};

/// The requests of a `NotifyStream`.
pub(super) struct NotifyRequests {
    reader: Streaming<NotifyRequest>,
    /// The body that the reader reads.
    body: Option<SharedBody>,
    /// Number of requests read.
    read: u64,
}

/// A body that several readers read one after another. It is an extension of its request.
#[derive(Debug, Clone)]
pub(super) struct SharedBody(Arc<Mutex<RequestBody>>);

/// Buffer that a reader may keep: one frame's payload.
const MAX_RETAINED: usize = 16 * 1024;

impl NotifyRequests {
    pub(super) fn of(request: Request<Streaming<NotifyRequest>>) -> Self {
        let body = request.extensions().get::<SharedBody>().cloned();
        Self {
            reader: request.into_inner(),
            body,
            read: 0,
        }
    }
}

impl Stream for NotifyRequests {
    type Item = Result<NotifyRequest, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let request = std::task::ready!(Pin::new(&mut this.reader).poll_next(cx));
        if let (Some(Ok(_)), Some(body)) = (&request, &this.body) {
            this.read += 1;
            if body
                .lock()
                .reader_finished_large_chunk(MAX_RETAINED, this.read)
            {
                let decoder = Codec::<proto::NotifyResponse, NotifyRequest>::default().decoder();
                let limit = Some(Limits::NOTIFY_BYTES);
                this.reader = Streaming::new_request(decoder, body.clone(), None, limit);
            }
        }
        Poll::Ready(request)
    }
}

impl SharedBody {
    pub(super) fn new(body: RequestBody) -> Self {
        Self(Arc::new(Mutex::new(body)))
    }

    fn lock(&self) -> MutexGuard<'_, RequestBody> {
        lock(&self.0)
    }
}

impl Body for SharedBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut *self.lock()).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.lock().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.lock().size_hint()
    }
}
