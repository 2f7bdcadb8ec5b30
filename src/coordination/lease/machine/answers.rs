//! How a contender handles the store's answers.

use super::{
    Answer, Content, EndReason, Found, KnownState, LeaseMachine, Phase, Record, Request,
    Unreadable, Validity, Version, Write,
};
use crate::base::{clock::Tick, fault::planted};

impl LeaseMachine {
    /// Takes the answer to the last request.
    ///
    /// # Errors
    /// The blob is no lease, so no process holds it.
    pub(crate) fn answered(&mut self, now: Tick, answer: Answer) -> Result<(), Unreadable> {
        let asked = self.asked.take();
        self.end_overdue(now);
        match (asked, answer) {
            (None, _) => {}
            _ if matches!(self.phase, Phase::Ended(_)) => {}
            (Some(Request::Write(write)), Answer::Written(version)) => {
                self.on_own_record(now, version, write);
            }
            (Some(Request::Write(write)), Answer::Conflict) => {
                self.add_unconfirmed(write);
                self.due = now;
            }
            (Some(Request::Write(write)), _) => {
                self.add_unconfirmed(write);
                self.schedule_retry(now);
            }
            (Some(Request::Read { sent }), Answer::Found(found)) => {
                return self.read(now, sent, found);
            }
            (Some(Request::Read { .. }), _) => self.schedule_retry(now),
        }
        Ok(())
    }

    fn read(&mut self, now: Tick, sent: Tick, found: Option<Content>) -> Result<(), Unreadable> {
        self.must_read = false;
        let Some(Content { version, bytes }) = found else {
            self.on_absent(now);
            return Ok(());
        };
        let record = match Record::read(&bytes) {
            Ok(record) => record,
            Err(unreadable) => return self.unreadable(now, unreadable),
        };
        self.greatest_token = self.greatest_token.max(record.token);
        if let Some(write) = self.find_own_write(&record) {
            self.on_own_record(now, version, write);
            return Ok(());
        }
        match &mut self.known {
            // This contender's writes on the record may have failed or may still happen, so all
            // stay remembered.
            KnownState::Record(known) if known.record.nonce == record.nonce => {
                known.version = version;
                self.on_unchanged(now);
            }
            _ => self.on_foreign_record(now, sent, version, record),
        }
        Ok(())
    }

    /// Finds this contender's write of a record. Only the nonce identifies it: two challengers
    /// write the same token.
    fn find_own_write(&self, record: &Record) -> Option<Write> {
        let writes = &self.unconfirmed_writes;
        if planted!(TenureNonceIgnored) {
            return writes
                .iter()
                .find(|write| write.record.token == record.token)
                .cloned();
        }
        let own = writes
            .iter()
            .find(|write| write.record.nonce == record.nonce)?;
        if planted!(TenureOldWriteAsNew) {
            return writes.last().cloned();
        }
        Some(own.clone())
    }

    /// Confirms a write that is in the store. Competing writes on the same version can no longer
    /// happen.
    fn on_own_record(&mut self, now: Tick, version: Version, write: Write) {
        let Write { record, mut sent } = write;
        if planted!(TenureBelievedFromAnswer) {
            sent = now;
        }
        self.unconfirmed_writes.clear();
        self.backoff.reset();
        self.must_read = false;
        self.greatest_token = self.greatest_token.max(record.token);
        let (token, released) = (record.token, record.released);
        let late = now >= sent + self.config.validity_span();
        let mut own_expired = false;
        match &mut self.phase {
            Phase::Contending if late => {
                own_expired = true;
                self.due = now;
            }
            Phase::Contending => {
                self.phase = Phase::Holding(Validity { token, sent });
                self.schedule_renewal(sent);
            }
            Phase::Holding(validity) => {
                validity.sent = validity.sent.max(sent);
                self.schedule_renewal(sent);
            }
            Phase::Releasing { .. } if released => self.phase = Phase::Ended(EndReason::Released),
            // An earlier renewal. The release is written over it.
            Phase::Releasing { .. } => self.due = now,
            Phase::Ended(_) => {}
        }
        self.known = KnownState::Record(Found {
            version,
            record,
            seen: now,
            own_expired,
        });
    }

    /// The record has not changed since the last read.
    fn on_unchanged(&mut self, now: Tick) {
        match (&self.phase, &self.known) {
            (Phase::Contending, KnownState::Record(found)) => {
                let free = self.free_at(found);
                if self.unconfirmed_writes.is_empty() {
                    self.schedule_poll(now, free);
                } else {
                    self.schedule_retry(now);
                }
            }
            _ => self.schedule_retry(now),
        }
    }

    /// Another contender's record has replaced the known one.
    fn on_foreign_record(&mut self, now: Tick, sent: Tick, version: Version, record: Record) {
        // They were conditional on a version that is gone.
        self.unconfirmed_writes.clear();
        self.backoff.reset();
        match self.phase {
            Phase::Contending => {}
            Phase::Holding(_) => {
                self.phase = Phase::Ended(EndReason::Taken(record.holder));
                return;
            }
            Phase::Releasing { .. } => {
                self.phase = Phase::Ended(EndReason::Released);
                return;
            }
            Phase::Ended(_) => return,
        }
        // The time of the write is unknown. It is at the latest the time of the answer.
        let mut seen = now;
        if planted!(TenureSeenFromRequest) {
            seen = sent;
        }
        let found = Found {
            version,
            record,
            seen,
            own_expired: false,
        };
        let free = self.free_at(&found);
        self.known = KnownState::Record(found);
        self.schedule_poll(now, free);
    }

    fn on_absent(&mut self, now: Tick) {
        let free = match &self.known {
            KnownState::Unknown => now,
            KnownState::Absent(free) => *free,
            // Deleted by hand. Its holder learns that at its next renewal.
            KnownState::Record(found) => {
                self.unconfirmed_writes.clear();
                self.free_at(found)
            }
        };
        match self.phase {
            Phase::Contending => {}
            Phase::Holding(_) => self.phase = Phase::Ended(EndReason::Gone),
            Phase::Releasing { .. } => self.phase = Phase::Ended(EndReason::Released),
            Phase::Ended(_) => {}
        }
        self.known = KnownState::Absent(free);
        match self.unconfirmed_writes.is_empty() {
            true => self.schedule_poll(now, free),
            false => self.schedule_retry(now),
        }
    }

    /// The blob is no lease; it is left alone.
    fn unreadable(&mut self, now: Tick, unreadable: Unreadable) -> Result<(), Unreadable> {
        self.unconfirmed_writes.clear();
        self.known = KnownState::Unknown;
        self.due = now;
        if matches!(self.phase, Phase::Contending) {
            return Err(unreadable);
        }
        self.phase = Phase::Ended(EndReason::Unreadable(unreadable));
        Ok(())
    }
}
