//! Who may believe that a lease is its own: one contender's part, as a machine.
//!
//! [`Tenure`] says what to ask the store next and when, and what may be believed. A challenger waits
//! until the whole duration has passed *by its own clock* without a change that it saw; a holder
//! believes for four fifths of it, counted from before it sent what it wrote. So the clocks of two
//! machines are never compared; they may differ in rate by a fifth. Knows no store and reads no
//! clock: answers, time and chance are arguments.

mod answers;
mod record;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

pub(crate) use self::record::{LONGEST, Record, SHORTEST, Unreadable};
use crate::{
    backoff::{Backoff, about},
    clock::Tick,
    fault::{Fault, planted},
};

/// One contender for one lease, until its holding has ended.
#[derive(Debug)]
pub(crate) struct Tenure {
    terms: Terms,
    rng: fastrand::Rng,
    phase: Phase,
    known: Known,
    /// Writes on what is known that may have happened, or may happen yet; at most [`DOUBTS`].
    doubts: Vec<Write>,
    /// What was asked and is not answered.
    asked: Option<Asked>,
    /// Nothing is written before the store was read.
    look: bool,
    /// Nothing is asked before.
    due: Tick,
    backoff: Backoff,
    /// The greatest token that was seen.
    greatest: u64,
}

/// What a contender writes and how it goes about it.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    pub(crate) holder: String,
    pub(crate) duration: Duration,
    /// How often a lease is read that another has.
    pub(crate) poll: Duration,
    pub(crate) fault: Fault,
}

/// Identifies a write, as the store calls it.
pub(crate) type Version = Arc<str>;

/// What to do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Read,
    /// Write it where there is nothing yet.
    Create(Record),
    /// Write it where this version is still there.
    Update(Record, Version),
    /// Nothing before this.
    Wait(Tick),
    /// Nothing any more.
    Ended(End),
}

/// What the store said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// To a read.
    Found(Option<Content>),
    /// To a write.
    Written(Version),
    /// To a write: something else is there. It may be the write itself, sent twice on its way.
    Conflict,
    /// Nothing: what was asked may have been done.
    Unknown,
}

/// A blob as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) version: Version,
    pub(crate) bytes: bytes::Bytes,
}

/// How a holding ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// It could not be renewed in time.
    Lapsed,
    /// It is somebody else's.
    Taken(String),
    /// The blob was deleted.
    Gone,
    Unreadable(Unreadable),
    Released,
    /// The store did not say in time whether it was released.
    Unsettled,
}

#[derive(Debug)]
enum Phase {
    Contending,
    Holding(Belief),
    Releasing { belief: Belief, until: Tick },
    Ended(End),
}

/// What a holder believes in.
#[derive(Debug, Clone, Copy)]
struct Belief {
    token: u64,
    /// When what the store has was about to be sent.
    sent: Tick,
}

/// What is in the store, as far as it is known.
#[derive(Debug)]
enum Known {
    Nothing,
    /// No blob; one that was deleted by hand may have a holder until then.
    Absent(Tick),
    Record(Found),
}

#[derive(Debug)]
struct Found {
    version: Version,
    record: Record,
    /// When this contender saw it first.
    seen: Tick,
    /// Our own write, too old to be believed: nobody else can.
    unclaimed: bool,
}

#[derive(Debug, Clone)]
struct Write {
    record: Record,
    sent: Tick,
}

#[derive(Debug)]
enum Asked {
    Read { sent: Tick },
    Write(Write),
}

/// Writes of unknown outcome that are remembered. Of an older one that happens after all nothing is
/// known: it is waited for like anybody's.
const DOUBTS: usize = 32;
/// A store that has not answered by then will not, however long the lease is.
const LONGEST_PATIENCE: Duration = Duration::from_secs(10);
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(10);
/// Whoever releases wants to go; by itself it ends as well.
const LONGEST_RELEASE: Duration = Duration::from_secs(30);

impl Terms {
    /// Returns for how long a write is believed: a fifth less than whoever reads it waits. So much may
    /// the two clocks' rates differ, and so long has whoever stops.
    fn belief(&self) -> Duration {
        if planted!(self.fault, TenureMarginMissing) {
            return self.duration;
        }
        self.duration - self.duration / 5
    }

    /// Returns how long an answer is waited for: three times before a holder's belief ends.
    pub(crate) fn patience(&self) -> Duration {
        (self.duration / 6).min(LONGEST_PATIENCE)
    }

    /// Several tries before a belief ends, and not all at a time.
    fn backoff(&self) -> Backoff {
        let (base, max) = (self.duration / 50, self.duration / 10);
        Backoff::new(base.min(FIRST_RETRY), max.min(LONGEST_RETRY))
    }
}

impl Tenure {
    /// Makes a contender that knows nothing yet.
    pub(crate) fn new(terms: Terms, rng: fastrand::Rng) -> Self {
        Self {
            phase: Phase::Contending,
            known: Known::Nothing,
            doubts: Vec::new(),
            asked: None,
            look: true,
            due: Tick::default(),
            backoff: terms.backoff(),
            greatest: 0,
            rng,
            terms,
        }
    }

