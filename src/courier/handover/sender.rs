//! The sender's side of a connection: offers messages, marks the stored ones as sent, and confirms.
//!
//! Messages are offered in the order of the commits for each destination, within the window, and a
//! postponed destination again after its wait. Each step runs in a transaction of the queue file, with
//! the file's time. After an error the session must be dropped with its connection, because the file may
//! lack the last step. This module knows no socket.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    time::Duration,
};

use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

use super::{
    frames::{
        Accept, Arrival, FileId, FrameNumbers, Hello, LEAST_VERSION, Micros, OfferedMessage,
        ReceiverContent, ReceiverFrame, SenderContent, SenderFrame, Uid, Upto, VERSION, Welcome,
        agreed_version,
    },
    outgoing::{
        ALL, Destination, Row, bury, clear_error, destination, expire, mark_sent, mark_visible,
        next_of, note_error, size, uncertain_upto, with_id,
    },
};
use crate::{
    base::{backoff::Backoff, fault::planted},
    error::{Error, ErrorKind, Result},
    queue::sqlite::limit,
};

/// One connection to the next machine.
#[derive(Debug)]
pub(crate) struct SenderSession {
    hop: String,
    name: String,
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
    /// The last numbers of the offers that are not answered.
    unanswered: VecDeque<u64>,
    /// The largest offer in bytes of bodies. A slow line gets small ones, so that their answers come
    /// in time.
    offer_bytes: usize,
    /// Destinations that postponed a message on this connection; ordered, so that a seed of the
    /// simulation can be replayed.
    retries: BTreeMap<Destination, Retry>,
    has_accepted: bool,
    /// The file says that messages are postponed.
    noted_postponement: bool,
    /// The messages of Welcome are confirmed, and not yet visible.
    held_confirmed: bool,
    /// Rows behind the cursors whose bodies do not have their checksums. They are not offered.
    damaged: Vec<i64>,
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
    /// When there may be more to offer without an answer: a postponed destination's wait ends, or
    /// there are more rows to read.
    pub(crate) wait: Option<Duration>,
    /// Rows whose bodies or names are damaged. The caller makes dead letters of them with
    /// `bury_damaged`.
    pub(crate) damaged: Vec<i64>,
    /// Messages were purged: the caller removes them with [`SenderSession::expire`].
    pub(crate) has_purged: bool,
}

/// Waits for a destination that postponed a message.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(15));
/// The messages that a step moves to the dead letters because of their age.
const EXPIRED: usize = 100;
/// Messages that are offered and not yet visible at the receiver.
const WINDOW: usize = 1_000;
/// The same, in bytes of bodies.
const WINDOW_BYTES: usize = 4 << 20;
/// Messages of one offer.
const OFFER: usize = 128;
/// Bytes of bodies of one offer: a line with 20 KiB/s takes 7 s, less than the sender waits for an
/// answer. On a slower line the offers shrink.
const OFFER_BYTES: usize = 128 << 10;
/// While this many offers are unanswered, an offer must be a full one. Each offer costs three commits
/// on the two machines, so that many small ones would be slow. A message waits for one answer at most.
const PARTIAL: usize = 2;
/// Destinations that are postponed at the same time: half of the receiver's limit.
const POSTPONED: usize = 5_000;
/// Rows of postponed destinations that a step skips at most.
const SKIPPED: usize = 10_000;

impl SenderSession {
    /// Creates the session of a connection to the machine `hop`; `name` is this machine's.
    pub(crate) fn new(hop: &str, name: &str, seed: u64) -> Self {
        Self {
            hop: hop.to_owned(),
            name: name.to_owned(),
            rng: fastrand::Rng::with_seed(seed),
            frames: FrameNumbers::default(),
            uncertain_before: 0,
            own: FileId::default(),
            welcomed: false,
            number: 0,
            cursor: 0,
            in_flight: BTreeMap::new(),
            in_flight_bytes: 0,
            unanswered: VecDeque::new(),
            offer_bytes: OFFER_BYTES,
            retries: BTreeMap::new(),
            has_accepted: false,
            noted_postponement: false,
            held_confirmed: false,
            damaged: Vec::new(),
        }
    }

    /// Sets the largest offer, as the last connection has left it.
    pub(crate) fn with_offer_bytes(mut self, bytes: usize) -> Self {
        self.offer_bytes = bytes.min(OFFER_BYTES);
        self
    }

    /// Returns the largest offer for the next connection: half of the present one if an offer was not
    /// answered.
    pub(crate) fn next_offer_bytes(&self) -> usize {
        if self.unanswered.is_empty() || planted!(OfferNotShrunk) {
            self.offer_bytes
        } else {
            (self.offer_bytes / 2).max(1)
        }
    }

