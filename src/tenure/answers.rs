//! What a contender makes of the store's answers.

use super::{
    Answer, Asked, Belief, Content, End, Found, Known, Phase, Record, Tenure, Unreadable, Version,
    Write,
};
use crate::{clock::Tick, fault::planted};

impl Tenure {
    /// Takes the answer to what the last step asked for.
    ///
    /// # Errors
    /// There is something that is no lease, and nobody holds it.
    pub(crate) fn answered(&mut self, now: Tick, answer: Answer) -> Result<(), Unreadable> {
        let asked = self.asked.take();
        self.lapse(now);
        match (asked, answer) {
            (None, _) => {}
            _ if matches!(self.phase, Phase::Ended(_)) => {}
            (Some(Asked::Write(write)), Answer::Written(version)) => {
                self.settle(now, version, write);
            }
            (Some(Asked::Write(write)), Answer::Conflict) => {
                self.doubt(write);
                self.due = now;
            }
            (Some(Asked::Write(write)), _) => {
                self.doubt(write);
                self.retry(now);
            }
            (Some(Asked::Read { sent }), Answer::Found(found)) => {
                return self.read(now, sent, found);
            }
            (Some(Asked::Read { .. }), _) => self.retry(now),
        }
        Ok(())
    }

    fn read(&mut self, now: Tick, sent: Tick, found: Option<Content>) -> Result<(), Unreadable> {
        self.look = false;
        let Some(Content { version, bytes }) = found else {
            self.absent(now);
            return Ok(());
        };
        let record = match Record::read(&bytes) {
            Ok(record) => record,
            Err(unreadable) => return self.unreadable(now, unreadable),
        };
        self.greatest = self.greatest.max(record.token);
        if let Some(write) = self.own(&record) {
            self.settle(now, version, write);
            return Ok(());
        }
        match &mut self.known {
            // Our writes on it may have failed, or may happen yet: all of them are remembered.
            Known::Record(known) if known.record.nonce == record.nonce => {
                known.version = version;
                self.unchanged(now);
            }
            _ => self.foreign(now, sent, version, record),
        }
        Ok(())
    }

    /// Finds the write of ours that a record is. Only the nonce tells: two challengers write the
    /// same token.
    fn own(&self, record: &Record) -> Option<Write> {
        let fault = self.terms.fault;
        let same = |write: &&Write| match planted!(fault, TenureNonceIgnored) {
            true => write.record.token == record.token,
            false => write.record.nonce == record.nonce,
        };
        let mut own = self.doubts.iter().find(same)?.clone();
        if planted!(fault, TenureOldWriteAsNew) {
            own.sent = self.doubts.last().map_or(own.sent, |last| last.sent);
        }
        Some(own)
    }

    /// A write of ours is there, so none that it was in competition with can happen any more.
    fn settle(&mut self, now: Tick, version: Version, write: Write) {
        let Write { record, mut sent } = write;
        if planted!(self.terms.fault, TenureBelievedFromAnswer) {
            sent = now;
        }
        self.doubts.clear();
        self.backoff.reset();
        self.look = false;
        self.greatest = self.greatest.max(record.token);
        let (token, released) = (record.token, record.released);
        let late = now >= sent + self.terms.belief();
        let mut unclaimed = false;
        match &mut self.phase {
            Phase::Contending if late => {
                unclaimed = true;
                self.due = now;
            }
            Phase::Contending => {
                self.phase = Phase::Holding(Belief { token, sent });
                self.renew_after(sent);
            }
            Phase::Holding(belief) => {
                belief.sent = belief.sent.max(sent);
                self.renew_after(sent);
            }
            Phase::Releasing { .. } if released => self.phase = Phase::Ended(End::Released),
            // A renewal from before: it is released on top of that.
            Phase::Releasing { .. } => self.due = now,
            Phase::Ended(_) => {}
        }
        self.known = Known::Record(Found {
            version,
            record,
            seen: now,
            unclaimed,
        });
    }

    /// What is there is what was there before.
    fn unchanged(&mut self, now: Tick) {
        match (&self.phase, &self.known) {
            (Phase::Contending, Known::Record(found)) => {
                let free = self.free(found);
                if self.doubts.is_empty() {
                    self.poll(now, free);
                } else {
                    self.retry(now);
                }
            }
            _ => self.retry(now),
        }
    }

    /// Somebody else's record is there, and not the one that was.
    fn foreign(&mut self, now: Tick, sent: Tick, version: Version, record: Record) {
        // They were on what is gone.
        self.doubts.clear();
        self.backoff.reset();
        match self.phase {
            Phase::Contending => {}
            Phase::Holding(_) => {
                self.phase = Phase::Ended(End::Taken(record.holder));
                return;
            }
            Phase::Releasing { .. } => {
                self.phase = Phase::Ended(End::Released);
                return;
            }
            Phase::Ended(_) => return,
        }
        // When it was written is not known: between the question and the answer at the latest.
        let mut seen = now;
        if planted!(self.terms.fault, TenureSeenFromRequest) {
            seen = sent;
        }
        if planted!(self.terms.fault, TenureRenewalUnseen)
            && let Known::Record(known) = &self.known
            && known.record.token == record.token
        {
            seen = known.seen;
        }
        let found = Found {
            version,
            record,
            seen,
            unclaimed: false,
        };
        let free = self.free(&found);
        self.known = Known::Record(found);
        self.poll(now, free);
    }

    fn absent(&mut self, now: Tick) {
        let free = match &self.known {
            Known::Nothing => now,
            Known::Absent(free) => *free,
            // Deleted by hand: whoever held it learns that when it renews.
            Known::Record(found) => {
                self.doubts.clear();
                self.free(found)
            }
        };
        match self.phase {
            Phase::Contending => {}
            Phase::Holding(_) => self.phase = Phase::Ended(End::Gone),
            Phase::Releasing { .. } => self.phase = Phase::Ended(End::Released),
            Phase::Ended(_) => {}
        }
        self.known = Known::Absent(free);
        match self.doubts.is_empty() {
            true => self.poll(now, free),
            false => self.retry(now),
        }
    }

    /// Something is there that is no lease; it is left alone.
    fn unreadable(&mut self, now: Tick, unreadable: Unreadable) -> Result<(), Unreadable> {
        self.doubts.clear();
        self.known = Known::Nothing;
        self.due = now;
        if matches!(self.phase, Phase::Contending) {
            return Err(unreadable);
        }
        self.phase = Phase::Ended(End::Unreadable(unreadable));
        Ok(())
    }
}