    pub(crate) fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Returns the token and until when it is believed in, where it is.
    pub(crate) fn believed(&self, now: Tick) -> Option<(u64, Tick)> {
        let belief = match &self.phase {
            Phase::Holding(belief) => belief,
            Phase::Releasing { belief, .. }
                if planted!(self.terms.fault, TenureBelievedInRelease) =>
            {
                belief
            }
            _ => return None,
        };
        let until = belief.sent + self.terms.belief();
        (now < until).then_some((belief.token, until))
    }

    /// Returns what is to be done. What is to be asked counts as sent now; what was asked before
    /// and not answered may have been done. `micros` is the wall clock's, since 1970.
    pub(crate) fn step(&mut self, now: Tick, micros: u64) -> Step {
        if let Some(Asked::Write(write)) = self.asked.take() {
            self.doubt(write);
        }
        self.lapse(now);
        let ends = match &self.phase {
            Phase::Ended(end) => return Step::Ended(end.clone()),
            Phase::Contending => Tick::NEVER,
            Phase::Holding(belief) => belief.sent + self.terms.belief(),
            Phase::Releasing { until, .. } => *until,
        };
        if now < self.due {
            return Step::Wait(self.due.min(ends));
        }
        match (&self.phase, &self.known) {
            (Phase::Contending, Known::Absent(free)) if !self.look && now >= *free => {
                let token = micros.max(self.greatest + 1);
                self.write(now, token, false)
            }
            (Phase::Contending, Known::Record(found)) if !self.look && now >= self.free(found) => {
                let kept = planted!(self.terms.fault, TenureTokenKept);
                let token = found.record.token + u64::from(!kept);
                self.write(now, token, false)
            }
            (Phase::Holding(belief), _) if !self.look => self.write(now, belief.token, false),
            (Phase::Releasing { belief, .. }, _) if !self.look => {
                self.write(now, belief.token, true)
            }
            _ => {
                self.asked = Some(Asked::Read { sent: now });
                Step::Read
            }
        }
    }

    /// Reads in the next step, whenever that would have been due.
    pub(crate) fn look_now(&mut self) {
        self.look = true;
        self.due = Tick::default();
    }

    /// Gives the lease back; believed in no more from now on.
    pub(crate) fn release(&mut self, now: Tick) {
        self.lapse(now);
        if let Phase::Holding(belief) = self.phase {
            let until = now + (self.terms.duration / 3).min(LONGEST_RELEASE);
            self.phase = Phase::Releasing { belief, until };
            self.due = now;
            self.backoff.reset();
        }
    }

    /// Ends what has gone on for too long, for good: who was told of it must not be told otherwise.
    fn lapse(&mut self, now: Tick) {
        match &self.phase {
            Phase::Holding(_) if self.believed(now).is_none() => {
                self.phase = Phase::Ended(End::Lapsed);
            }
            Phase::Releasing { until, .. } if now >= *until => {
                self.phase = Phase::Ended(End::Unsettled);
            }
            _ => {}
        }
    }

    /// Returns when a lease may be taken.
    fn free(&self, found: &Found) -> Tick {
        let record = &found.record;
        let released = record.released && !planted!(self.terms.fault, TenureTombstoneIgnored);
        if released || found.unclaimed {
            return found.seen;
        }
        if planted!(self.terms.fault, TenureOwnDuration) {
            return found.seen + self.terms.duration;
        }
        // The holder's, and not our own: it goes by that.
        found.seen + record.duration()
    }

    fn write(&mut self, now: Tick, token: u64, released: bool) -> Step {
        let nonce = match &self.known {
            Known::Record(found) if planted!(self.terms.fault, TenureNonceKept) => {
                found.record.nonce.clone()
            }
            _ => format!("{:032x}", self.rng.u128(..)),
        };
        let record = Record::new(token, nonce, &self.terms, released);
        let write = Write {
            record: record.clone(),
            sent: now,
        };
        self.asked = Some(Asked::Write(write));
        match &self.known {
            Known::Record(found) => Step::Update(record, Arc::clone(&found.version)),
            _ => Step::Create(record),
        }
    }

    /// Remembers a write that may have happened; what is there is to be read.
    fn doubt(&mut self, write: Write) {
        if planted!(self.terms.fault, TenureUnknownBelieved)
            && let Phase::Holding(belief) = &mut self.phase
        {
            belief.sent = write.sent;
        }
        if self.doubts.len() == DOUBTS {
            self.doubts.remove(0);
        }
        self.doubts.push(write);
        self.look = true;
    }

    /// Waits before the next try.
    fn retry(&mut self, now: Tick) {
        self.due = now + self.backoff.next(&mut self.rng);
    }

    /// Waits for the next look, or for the lease's end where that is sooner.
    fn poll(&mut self, now: Tick, free: Tick) {
        let look = now + about(self.terms.poll, &mut self.rng);
        self.due = look.min(free).max(now);
    }

    /// Waits for the next renewal: a third of the duration leaves time for several tries.
    fn renew_after(&mut self, sent: Tick) {
        self.due = sent + about(self.terms.duration / 3, &mut self.rng);
    }
}