    /// Returns Hello.
    pub(crate) fn begin(&mut self, connection: &Connection) -> rusqlite::Result<SenderFrame> {
        self.uncertain_before = uncertain_upto(connection, &self.hop)?;
        self.own = connection.query_row("SELECT id FROM identity", [], |row| row.get(0))?;
        let hello = Hello {
            version: VERSION,
            least_version: LEAST_VERSION,
            sender: self.own,
            name: self.name.clone(),
            authority: self.hop.clone(),
        };
        Ok(self.frames.number(SenderContent::Hello(hello)))
    }

    /// Returns whether the receiver has answered Hello, and holds no message of an earlier
    /// connection any more.
    pub(crate) fn has_settled(&self) -> bool {
        self.welcomed && !self.held_confirmed
    }

    /// Returns whether the receiver has accepted a message.
    pub(crate) fn has_accepted(&self) -> bool {
        self.has_accepted
    }

    /// Returns whether the receiver owes an answer.
    pub(crate) fn awaits_answer(&self) -> bool {
        !self.welcomed || self.held_confirmed || !self.in_flight.is_empty()
    }

    /// Returns the next messages to offer, as far as the window allows.
    pub(crate) fn next_offer(
        &mut self,
        connection: &Connection,
        now: Micros,
    ) -> rusqlite::Result<Next> {
        let mut messages = Vec::new();
        let mut has_more = false;
        if self.welcomed {
            let mut bytes = 0;
            self.offer_again(connection, now, &mut messages, &mut bytes)?;
            let is_slow = self.offer_bytes < OFFER_BYTES;
            if self.unanswered.len() < PARTIAL || (!is_slow && self.has_full_offer(connection)?) {
                has_more = self.offer_new(connection, &mut messages, &mut bytes)?;
            }
        }
        // A destination whose wait is over has an unanswered message, or there is no room: the next
        // answer continues it.
        let waits = self.retries.values().filter(|retry| retry.waits);
        let waits = waits.filter(|retry| retry.due > now);
        let wait = waits.map(|retry| (retry.due - now).unsigned_abs()).min();
        let wait = if has_more { Some(0) } else { wait };
        let wait = wait.map(Duration::from_micros);
        let offer = (!messages.is_empty()).then(|| {
            self.unanswered.push_back(self.number);
            self.frames.number(SenderContent::Offer(messages))
        });
        let has_purged = self.welcomed && self.has_purged(connection)?;
        let damaged = std::mem::take(&mut self.damaged);
        Ok(Next {
            offer,
            wait,
            damaged,
            has_purged,
        })
    }

    /// Returns whether there are purged messages that are not on the way.
    fn has_purged(&self, connection: &Connection) -> rusqlite::Result<bool> {
        let sql = "SELECT id FROM outgoing WHERE hop = ?1 AND status = 1 AND ends_at < 0 LIMIT ?2";
        let purged: Vec<i64> = connection
            .prepare_cached(sql)?
            .query_map(params![self.hop, limit(WINDOW + 1)], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        if purged.is_empty() {
            return Ok(false);
        }
        let in_flight: HashSet<i64> = self.in_flight.values().map(|message| message.row).collect();
        Ok(purged.iter().any(|row| !in_flight.contains(row)))
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
            let retry = &self.retries[&destination];
            if retry.waits && (now < retry.due || self.is_unanswered(&destination)) {
                continue;
            }
            if let Some(retry) = self.retries.get_mut(&destination) {
                retry.waits = false;
            }
            while self.has_room(messages.len(), *bytes, 0) {
                let retry = &self.retries[&destination];
                let row = next_of(
                    connection,
                    &self.hop,
                    &destination,
                    retry.cursor,
                    self.cursor,
                )?;
                let Some(mut row) = row else {
                    // A postponement in the next answer must lengthen the present back-off.
                    if !self.is_unanswered(&destination) {
                        self.retries.remove(&destination);
                    }
                    break;
                };
                if !self.has_room(messages.len(), *bytes, row.message.body.len()) {
                    break;
                }
                if let Some(retry) = self.retries.get_mut(&destination) {
                    retry.cursor = row.id;
                    if !row.is_sound {
                        self.damaged.push(row.id);
                        continue;
                    }
                    row.message.resume = std::mem::take(&mut retry.resume);
                }
                self.offer(row, messages, bytes);
            }
        }
        Ok(())
    }

    /// Returns whether the messages behind the cursor fill an offer.
    fn has_full_offer(&self, connection: &Connection) -> rusqlite::Result<bool> {
        let sql = "SELECT count(*), coalesce(sum(size), 0) FROM
                     (SELECT size FROM outgoing WHERE hop = ?1 AND status = 1 AND id > ?2
                        AND ends_at IS NOT -1 ORDER BY id LIMIT ?3)";
        let mut select = connection.prepare_cached(sql)?;
        let values = params![self.hop, self.cursor, limit(OFFER)];
        let (messages, bytes) =
            select.query_row(values, |row| Ok((size(row, 0)?, size(row, 1)?)))?;
        Ok(messages == OFFER || bytes >= OFFER_BYTES)
    }

