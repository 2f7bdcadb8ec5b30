//! The subjects of a cluster, and the messages that arrive on them.

use async_nats::{Message, StatusCode, Subject};
use bytes::Bytes;

use crate::types::cluster::LifeId;

/// The subjects of one life in a cluster.
#[derive(Debug, Clone)]
pub(super) struct Subjects {
    /// Of all relays.
    pub(super) all: Subject,
    /// The pattern of this life's own subjects.
    pub(super) own: Subject,
    /// `reveille1.NAME.to.`
    to: String,
    life: LifeId,
}

/// A message of the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NatsMessage {
    /// A message to all relays, own ones included.
    All(Bytes),
    /// A request to this life.
    Ask {
        /// Where the answer goes.
        reply_to: ReplyTo,
        /// The request.
        request: Bytes,
    },
    /// The reply to this life's request of a number.
    Reply {
        /// The request's number.
        number: u64,
        /// The reply.
        reply: Bytes,
    },
    /// The broker knows no subscriber of the life that this life's request was for.
    NoSuchLife {
        /// The request's number.
        number: u64,
    },
    /// A message on a subject of no known form.
    UnknownSubject,
}

/// The request that a reply answers: its life and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReplyTo {
    pub(crate) life: LifeId,
    pub(crate) number: u64,
}

const ASK: &str = "ask";

impl Subjects {
    pub(super) fn new(name: &str, life: LifeId) -> Self {
        Self {
            all: format!("reveille1.{name}.all").into(),
            own: format!("reveille1.{name}.to.{life}.*").into(),
            to: format!("reveille1.{name}.to."),
            life,
        }
    }

    /// Returns the subject of requests to a life.
    pub(super) fn ask(&self, life: LifeId) -> Subject {
        format!("{}{life}.{ASK}", self.to).into()
    }

    /// Returns the subject of the reply to a request.
    pub(super) fn reply(&self, to: ReplyTo) -> Subject {
        format!("{}{}.{}", self.to, to.life, to.number).into()
    }

    /// Returns the subject of the reply to an own request.
    pub(super) fn own_reply(&self, number: u64) -> Subject {
        let life = self.life;
        self.reply(ReplyTo { life, number })
    }

    /// Sorts a message by its subject.
    ///
    /// A request names the subject of its reply. Only a reply subject of this cluster is accepted:
    /// any other could make this relay publish where its login may and the sender's may not.
    pub(super) fn read(&self, message: Message) -> NatsMessage {
        self.known(message).unwrap_or(NatsMessage::UnknownSubject)
    }

    fn known(&self, message: Message) -> Option<NatsMessage> {
        if message.subject == self.all {
            return Some(NatsMessage::All(message.payload));
        }
        let own = self.parse(&message.subject)?;
        match own {
            (life, _) if life != self.life => None,
            (_, ASK) => {
                let (life, number) = self.parse(message.reply.as_ref()?)?;
                let number = number_of(number)?;
                Some(NatsMessage::Ask {
                    reply_to: ReplyTo { life, number },
                    request: message.payload,
                })
            }
            (_, number) => {
                let number = number_of(number)?;
                match message.status {
                    Some(StatusCode::NO_RESPONDERS) => Some(NatsMessage::NoSuchLife { number }),
                    _ => Some(NatsMessage::Reply {
                        number,
                        reply: message.payload,
                    }),
                }
            }
        }
    }

    /// Splits a subject of one life into the life and the last token.
    fn parse<'s>(&self, subject: &'s str) -> Option<(LifeId, &'s str)> {
        let (life, last) = subject.strip_prefix(&self.to)?.split_once('.')?;
        Some((LifeId::from_epoch(life)?, last))
    }
}

/// Numbers have one spelling: the reply's subject is made from the number.
fn number_of(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: LifeId = LifeId(0xabc);
    const OTHER: LifeId = LifeId(7);

    fn message(subject: &str, reply: Option<&str>) -> Message {
        Message {
            subject: subject.to_owned().into(),
            reply: reply.map(|reply| reply.to_owned().into()),
            payload: Bytes::from_static(b"payload"),
            headers: None,
            status: None,
            description: None,
            length: 7,
        }
    }

    #[test]
    fn messages_are_sorted_by_their_subjects() {
        let subjects = Subjects::new("prod", OWN);
        let other = Subjects::new("prod", OTHER);
        let payload = Bytes::from_static(b"payload");
        let all = subjects.read(message("reveille1.prod.all", None));
        assert_eq!(all, NatsMessage::All(payload.clone()));
        let reply = other.own_reply(12);
        let ask = subjects.read(message(&other.ask(OWN), Some(&reply)));
        let reply_to = ReplyTo {
            life: OTHER,
            number: 12,
        };
        let request = payload.clone();
        assert_eq!(ask, NatsMessage::Ask { reply_to, request });
        assert_eq!(subjects.reply(reply_to), reply);
        let answer = message(&subjects.own_reply(5), None);
        let reply = payload;
        assert_eq!(
            subjects.read(answer.clone()),
            NatsMessage::Reply { number: 5, reply }
        );
        let unanswered = Message {
            status: Some(StatusCode::NO_RESPONDERS),
            ..answer
        };
        let gone = NatsMessage::NoSuchLife { number: 5 };
        assert_eq!(subjects.read(unanswered), gone);
    }

    #[test]
    fn a_message_on_no_known_subject_and_a_foreign_reply_subject_are_refused() {
        let subjects = Subjects::new("prod", OWN);
        let ask = subjects.ask(OWN);
        let own = |last: &str| format!("reveille1.prod.to.{OWN}.{last}");
        for (subject, reply) in [
            ("reveille1.prod.any".to_owned(), None),
            ("reveille1.other.all".to_owned(), None),
            (own(""), None),
            (own("x"), None),
            (own("05"), None),
            (own("-1"), None),
            (own("18446744073709551616"), None),
            (subjects.ask(OTHER).into_string(), Some(own("1"))),
            ("reveille1.prod.to.abc.1".to_owned(), None),
            (format!("reveille1.prod.to.{:032X}.1", OWN.0), None),
            (ask.to_string(), None),
            (ask.to_string(), Some("reveille1.prod.all".to_owned())),
            (ask.to_string(), Some("orders.delete".to_owned())),
            (ask.to_string(), Some(own("ask"))),
        ] {
            let read = subjects.read(message(&subject, reply.as_deref()));
            assert_eq!(read, NatsMessage::UnknownSubject, "{subject} {reply:?}");
        }
    }
}
