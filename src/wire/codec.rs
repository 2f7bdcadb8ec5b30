//! The codec of all calls: prost with small buffers and the protocol's limits.
//!
//! tonic's own buffers take 8 KiB per open stream at once, which would be most of what an idle
//! subscriber costs. A request beyond its limit is RESOURCE_EXHAUSTED, one that is no message at
//! all INVALID_ARGUMENT.

use std::{any::TypeId, cell::RefCell, marker::PhantomData};

use bytes::{Buf, BufMut};
use prost::Message;
use tonic::{
    Status,
    codec::{BufferSettings, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

use super::proto;
use crate::words::Limits;

/// Encodes `T` and decodes `U`.
#[derive(Debug)]
pub(crate) struct Codec<T, U>(PhantomData<fn() -> (T, U)>);

/// Encodes messages of one type.
#[derive(Debug)]
pub(crate) struct PlainEncoder<T>(PhantomData<fn(T)>);

/// Decodes messages of one type, up to the limit of that type.
#[derive(Debug)]
pub(crate) struct LimitedDecoder<U> {
    limit: Option<usize>,
    message: PhantomData<fn() -> U>,
}

/// Bytes allocated per open stream, and bytes gathered before they are handed to HTTP/2.
const BUFFER: usize = 256;
const YIELD_AT: usize = 16 * 1024;
/// A thread keeps no more than this between two messages.
const SCRATCH: usize = 64 * 1024;

thread_local! {
    /// Where messages are put together: in a stream's own buffer, each field of each entry would
    /// ask for room by itself.
    static MESSAGE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> tonic::codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = PlainEncoder<T>;
    type Decoder = LimitedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        PlainEncoder(PhantomData)
    }

    fn decoder(&mut self) -> Self::Decoder {
        LimitedDecoder {
            limit: request_limit::<U>(),
            message: PhantomData,
        }
    }
}

impl<T: Message> Encoder for PlainEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        MESSAGE.with_borrow_mut(|message| {
            item.encode(message).expect("a vector grows");
            buf.put_slice(message);
            message.clear();
            message.shrink_to(SCRATCH);
        });
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        settings()
    }
}

impl<U: Message + Default> Decoder for LimitedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        if let Some(limit) = self.limit.filter(|limit| buf.remaining() > *limit) {
            let message = format!(
                "request: the limit is {limit} bytes, got {}",
                buf.remaining()
            );
            return Err(Status::resource_exhausted(message));
        }
        // In one piece it is read several times faster than byte by byte through two buffers.
        let decoded = match buf.chunk() {
            message if message.len() == buf.remaining() => {
                let decoded = U::decode(message);
                buf.advance(buf.remaining());
                decoded
            }
            _ => U::decode(buf),
        };
        decoded.map(Some).map_err(|error| match self.limit {
            Some(_) => Status::invalid_argument(format!("request: is malformed: {error}")),
            None => Status::internal(format!("the relay's answer is malformed: {error}")),
        })
    }

    fn buffer_settings(&self) -> BufferSettings {
        settings()
    }
}

fn settings() -> BufferSettings {
    BufferSettings::new(BUFFER, YIELD_AT)
}

/// Returns the greatest size of a request of type `U`, or `None` where it is no request.
fn request_limit<U: 'static>() -> Option<usize> {
    let this = TypeId::of::<U>();
    if this == TypeId::of::<super::NotifyRequest>() {
        return Some(Limits::NOTIFY_BYTES);
    }
    if this == TypeId::of::<proto::SubscribeRequest>() {
        return Some(Limits::SUBSCRIBE_BYTES);
    }
    std::any::type_name::<U>()
        .ends_with("Request")
        .then_some(Limits::REQUEST_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_has_its_limit_and_answers_have_none() {
        assert_eq!(
            request_limit::<crate::wire::NotifyRequest>(),
            Some(512 * 1024)
        );
        assert_eq!(
            request_limit::<proto::SubscribeRequest>(),
            Some(1024 * 1024)
        );
        assert_eq!(request_limit::<proto::UnleashRequest>(), Some(64 * 1024));
        assert_eq!(request_limit::<proto::SubscribeResponse>(), None);
    }
}