    /// Offers the messages behind the cursor. Returns whether it has stopped before the last row
    /// although there is room.
    fn offer_new(
        &mut self,
        connection: &Connection,
        messages: &mut Vec<OfferedMessage>,
        bytes: &mut usize,
    ) -> rusqlite::Result<bool> {
        // Without the bodies: a postponed destination may have any number of rows to skip.
        let sql = "SELECT id, authority, queue, size FROM outgoing
                   WHERE hop = ?1 AND status = 1 AND id > ?2 AND ends_at IS NOT -1 ORDER BY id";
        let mut select = connection.prepare_cached(sql)?;
        let mut rows = select.query(params![self.hop, self.cursor])?;
        let mut skipped = 0;
        while let Some(row) = rows.next()? {
            let id = row.get(0)?;
            let Some(destination) = destination(row, 1)? else {
                self.cursor = id;
                self.damaged.push(id);
                continue;
            };
            if self.retries.contains_key(&destination) {
                self.cursor = id;
                skipped += 1;
                if skipped == SKIPPED {
                    return Ok(true);
                }
                continue;
            }
            let has_room = self.has_room(messages.len(), *bytes, size(row, 3)?);
            if !has_room || self.retries.len() >= POSTPONED {
                break;
            }
            self.cursor = id;
            let row = with_id(connection, &self.hop, id)?;
            if row.is_sound {
                self.offer(row, messages, bytes);
            } else {
                self.damaged.push(id);
            }
        }
        Ok(false)
    }

    /// Returns whether the receiver owes an answer for a message of the destination.
    fn is_unanswered(&self, destination: &Destination) -> bool {
        let mut in_flight = self.in_flight.values();
        in_flight.any(|message| !message.sent && message.destination == *destination)
    }

