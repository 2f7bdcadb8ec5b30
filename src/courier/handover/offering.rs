//! Which messages a sender offers next: in the order of the commits for each destination, within the
//! window, and a postponed destination again after its wait.
//!
//! Only reads the queue file.

use std::{collections::HashSet, time::Duration};

use rusqlite::{Connection, params};

use super::{
    frames::{Micros, OfferedMessage, SenderContent, SenderFrame},
    outgoing::{Destination, Row, destination, next_of, size, with_id},
    sender::{InFlight, SenderSession},
};
use crate::queue::sqlite::limit;

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

/// Messages that are offered and not yet visible at the receiver.
const WINDOW: usize = 1_000;
/// The same, in bytes of bodies.
const WINDOW_BYTES: usize = 4 << 20;
/// Messages of one offer.
const OFFER: usize = 128;
/// Bytes of bodies of one offer: a line with 20 KiB/s takes 7 s, less than the sender waits for an
/// answer. On a slower line the offers shrink.
pub(super) const OFFER_BYTES: usize = 128 << 10;
/// While this many offers are unanswered, an offer must be a full one. Each offer costs three commits
/// on the two machines, so that many small ones would be slow. A message waits for one answer at most.
const PARTIAL: usize = 2;
/// Destinations that are postponed at the same time: half of the receiver's limit.
const POSTPONED: usize = 5_000;
/// Rows of postponed destinations that a step skips at most.
const SKIPPED: usize = 10_000;

impl SenderSession {
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
            match row.is_sound {
                true => self.offer(row, messages, bytes),
                false => self.damaged.push(id),
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
}
