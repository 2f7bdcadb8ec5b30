//! Messages of a flag watch, with a state that is encoded once for all watchers.
//!
//! Replaces the generated message, field for field; a test compares both.

use bytes::Bytes;

use super::{oneof::oneof_message, proto};

/// A message of the stream.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct WatchFlagResponse {
    pub(crate) event: Option<Event>,
}

/// The kinds of messages.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    Flag(proto::Flag),
    Heartbeat(proto::Heartbeat),
    Goodbye(proto::Goodbye),
    Acks(proto::Acks),
    /// An encoded flag, which only the relay creates; never decoded.
    Encoded(Bytes),
}

oneof_message!(WatchFlagResponse { Flag = 1, Heartbeat = 2, Goodbye = 3, Acks = 4 } encoded as 1);

#[cfg(test)]
mod tests {
    use prost::Message;

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

    /// The message as the code generator creates it: a oneof of these fields with these numbers.
    /// `src/wire/numbers.rs` compares them with the schema.
    #[derive(Clone, PartialEq, Message)]
    struct Generated {
        #[prost(message, optional, tag = "1")]
        flag: Option<proto::Flag>,
        #[prost(message, optional, tag = "2")]
        heartbeat: Option<proto::Heartbeat>,
        #[prost(message, optional, tag = "3")]
        goodbye: Option<proto::Goodbye>,
        #[prost(message, optional, tag = "4")]
        acks: Option<proto::Acks>,
    }

    fn as_generated(response: &WatchFlagResponse) -> Generated {
        let mut generated = Generated::default();
        match response.event.clone() {
            None | Some(Event::Encoded(_)) => {}
            Some(Event::Flag(flag)) => generated.flag = Some(flag),
            Some(Event::Heartbeat(heartbeat)) => generated.heartbeat = Some(heartbeat),
            Some(Event::Goodbye(goodbye)) => generated.goodbye = Some(goodbye),
            Some(Event::Acks(acks)) => generated.acks = Some(acks),
        }
        generated
    }

    #[test]
    fn each_kind_of_message_is_decoded_as_it_was_encoded() {
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
            assert_eq!(bytes, as_generated(&sent).encode_to_vec());
            assert_eq!(WatchFlagResponse::decode(&bytes[..]), Ok(sent));
        }
    }

    #[test]
    fn an_encoded_flag_is_decoded_as_that_flag() {
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
