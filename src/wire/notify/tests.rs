//! Compares the hand-written notify request with the generated one.

use std::time::SystemTime;

use super::*;
use crate::{error::ErrorKind, wire::proto};

/// The message as in `relay.proto`.
#[derive(Clone, PartialEq, prost::Message)]
struct Generated {
    #[prost(message, repeated, tag = "1")]
    events: Vec<proto::WorkDetected>,
    #[prost(string, tag = "2")]
    publisher: String,
}

fn notification() -> Notification {
    Notification {
        payload_size: 1 << 40,
        messages: 7,
        notifications: 3,
        delay: Duration::from_millis(1500),
        published_at: Some(SystemTime::UNIX_EPOCH + Duration::new(1_800_000_000, 5)),
        traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into(),
        ..Notification::new("acct/orders".parse().expect("an address"))
    }
}

fn generated(notification: &Notification) -> proto::WorkDetected {
    proto::WorkDetected {
        storage_account: notification.queue.storage_account().to_owned(),
        queue_name: notification.queue.queue_name().to_owned(),
        payload_size: notification.payload_size,
        notifications: notification.notifications,
        published_at: time_to_wire(notification.published_at),
        delay: delay(notification),
        traceparent: (*notification.traceparent).to_owned(),
        messages: notification.messages,
        ..proto::WorkDetected::default()
    }
}

fn read(
    events: Vec<proto::WorkDetected>,
    publisher: &str,
) -> Result<(Arc<str>, Vec<Notification>, Refusals)> {
    let bytes = Generated {
        events,
        publisher: publisher.to_owned(),
    }
    .encode_to_vec();
    NotifyRequest::decode(bytes.as_slice())
        .expect("a message")
        .into_parts()
}

#[test]
fn it_is_encoded_like_the_generated_message() {
    let plain = Notification::new("a/q".parse().expect("an address"));
    let all = vec![notification(), notification(), plain];
    let request = NotifyRequest::new("billing".into(), all.clone());
    let publisher = "billing".to_owned();
    let same = Generated {
        events: all.iter().map(generated).collect(),
        publisher,
    };
    assert_eq!(request.encoded_len(), same.encoded_len());
    assert_eq!(request.encode_to_vec(), same.encode_to_vec());
}

#[test]
fn it_is_decoded_like_the_generated_message() {
    let other = Notification::new("a/q".parse().expect("an address"));
    let all = vec![notification(), notification(), other, notification()];
    // The relay's fields are ignored in a publisher's request.
    let relays = |n: &Notification| proto::WorkDetected {
        sequence: 9,
        reason: 2,
        publisher: "x".to_owned(),
        ..generated(n)
    };
    let (publisher, read, refusals) =
        read(all.iter().map(relays).collect(), "billing").expect("right");
    assert_eq!((&*publisher, read), ("billing", all));
    assert!(refusals.is_empty());
}

#[test]
fn a_broken_rule_is_an_error_of_its_event_with_the_field() {
    let good = generated(&notification());
    let text = |length| "x".repeat(length);
    let span = |seconds, nanos| Some(prost_types::Duration { seconds, nanos });
    for (event, field) in [
        (
            proto::WorkDetected {
                storage_account: String::new(),
                ..good.clone()
            },
            "storage_account",
        ),
        (
            proto::WorkDetected {
                queue_name: "a b".to_owned(),
                ..good.clone()
            },
            "queue_name",
        ),
        (
            proto::WorkDetected {
                queue_name: text(129),
                ..good.clone()
            },
            "queue_name",
        ),
        (
            proto::WorkDetected {
                queue_name: text(5000),
                ..good.clone()
            },
            "queue_name",
        ),
        (
            proto::WorkDetected {
                queue_name: "ü".repeat(100),
                ..good.clone()
            },
            "queue_name",
        ),
        (
            proto::WorkDetected {
                traceparent: text(129),
                ..good.clone()
            },
            "traceparent",
        ),
        (
            proto::WorkDetected {
                delay: span(-1, 0),
                ..good.clone()
            },
            "delay",
        ),
        (
            proto::WorkDetected {
                delay: span(0, -5),
                ..good.clone()
            },
            "delay",
        ),
        (
            proto::WorkDetected {
                delay: span(15 * 86_400, 0),
                ..good.clone()
            },
            "delay",
        ),
    ] {
        let events = vec![good.clone(), event, good.clone()];
        let (_, read, refusals) = read(events, "p").expect(field);
        assert_eq!((read.len(), refusals.len()), (2, 1), "{field}");
        let error = &refusals[&1];
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().starts_with(field), "{field}: {error}");
    }
    assert!(
        read(vec![good.clone()], &text(129))
            .expect_err("long")
            .message()
            .starts_with("publisher")
    );
    for count in [0, 1025] {
        let error = read(vec![good.clone(); count], "p").expect_err("too few or many");
        assert!(error.message().contains("1 to 1024"), "{error}");
    }
    assert!(read(vec![good; 1024], "p").is_ok());
}

#[test]
fn a_malformed_message_is_an_error_and_never_a_panic() {
    let bytes = NotifyRequest::new("billing".into(), vec![notification(); 3]).encode_to_vec();
    for cut in 1..bytes.len() {
        // Some cuts are between two fields and leave a valid message.
        let _ = NotifyRequest::decode(&bytes[..cut]);
    }
    for (byte, bit) in (0..bytes.len()).flat_map(|byte| (0..8).map(move |bit| (byte, bit))) {
        let mut flipped = bytes.clone();
        flipped[byte] ^= 1 << bit;
        let _ = NotifyRequest::decode(flipped.as_slice()).map(NotifyRequest::into_parts);
    }
    assert!(
        NotifyRequest::decode(&[0x0a, 0xff, 0xff, 0x03][..]).is_err(),
        "a length too great"
    );
    assert!(
        NotifyRequest::decode(&[0x0a, 0x02, 0x0a, 0x05][..]).is_err(),
        "a text too long"
    );
}

/// So a publisher limits the events of a request, and not its bytes.
#[test]
fn the_greatest_request_of_the_longest_texts_is_within_its_limit() {
    let name = "n".repeat(Limits::NAME);
    let fullest = Notification {
        payload_size: u64::MAX,
        messages: u64::MAX,
        notifications: u64::MAX,
        delay: Limits::DELAY - Duration::from_nanos(1),
        published_at: Some(SystemTime::now()),
        traceparent: "t".repeat(Limits::TRACEPARENT).into(),
        ..Notification::new(QueueAddress::new(&name, &name).expect("an address"))
    };
    fullest.check().expect("the relay takes it");
    let counted = proto::Counted {
        epoch: "e".repeat(Limits::TOKEN),
        position: u64::MAX,
    };
    let publisher = "p".repeat(Limits::MAX_TEXT).into();
    let request = NotifyRequest::new(publisher, vec![fullest; Limits::EVENTS]);
    let request = request.with_counted(vec![counted; MOST_COUNTED]);
    assert!(request.encoded_len() <= Limits::NOTIFY_BYTES);
}
