//! The sender's side of a connection: offers messages, marks the stored ones as sent, and confirms them
//! with the next offer.
//!
//! Messages are offered in the order of the commits for each destination. Each step runs in a transaction
//! of the queue file, with the file's time. After an error the session must be dropped with its
//! connection, because the file may lack the last step. This module knows no socket.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use rusqlite::{Connection, Row, Transaction, params};

use super::{
    MAX_REASON, OFFER, VERSION,
    outgoing::{
        ALL, Destination, bury, clear_error, destinations, expire, mark_sent, mark_visible,
        note_error, uncertain_upto,
    },
};
use crate::{
    backend::sqlite::refuse,
    base::fault::planted,
    courier::message::{Destination as Queue, check_authority},
    error::{Error, ErrorKind},
    queue::sqlite::{
        checksum::{BAD_CHECKSUM, checksum, is_sound},
        clock::Micros,
    },
    wire::proto::{
        HandOverAccept, HandOverHello, HandOverOffer, HandOverRequest, HandOverResponse,
        HandOverWelcome, OfferedMessage, hand_over_request, hand_over_response,
        hand_over_verdict::Kind as Verdict,
    },
};

/// One connection to the next machine.
#[derive(Debug, Default)]
pub(crate) struct SenderSession {
    hop: String,
    /// `uncertain_upto` before this connection.
    uncertain_before: i64,
    /// The id of the own file.
    own: [u8; 16],
    welcomed: bool,
    /// The number of the last request.
    number: u64,
    /// The last request is not answered.
    pub(crate) awaits_answer: bool,
    /// The receiver holds messages that the next offer confirms.
    confirms: bool,
    /// The rows and destinations of the offer that is not answered.
    offered: Vec<(i64, Destination)>,
    /// The last destination of the last offer. The next offer begins with the one after it.
    last: Destination,
    /// Destinations that postponed a message; ordered, so that a seed of the simulation can be replayed.
    postponed: BTreeMap<Destination, Postponed>,
    /// The receiver has accepted a message.
    pub(crate) has_accepted: bool,
}

/// When the first message of a destination is offered again.
#[derive(Debug)]
struct Postponed {
    due: Micros,
    /// The wait until then, which grows with each postponement in a row.
    wait: Micros,
}

/// A step of offering.
#[derive(Debug, Default)]
pub(crate) struct Next {
    pub(crate) offer: Option<HandOverRequest>,
    /// When there may be more to offer: a postponed destination's wait ends, or there are more messages
    /// to remove first.
    pub(crate) wait: Option<Duration>,
}

/// The first wait of a destination that postponed a message, and the longest one.
const WAIT: (Micros, Micros) = (100_000, 15_000_000);
/// The messages that a step moves to the dead letters because of their age.
const EXPIRED: usize = 100;
/// Bytes of one offer, of bodies and of the machines that messages have passed: a line with 20 KiB/s
/// takes 7 s, less than the sender waits for an answer.
const OFFER_BYTES: usize = 128 << 10;

impl SenderSession {
    /// Creates the session of a connection to the machine `hop`.
    pub(crate) fn new(hop: &str) -> Self {
        Self {
            hop: hop.to_owned(),
            ..Self::default()
        }
    }

    /// Returns Hello.
    pub(crate) fn begin(&mut self, connection: &Connection) -> rusqlite::Result<HandOverRequest> {
        self.uncertain_before = uncertain_upto(connection, &self.hop)?;
        self.own = connection.query_row("SELECT id FROM identity", [], |row| row.get(0))?;
        self.awaits_answer = true;
        Ok(self.request(hand_over_request::Kind::Hello(HandOverHello {
            version: VERSION,
            sender: self.own.to_vec().into(),
            authority: self.hop.clone(),
        })))
    }

    /// Returns whether the next answer must be durable before the next offer. A connection begins with
    /// the messages that the other machine holds: those that are missing there are visible. So a loss of
    /// power may undo the mark of visible ones.
    pub(crate) fn awaits_verdicts(&self) -> bool {
        !self.welcomed || !self.offered.is_empty()
    }

    /// Returns the next offer, unless one is on the way. The receiver has none of the ready messages
    /// then, so that those beyond their age limit are removed first, and damaged ones become dead letters.
    pub(crate) fn next_offer(
        &mut self,
        transaction: &Transaction<'_>,
        now: Micros,
    ) -> rusqlite::Result<Next> {
        if !self.welcomed || self.awaits_answer && !planted!(ConfirmsAllOffered) {
            return Ok(Next::default());
        }
        let has_more = expire(transaction, &self.hop, 0, now, EXPIRED)? >= EXPIRED;
        let messages = self.messages(transaction, now)?;
        if messages.is_empty() && !self.confirms {
            let dues = self.postponed.values().map(|postponed| postponed.due);
            let due = dues.filter(|due| *due > now).min();
            let wait = due.map(|due| Duration::from_micros((due - now).unsigned_abs()));
            return Ok(Next {
                offer: None,
                wait: if has_more { Some(Duration::ZERO) } else { wait },
            });
        }
        (self.awaits_answer, self.confirms) = (true, false);
        let offer = hand_over_request::Kind::Offer(HandOverOffer { messages });
        Ok(Next {
            offer: Some(self.request(offer)),
            wait: None,
        })
    }

