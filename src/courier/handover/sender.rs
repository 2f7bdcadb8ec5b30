//! The sender's side of a connection: offers messages, marks the stored ones as sent, and confirms.
//!
//! Each step runs in a transaction of the queue file, with the file's time. After an error the
//! session must be dropped with its connection, because the file may lack the last step. This module
//! knows no socket.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

use super::frames::{
    Accept, Arrival, FileId, FrameNumbers, Hello, OfferedMessage, ReceiverContent, ReceiverFrame,
    SenderContent, SenderFrame, Uid, Upto, VERSION, Welcome,
};
use crate::{
    base::{
        backoff::Backoff,
        fault::{Fault, planted},
    },
    error::{Error, ErrorKind, Result},
};

/// Microseconds of the file's clock.
type Micros = i64;
type Destination = (String, String);

/// One connection to the next machine.
#[derive(Debug)]
pub(crate) struct SenderSession {
    hop: String,
    name: String,
    fault: Fault,
    rng: fastrand::Rng,
    frames: FrameNumbers,
    /// `uncertain_upto` before this connection.
    uncertain_before: i64,
    /// The id of the own file.
    own: FileId,
    welcomed: bool,
    /// The number of the last offered message.
    number: u64,
    /// Messages up to this row were offered, or belong to a destination in `retries`.
    cursor: i64,
    in_flight: BTreeMap<u64, InFlight>,
    in_flight_bytes: usize,
    /// Destinations that postponed a message on this connection.
    retries: HashMap<Destination, Retry>,
    has_accepted: bool,
    /// The messages of Welcome are confirmed, and not yet visible.
    held_confirmed: bool,
}

#[derive(Debug)]
struct InFlight {
    row: i64,
    destination: Destination,
    bytes: usize,
    /// The receiver has stored it.
    sent: bool,
}

#[derive(Debug)]
struct Retry {
    backoff: Backoff,
    due: Micros,
    /// The last row that was offered again; rows up to the session's cursor follow.
    cursor: i64,
    /// The next offer must state that it resumes.
    resume: bool,
    /// Its messages up to `due` are not offered.
    waits: bool,
}

/// A step of offering.
#[derive(Debug)]
pub(crate) struct Next {
    pub(crate) offer: Option<SenderFrame>,
    /// When a postponed destination may be offered again.
    pub(crate) wait: Option<Duration>,
}

struct Row {
    id: i64,
    message: OfferedMessage,
    destination: Destination,
}

/// Messages that are offered and not yet visible at the receiver.
const WINDOW: usize = 1_000;
/// The same, in bytes of bodies.
const WINDOW_BYTES: usize = 4 << 20;
/// Messages of one offer.
const OFFER: usize = 128;
/// Bytes of bodies of one offer: a line with 256 kbit/s takes 4 s, less than the receiver's
/// deadline for a frame.
const OFFER_BYTES: usize = 128 << 10;
/// Waits for a destination that postponed a message.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(15));
/// All messages may be stored at the hop.
const ALL: i64 = i64::MAX;

const COLUMNS: &str = "id, uid, authority, queue, visited, checksum, body";

impl SenderSession {
    /// Creates the session of a connection to the machine `hop`; `name` is this machine's.
    pub(crate) fn new(hop: &str, name: &str, seed: u64, fault: Fault) -> Self {
        Self {
            hop: hop.to_owned(),
            name: name.to_owned(),
            fault,
            rng: fastrand::Rng::with_seed(seed),
            frames: FrameNumbers::default(),
            uncertain_before: 0,
            own: FileId::default(),
            welcomed: false,
            number: 0,
            cursor: 0,
            in_flight: BTreeMap::new(),
            in_flight_bytes: 0,
            retries: HashMap::new(),
            has_accepted: false,
            held_confirmed: false,
        }
    }

    /// Notes that only the hop will know which messages it has, and returns Hello.
    pub(crate) fn begin(&mut self, transaction: &Transaction<'_>) -> rusqlite::Result<SenderFrame> {
        let before = "SELECT uncertain_upto FROM hops WHERE authority = ?1";
        let before: Option<i64> = transaction
            .query_row(before, [&self.hop], |row| row.get(0))
            .optional()?;
        self.uncertain_before = before.unwrap_or(0);
        if !planted!(self.fault, UncertaintyNotNoted) {
            self.set_uncertain(transaction, ALL)?;
        }
        self.own = transaction.query_row("SELECT id FROM identity", [], |row| row.get(0))?;
        let hello = Hello {
            version: VERSION,
            sender: self.own,
            name: self.name.clone(),
        };
        Ok(self.frames.number(SenderContent::Hello(hello)))
    }

