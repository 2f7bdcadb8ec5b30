//! The receiver's side of a connection: makes messages visible that the sender has confirmed, and stores
//! the offered ones.
//!
//! Each step runs in a transaction of the queue file, with the file's time. A message that is stored
//! twice cannot become visible twice: its id is known for a time (`arrived`). This module knows no socket.
//!
//! A refusal is decided by rules that repeating the offer does not change; a postponement ends by itself.

use std::{collections::HashMap, sync::Arc};

use rusqlite::{Transaction, params};

use super::{
    OFFER, VERSION,
    inbound::{is_known, show, store},
    outgoing::count_ready,
    policy::{Policy, SenderRights},
};
use crate::{
    backend::sqlite::refuse,
    base::fault::planted,
    courier::message::{Destination, check_authority},
    error::{Error, ErrorKind, Result},
    queue::sqlite::{checksum::checksum, clock::Micros, queue_depth},
    wire::proto::{
        HandOverAccept, HandOverHello, HandOverRequest, HandOverResponse, HandOverVerdict,
        HandOverWelcome, OfferedMessage, hand_over_request::Kind as Request,
        hand_over_response::Kind as Response, hand_over_verdict::Kind as Verdict,
    },
};

/// One connection from a sender.
#[derive(Debug, Clone)]
pub(crate) struct ReceiverSession {
    policy: Arc<Policy>,
    /// Random; distinguishes this connection from the sender's others.
    connection: [u8; 16],
    /// The number of the last request.
    number: u64,
    /// The row in `senders`; `None` before Hello.
    sender: Option<i64>,
}

/// The messages that queues have, and that wait for next machines: counted once for each offer. So no
/// message of an offer is stored after one of its destination that was postponed.
type Depths = HashMap<String, u64>;

/// The most machines that a message passes: as many as in an IP network's early routing protocols.
const MOST_MACHINES: usize = 16;
/// Another process connects with the same queue file while this one lives.
const OTHER_CONNECTION: &str = "the sender has opened another connection; if a copy of its queue \
    file is in use on another machine, run `reveille courier new-identity` there: connect again";

impl ReceiverSession {
    /// Creates the session of a connection with a random id.
    pub(crate) fn new(connection: [u8; 16], policy: Arc<Policy>) -> Self {
        Self {
            policy,
            connection,
            number: 0,
            sender: None,
        }
    }

    /// Handles a request of a sender with its present rights. The answer may be sent when the transaction
    /// is durable.
    ///
    /// # Errors
    /// Also that the sender broke a rule, or has opened another connection.
    pub(crate) fn on_request(
        &mut self,
        transaction: &Transaction<'_>,
        rights: &SenderRights,
        (now, wall): (Micros, Micros),
        request: HandOverRequest,
    ) -> rusqlite::Result<HandOverResponse> {
        let number = request.number;
        if number != self.number + 1 && !planted!(RepeatedRequestAccepted) {
            let text = "a request of the hand-over is repeated or missing: connect again";
            return Err(refuse(Error::new(ErrorKind::Conflict, text)));
        }
        let kind = match (request.kind, self.sender) {
            (Some(Request::Hello(hello)), None) => {
                Response::Welcome(self.hello(transaction, rights, now, &hello)?)
            }
            (Some(Request::Offer(offer)), Some(sender)) => {
                self.check_present(transaction, now, sender)?;
                show(transaction, &self.policy, (now, wall), sender)?;
                let verdicts = self.offer(transaction, rights, wall, sender, offer.messages)?;
                Response::Accept(HandOverAccept { verdicts })
            }
            _ => {
                return Err(refuse(Error::invalid(
                    "kind",
                    "must be Hello first, and only first",
                )));
            }
        };
        self.number = number;
        Ok(HandOverResponse {
            number,
            kind: Some(kind),
        })
    }

    fn hello(
        &mut self,
        transaction: &Transaction<'_>,
        rights: &SenderRights,
        now: Micros,
        hello: &HandOverHello,
    ) -> rusqlite::Result<HandOverWelcome> {
        check_hello(hello).map_err(refuse)?;
        if hello.sender == self.policy.own[..] {
            let rule = "is this machine itself, or has a copy of its queue file: check the \
                        destination or the route, or run `reveille courier new-identity` on the copy";
            return Err(refuse(Error::invalid("receiver", rule)));
        }
        rights.check_file(transaction, &hello.sender)?;
        let present = "INSERT INTO senders (file, authority, connection, seen_at, principal)
                       VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (file, authority) DO UPDATE
                       SET connection = excluded.connection, seen_at = excluded.seen_at,
                           principal = coalesce(excluded.principal, principal)
                       RETURNING id";
        let values = params![
            &hello.sender[..],
            hello.authority,
            self.connection,
            now,
            rights.principal
        ];
        let sender: i64 = transaction.query_row(present, values, |row| row.get(0))?;
        self.sender = Some(sender);
        let held = "SELECT uid FROM inbound WHERE sender = ?1";
        let mut held = transaction.prepare_cached(held)?;
        let held = held.query_map([sender], |row| Ok(row.get::<_, Vec<u8>>(0)?.into()))?;
        Ok(HandOverWelcome {
            receiver: self.policy.own.to_vec().into(),
            held: held.collect::<rusqlite::Result<_>>()?,
        })
    }