    fn request(&mut self, kind: hand_over_request::Kind) -> HandOverRequest {
        self.number += 1;
        HandOverRequest {
            number: self.number,
            kind: Some(kind),
        }
    }

    /// Takes messages of each destination in turn, as far as an offer has room.
    fn messages(
        &mut self,
        transaction: &Transaction<'_>,
        now: Micros,
    ) -> rusqlite::Result<Vec<OfferedMessage>> {
        let sql = "SELECT id, uid, authority, queue, visited, checksum, body FROM outgoing
                   WHERE hop = ?1 AND status = 1 AND authority = ?2 AND queue = ?3
                   ORDER BY id";
        let mut select = transaction.prepare_cached(sql)?;
        let mut destinations = destinations(transaction, &self.hop)?;
        self.postponed
            .retain(|postponed, _| destinations.binary_search(postponed).is_ok());
        let first = destinations.partition_point(|destination| *destination <= self.last);
        destinations.rotate_left(first);
        let (mut messages, mut bytes) = (Vec::new(), 0);
        for destination in destinations {
            let postponed = self.postponed.get(&destination);
            if postponed.is_some_and(|postponed| now < postponed.due) {
                continue;
            }
            let is_postponed = postponed.is_some();
            let mut rows = select.query(params![self.hop, destination.0, destination.1])?;
            if is_postponed && planted!(PostponedOvertaken) {
                rows.next()?;
            }
            while let Some(row) = rows.next()? {
                let (id, message) = (row.get(0)?, self.message(row)?);
                let Some(message) = message else {
                    bury(transaction, id, now, BAD_CHECKSUM)?;
                    continue;
                };
                bytes += message.body.len() + message.visited.len();
                if messages.len() == OFFER || bytes > OFFER_BYTES && !messages.is_empty() {
                    return Ok(messages);
                }
                messages.push(message);
                self.offered.push((id, destination.clone()));
                self.last.clone_from(&destination);
                // The next ones of a postponed destination follow when the receiver stores it.
                if is_postponed {
                    break;
                }
            }
        }
        Ok(messages)
    }

    /// Reads a message; `None` if it is damaged. A receiver cannot tell a damaged row from a damaged
    /// frame, so that the message would be offered again and again.
    fn message(&self, row: &Row<'_>) -> rusqlite::Result<Option<OfferedMessage>> {
        let text = |column| Ok::<_, rusqlite::Error>(row.get_ref(column)?.as_str().unwrap_or(""));
        let (uid, authority, queue): ([u8; 16], _, _) = (row.get(1)?, text(2)?, text(3)?);
        let mut visited: Vec<u8> = row.get(4)?;
        let (stored, body): (i64, Vec<u8>) = (row.get(5)?, row.get(6)?);
        let is_valid = check_authority(authority).is_ok() && Queue::local(queue).is_ok();
        if !is_valid || !is_sound(&body, Some(stored)) {
            return Ok(None);
        }
        let is_last = authority == self.hop;
        visited.extend_from_slice(&self.own);
        Ok(Some(OfferedMessage {
            id: uid.to_vec().into(),
            authority: if is_last { "" } else { authority }.to_owned(),
            queue: queue.to_owned(),
            visited: visited.into(),
            checksum: checksum(&body),
            body: Bytes::from(body),
        }))
    }

    /// Handles an answer. The next offer may be sent when the transaction is durable.
    ///
    /// # Errors
    /// Also that the receiver broke a rule, or has another file than before.
    pub(crate) fn on_answer(
        &mut self,
        transaction: &Transaction<'_>,
        now: Micros,
        answer: HandOverResponse,
    ) -> rusqlite::Result<()> {
        if answer.number != self.number || !self.awaits_answer {
            return Err(refuse(unexpected()));
        }
        self.awaits_answer = false;
        match answer.kind {
            Some(hand_over_response::Kind::Welcome(welcome)) if !self.welcomed => {
                self.welcome(transaction, now, &welcome)
            }
            Some(hand_over_response::Kind::Accept(accept)) if self.welcomed => {
                self.accept(transaction, now, accept)
            }
            _ => Err(refuse(unexpected())),
        }
    }