    /// Returns whether a body of `next` bytes fits into an offer and the window.
    fn has_room(&self, messages: usize, bytes: usize, next: usize) -> bool {
        let fits = messages == 0 || bytes + next <= self.offer_bytes;
        fits && messages < OFFER
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
            Arrival::Gap if planted!(FrameGapAccepted) => {}
            Arrival::Gap => return Ok(Err(gap())),
        }
        let reply = match (frame.content, self.welcomed) {
            (ReceiverContent::Welcome(welcome), false) => {
                if let Err(error) = self.check_receiver(transaction, &welcome)? {
                    return Ok(Err(error));
                }
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
        let waits = self.retries.values().any(|retry| retry.waits);
        if self.noted_postponement && self.in_flight.is_empty() && !waits {
            clear_error(transaction, &self.hop)?;
            self.noted_postponement = false;
        }
        let frames = reply.map(|content| self.frames.number(content));
        Ok(Ok(frames.into_iter().collect()))
    }

    /// The messages that the receiver holds are sent; those that it no longer holds are visible. From
    /// now on only the receiver knows which messages it has.
    fn welcome(
        &mut self,
        transaction: &Transaction<'_>,
        now: Micros,
        welcome: &Welcome,
    ) -> rusqlite::Result<Option<SenderContent>> {
        self.welcomed = true;
        if !planted!(UncertaintyNotNoted) {
            self.set_uncertain(transaction, ALL)?;
        }
        let held: HashSet<Uid> = welcome.held.iter().copied().collect();
        let sent: Vec<(i64, Uid)> = transaction
            .prepare_cached("SELECT id, uid FROM outgoing WHERE hop = ?1 AND status = 2")?
            .query_map([&self.hop], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        let gone = sent
            .into_iter()
            .filter(|(_, uid)| !held.contains(uid))
            .map(|(row, _)| row);
        mark_visible(transaction, &gone.collect::<Vec<_>>(), now)?;
        for uid in &welcome.held {
            if planted!(HeldIgnored) {
                continue;
            }
            let row = "SELECT id FROM outgoing WHERE uid = ?1 AND hop = ?2 AND status = 1";
            let row = transaction
                .prepare_cached(row)?
                .query_row(params![uid, self.hop], |row| row.get(0))
                .optional()?;
            if let Some(row) = row {
                mark_sent(transaction, &[row], now)?;
            }
        }
        self.expire(transaction, now)?;
        transaction.execute(
            "UPDATE hops SET receiver = ?3, connected_at = ?2, last_error = NULL,
               last_error_at = NULL
             WHERE authority = ?1",
            params![self.hop, now, welcome.receiver],
        )?;
        // Also the ids that this file does not know, because it was restored from an older copy:
        // their senders' transactions were committed.
        self.held_confirmed = !held.is_empty();
        Ok(self.held_confirmed.then_some(SenderContent::Confirm(Upto {
            number: 0,
            held: true,
        })))
    }

    /// Moves messages beyond their age limit to the dead letters, and removes purged ones, in steps. The
    /// receiver has none of the ready ones but those that are offered now. Returns whether there may be
    /// more.
    pub(crate) fn expire(
        &self,
        transaction: &Transaction<'_>,
        now: Micros,
    ) -> rusqlite::Result<bool> {
        let unanswered = self.in_flight.values().filter(|message| !message.sent);
        let unanswered = unanswered.map(|message| message.row).collect();
        let expired = expire(transaction, &self.hop, 0, now, EXPIRED, &unanswered)?;
        Ok(expired >= EXPIRED)
    }

    /// Checks that no other file answers than the one with earlier messages.
    ///
    /// # Errors
    /// The inner error: another file answers, and only the former one knows which messages it has.
    fn check_receiver(
        &self,
        transaction: &Transaction<'_>,
        welcome: &Welcome,
    ) -> rusqlite::Result<Result<()>> {
        if let Err(error) = agreed_version(welcome.version, welcome.version) {
            return Ok(Err(error));
        }
        let former = "SELECT receiver FROM hops WHERE authority = ?1 AND receiver <> ?2";
        let values = params![self.hop, welcome.receiver];
        if !transaction.prepare_cached(former)?.exists(values)? {
            return Ok(Ok(()));
        }
        let uncertain = "SELECT 1 WHERE EXISTS
                 (SELECT 1 FROM outgoing WHERE hop = ?1 AND status = 2)
               OR EXISTS (SELECT 1 FROM outgoing WHERE hop = ?1 AND status = 1 AND id <= ?2)";
        let values = params![self.hop, self.uncertain_before];
        Ok(if transaction.prepare_cached(uncertain)?.exists(values)? {
            Err(other_machine(&self.hop))
        } else {
            Ok(())
        })
    }

    /// Marks the stored messages as sent, and confirms them.
    fn accept(
        &mut self,
        transaction: &Transaction<'_>,
        now: Micros,
        accept: Accept,
    ) -> rusqlite::Result<Option<SenderContent>> {
        while self
            .unanswered
            .front()
            .is_some_and(|last| *last <= accept.upto)
        {
            self.unanswered.pop_front();
            self.offer_bytes = (self.offer_bytes * 2).min(OFFER_BYTES);
        }
        let refused: HashMap<u64, String> = accept.refused.into_iter().collect();
        let postponed: HashSet<u64> = accept.postponed.iter().map(|(number, _)| *number).collect();
        let answered = self.in_flight.range(..=accept.upto);
        let answered: Vec<u64> = answered.filter(|(_, m)| !m.sent).map(|(n, _)| *n).collect();
        let mut sent = Vec::with_capacity(answered.len());
        for number in answered {
            let message = &self.in_flight[&number];
            let row = message.row;
            if postponed.contains(&number) {
                self.postpone(number, now);
                continue;
            }
            if let Some(reason) = refused.get(&number) {
                bury(transaction, row, now, reason)?;
                self.forget(number);
                continue;
            }
            sent.push(row);
            self.has_accepted = true;
            if let Some(retry) = self.retries.get_mut(&message.destination) {
                retry.backoff.reset();
            }
            self.in_flight
                .entry(number)
                .and_modify(|message| message.sent = true);
        }
        mark_sent(transaction, &sent, now)?;
        if let Some((_, reason)) = accept.postponed.first() {
            note_error(transaction, &self.hop, now, reason)?;
            self.noted_postponement = true;
        }
        self.expire(transaction, now)?;
        let number = if planted!(ConfirmsAllOffered) {
            self.number
        } else {
            accept.upto
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
            let rows = rows.into_iter().filter(|row| !here.contains(row));
            mark_visible(transaction, &rows.collect::<Vec<_>>(), now)?;
        }
        let sent = self
            .in_flight
            .range(..=upto.number)
            .filter(|(_, message)| message.sent);
        let (numbers, rows): (Vec<u64>, Vec<i64>) =
            sent.map(|(number, message)| (*number, message.row)).unzip();
        mark_visible(transaction, &rows, now)?;
        for number in numbers {
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

    /// Notes which messages the hop may have stored. The connection has ended.
    pub(crate) fn end(&mut self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        if !self.welcomed {
            return Ok(());
        }
        let unanswered = self.in_flight.values().filter(|message| !message.sent);
        let unanswered = unanswered.map(|message| message.row).max();
        self.set_uncertain(transaction, unanswered.unwrap_or(0))
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

#[cold]
fn other_machine(hop: &str) -> Error {
    let text = format!(
        "`{hop}` has another queue file than before, and the former one may hold messages of this \
         machine: bring it back, or give them up with `reveille courier forget DIR {hop}`"
    );
    Error::new(ErrorKind::Conflict, text)
}
