//! The frames of a hand-over as messages of the protocol.

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

/// The most messages of an offer; a sender puts half as many into one.
const MAX_MESSAGES: usize = 256;
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
    proto::HandOverOffer {
        messages: messages.collect(),
    }
}

fn offered(offer: proto::HandOverOffer) -> Result<Vec<OfferedMessage>> {
    let count = offer.messages.len();
    if count > MAX_MESSAGES {
        let rule = format_args!("must be at most {MAX_MESSAGES}, but are {count}");
        return Err(Error::invalid("messages", rule));
    }
    let messages = offer.messages.into_iter().map(|message| {
        if message.visited.len() % 16 != 0 {
            return Err(Error::invalid(
                "visited",
                "must have 16 bytes for each machine",
            ));
        }
        Ok(OfferedMessage {
            number: message.number,
            uid: id("id", &message.id)?,
            authority: if message.authority.is_empty() {
                String::new()
            } else {
                machine(message.authority)?
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
    use bytes::Bytes;

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
    fn offers_are_the_same_after_the_wire() {
        let content = SenderContent::Offer(vec![message(1, b"short"), message(2, &[b'x'; 5_000])]);
        let sent = Numbered { frame: 3, content };
        assert_eq!(frame(request(sent.clone())).expect("valid"), sent);
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
