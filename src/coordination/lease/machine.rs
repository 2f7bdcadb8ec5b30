//! The state machine of one contender for a lease.
//!
//! [`LeaseMachine`] decides the next request to the store, its time, and how long the lease is
//! valid here. A challenger waits until it has seen no change for the whole duration *by its own
//! clock*. A holder relies on the lease for four fifths of the duration, counted from before it
//! sent its write. So the clocks of two machines are never compared, and their rates may differ by
//! a fifth. Pure: it knows no store and reads no clock; answers, time and randomness are arguments.

mod answers;
mod record;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

pub(crate) use self::record::{MAX_DURATION, MIN_DURATION, Record, Unreadable};
use crate::base::{
    backoff::{Backoff, about},
    clock::Tick,
    fault::planted,
};

/// One contender for one lease, until it has lost or released it.
#[derive(Debug)]
pub(crate) struct LeaseMachine {
    config: ContenderConfig,
    rng: fastrand::Rng,
    phase: Phase,
    known: KnownState,
    /// Writes on the known record that may have happened or may still happen; at most
    /// [`MAX_UNCONFIRMED_WRITES`].
    unconfirmed_writes: Vec<Write>,
    /// The request that has no answer yet.
    asked: Option<Request>,
    /// Whether the store must be read before the next write.
    must_read: bool,
    /// The earliest time of the next request.
    due: Tick,
    backoff: Backoff,
    /// The greatest token seen.
    greatest_token: u64,
}

/// The settings of a contender.
#[derive(Debug, Clone)]
pub(crate) struct ContenderConfig {
    pub(crate) holder: String,
    pub(crate) duration: Duration,
    /// Interval at which a contender reads a lease that another process holds.
    pub(crate) poll: Duration,
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
    Unreadable(Unreadable),
    Released,
    /// The store did not confirm the release in time.
    ReleaseUnknown,
}

#[derive(Debug)]
enum Phase {
    Contending,
    Holding(Validity),
    Releasing { validity: Validity, until: Tick },
    Ended(EndReason),
}

/// A holder's token and the time from which its validity counts.
#[derive(Debug, Clone, Copy)]
struct Validity {
    token: u64,
    /// The time just before the store's present record was sent.
    sent: Tick,
}

/// The last known state of the store.
#[derive(Debug)]
enum KnownState {
    Unknown,
    /// No blob. If the blob was deleted by hand, its holder may rely on the lease until then.
    Absent(Tick),
    Record(Found),
}

#[derive(Debug)]
struct Found {
    version: Version,
    record: Record,
    /// When this contender first saw it.
    seen: Tick,
    /// This contender's own write, too old to be valid. No other contender can rely on it.
    own_expired: bool,
}

#[derive(Debug, Clone)]
struct Write {
    record: Record,
    sent: Tick,
}

#[derive(Debug)]
enum Request {
    Read { sent: Tick },
    Write(Write),
}

/// Limit of remembered writes with unknown outcome. An older write that still happens is treated as
/// another contender's write.
const MAX_UNCONFIRMED_WRITES: usize = 32;
/// Limit of the wait for an answer, however long the lease is.
const MAX_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const FIRST_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY_WAIT: Duration = Duration::from_secs(10);
/// Limit of a release. After it, the lease ends by itself.
const MAX_RELEASE: Duration = Duration::from_secs(30);

impl ContenderConfig {
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
    pub(crate) fn new(config: ContenderConfig, rng: fastrand::Rng) -> Self {
        Self {
            phase: Phase::Contending,
            known: KnownState::Unknown,
            unconfirmed_writes: Vec::new(),
            asked: None,
            must_read: true,
            due: Tick::default(),
            backoff: config.backoff(),
            greatest_token: 0,
            rng,
            config,
        }
    }

    pub(crate) fn config(&self) -> &ContenderConfig {
        &self.config
    }

    /// Returns the token and the end of its validity, or `None` if the lease is not valid here.
    pub(crate) fn validity(&self, now: Tick) -> Option<(u64, Tick)> {
        let Phase::Holding(validity) = &self.phase else {
            return None;
        };
        let until = validity.sent + self.config.validity_span();
        (now < until).then_some((validity.token, until))
    }

