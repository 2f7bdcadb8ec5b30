//! The subjects of a cluster, and the messages that arrive on them.

use async_nats::{Message, Subject};
use bytes::Bytes;

use crate::types::cluster::LifeId;

/// The subjects of a cluster.
#[derive(Debug, Clone)]
pub(super) struct Subjects {
    /// Of all relays.
    pub(super) all: Subject,
    /// `reveille1.NAME.to.`
    to: String,
    /// `reveille1.NAME.inbox`: the client's own subjects of replies begin so.
    pub(super) inbox: String,
}

/// A message of the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NatsMessage {
    /// A message to all relays, own ones included.
    All(Bytes),
    /// A request to this life.
    Ask {
        /// Where the answer goes.
        reply_to: Subject,
        /// The request.
        request: Bytes,
    },
    /// A request whose subject of the reply is not one of this cluster. Any other could make this
    /// relay publish where its login may and the sender's may not.
    ForeignReply,
}

impl Subjects {
    pub(super) fn new(name: &str) -> Self {
        Self {
            all: format!("reveille1.{name}.all").into(),
            to: format!("reveille1.{name}.to."),
            inbox: format!("reveille1.{name}.inbox"),
        }
    }

    /// Returns the subject of requests to a life.
    pub(super) fn of(&self, life: LifeId) -> Subject {
        format!("{}{life}", self.to).into()
    }

    /// Sorts a message of the two subscriptions by its subject.
    pub(super) fn read(&self, message: Message) -> NatsMessage {
        if message.subject == self.all {
            return NatsMessage::All(message.payload);
        }
        let is_own = |reply: &Subject| {
            let rest = reply.strip_prefix(&self.inbox);
            rest.is_some_and(|rest| rest.starts_with('.'))
        };
        match message.reply.filter(is_own) {
            Some(reply_to) => NatsMessage::Ask {
                reply_to,
                request: message.payload,
            },
            None => NatsMessage::ForeignReply,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_answered_on_a_subject_of_the_own_cluster_only() {
        let life = LifeId(0xabc);
        let subjects = Subjects::new("prod");
        let own = subjects.of(life);
        let payload = Bytes::from_static(b"payload");
        let read = |subject: &Subject, reply: Option<&str>| {
            subjects.read(Message {
                subject: subject.clone(),
                reply: reply.map(|reply| reply.to_owned().into()),
                payload: payload.clone(),
                headers: None,
                status: None,
                description: None,
                length: 7,
            })
        };
        let all = read(&subjects.all, None);
        assert_eq!(all, NatsMessage::All(payload.clone()));
        let good = "reveille1.prod.inbox.a.1";
        let ask = NatsMessage::Ask {
            reply_to: good.into(),
            request: payload.clone(),
        };
        assert_eq!(read(&own, Some(good)), ask);
        for reply in [
            None,
            Some("reveille1.prod.all"),
            Some("orders.delete"),
            Some("reveille1.prod.inboxes.1"),
            Some("reveille1.other.inbox.1"),
        ] {
            let read = read(&own, reply);
            assert_eq!(read, NatsMessage::ForeignReply, "{reply:?}");
        }
    }
}