    /// Checks that this is still the sender's present connection.
    fn check_present(
        &self,
        transaction: &Transaction<'_>,
        now: Micros,
        sender: i64,
    ) -> rusqlite::Result<()> {
        let sql = "UPDATE senders SET seen_at = ?3 WHERE id = ?1 AND connection = ?2";
        let mut present = transaction.prepare_cached(sql)?;
        let updated = present.execute(params![sender, self.connection, now])?;
        if updated == 1 || planted!(OldConnectionAccepted) {
            Ok(())
        } else {
            Err(refuse(Error::new(ErrorKind::Conflict, OTHER_CONNECTION)))
        }
    }

    fn offer(
        &self,
        transaction: &Transaction<'_>,
        rights: &SenderRights,
        wall: Micros,
        sender: i64,
        messages: Vec<OfferedMessage>,
    ) -> rusqlite::Result<Vec<HandOverVerdict>> {
        if messages.len() > OFFER {
            let rule = format_args!("must be at most {OFFER}, but are {}", messages.len());
            return Err(refuse(Error::invalid("messages", rule)));
        }
        let mut verdicts = Vec::with_capacity(messages.len());
        let mut depths = Depths::new();
        for mut message in messages {
            check_message(&message).map_err(refuse)?;
            if self.policy.config.is_own(&message.authority) {
                message.authority.clear();
            }
            let kind = self.take(transaction, rights, wall, sender, &message, &mut depths)?;
            verdicts.push(HandOverVerdict { kind });
        }
        Ok(verdicts)
    }

    /// Stores a message, unless this file has or had it. Returns why it did not.
    fn take(
        &self,
        transaction: &Transaction<'_>,
        rights: &SenderRights,
        wall: Micros,
        sender: i64,
        message: &OfferedMessage,
        depths: &mut Depths,
    ) -> rusqlite::Result<Option<Verdict>> {
        // Before the search for its id: a message that has gone in a circle is known here.
        if let Some(reason) = self.circle(message) {
            return Ok(never(reason));
        }
        // It comes from a restored copy of its sender.
        if is_known(transaction, sender, &message.id)? {
            return Ok(None);
        }
        // Rules may be corrected.
        if let Some(reason) = rights.refusal(message) {
            return Ok(postpone(reason));
        }
        let (size, max) = (message.body.len(), self.policy.config.max_body);
        if size > max {
            return Ok(never(format!(
                "the body has {size} bytes, and the limit is {max}"
            )));
        }
        let is_local = message.authority.is_empty();
        let (place, max) = if is_local {
            (&*message.queue, self.policy.config.max_queue)
        } else {
            let Some(hop) = self.policy.config.next_hop(&message.authority) else {
                return Ok(never(no_route(&message.authority)));
            };
            (hop, Some(self.policy.config.max_outgoing))
        };
        let depth = match depths.get_mut(place) {
            Some(depth) => depth,
            None => {
                // Those of other senders that are not visible yet are not counted: they are few.
                let counted = if is_local {
                    queue_depth(transaction, place)?
                } else {
                    let most = self.policy.config.max_outgoing;
                    Some(count_ready(transaction, place, most)?)
                };
                let Some(depth) = counted else {
                    return Ok(never(format!("queue `{place}` does not exist")));
                };
                // A machine has a colon in its name, and a queue has none.
                depths.entry(place.to_owned()).or_insert(depth)
            }
        };
        if let Some(max) = max.filter(|max| *depth >= *max) {
            return Ok(postpone(format!(
                "`{place}` is full: its limit is {max} messages"
            )));
        }
        *depth += 1;
        store(transaction, wall, sender, message)?;
        Ok(None)
    }

    /// Returns why a message has passed too many machines.
    fn circle(&self, message: &OfferedMessage) -> Option<String> {
        let own = &self.policy.own;
        let mut passed = message.visited.chunks(own.len());
        if passed.any(|file| file == own) && !planted!(LoopAccepted) {
            return Some(format!(
                "the routes to `{}` form a loop, or two machines have copies of one queue file",
                message.authority
            ));
        }
        (message.visited.len() / own.len() > MOST_MACHINES)
            .then(|| format!("it has passed {MOST_MACHINES} machines, which is the limit"))
    }
}

fn check_hello(hello: &HandOverHello) -> Result<()> {
    // First: the other fields may have other rules there.
    if hello.version != VERSION {
        let rule = format_args!("must be {VERSION}, but is {}", hello.version);
        return Err(Error::invalid("version of the hand-over", rule));
    }
    if hello.sender.len() != 16 {
        return Err(Error::invalid("sender", "must have 16 bytes"));
    }
    check_authority(&hello.authority).map_err(|_| Error::invalid("authority", "must be HOST:PORT"))
}

fn check_message(message: &OfferedMessage) -> Result<()> {
    if message.id.len() != 16 || !message.visited.len().is_multiple_of(16) {
        return Err(Error::invalid(
            "id and visited",
            "must have 16 bytes for each",
        ));
    }
    if !message.authority.is_empty() && check_authority(&message.authority).is_err() {
        return Err(Error::invalid("authority", "must be HOST:PORT"));
    }
    if Destination::local(&message.queue).is_err() {
        return Err(Error::invalid("queue", "must be the name of a queue"));
    }
    // The sender has checked its own row.
    if checksum(&message.body) != message.checksum {
        let rule = "does not fit the body, which was damaged on the way";
        return Err(Error::invalid("checksum", rule));
    }
    Ok(())
}

fn never(reason: String) -> Option<Verdict> {
    Some(Verdict::Refused(reason))
}

fn postpone(reason: String) -> Option<Verdict> {
    Some(Verdict::Postponed(reason))
}

pub(super) fn no_route(authority: &str) -> String {
    format!("there is no route to `{authority}`")
}