    /// Returns the next action. A request in it counts as sent now. An earlier request without an
    /// answer may have been executed. `micros` is the wall clock in microseconds since 1970.
    pub(crate) fn step(&mut self, now: Tick, micros: u64) -> Action {
        if let Some(Request::Write(write)) = self.asked.take() {
            self.add_unconfirmed(write);
        }
        self.end_overdue(now);
        let ends = match &self.phase {
            Phase::Ended(end) => return Action::Ended(end.clone()),
            Phase::Contending => Tick::NEVER,
            Phase::Holding(validity) => validity.sent + self.config.validity_span(),
            Phase::Releasing { until, .. } => *until,
        };
        if now < self.due {
            return Action::Wait(self.due.min(ends));
        }
        match (&self.phase, &self.known) {
            (Phase::Contending, KnownState::Absent(free)) if !self.must_read && now >= *free => {
                let token = micros.max(self.greatest_token + 1);
                self.write(now, token, false)
            }
            (Phase::Contending, KnownState::Record(found))
                if !self.must_read && now >= self.free_at(found) =>
            {
                let token = self.next_token(&found.record);
                self.write(now, token, false)
            }
            (Phase::Holding(validity), _) if !self.must_read => {
                self.write(now, validity.token, false)
            }
            (Phase::Releasing { validity, .. }, _) if !self.must_read => {
                self.write(now, validity.token, true)
            }
            _ => {
                self.asked = Some(Request::Read { sent: now });
                Action::Read
            }
        }
    }

    fn next_token(&self, record: &Record) -> u64 {
        if planted!(TenureTokenKept) {
            return record.token;
        }
        record.token + 1
    }

    /// Reads the store in the next step, without a wait.
    pub(crate) fn read_now(&mut self) {
        self.must_read = true;
        self.due = Tick::default();
    }

    /// Releases the lease. It is not valid here from now on.
    pub(crate) fn release(&mut self, now: Tick) {
        self.end_overdue(now);
        if let Phase::Holding(validity) = self.phase {
            let until = now + (self.config.duration / 3).min(MAX_RELEASE);
            self.phase = Phase::Releasing { validity, until };
            self.due = now;
            self.backoff.reset();
        }
    }

    /// Ends an overdue validity or release. The end is final, because callers may have seen it.
    fn end_overdue(&mut self, now: Tick) {
        match &self.phase {
            Phase::Holding(_) if self.validity(now).is_none() => {
                self.phase = Phase::Ended(EndReason::Lapsed);
            }
            Phase::Releasing { until, .. } if now >= *until => {
                self.phase = Phase::Ended(EndReason::ReleaseUnknown);
            }
            _ => {}
        }
    }

    /// Returns when the lease may be taken.
    fn free_at(&self, found: &Found) -> Tick {
        let record = &found.record;
        if record.released || found.own_expired {
            return found.seen;
        }
        // The holder's duration and not our own: the holder relies on it.
        found.seen + record.duration()
    }

    fn write(&mut self, now: Tick, token: u64, released: bool) -> Action {
        let nonce = format!("{:032x}", self.rng.u128(..));
        let record = Record::new(token, nonce, &self.config, released);
        let write = Write {
            record: record.clone(),
            sent: now,
        };
        self.asked = Some(Request::Write(write));
        match &self.known {
            KnownState::Record(found) => Action::Update(record, Arc::clone(&found.version)),
            _ => Action::Create(record),
        }
    }

    /// Remembers a write that may have happened. The store must be read.
    fn add_unconfirmed(&mut self, write: Write) {
        if self.unconfirmed_writes.len() == MAX_UNCONFIRMED_WRITES {
            self.unconfirmed_writes.remove(0);
        }
        self.unconfirmed_writes.push(write);
        self.must_read = true;
    }

    /// Waits before the next attempt.
    fn schedule_retry(&mut self, now: Tick) {
        self.due = now + self.backoff.next(&mut self.rng);
    }

    /// Waits for the next read, or for the lease's end if that is sooner.
    fn schedule_poll(&mut self, now: Tick, free: Tick) {
        let next_read = now + about(self.config.poll, &mut self.rng);
        self.due = next_read.min(free).max(now);
    }

    /// Waits for the next renewal. A third of the duration leaves time for several attempts.
    fn schedule_renewal(&mut self, sent: Tick) {
        self.due = sent + about(self.config.duration / 3, &mut self.rng);
    }
}