    /// Returns whether the receiver has accepted a message.
    pub(crate) fn has_accepted(&self) -> bool {
        self.has_accepted
    }

    /// Returns whether the receiver owes an answer.
    pub(crate) fn awaits_answer(&self) -> bool {
        !self.welcomed || self.held_confirmed || !self.in_flight.is_empty()
    }

    /// Handles an answer, and returns the frames to send when the transaction is durable.
    ///
    /// # Errors
    /// The inner error: the receiver broke a rule, or a frame is missing. The connection must end.
    pub(crate) fn on_frame(
        &mut self,
        transaction: &Transaction<'_>,
        now: Micros,
        frame: ReceiverFrame,
    ) -> rusqlite::Result<Result<Vec<SenderFrame>>> {
        match self.frames.arrive(frame.frame) {
            Arrival::Next => {}
            Arrival::Repeated => return Ok(Ok(Vec::new())),
            Arrival::Gap => return Ok(Err(gap())),
        }
        let reply = match (frame.content, self.welcomed) {
            (ReceiverContent::Welcome(welcome), false) => {
                self.welcome(transaction, now, &welcome)?
            }
            (ReceiverContent::Accept(accept), true) if accept.upto <= self.number => {
                self.accept(transaction, now, accept)?
            }
            (ReceiverContent::Visible(upto), true) if upto.number <= self.number => {
                self.visible(transaction, now, upto)?;
                None
            }
            _ => return Ok(Err(unexpected())),
        };
        let frames = reply.map(|content| self.frames.number(content));
        Ok(Ok(frames.into_iter().collect()))
    }

