//! The state machine of one contender for a lease.
//!
//! [`LeaseMachine`] decides the next request to the store, its time, and how long the lease is
//! valid here. A challenger waits until it has seen no change for the whole duration *by its own
//! clock*. A holder relies on the lease for four fifths of the duration, counted from before it
//! sent its write. So the clocks of two machines are never compared, and their rates may differ by
//! a fifth. Pure: it knows no store and reads no clock; answers, time and randomness are arguments.

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::LeaseConfig;
use crate::base::{
    backoff::{Backoff, about},
    clock::Tick,
    fault::planted,
};

/// One contender for one lease, until it has lost or released it.
#[derive(Debug)]
pub(crate) struct LeaseMachine {
    config: LeaseConfig,
    rng: fastrand::Rng,
    phase: Phase,
    /// The record that was last seen in the store.
    known: Option<(Version, Record)>,
    /// When the lease may be taken: until then its last known holder may rely on it.
    free: Tick,
    /// The write on the known record that may have happened or may still happen. It is repeated with
    /// the same nonce until its outcome is known.
    unconfirmed: Option<Write>,
    /// Whether the store must be read before the next write.
    must_read: bool,
    /// When the last read was sent.
    read_sent: Tick,
    /// The earliest time of the next request.
    due: Tick,
    backoff: Backoff,
    /// The greatest token seen.
    greatest_token: u64,
}

/// The content of a lease's blob, one JSON object that people can read:
///
/// ```json
/// {"token":1700000000000000,"holder":"node-7","nonce":"0f…32 digits","duration_ms":15000,"released":false}
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// It grows with every holder.
    pub(crate) token: u64,
    pub(crate) holder: String,
    /// New in every write. It alone identifies the writer of a record, and it keeps the ETags of two
    /// renewals apart where the ETag is a hash of the content.
    pub(crate) nonce: String,
    /// The holder's duration, which challengers wait for.
    duration_ms: u64,
    /// Marks a tombstone: the blob stays, so that tokens keep growing.
    pub(crate) released: bool,
}

/// Identifies a write: the store's ETag.
pub(crate) type Version = Arc<str>;

/// The next action of the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Read,
    /// Write the record if there is no blob.
    Create(Record),
    /// Write the record if the blob still has this version.
    Update(Record, Version),
    /// Send no request before this time.
    Wait(Tick),
    /// The contender has ended.
    Ended(EndReason),
}

/// The store's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The answer to a read.
    Found(Option<Content>),
    /// The answer to a write.
    Written(Version),
    /// A write found other content. It may be the write itself, if the network repeated it.
    Conflict,
    /// No answer. The request may have been executed.
    Unknown,
}

/// The content of a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) version: Version,
    pub(crate) bytes: bytes::Bytes,
}

/// Why a held lease has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// It was not renewed in time.
    Lapsed,
    /// Another holder has it.
    Taken(String),
    /// The blob was deleted.
    Gone,
    /// The blob is no lease, and begins so.
    Unreadable(String),
    Released,
    /// The store did not confirm the release in time.
    ReleaseUnknown,
}

#[derive(Debug)]
enum Phase {
    Contending,
    /// The validity counts from just before the store's present record was first sent.
    Holding {
        token: u64,
        sent: Tick,
    },
    Releasing {
        token: u64,
        until: Tick,
    },
    Ended(EndReason),
}

#[derive(Debug)]
struct Write {
    record: Record,
    /// When it was sent first.
    sent: Tick,
}

/// Range of durations in a valid record. A record outside of it is an error and is not waited for.
pub(crate) const MIN_DURATION: Duration = Duration::from_secs(1);
pub(crate) const MAX_DURATION: Duration = Duration::from_secs(24 * 3600);
/// Characters shown of unreadable content.
const SHOWN: usize = 60;

/// Limit of the wait for an answer, however long the lease is.
const MAX_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const FIRST_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY_WAIT: Duration = Duration::from_secs(10);
/// Limit of a release. After it, the lease ends by itself.
const MAX_RELEASE: Duration = Duration::from_secs(30);

