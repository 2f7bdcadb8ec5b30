//! The frames of a hand-over as messages of the protocol.
//!
//! The messages of an offer are compressed if that makes them smaller. The decompressed size
//! has a bound.

use std::io::{Read as _, Write as _};

use bytes::Bytes;
use flate2::{Compression, read::ZlibDecoder, write::ZlibEncoder};
use prost::{
    DecodeError, Message as _,
    encoding::{DecodeContext, decode_key, skip_field},
};

use crate::{
    courier::{
        handover::{
            Accept, Hello, Numbered, OfferedMessage, ReceiverContent, ReceiverFrame, SenderContent,
            SenderFrame, Upto, Welcome, agreed_version,
        },
        message::{Destination, check_authority},
    },
    error::{Error, Result},
    wire::proto::{
        self, HandOverRequest, HandOverResponse, hand_over_request::Kind as RequestKind,
        hand_over_response::Kind as ResponseKind,
    },
};

/// The largest offer, decompressed: twice what a sender puts into one, and one large message.
const MAX_OFFER: u64 = 1 << 20;
/// The most messages of an offer; a sender puts half as many into one.
const MAX_MESSAGES: usize = 256;
/// The field's number in OfferedMessages.
const MESSAGES: u32 = 1;
/// Smaller offers are not compressed.
const MIN_COMPRESSED: usize = 512;
/// The longest reason, in bytes.
const MAX_REASON: usize = 512;

/// Encodes a frame of the sender.
pub(crate) fn request(frame: SenderFrame) -> HandOverRequest {
    let kind = match frame.content {
        SenderContent::Hello(hello) => RequestKind::Hello(proto::HandOverHello {
            version: hello.version,
            sender: hello.sender.to_vec().into(),
            name: hello.name,
            authority: hello.authority,
            least_version: hello.least_version,
        }),
        SenderContent::Offer(messages) => RequestKind::Offer(offer(messages)),
        SenderContent::Confirm(upto) => RequestKind::Confirm(proto::HandOverConfirm {
            upto: upto.number,
            held: upto.held,
        }),
    };
    HandOverRequest {
        frame: frame.frame,
        kind: Some(kind),
    }
}

/// Decodes a frame of the sender.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) with the field and the rule.
pub(crate) fn frame(request: HandOverRequest) -> Result<SenderFrame> {
    let content = match request.kind {
        Some(RequestKind::Hello(hello)) => {
            // First: the other fields may have other rules there.
            agreed_version(hello.least_version, hello.version)?;
            SenderContent::Hello(Hello {
                version: hello.version,
                least_version: hello.least_version,
                sender: id("sender", &hello.sender)?,
                name: shortened(hello.name),
                authority: machine(hello.authority)?,
            })
        }
        Some(RequestKind::Offer(offer)) => SenderContent::Offer(offered(offer)?),
        Some(RequestKind::Confirm(confirm)) => SenderContent::Confirm(Upto {
            number: confirm.upto,
            held: confirm.held,
        }),
        None => return Err(Error::invalid("kind", "must be set")),
    };
    Ok(Numbered {
        frame: request.frame,
        content,
    })
}

/// Encodes a frame of the receiver.
pub(crate) fn response(frame: ReceiverFrame) -> HandOverResponse {
    let kind = match frame.content {
        ReceiverContent::Welcome(welcome) => ResponseKind::Welcome(proto::HandOverWelcome {
            version: welcome.version,
            receiver: welcome.receiver.to_vec().into(),
            held: welcome.held.iter().map(|uid| uid.to_vec().into()).collect(),
        }),
        ReceiverContent::Accept(accept) => ResponseKind::Accept(proto::HandOverAccept {
            upto: accept.upto,
            refused: refusals(accept.refused),
            postponed: refusals(accept.postponed),
        }),
        ReceiverContent::Visible(upto) => ResponseKind::Visible(proto::HandOverVisible {
            upto: upto.number,
            held: upto.held,
        }),
    };
    HandOverResponse {
        frame: frame.frame,
        kind: Some(kind),
    }
}