    /// The messages that the receiver holds are sent; those that it no longer holds are visible.
    fn welcome(
        &mut self,
        transaction: &Transaction<'_>,
        now: Micros,
        welcome: &Welcome,
    ) -> rusqlite::Result<Option<SenderContent>> {
        self.welcomed = true;
        let held: HashSet<Uid> = welcome.held.iter().copied().collect();
        let sent: Vec<(i64, Uid)> = transaction
            .prepare_cached("SELECT id, uid FROM outgoing WHERE hop = ?1 AND status = 2")?
            .query_map([&self.hop], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        if planted!(self.fault, SentBeforeAccepted) {
            let sql = "UPDATE outgoing SET status = 2, body = x'' WHERE hop = ?1 AND status = 1";
            transaction.execute(sql, [&self.hop])?;
        }
        for (row, uid) in sent {
            if !held.contains(&uid) || planted!(self.fault, HeldConfirmed) {
                mark_visible(transaction, row, now)?;
            }
        }
        for uid in &welcome.held {
            if planted!(self.fault, HeldIgnored) {
                continue;
            }
            let row = "SELECT id FROM outgoing WHERE uid = ?1 AND hop = ?2 AND status = 1";
            let row = transaction
                .prepare_cached(row)?
                .query_row(params![uid, self.hop], |row| row.get(0))
                .optional()?;
            if let Some(row) = row {
                mark_sent(transaction, row, now)?;
            }
        }
        self.expire(transaction, now)?;
        transaction.execute(
            "UPDATE hops SET connected_at = ?2, last_error = NULL, last_error_at = NULL
             WHERE authority = ?1",
            params![self.hop, now],
        )?;
        // Also the ids that this file does not know, because it was restored from an older copy:
        // their senders' transactions were committed.
        let confirms = !held.is_empty() && !planted!(self.fault, HeldNotConfirmed);
        self.held_confirmed = confirms;
        Ok(confirms.then_some(SenderContent::Confirm(Upto {
            number: 0,
            held: true,
        })))
    }

    /// Messages beyond their age limit become dead letters. None of the ready ones is stored at the
    /// receiver now, and none was offered on this connection.
    fn expire(&self, transaction: &Transaction<'_>, now: Micros) -> rusqlite::Result<()> {
        let rows: Vec<i64> = transaction
            .prepare_cached(
                "SELECT id FROM outgoing WHERE hop = ?1 AND status = 1 AND ends_at <= ?2",
            )?
            .query_map(params![self.hop, now], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        for row in rows {
            bury(
                transaction,
                row,
                now,
                "the next machine did not accept it within the age limit",
            )?;
        }
        Ok(())
    }

    /// Marks the stored messages as sent, and confirms them.
    fn accept(
        &mut self,
        transaction: &Transaction<'_>,
        now: Micros,
        accept: Accept,
    ) -> rusqlite::Result<Option<SenderContent>> {
        let refused: HashMap<u64, String> = accept.refused.into_iter().collect();
        let postponed: HashSet<u64> = accept.postponed.iter().map(|(number, _)| *number).collect();
        let answered = self.in_flight.range(..=accept.upto);
        let answered: Vec<u64> = answered.filter(|(_, m)| !m.sent).map(|(n, _)| *n).collect();
        for number in answered {
            let message = &self.in_flight[&number];
            let row = message.row;
            if postponed.contains(&number) && !planted!(self.fault, PostponedBuried) {
                self.postpone(number, now);
                continue;
            }
            let reason = refused.get(&number).map(String::as_str);
            let reason = match planted!(self.fault, PostponedBuried) && postponed.contains(&number)
            {
                true => Some("postponed"),
                false => reason,
            };
            if let Some(reason) = reason {
                if !planted!(self.fault, RefusedForgotten) {
                    bury(transaction, row, now, reason)?;
                }
                self.forget(number);
                continue;
            }
            mark_sent(transaction, row, now)?;
            self.has_accepted = true;
            self.in_flight
                .entry(number)
                .and_modify(|message| message.sent = true);
        }
        if let Some((_, reason)) = accept.postponed.first() {
            note_error(transaction, &self.hop, now, reason)?;
        }
        let number = match planted!(self.fault, ConfirmsAllOffered) {
            true => self.number,
            false => accept.upto,
        };
        Ok(Some(SenderContent::Confirm(Upto {
            number,
            held: false,
        })))
    }

    fn visible(
        &mut self,
        transaction: &Transaction<'_>,
        now: Micros,
        upto: Upto,
    ) -> rusqlite::Result<()> {
        if upto.held {
            self.held_confirmed = false;
            let rows: Vec<i64> = transaction
                .prepare_cached("SELECT id FROM outgoing WHERE hop = ?1 AND status = 2")?
                .query_map([&self.hop], |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?;
            let here: HashSet<i64> = self.in_flight.values().map(|message| message.row).collect();
            for row in rows.into_iter().filter(|row| !here.contains(row)) {
                mark_visible(transaction, row, now)?;
            }
        }
        let sent = self
            .in_flight
            .range(..=upto.number)
            .filter(|(_, message)| message.sent);
        let sent: Vec<(u64, i64)> = sent
            .map(|(number, message)| (*number, message.row))
            .collect();
        for (number, row) in sent {
            mark_visible(transaction, row, now)?;
            self.forget(number);
        }
        Ok(())
    }

    fn forget(&mut self, number: u64) -> Option<InFlight> {
        let message = self.in_flight.remove(&number)?;
        self.in_flight_bytes -= message.bytes;
        Some(message)
    }

    /// Offers the destination's messages again after a wait, from this one on.
    fn postpone(&mut self, number: u64, now: Micros) {
        let Some(message) = self.forget(number) else {
            return;
        };
        let retry = self
            .retries
            .entry(message.destination)
            .or_insert_with(|| Retry {
                backoff: Backoff::new(RETRY.0, RETRY.1),
                due: 0,
                cursor: 0,
                resume: false,
                waits: false,
            });
        if !retry.waits {
            let wait = retry.backoff.next(&mut self.rng);
            retry.due = now.saturating_add(micros(wait));
            (retry.waits, retry.resume) = (true, true);
            retry.cursor = message.row - 1;
        }
        retry.cursor = retry.cursor.min(message.row - 1);
    }

    /// Returns the next messages to offer, as far as the window allows.
    pub(crate) fn next_offer(
        &mut self,
        connection: &Connection,
        now: Micros,
    ) -> rusqlite::Result<Next> {
        let mut messages = Vec::new();
        if self.welcomed || planted!(self.fault, OffersBeforeWelcome) {
            let mut bytes = 0;
            self.offer_again(connection, now, &mut messages, &mut bytes)?;
            self.offer_new(connection, &mut messages, &mut bytes)?;
        }
        let wait = self.retries.iter().filter(|(_, retry)| retry.waits);
        let wait = wait.map(|(_, retry)| retry.due.saturating_sub(now).max(1_000));
        let wait = wait
            .min()
            .map(|wait| Duration::from_micros(wait.unsigned_abs()));
        let offer =
            (!messages.is_empty()).then(|| self.frames.number(SenderContent::Offer(messages)));
        Ok(Next { offer, wait })
    }

    /// Offers the messages of destinations whose wait is over and whose earlier offers are answered.
    fn offer_again(
        &mut self,
        connection: &Connection,
        now: Micros,
        messages: &mut Vec<OfferedMessage>,
        bytes: &mut usize,
    ) -> rusqlite::Result<()> {
        let destinations: Vec<Destination> = self.retries.keys().cloned().collect();
        for destination in destinations {
            let busy = || {
                self.in_flight
                    .values()
                    .any(|m| !m.sent && m.destination == destination)
            };
            let retry = &self.retries[&destination];
            if retry.waits && (now < retry.due || busy()) {
                continue;
            }
            if let Some(retry) = self.retries.get_mut(&destination) {
                retry.waits = false;
            }
            while self.has_room(messages.len(), *bytes) {
                let retry = &self.retries[&destination];
                let row = next_of(
                    connection,
                    &self.hop,
                    &destination,
                    retry.cursor,
                    self.cursor,
                )?;
                let Some(mut row) = row else {
                    self.retries.remove(&destination);
                    break;
                };
                if let Some(retry) = self.retries.get_mut(&destination) {
                    retry.cursor = row.id;
                    row.message.resume = std::mem::take(&mut retry.resume);
                }
                self.offer(row, messages, bytes);
            }
        }
        Ok(())
    }

    /// Offers the messages behind the cursor.
    fn offer_new(
        &mut self,
        connection: &Connection,
        messages: &mut Vec<OfferedMessage>,
        bytes: &mut usize,
    ) -> rusqlite::Result<()> {
        let sql = format!(
            "SELECT {COLUMNS} FROM outgoing WHERE hop = ?1 AND status = 1 AND id > ?2 ORDER BY id"
        );
        let mut select = connection.prepare_cached(&sql)?;
        let mut rows = select.query(params![self.hop, self.cursor])?;
        while self.has_room(messages.len(), *bytes) {
            let Some(row) = rows.next()? else {
                break;
            };
            let row = read(row, &self.hop)?;
            self.cursor = row.id;
            if !self.retries.contains_key(&row.destination) {
                self.offer(row, messages, bytes);
            }
        }
        Ok(())
    }

    fn has_room(&self, messages: usize, bytes: usize) -> bool {
        messages < OFFER
            && bytes < OFFER_BYTES
            && self.in_flight.len() < WINDOW
            && self.in_flight_bytes < WINDOW_BYTES
    }

    fn offer(&mut self, row: Row, messages: &mut Vec<OfferedMessage>, bytes: &mut usize) {
        self.number += 1;
        let size = row.message.body.len();
        *bytes += size;
        self.in_flight_bytes += size;
        let message = InFlight {
            row: row.id,
            destination: row.destination,
            bytes: size,
            sent: false,
        };
        self.in_flight.insert(self.number, message);
        let mut message_row = row.message;
        message_row.number = self.number;
        message_row.visited.extend_from_slice(&self.own);
        messages.push(message_row);
    }

    /// Notes which messages the hop may have stored. The connection has ended.
    pub(crate) fn end(&mut self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        let unanswered = self.in_flight.values().filter(|message| !message.sent);
        let unanswered = unanswered.map(|message| message.row).max();
        let upto = match self.welcomed {
            true => unanswered.unwrap_or(0),
            false => self.uncertain_before,
        };
        self.set_uncertain(transaction, upto)
    }

    fn set_uncertain(&self, transaction: &Transaction<'_>, upto: i64) -> rusqlite::Result<()> {
        let sql = "INSERT INTO hops (authority, uncertain_upto) VALUES (?1, ?2)
                   ON CONFLICT (authority) DO UPDATE SET uncertain_upto = excluded.uncertain_upto";
        transaction
            .prepare_cached(sql)?
            .execute(params![self.hop, upto])?;
        Ok(())
    }
}

/// Moves ready messages beyond their age limit to the dead letters, without their next machines;
/// returns how many. A message that its next machine may have stored stays: only a connection shows
/// whether it has.
pub(crate) fn expire_unoffered(
    transaction: &Transaction<'_>,
    now: Micros,
    limit: usize,
    fault: Fault,
) -> rusqlite::Result<usize> {
    let sql = "SELECT id FROM outgoing WHERE status = 1 AND ends_at <= ?1
                 AND (?3 OR id > coalesce(
                   (SELECT uncertain_upto FROM hops WHERE authority = hop), 0))
               ORDER BY ends_at LIMIT ?2";
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let all = planted!(fault, UncertainExpired);
    let rows: Vec<i64> = transaction
        .prepare_cached(sql)?
        .query_map(params![now, limit, all], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for row in &rows {
        bury(
            transaction,
            *row,
            now,
            "the next machine did not accept it within the age limit",
        )?;
    }
    Ok(rows.len())
}

/// After a crash: limits the uncertainty of connections that did not end in order to the messages
/// that are there now.
pub(crate) fn end_crashed(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    let sql = "UPDATE hops SET uncertain_upto = (SELECT coalesce(max(id), 0) FROM outgoing)
               WHERE uncertain_upto = ?1";
    transaction.execute(sql, [ALL])?;
    Ok(())
}

/// Records why messages to a machine wait.
pub(crate) fn note_error(
    transaction: &Transaction<'_>,
    hop: &str,
    now: Micros,
    text: &str,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO hops (authority, last_error, last_error_at) VALUES (?1, ?2, ?3)
               ON CONFLICT (authority) DO UPDATE
               SET last_error = excluded.last_error, last_error_at = excluded.last_error_at";
    transaction
        .prepare_cached(sql)?
        .execute(params![hop, text, now])?;
    Ok(())
}

/// Returns the next ready message of a destination in rows `after` to `upto`.
fn next_of(
    connection: &Connection,
    hop: &str,
    destination: &Destination,
    after: i64,
    upto: i64,
) -> rusqlite::Result<Option<Row>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM outgoing WHERE hop = ?1 AND status = 1 AND id > ?2 AND id <= ?3
           AND authority = ?4 AND queue = ?5 ORDER BY id LIMIT 1"
    );
    let (authority, queue) = destination;
    connection
        .prepare_cached(&sql)?
        .query_row(params![hop, after, upto, authority, queue], |row| {
            read(row, hop)
        })
        .optional()
}

fn read(row: &rusqlite::Row<'_>, hop: &str) -> rusqlite::Result<Row> {
    let (authority, queue): (String, String) = (row.get(2)?, row.get(3)?);
    let is_last = authority == hop;
    Ok(Row {
        id: row.get(0)?,
        message: OfferedMessage {
            number: 0,
            uid: row.get(1)?,
            authority: if is_last {
                String::new()
            } else {
                authority.clone()
            },
            queue: queue.clone(),
            visited: row.get(4)?,
            checksum: row.get(5)?,
            body: Bytes::from(row.get::<_, Vec<u8>>(6)?),
            resume: false,
        },
        destination: (authority, queue),
    })
}

fn mark_sent(transaction: &Transaction<'_>, row: i64, now: Micros) -> rusqlite::Result<()> {
    let sql =
        "UPDATE outgoing SET status = 2, sent_at = ?2, body = x'' WHERE id = ?1 AND status = 1";
    transaction.prepare_cached(sql)?.execute([row, now])?;
    Ok(())
}

fn mark_visible(transaction: &Transaction<'_>, row: i64, now: Micros) -> rusqlite::Result<()> {
    let sql = "UPDATE outgoing SET status = 3, confirmed_at = ?2 WHERE id = ?1 AND status = 2";
    transaction.prepare_cached(sql)?.execute([row, now])?;
    Ok(())
}

/// Moves a message that was not sent to the dead letters.
pub(crate) fn bury(
    transaction: &Transaction<'_>,
    row: i64,
    now: Micros,
    reason: &str,
) -> rusqlite::Result<()> {
    let copy = "INSERT INTO dead_letters
                  (uid, authority, queue, reason, stored_at, died_at, checksum, body)
                SELECT uid, authority, queue, ?2, stored_at, ?3, checksum, body
                FROM outgoing WHERE id = ?1 AND status = 1
                ON CONFLICT (uid) DO UPDATE
                SET reason = excluded.reason, died_at = excluded.died_at";
    transaction
        .prepare_cached(copy)?
        .execute(params![row, reason, now])?;
    let delete = "DELETE FROM outgoing WHERE id = ?1 AND status = 1";
    transaction.prepare_cached(delete)?.execute([row])?;
    Ok(())
}

fn micros(span: Duration) -> Micros {
    Micros::try_from(span.as_micros()).unwrap_or(Micros::MAX)
}

#[cold]
fn gap() -> Error {
    Error::new(
        ErrorKind::Conflict,
        "a frame of the hand-over is missing: connect again",
    )
}

#[cold]
fn unexpected() -> Error {
    Error::new(
        ErrorKind::Internal,
        "the receiver's frame does not fit: is it of another version?",
    )
}