impl LeaseConfig {
    /// Returns how long a write is valid: four fifths of the time that challengers wait. The
    /// difference covers clock rates that differ by a fifth, and the time that a holder needs to
    /// stop.
    fn validity_span(&self) -> Duration {
        self.duration - self.duration / 5
    }

    /// Returns the time-out of a request. Three of them fit into a holder's validity.
    pub(crate) fn request_timeout(&self) -> Duration {
        (self.duration / 6).min(MAX_REQUEST_TIMEOUT)
    }

    /// Allows several attempts within the validity, spread by jitter.
    fn backoff(&self) -> Backoff {
        let (base, max) = (self.duration / 50, self.duration / 10);
        Backoff::new(base.min(FIRST_RETRY), max.min(MAX_RETRY_WAIT))
    }
}

impl LeaseMachine {
    /// Makes a contender that has not read the store.
    pub(crate) fn new(config: LeaseConfig, rng: fastrand::Rng) -> Self {
        Self {
            phase: Phase::Contending,
            known: None,
            free: Tick::default(),
            unconfirmed: None,
            must_read: true,
            read_sent: Tick::default(),
            due: Tick::default(),
            backoff: config.backoff(),
            greatest_token: 0,
            rng,
            config,
        }
    }

    pub(crate) fn config(&self) -> &LeaseConfig {
        &self.config
    }

    /// Returns the token and the end of its validity, or `None` if the lease is not valid here.
    pub(crate) fn validity(&self, now: Tick) -> Option<(u64, Tick)> {
        let Phase::Holding { token, sent } = self.phase else {
            return None;
        };
        let until = sent + self.config.validity_span();
        (now < until).then_some((token, until))
    }

    /// Returns the next action. A request in it counts as sent now. An earlier request without an
    /// answer may have been executed. `micros` is the wall clock in microseconds since 1970.
    pub(crate) fn step(&mut self, now: Tick, micros: u64) -> Action {
        self.end_overdue(now);
        let ends = match &self.phase {
            Phase::Ended(end) => return Action::Ended(end.clone()),
            Phase::Contending => Tick::NEVER,
            Phase::Holding { sent, .. } => *sent + self.config.validity_span(),
            Phase::Releasing { until, .. } => *until,
        };
        if now < self.due {
            return Action::Wait(self.due.min(ends));
        }
        match self.phase {
            Phase::Contending if !self.must_read && now >= self.free => {
                let token = match (&self.unconfirmed, &self.known) {
                    (Some(write), _) => write.record.token,
                    (None, Some((_, record))) if planted!(TenureTokenKept) => record.token,
                    (None, Some((_, record))) => record.token + 1,
                    (None, None) => micros.max(self.greatest_token + 1),
                };
                self.write(now, token, false)
            }
            Phase::Holding { token, .. } if !self.must_read => self.write(now, token, false),
            Phase::Releasing { token, .. } if !self.must_read => self.write(now, token, true),
            _ => {
                self.read_sent = now;
                Action::Read
            }
        }
    }

    /// Releases the lease. It is not valid here from now on.
    pub(crate) fn release(&mut self, now: Tick) {
        self.end_overdue(now);
        if let Phase::Holding { token, .. } = self.phase {
            let until = now + (self.config.duration / 3).min(MAX_RELEASE);
            self.phase = Phase::Releasing { token, until };
            self.due = now;
            self.backoff.reset();
        }
    }

    /// Takes the answer to the last request.
    ///
    /// # Errors
    /// The beginning of a blob that is no lease, so no process holds it.
    pub(crate) fn answered(&mut self, now: Tick, answer: Answer) -> Result<(), String> {
        self.end_overdue(now);
        if matches!(self.phase, Phase::Ended(_)) {
            return Ok(());
        }
        match answer {
            Answer::Written(version) => {
                if let Some(write) = self.unconfirmed.take() {
                    self.on_own_record(now, version, write);
                }
            }
            Answer::Conflict => self.due = now,
            Answer::Unknown => self.schedule_retry(now),
            Answer::Found(None) => self.on_absent(now),
            Answer::Found(Some(Content { version, bytes })) => match Record::read(&bytes) {
                Ok(record) => self.on_record(now, version, record),
                Err(start) => return self.on_unreadable(now, start),
            },
        }
        Ok(())
    }