/// Decodes a frame of the receiver.
///
/// # Errors
/// As [`frame`].
pub(crate) fn answer(response: HandOverResponse) -> Result<ReceiverFrame> {
    let content = match response.kind {
        Some(ResponseKind::Welcome(welcome)) => {
            let held = welcome.held.iter().map(|uid| id("held", uid));
            ReceiverContent::Welcome(Welcome {
                version: welcome.version,
                receiver: id("receiver", &welcome.receiver)?,
                held: held.collect::<Result<_>>()?,
            })
        }
        Some(ResponseKind::Accept(accept)) => ReceiverContent::Accept(Accept {
            upto: accept.upto,
            refused: reasons(accept.refused),
            postponed: reasons(accept.postponed),
        }),
        Some(ResponseKind::Visible(visible)) => ReceiverContent::Visible(Upto {
            number: visible.upto,
            held: visible.held,
        }),
        None => return Err(Error::invalid("kind", "must be set")),
    };
    Ok(Numbered {
        frame: response.frame,
        content,
    })
}

fn offer(messages: Vec<OfferedMessage>) -> proto::HandOverOffer {
    let messages = messages.into_iter().map(|message| proto::OfferedMessage {
        number: message.number,
        id: message.uid.to_vec().into(),
        authority: message.authority,
        queue: message.queue,
        visited: message.visited.into(),
        body: message.body,
        checksum: message.checksum,
        resume: message.resume,
    });
    let offered = proto::OfferedMessages {
        messages: messages.collect(),
    };
    if let Some(deflated) = compressed(&offered) {
        return proto::HandOverOffer {
            messages: Vec::new(),
            deflated,
        };
    }
    proto::HandOverOffer {
        messages: offered.messages,
        deflated: Bytes::new(),
    }
}

/// Returns the compressed encoding if it is smaller by an eighth.
fn compressed(offered: &proto::OfferedMessages) -> Option<Bytes> {
    let plain = offered.encode_to_vec();
    if plain.len() < MIN_COMPRESSED {
        return None;
    }
    let mut encoder = ZlibEncoder::new(Vec::with_capacity(plain.len()), Compression::fast());
    encoder.write_all(&plain).ok()?;
    let deflated = encoder.finish().ok()?;
    (deflated.len() < plain.len() - plain.len() / 8).then(|| deflated.into())
}

fn offered(offer: proto::HandOverOffer) -> Result<Vec<OfferedMessage>> {
    let messages = match offer.deflated.is_empty() {
        true => offer.messages,
        false => decompressed(&offer.deflated)?.messages,
    };
    check_count(messages.len())?;
    let messages = messages.into_iter().map(|message| {
        if message.visited.len() % 16 != 0 {
            return Err(Error::invalid(
                "visited",
                "must have 16 bytes for each machine",
            ));
        }
        Ok(OfferedMessage {
            number: message.number,
            uid: id("id", &message.id)?,
            authority: match message.authority.is_empty() {
                true => String::new(),
                false => machine(message.authority)?,
            },
            queue: queue(message.queue)?,
            visited: message.visited.into(),
            checksum: message.checksum,
            body: message.body,
            resume: message.resume,
        })
    });
    messages.collect()
}

fn machine(authority: String) -> Result<String> {
    check_authority(&authority)
        .map(|()| authority)
        .map_err(|_| Error::invalid("authority", "must be HOST:PORT"))
}

fn queue(name: String) -> Result<String> {
    Destination::local(&name)
        .map(|_| name)
        .map_err(|_| Error::invalid("queue", "must be the name of a queue"))
}

fn decompressed(deflated: &[u8]) -> Result<proto::OfferedMessages> {
    let malformed = |_| Error::invalid("deflated", "must be compressed with zlib");
    let mut plain = Vec::new();
    let mut decoder = ZlibDecoder::new(deflated).take(MAX_OFFER + 1);
    decoder.read_to_end(&mut plain).map_err(malformed)?;
    if plain.len() as u64 > MAX_OFFER {
        let rule = format_args!("must have at most {MAX_OFFER} bytes when it is decompressed");
        return Err(Error::invalid("deflated", rule));
    }
    let malformed = |_| Error::invalid("deflated", "must be the encoding of OfferedMessages");
    check_count(count(&plain).map_err(malformed)?)?;
    proto::OfferedMessages::decode(&plain[..]).map_err(malformed)
}

/// Counts encoded messages before they are decoded: an empty one has 2 bytes, and takes about 150 in
/// memory.
fn count(mut encoded: &[u8]) -> std::result::Result<usize, DecodeError> {
    let mut count = 0;
    while !encoded.is_empty() {
        let (tag, wire_type) = decode_key(&mut encoded)?;
        skip_field(wire_type, tag, &mut encoded, DecodeContext::default())?;
        count += usize::from(tag == MESSAGES);
    }
    Ok(count)
}

