//! The codecs of all calls: prost with small buffers.
//!
//! tonic's default buffers take 8 KiB per open stream, which would be most of an idle subscriber's
//! memory. A malformed request is INVALID_ARGUMENT. The limits of requests are those of their calls.

use std::{any::TypeId, cell::RefCell, marker::PhantomData};

use bytes::{Buf, BufMut};
use prost::Message;
use tonic::{
    Status,
    codec::{BufferSettings, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

use super::proto::SubscribeResponse;

/// Encodes requests `T` and decodes answers `U`.
pub(crate) type ClientCodec<T, U> = Codec<T, U, false>;
/// Encodes answers `T` and decodes requests `U`.
#[cfg(feature = "relay")]
pub(crate) type ServerCodec<T, U> = Codec<T, U, true>;

/// Encodes `T` and decodes `U`.
#[derive(Debug)]
pub(crate) struct Codec<T, U, const IS_SERVER: bool>(PhantomData<fn() -> (T, U)>);

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

impl<T, U, const IS_SERVER: bool> Default for Codec<T, U, IS_SERVER> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U, const IS_SERVER: bool> tonic::codec::Codec for Codec<T, U, IS_SERVER>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self(PhantomData)
    }

    fn decoder(&mut self) -> Self {
        Self(PhantomData)
    }
}

impl<T: Message + 'static, U, const IS_SERVER: bool> Encoder for Codec<T, U, IS_SERVER> {
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
        // The events of a stream rarely follow each other at once: each is passed on without looking for
        // the next one.
        match TypeId::of::<T>() == TypeId::of::<SubscribeResponse>() {
            true => BufferSettings::new(BUFFER, 0),
            false => settings(),
        }
    }
}

impl<T, U: Message + Default, const IS_SERVER: bool> Decoder for Codec<T, U, IS_SERVER> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // Decoding a contiguous slice is several times faster than decoding through two buffers.
        let decoded = match buf.chunk() {
            message if message.len() == buf.remaining() => {
                let decoded = U::decode(message);
                buf.advance(buf.remaining());
                decoded
            }
            _ => U::decode(buf),
        };
        decoded.map(Some).map_err(|error| {
            if IS_SERVER {
                Status::invalid_argument(format!("request: is malformed: {error}"))
            } else {
                Status::internal(format!("the relay's answer is malformed: {error}"))
            }
        })
    }

    fn buffer_settings(&self) -> BufferSettings {
        settings()
    }
}

fn settings() -> BufferSettings {
    BufferSettings::new(BUFFER, YIELD_AT)
}