    /// The messages that the receiver holds are sent; those that it no longer holds are visible. From
    /// now on only the receiver knows which messages it has.
    fn welcome(
        &mut self,
        transaction: &Transaction<'_>,
        now: Micros,
        welcome: &HandOverWelcome,
    ) -> rusqlite::Result<()> {
        self.check_receiver(transaction, &welcome.receiver)?;
        self.welcomed = true;
        let uncertain = if planted!(UncertaintyNotNoted) {
            0
        } else {
            ALL
        };
        self.set_uncertain(transaction, uncertain)?;
        transaction.execute(
            "UPDATE hops SET receiver = ?3, connected_at = ?2, last_error = NULL,
               last_error_at = NULL
             WHERE authority = ?1",
            params![self.hop, now, &welcome.receiver[..]],
        )?;
        mark_visible(transaction, &self.hop, now)?;
        // Also if an older copy of the receiver's file has come back, where they were visible before.
        let mut held = transaction.prepare_cached(
            "UPDATE outgoing SET status = 2, sent_at = ?3, body = x'' WHERE uid = ?1 AND hop = ?2",
        )?;
        for uid in &welcome.held {
            if !planted!(HeldIgnored) {
                held.execute(params![&uid[..], self.hop, now])?;
            }
        }
        // Also the ids that this file does not know, because it was restored from an older copy:
        // their senders' transactions were committed.
        self.confirms = !welcome.held.is_empty();
        Ok(())
    }

    /// Checks that no other file answers than the one with earlier messages: only the former one knows
    /// which messages it has.
    fn check_receiver(
        &self,
        transaction: &Transaction<'_>,
        receiver: &[u8],
    ) -> rusqlite::Result<()> {
        if receiver.len() != self.own.len() {
            return Err(refuse(unexpected()));
        }
        let replaced = "SELECT 1 FROM hops WHERE authority = ?1 AND receiver <> ?2 AND (
               EXISTS (SELECT 1 FROM outgoing WHERE hop = ?1 AND status = 2)
               OR EXISTS (SELECT 1 FROM outgoing WHERE hop = ?1 AND status = 1 AND id <= ?3))";
        let values = params![self.hop, receiver, self.uncertain_before];
        if transaction.prepare_cached(replaced)?.exists(values)? {
            return Err(refuse(other_machine(&self.hop)));
        }
        Ok(())
    }

    /// The confirmed messages are visible. Marks the stored ones as sent.
    fn accept(
        &mut self,
        transaction: &Transaction<'_>,
        now: Micros,
        accept: HandOverAccept,
    ) -> rusqlite::Result<()> {
        let offered = std::mem::take(&mut self.offered);
        if accept.verdicts.len() != offered.len() {
            return Err(refuse(unexpected()));
        }
        mark_visible(transaction, &self.hop, now)?;
        let mut sent = Vec::with_capacity(offered.len());
        let mut why = None;
        for ((row, destination), verdict) in offered.into_iter().zip(accept.verdicts) {
            match verdict.kind {
                None => {
                    sent.push(row);
                    self.postponed.remove(&destination);
                }
                Some(Verdict::Refused(reason)) => bury(transaction, row, now, cut(&reason))?,
                Some(Verdict::Postponed(reason)) => {
                    self.postpone(destination, now);
                    why.get_or_insert(reason);
                }
            }
        }
        mark_sent(transaction, &sent, now)?;
        self.confirms = !sent.is_empty();
        self.has_accepted |= self.confirms;
        match why {
            Some(reason) => note_error(transaction, &self.hop, now, cut(&reason)),
            None if self.postponed.is_empty() => clear_error(transaction, &self.hop),
            None => Ok(()),
        }
    }

    fn postpone(&mut self, destination: Destination, now: Micros) {
        let postponed = self.postponed.entry(destination).or_insert(Postponed {
            due: now,
            wait: WAIT.0 / 2,
        });
        // Once for all messages of an offer.
        if postponed.due <= now {
            postponed.wait = (postponed.wait * 2).min(WAIT.1);
            postponed.due = now + postponed.wait;
        }
    }

    /// Notes which messages the hop may have stored. The connection has ended.
    pub(crate) fn end(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        if !self.welcomed {
            return Ok(());
        }
        let unanswered = self.offered.iter().map(|(row, _)| *row).max();
        self.set_uncertain(transaction, unanswered.unwrap_or(0))
    }

    fn set_uncertain(&self, transaction: &Transaction<'_>, upto: i64) -> rusqlite::Result<()> {
        let sql = "INSERT INTO hops (authority, uncertain_upto) VALUES (?1, ?2)
                   ON CONFLICT (authority) DO UPDATE SET uncertain_upto = excluded.uncertain_upto";
        let mut note = transaction.prepare_cached(sql)?;
        note.execute(params![self.hop, upto]).map(drop)
    }
}

fn cut(reason: &str) -> &str {
    &reason[..reason.floor_char_boundary(MAX_REASON)]
}

#[cold]
fn unexpected() -> Error {
    Error::new(
        ErrorKind::Internal,
        "the receiver's answer does not fit: a proxy has repeated one, or it is of another version",
    )
}

#[cold]
fn other_machine(hop: &str) -> Error {
    let text = format!(
        "`{hop}` has another queue file than before, and the former one may hold messages of this \
         machine: bring it back, or give them up with `reveille courier forget DIR {hop}`"
    );
    Error::new(ErrorKind::Conflict, text)
}