fn check_count(messages: usize) -> Result<()> {
    if messages <= MAX_MESSAGES {
        return Ok(());
    }
    let rule = format_args!("must be at most {MAX_MESSAGES}, but are {messages}");
    Err(Error::invalid("messages", rule))
}

fn id(field: &'static str, bytes: &[u8]) -> Result<[u8; 16]> {
    bytes
        .try_into()
        .map_err(|_| Error::invalid(field, "must have 16 bytes"))
}

fn refusals(named: Vec<(u64, String)>) -> Vec<proto::HandOverRefusal> {
    let named = named.into_iter();
    named
        .map(|(number, reason)| proto::HandOverRefusal {
            number,
            reason: shortened(reason),
        })
        .collect()
}

fn reasons(refusals: Vec<proto::HandOverRefusal>) -> Vec<(u64, String)> {
    let refusals = refusals.into_iter();
    refusals
        .map(|refusal| (refusal.number, shortened(refusal.reason)))
        .collect()
}

/// Cuts a text of the other machine at a limit.
fn shortened(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_REASON));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: u64, body: &[u8]) -> OfferedMessage {
        OfferedMessage {
            number,
            uid: [7; 16],
            authority: "host:1".to_owned(),
            queue: "orders".to_owned(),
            visited: vec![1; 32],
            checksum: crc32fast::hash(body),
            body: Bytes::copy_from_slice(body),
            resume: number == 1,
        }
    }

    fn message_to(authority: &str, queue: &str) -> OfferedMessage {
        OfferedMessage {
            authority: authority.to_owned(),
            queue: queue.to_owned(),
            ..message(1, b"x")
        }
    }

    #[test]
    fn offers_are_the_same_after_the_wire_compressed_or_not() {
        for body in [&b"short"[..], &[b'x'; 5_000]] {
            let content = SenderContent::Offer(vec![message(1, body), message(2, body)]);
            let sent = Numbered { frame: 3, content };
            let encoded = request(sent.clone());
            assert!(encoded.encoded_len() < 600, "compressed where it helps");
            assert_eq!(frame(encoded).expect("valid"), sent);
        }
    }

    #[test]
    fn what_a_compressed_offer_expands_to_has_a_bound() {
        let body = vec![0; 2 << 20];
        let content = SenderContent::Offer(vec![message(1, &body)]);
        let bomb = request(Numbered { frame: 1, content });
        assert!(bomb.encoded_len() < 64 << 10);
        let error = frame(bomb).expect_err("too large").to_string();
        assert!(error.contains("deflated"), "{error}");
    }

    #[test]
    fn too_many_compressed_messages_are_refused_before_they_are_decoded() {
        // Each message has one byte, which begins no field.
        let plain = [0x0a, 1, 0xff].repeat(MAX_MESSAGES + 1);
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&plain).expect("in memory");
        let offer = proto::HandOverOffer {
            messages: Vec::new(),
            deflated: encoder.finish().expect("in memory").into(),
        };
        let kind = Some(RequestKind::Offer(offer));
        let error = frame(HandOverRequest { frame: 1, kind }).expect_err("too many");
        assert!(error.to_string().contains("256, but are 257"), "{error}");
    }

    #[test]
    fn malformed_frames_name_the_field() {
        for (version, field) in [(1, "sender"), (2, "version")] {
            let hello = proto::HandOverHello {
                version,
                sender: Bytes::from_static(b"short"),
                name: String::new(),
                authority: "host:1".to_owned(),
                least_version: 0,
            };
            let kind = Some(RequestKind::Hello(hello));
            let error = frame(HandOverRequest { frame: 1, kind }).expect_err("refused");
            assert!(error.to_string().contains(field), "{error}");
        }
        for (field, broken) in [
            ("queue", message_to("host:1", "a/b")),
            ("authority", message_to("host", "orders")),
        ] {
            let content = SenderContent::Offer(vec![broken]);
            let error = frame(request(Numbered { frame: 1, content })).expect_err(field);
            assert!(error.to_string().contains(field), "{error}");
        }
        let many = (1..=257).map(|number| message(number, b"x")).collect();
        let content = SenderContent::Offer(many);
        let error = frame(request(Numbered { frame: 1, content })).expect_err("too many");
        assert!(error.to_string().contains("256"), "{error}");
        let error = frame(HandOverRequest {
            frame: 1,
            kind: None,
        })
        .expect_err("empty");
        assert!(error.to_string().contains("kind"), "{error}");
    }
}
