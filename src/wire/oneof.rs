//! Messages of a stream with several kinds. The relay encodes one kind once for all receivers.
//! These types replace the generated messages, field for field.

/// Implements `prost::Message` for a struct with `event: Option<Event>`. The kinds have the names
/// of their messages and the field numbers of the schema; `Encoded` holds the bytes of the kind
/// with the last number.
macro_rules! oneof_message {
    ($message:ident { $($kind:ident = $tag:literal),+ $(,)? } encoded as $encoded:literal) => {
        impl prost::Message for $message {
            fn encode_raw(&self, buf: &mut impl bytes::BufMut) {
                match &self.event {
                    None => {}
                    $(Some(Event::$kind(value)) => {
                        prost::encoding::message::encode($tag, value, buf);
                    })+
                    Some(Event::Encoded(bytes)) => {
                        let wire_type = prost::encoding::WireType::LengthDelimited;
                        prost::encoding::encode_key($encoded, wire_type, buf);
                        prost::encoding::encode_varint(bytes.len() as u64, buf);
                        buf.put_slice(bytes);
                    }
                }
            }

            fn merge_field(
                &mut self,
                tag: u32,
                wire_type: prost::encoding::WireType,
                buf: &mut impl bytes::Buf,
                ctx: prost::encoding::DecodeContext,
            ) -> Result<(), prost::DecodeError> {
                match tag {
                    // A field of the same kind is merged; a field of another kind replaces the
                    // event.
                    $($tag => {
                        let mut value = match self.event.take() {
                            Some(Event::$kind(value)) => value,
                            _ => proto::$kind::default(),
                        };
                        prost::encoding::message::merge(wire_type, &mut value, buf, ctx)?;
                        self.event = Some(Event::$kind(value));
                    })+
                    _ => prost::encoding::skip_field(wire_type, tag, buf, ctx)?,
                }
                Ok(())
            }

            fn encoded_len(&self) -> usize {
                match &self.event {
                    None => 0,
                    $(Some(Event::$kind(value)) => {
                        prost::encoding::message::encoded_len($tag, value)
                    })+
                    Some(Event::Encoded(bytes)) => {
                        let length = prost::encoding::encoded_len_varint(bytes.len() as u64);
                        prost::encoding::key_len($encoded) + length + bytes.len()
                    }
                }
            }

            fn clear(&mut self) {
                self.event = None;
            }
        }
    };
}

pub(super) use oneof_message;
