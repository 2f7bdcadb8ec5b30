//! Which messages a sender offers next: in the order of the commits for each destination, within the
//! window, and a postponed destination again after its wait.
//!
//! Only reads the queue file.

use std::time::Duration;

use rusqlite::{Connection, params};

use super::{
    frames::{OfferedMessage, SenderContent, SenderFrame},
    outgoing::{Destination, Row, next_of, with_id},
    sender::{InFlight, SenderSession},
};
use crate::base::fault::planted;

/// Microseconds of the file's clock.
type Micros = i64;

/// A step of offering.
#[derive(Debug)]
pub(crate) struct Next {
    pub(crate) offer: Option<SenderFrame>,
    /// When a postponed destination may be offered again.
    pub(crate) wait: Option<Duration>,
    /// Rows whose bodies are damaged. The caller makes dead letters of them with `bury_damaged`.
    pub(crate) damaged: Vec<i64>,
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

impl SenderSession {
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
        let damaged = std::mem::take(&mut self.damaged);
        Ok(Next {
            offer,
            wait,
            damaged,
        })
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
                    // A postponement in the next answer must lengthen the present back-off.
                    if !self.is_unanswered(&destination) {
                        self.retries.remove(&destination);
                    }
                    break;
                };
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

    /// Offers the messages behind the cursor.
    fn offer_new(
        &mut self,
        connection: &Connection,
        messages: &mut Vec<OfferedMessage>,
        bytes: &mut usize,
    ) -> rusqlite::Result<()> {
        // Without the bodies: a postponed destination may have any number of rows to skip.
        let sql = "SELECT id, authority, queue FROM outgoing
                   WHERE hop = ?1 AND status = 1 AND id > ?2 ORDER BY id";
        let mut select = connection.prepare_cached(sql)?;
        let mut rows = select.query(params![self.hop, self.cursor])?;
        while self.has_room(messages.len(), *bytes) {
            let Some(row) = rows.next()? else {
                break;
            };
            let id = row.get(0)?;
            let destination = (row.get(1)?, row.get(2)?);
            self.cursor = id;
            if !self.retries.contains_key(&destination) {
                let row = with_id(connection, &self.hop, id)?;
                match row.is_sound {
                    true => self.offer(row, messages, bytes),
                    false => self.damaged.push(id),
                }
            }
        }
        Ok(())
    }

    /// Returns whether the receiver owes an answer for a message of the destination.
    fn is_unanswered(&self, destination: &Destination) -> bool {
        let mut in_flight = self.in_flight.values();
        in_flight.any(|message| !message.sent && message.destination == *destination)
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
}