    /// Ends an overdue validity or release. The end is final, because callers may have seen it.
    fn end_overdue(&mut self, now: Tick) {
        match &self.phase {
            Phase::Holding { .. } if self.validity(now).is_none() => {
                self.phase = Phase::Ended(EndReason::Lapsed);
            }
            Phase::Releasing { until, .. } if now >= *until => {
                self.phase = Phase::Ended(EndReason::ReleaseUnknown);
            }
            _ => {}
        }
    }

    /// Writes a record, or repeats the same unconfirmed write. Without its answer the store must be
    /// read before the next write.
    fn write(&mut self, now: Tick, token: u64, released: bool) -> Action {
        let same = |write: &Write| {
            let record = &write.record;
            (record.token, record.released) == (token, released)
        };
        let write = match self.unconfirmed.take().filter(same) {
            Some(write) => write,
            None => {
                let nonce = format!("{:032x}", self.rng.u128(..));
                let record = Record::new(token, nonce, &self.config, released);
                Write { record, sent: now }
            }
        };
        let record = write.record.clone();
        self.unconfirmed = Some(write);
        self.must_read = true;
        match &self.known {
            Some((version, _)) => Action::Update(record, Arc::clone(version)),
            None => Action::Create(record),
        }
    }

    fn on_record(&mut self, now: Tick, version: Version, record: Record) {
        self.must_read = false;
        self.greatest_token = self.greatest_token.max(record.token);
        // Only the nonce identifies a write: two challengers write the same token.
        let is_own = |write: &mut Write| match planted!(TenureNonceIgnored) {
            true => write.record.token == record.token,
            false => write.record.nonce == record.nonce,
        };
        if let Some(write) = self.unconfirmed.take_if(is_own) {
            return self.on_own_record(now, version, write);
        }
        if let Some((known, before)) = &mut self.known
            && before.nonce == record.nonce
        {
            *known = version;
            match (&self.phase, &self.unconfirmed) {
                (Phase::Contending, None) => self.schedule_poll(now),
                _ => self.schedule_retry(now),
            }
            return;
        }
        match self.phase {
            // An earlier renewal. The release is written over it.
            Phase::Releasing { token, .. } if record.token == token => {
                self.known = Some((version, record));
                self.due = now;
            }
            _ => self.on_foreign_record(now, version, record),
        }
    }

    /// Takes this contender's write, which is in the store.
    fn on_own_record(&mut self, now: Tick, version: Version, write: Write) {
        let Write { record, mut sent } = write;
        if planted!(TenureBelievedFromAnswer) {
            sent = now;
        }
        self.backoff.reset();
        self.must_read = false;
        self.greatest_token = self.greatest_token.max(record.token);
        let late = now >= sent + self.config.validity_span();
        match &mut self.phase {
            // It is too old to be valid, and no other contender relies on it.
            Phase::Contending if late => {
                self.free = now;
                self.due = now;
            }
            Phase::Contending => {
                let token = record.token;
                self.phase = Phase::Holding { token, sent };
                self.schedule_renewal(sent);
            }
            Phase::Holding { sent: valid, .. } => {
                *valid = sent.max(*valid);
                self.schedule_renewal(sent);
            }
            Phase::Releasing { .. } if record.released => {
                self.phase = Phase::Ended(EndReason::Released);
            }
            // An earlier renewal. The release is written over it.
            Phase::Releasing { .. } => self.due = now,
            Phase::Ended(_) => {}
        }
        self.known = Some((version, record));
    }

