//! What a flag watch's stream sends, with a state that is encoded once for all its watchers.
//!
//! Stands in for the generated message, field for field (a test holds it to that).

#[cfg(feature = "server")]
use bytes::Bytes;
use bytes::{Buf, BufMut};
#[cfg(feature = "server")]
use prost::encoding::{encode_key, encode_varint, encoded_len_varint, key_len};
use prost::{
    DecodeError, Message,
    encoding::{self, DecodeContext, WireType, skip_field},
};

use super::proto;

/// A message of the stream.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct WatchFlagResponse {
    pub(crate) event: Option<Event>,
}

/// Its kinds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    Flag(proto::Flag),
    Heartbeat(proto::Heartbeat),
    Goodbye(proto::Goodbye),
    Acks(proto::Acks),
    /// A flag in its encoded form, as the relay sends it; never read from the wire.
    #[cfg(feature = "server")]
    Encoded(Bytes),
}

/// The fields' numbers of PROTOCOL section 1.
mod field {
    pub(super) const FLAG: u32 = 1;
    pub(super) const HEARTBEAT: u32 = 2;
    pub(super) const GOODBYE: u32 = 3;
    pub(super) const ACKS: u32 = 4;
}

impl Message for WatchFlagResponse {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        match &self.event {
            None => {}
            Some(Event::Flag(flag)) => encoding::message::encode(field::FLAG, flag, buf),
            Some(Event::Heartbeat(heartbeat)) => {
                encoding::message::encode(field::HEARTBEAT, heartbeat, buf);
            }
            Some(Event::Goodbye(goodbye)) => {
                encoding::message::encode(field::GOODBYE, goodbye, buf);
            }
            Some(Event::Acks(acks)) => encoding::message::encode(field::ACKS, acks, buf),
            #[cfg(feature = "server")]
            Some(Event::Encoded(flag)) => {
                encode_key(field::FLAG, WireType::LengthDelimited, buf);
                encode_varint(flag.len() as u64, buf);
                buf.put_slice(flag);
            }
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        // As for any oneof: a field of the same kind is merged, one of another kind replaces it.
        let event = match (tag, self.event.take()) {
            (field::FLAG, Some(Event::Flag(flag))) => {
                Event::Flag(merged(flag, wire_type, buf, ctx)?)
            }
            (field::FLAG, _) => Event::Flag(merged(proto::Flag::default(), wire_type, buf, ctx)?),
            (field::HEARTBEAT, _) => {
                Event::Heartbeat(merged(proto::Heartbeat::default(), wire_type, buf, ctx)?)
            }
            (field::GOODBYE, _) => {
                Event::Goodbye(merged(proto::Goodbye::default(), wire_type, buf, ctx)?)
            }
            (field::ACKS, _) => Event::Acks(merged(proto::Acks::default(), wire_type, buf, ctx)?),
            (_, before) => {
                self.event = before;
                return skip_field(wire_type, tag, buf, ctx);
            }
        };
        self.event = Some(event);
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        match &self.event {
            None => 0,
            Some(Event::Flag(flag)) => encoding::message::encoded_len(field::FLAG, flag),
            Some(Event::Heartbeat(heartbeat)) => {
                encoding::message::encoded_len(field::HEARTBEAT, heartbeat)
            }
            Some(Event::Goodbye(goodbye)) => {
                encoding::message::encoded_len(field::GOODBYE, goodbye)
            }
            Some(Event::Acks(acks)) => encoding::message::encoded_len(field::ACKS, acks),
            #[cfg(feature = "server")]
            Some(Event::Encoded(flag)) => {
                key_len(field::FLAG) + encoded_len_varint(flag.len() as u64) + flag.len()
            }
        }
    }

    fn clear(&mut self) {
        self.event = None;
    }
}

fn merged<M: Message>(
    mut message: M,
    wire_type: WireType,
    buf: &mut impl Buf,
    ctx: DecodeContext,
) -> Result<M, DecodeError> {
    encoding::message::merge(wire_type, &mut message, buf, ctx)?;
    Ok(message)
}

#[cfg(all(test, feature = "server"))]
mod tests {
    use super::*;

    fn flag() -> proto::Flag {
        proto::Flag {
            name: "go".to_owned(),
            set: true,
            generation: u64::MAX,
            set_by: "ann".to_owned(),
            reason: "x".repeat(1_024),
            ..proto::Flag::default()
        }
    }

    #[test]
    fn each_kind_of_message_goes_there_and_back() {
        let events = [
            Event::Flag(flag()),
            Event::Heartbeat(proto::Heartbeat::default()),
            Event::Goodbye(proto::Goodbye::default()),
            Event::Acks(proto::Acks {
                generation: 7,
                acknowledged: 3,
                watchers: 5,
            }),
        ];
        for event in events.map(Some).into_iter().chain([None]) {
            let sent = WatchFlagResponse { event };
            let bytes = sent.encode_to_vec();
            assert_eq!(bytes.len(), sent.encoded_len());
            assert_eq!(WatchFlagResponse::decode(&bytes[..]), Ok(sent));
        }
    }

    #[test]
    fn an_encoded_flag_is_read_as_that_flag() {
        let encoded = WatchFlagResponse {
            event: Some(Event::Encoded(flag().encode_to_vec().into())),
        };
        let plain = WatchFlagResponse {
            event: Some(Event::Flag(flag())),
        };
        let bytes = encoded.encode_to_vec();
        assert_eq!(bytes, plain.encode_to_vec());
        assert_eq!(bytes.len(), encoded.encoded_len());
    }
}
