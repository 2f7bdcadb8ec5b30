//! Messages of a subscription's stream, with Wakes that consist of encoded entries.
//!
//! Replaces the generated message: bytes stand for the message of a Wake, which have the same form. The
//! relay encodes an entry once, and all subscribers at the same position get the same bytes.

use prost::{
    Message, Oneof,
    encoding::{self, WireType, encode_key},
};

use super::{
    notify::{encode_number, encode_text},
    proto,
    time::time_to_wire,
};
use crate::types::{LastEvent, WakeReason};

/// A message of the stream.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SubscribeResponse {
    #[prost(oneof = "Event", tags = "1, 2, 3, 4")]
    pub(crate) event: Option<Event>,
}

/// The kinds of messages.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Event {
    #[prost(message, tag = "1")]
    Welcome(proto::Welcome),
    /// The entries of a `Wake`, encoded.
    #[prost(bytes = "vec", tag = "2")]
    Wake(Vec<u8>),
    #[prost(message, tag = "3")]
    Heartbeat(proto::Heartbeat),
    #[prost(message, tag = "4")]
    Goodbye(proto::Goodbye),
}

/// Field number of the entries in a Wake.
const WORK: u32 = 1;

/// The values of an entry, by reference.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryFields<'a> {
    pub(crate) account: &'a str,
    pub(crate) queue: &'a str,
    pub(crate) payload_size: u64,
    pub(crate) sequence: u64,
    pub(crate) notifications: u64,
    pub(crate) reason: WakeReason,
    pub(crate) last_event: &'a LastEvent,
    pub(crate) messages: u64,
}

/// Appends an entry of a Wake, including its key and length.
pub(crate) fn encode_entry(entry: &EntryFields<'_>, out: &mut Vec<u8>) {
    encode_key(WORK, WireType::LengthDelimited, out);
    // Two bytes for the length: the limits of its texts keep an entry below 16 KiB.
    let length_at = out.len();
    out.extend_from_slice(&[0, 0]);
    let begin = out.len();
    encode_text(1, entry.account, out);
    encode_text(2, entry.queue, out);
    encode_number(3, entry.payload_size, out);
    encode_number(4, entry.sequence, out);
    encode_number(5, entry.notifications, out);
    let reason = super::relay::reason_to_wire(entry.reason) as i32;
    encode_number(6, u64::try_from(reason).unwrap_or_default(), out);
    encode_text(7, &entry.last_event.publisher, out);
    if let Some(time) = time_to_wire(entry.last_event.published_at) {
        encoding::message::encode(8, &time, out);
    }
    encode_text(10, &entry.last_event.traceparent, out);
    encode_number(12, entry.messages, out);
    let length = u16::try_from(out.len() - begin).expect("shorter than 16 KiB");
    let [low, high] = (length << 1).to_le_bytes();
    (out[length_at], out[length_at + 1]) = (low >> 1 | 0x80, high);
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::types::{Selector, WorkDetected};

    fn entry<'a>(work: &'a WorkDetected) -> EntryFields<'a> {
        EntryFields {
            account: work.queue.storage_account(),
            queue: work.queue.queue_name(),
            payload_size: work.payload_size,
            sequence: work.sequence,
            notifications: work.notifications,
            reason: work.reason,
            last_event: &work.last_event,
            messages: work.messages,
        }
    }

    fn work(texts: &str, number: u64) -> WorkDetected {
        let time = SystemTime::UNIX_EPOCH + Duration::new(1 << 33, 999_999_999);
        WorkDetected {
            queue: Selector::new(texts, texts).expect("a name"),
            reason: WakeReason::Reassigned,
            sequence: number,
            notifications: number,
            payload_size: number,
            messages: number,
            last_event: LastEvent {
                publisher: texts.into(),
                published_at: Some(time),
                traceparent: texts.into(),
            },
        }
    }

    #[test]
    fn the_generated_code_decodes_an_encoded_entry() {
        let longest = "x".repeat(128);
        for (texts, number) in [("a", 0), ("a", 1), (&longest[..], u64::MAX)] {
            let work = work(texts, number);
            let fields = entry(&work);
            let mut bytes = Vec::new();
            for _ in 0..2 {
                encode_entry(&fields, &mut bytes);
                assert!(bytes.len() <= 2 * work.encoded_at_most());
            }
            let wake = proto::Wake::decode(&bytes[..]).expect("well formed");
            assert_eq!(wake.work.len(), 2);
            for read in wake.work {
                let read = super::super::relay::work_from_wire(read).expect("names");
                assert_eq!(read, work);
            }
            let sent = SubscribeResponse {
                event: Some(Event::Wake(bytes.clone())),
            };
            let encoded = sent.encode_to_vec();
            assert_eq!(encoded.len(), sent.encoded_len());
            let read = Generated::decode(&encoded[..]).expect("well formed");
            assert_eq!(
                read.wake,
                Some(proto::Wake::decode(&bytes[..]).expect("well formed"))
            );
        }
    }

    /// The message as the code generator creates it: a oneof of these fields with these numbers.
    /// `src/wire/tests.rs` compares them with the schema.
    #[derive(Clone, PartialEq, Message)]
    struct Generated {
        #[prost(message, optional, tag = "1")]
        welcome: Option<proto::Welcome>,
        #[prost(message, optional, tag = "2")]
        wake: Option<proto::Wake>,
        #[prost(message, optional, tag = "3")]
        heartbeat: Option<proto::Heartbeat>,
        #[prost(message, optional, tag = "4")]
        goodbye: Option<proto::Goodbye>,
    }

    #[test]
    fn each_kind_of_message_is_decoded_as_it_was_encoded() {
        let heartbeat = proto::Heartbeat {
            degraded: true,
            resume: vec![7; 32].into(),
        };
        let events = [
            Event::Welcome(proto::Welcome {
                relay_id: "r".to_owned(),
                ..proto::Welcome::default()
            }),
            Event::Wake(Vec::new()),
            Event::Heartbeat(heartbeat),
            Event::Goodbye(proto::Goodbye::default()),
        ];
        for event in events.map(Some).into_iter().chain([None]) {
            let sent = SubscribeResponse { event };
            let bytes = sent.encode_to_vec();
            assert_eq!(bytes.len(), sent.encoded_len());
            assert!(Generated::decode(&bytes[..]).is_ok());
            assert_eq!(SubscribeResponse::decode(&bytes[..]), Ok(sent));
        }
    }
}
