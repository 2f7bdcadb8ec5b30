//! The codec of all calls: prost with small buffers and the protocol's limits.
//!
//! tonic's default buffers take 8 KiB per open stream, which would be most of an idle subscriber's
//! memory. A request beyond its limit is RESOURCE_EXHAUSTED, a malformed one INVALID_ARGUMENT.

use std::{any::TypeId, cell::RefCell, marker::PhantomData};

use bytes::{Buf, BufMut};
use prost::Message;
use tonic::{
    Status,
    codec::{BufferSettings, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

use super::proto;
use crate::types::Limits;

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

/// Bytes allocated per open stream.
const BUFFER: usize = 256;
/// Bytes collected before they are passed to HTTP/2.
const YIELD_AT: usize = 16 * 1024;
/// Maximum bytes of a thread's scratch buffer between two messages.
const SCRATCH: usize = 64 * 1024;

thread_local! {
    /// Scratch buffer for encoding. In a stream's buffer, each field of each entry would reserve
    /// its space separately.
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
        // Decoding a contiguous slice is several times faster than decoding through two buffers.
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

/// Returns the maximum size of a request of type `U`, or `None` for an answer.
fn request_limit<U: 'static>() -> Option<usize> {
    let this = TypeId::of::<U>();
    if this == TypeId::of::<super::NotifyRequest>() {
        return Some(Limits::NOTIFY_BYTES);
    }
    if this == TypeId::of::<proto::SubscribeRequest>() {
        return Some(Limits::SUBSCRIBE_BYTES);
    }
    if this == TypeId::of::<proto::HandOverRequest>() {
        return Some(Limits::HAND_OVER_BYTES);
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