    /// Another contender's record has replaced the known one.
    fn on_foreign_record(&mut self, now: Tick, version: Version, record: Record) {
        // It was conditional on a version that is gone.
        self.unconfirmed = None;
        self.backoff.reset();
        match self.phase {
            Phase::Contending => {}
            Phase::Holding { .. } => {
                self.phase = Phase::Ended(EndReason::Taken(record.holder));
                return;
            }
            Phase::Releasing { .. } | Phase::Ended(_) => {
                self.phase = Phase::Ended(EndReason::Released);
                return;
            }
        }
        // The time of the write is unknown. It is at the latest the time of the answer.
        let seen = match planted!(TenureSeenFromRequest) {
            true => self.read_sent,
            false => now,
        };
        self.free = match record.released {
            true => seen,
            // The holder's duration and not our own: the holder relies on it.
            false => seen + record.duration(),
        };
        self.known = Some((version, record));
        self.schedule_poll(now);
    }

    fn on_absent(&mut self, now: Tick) {
        self.must_read = false;
        if self.known.take().is_some() {
            // Deleted by hand. Its holder learns that at its next renewal, and may rely on it until
            // then.
            self.unconfirmed = None;
        }
        match self.phase {
            Phase::Contending if self.unconfirmed.is_some() => self.schedule_retry(now),
            Phase::Contending => self.schedule_poll(now),
            Phase::Holding { .. } => self.phase = Phase::Ended(EndReason::Gone),
            Phase::Releasing { .. } | Phase::Ended(_) => {
                self.phase = Phase::Ended(EndReason::Released);
            }
        }
    }

    /// The blob is no lease; it is left alone.
    fn on_unreadable(&mut self, now: Tick, start: String) -> Result<(), String> {
        self.unconfirmed = None;
        self.known = None;
        self.must_read = true;
        self.due = now;
        if matches!(self.phase, Phase::Contending) {
            return Err(start);
        }
        self.phase = Phase::Ended(EndReason::Unreadable(start));
        Ok(())
    }

    /// Waits before the next attempt.
    fn schedule_retry(&mut self, now: Tick) {
        self.due = now + self.backoff.next(&mut self.rng);
    }

    /// Waits for the next read, or for the lease's end if that is sooner.
    fn schedule_poll(&mut self, now: Tick) {
        let next_read = now + about(self.config.poll, &mut self.rng);
        self.due = next_read.min(self.free).max(now);
    }

    /// Waits for the next renewal. A third of the duration leaves time for several attempts.
    fn schedule_renewal(&mut self, sent: Tick) {
        self.due = sent + about(self.config.duration / 3, &mut self.rng);
    }
}

impl Record {
    pub(super) fn new(token: u64, nonce: String, config: &LeaseConfig, released: bool) -> Self {
        // Rounded up: no challenger waits for less than the holder's duration.
        let millis = config.duration.as_nanos().div_ceil(1_000_000);
        Self {
            token,
            holder: config.holder.clone(),
            nonce,
            duration_ms: u64::try_from(millis).unwrap_or(u64::MAX),
            released,
        }
    }

    /// Parses a blob's content.
    ///
    /// # Errors
    /// The beginning of content that is no lease.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, String> {
        let sound = |record: &Self| {
            let nonce = record.nonce.len() == 32;
            // Leaves room for the next holder's token.
            nonce
                && record.token < u64::MAX
                && (MIN_DURATION..=MAX_DURATION).contains(&record.duration())
        };
        let record = serde_json::from_slice(bytes).ok().filter(sound);
        record.ok_or_else(|| {
            let start = &bytes[..bytes.len().min(SHOWN * 4)];
            String::from_utf8_lossy(start).chars().take(SHOWN).collect()
        })
    }

    pub(crate) fn bytes(&self) -> bytes::Bytes {
        let text = serde_json::to_vec(self).expect("numbers and texts are written as JSON");
        text.into()
    }

    pub(crate) fn duration(&self) -> Duration {
        Duration::from_millis(self.duration_ms)
    }
}
