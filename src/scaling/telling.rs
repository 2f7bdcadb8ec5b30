//! What the relay is told of a queue: that its listener is busy or has read until empty, and when
//! messages come back.
//!
//! R8: a woken listener counts as busy until it reports DRAINED, so quick work costs one report.
//! BUSY is said at once by who found work unasked, and by who was asked where the work lasts. After
//! each welcome everything that still holds is said again, because another stream is another
//! subscription.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    clock::Tick,
    error::ErrorKind,
    fault::{Fault, planted},
    words::{Limits, ReportState},
};

/// A report that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) state: ReportState,
    /// The newest wake-up that a get was issued after.
    pub(crate) sequence: u64,
    /// Messages become visible after this.
    pub(crate) visible_in: Option<Duration>,
}

/// Where a get stands among the wake-ups: read before it is issued.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// The listener's own count of causes to look.
    pub(super) cause: u64,
    stream: u64,
    sequence: u64,
}

/// The reporting side of one queue.
#[derive(Debug)]
pub(super) struct Telling {
    /// Streams that were welcomed; there is none to report on at 0.
    stream: u64,
    connected: bool,
    /// The newest wake-up of this stream: its sequence and the cause that it was.
    sequence: u64,
    woken: u64,
    state: ReportState,
    /// What completed gets cover.
    covered: Place,
    /// What the relay knows of this stream: the state, up to which cause, and since when.
    told: Option<(ReportState, u64, Tick)>,
    /// BUSY or DRAINED is to be said then.
    due: Option<Tick>,
    /// When messages become visible that only this listener knows of, and whether it was said.
    hidden: BTreeMap<Tick, bool>,
    in_flight: Option<InFlight>,
    /// Nothing is said before: the last report failed.
    retry_at: Tick,
    fault: Fault,
}

#[derive(Debug, Clone, Copy)]
struct InFlight {
    stream: u64,
    state: ReportState,
    cause: u64,
    hidden: Option<Tick>,
    at: Tick,
}

/// Work that is done within this says DRAINED at once and never BUSY: a quarter of the time after
/// which a relay gives the wake-up to another member of a group.
const BUSY_AFTER: Duration = Duration::from_millis(250);
/// R14: BUSY is a lease, of 30 s, and renewed by gets well before.
const RENEW_AFTER: Duration = Duration::from_secs(10);
/// A report that failed is tried again after this.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// And one that was refused after this.
const REFUSED_AFTER: Duration = Duration::from_secs(30);

impl Telling {
    pub(super) fn new(fault: Fault) -> Self {
        Self {
            stream: 0,
            connected: false,
            sequence: 0,
            woken: 0,
            state: ReportState::Unspecified,
            covered: Place::default(),
            told: None,
            due: None,
            hidden: BTreeMap::new(),
            in_flight: None,
            retry_at: Tick::default(),
            fault,
        }
    }

    /// Returns where a get stands that is issued now.
    pub(super) fn place(&self, cause: u64) -> Place {
        let (stream, sequence) = (self.stream, self.sequence);
        Place {
            cause,
            stream,
            sequence,
        }
    }

    /// The link moved. Another stream knows nothing: what holds is said again.
    pub(super) fn linked(&mut self, connected: bool, stream: u64, now: Tick) {
        self.connected = connected;
        if stream == self.stream {
            return;
        }
        self.stream = stream;
        self.told = None;
        self.in_flight = None;
        self.retry_at = now;
        (self.sequence, self.woken) = (0, 0);
        if planted!(self.fault, ReportsNotRepeated) {
            self.due = None;
            return;
        }
        self.due = (self.state == ReportState::Busy).then_some(now);
        // What has become visible meanwhile and was said is the relay's, or a CATCH_UP's.
        self.hidden.retain(|at, said| *at > now || !*said);
        self.hidden.values_mut().for_each(|said| *said = false);
    }

    /// A wake-up came: the cause that it is.
    pub(super) fn woken(&mut self, sequence: u64, cause: u64) {
        // A pattern's CATCH_UP has none.
        self.sequence = self.sequence.max(sequence);
        self.woken = cause;
    }

    /// A get found messages.
    pub(super) fn found(&mut self, place: Place, now: Tick) {
        self.cover(place);
        self.state = ReportState::Busy;
        let due = match self.known() {
            Some((ReportState::Busy, cause, _)) if cause < self.woken => now + BUSY_AFTER,
            // R14: the BUSY lease is renewed by gets, never by a timer.
            Some((ReportState::Busy, _, at)) if now < at + RENEW_AFTER => return,
            Some((ReportState::Busy, ..)) => now,
            Some((_, cause, _)) if cause >= self.woken => now,
            None if self.woken == 0 => now,
            _ => now + BUSY_AFTER,
        };
        if planted!(self.fault, BusyUnsaid) {
            return;
        }
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
    }

    /// An armed get found nothing, and no task holds a message.
    pub(super) fn drained(&mut self, place: Place, now: Tick) {
        self.cover(place);
        self.state = ReportState::Drained;
        let news = match self.known() {
            Some((state, cause, _)) => state != ReportState::Drained || cause < self.woken,
            None => true,
        };
        self.due = news.then_some(now);
    }

    /// Messages become visible then that nobody else speaks of.
    pub(super) fn hidden(&mut self, delay: Duration, now: Tick) {
        if !planted!(self.fault, HiddenUnsaid) {
            self.merge_past(now);
            self.hidden.entry(now.after_on_grid(delay)).or_insert(false);
        }
    }

    /// Returns the report that is due, and takes it to be on its way.
    pub(super) fn take(&mut self, now: Tick) -> Option<Due> {
        if self.next(now)? > now {
            return None;
        }
        self.merge_past(now);
        let hidden = self.hidden.iter().find(|(_, said)| !**said);
        let hidden = hidden.map(|(at, _)| *at);
        // An older report says nothing new of a get that was issued on a stream before.
        let covered = Some(self.covered).filter(|place| place.stream == self.stream);
        self.due = None;
        self.in_flight = Some(InFlight {
            stream: self.stream,
            state: self.state,
            cause: self.covered.cause,
            hidden,
            at: now,
        });
        Some(Due {
            state: self.state,
            sequence: covered.map_or(0, |place| place.sequence),
            visible_in: hidden.map(|at| at.since(now).min(Limits::DELAY)),
        })
    }

    /// Returns when a report is due next, in so far as one can be sent.
    pub(super) fn next(&self, now: Tick) -> Option<Tick> {
        if !self.connected || self.stream == 0 || self.in_flight.is_some() {
            return None;
        }
        let unsaid = self.hidden.values().any(|said| !said).then_some(now);
        let due = [self.due, unsaid].into_iter().flatten().min()?;
        Some(due.max(self.retry_at))
    }

    /// Returns whether a report waits to be sent or answered, and could be.
    pub(super) fn has_to_say(&self, now: Tick) -> bool {
        let soon = |at: Tick| at <= now + RETRY_AFTER;
        self.connected && (self.in_flight.is_some() || self.next(now).is_some_and(soon))
    }

    /// The report on its way was answered.
    pub(super) fn answered(&mut self, error: Option<ErrorKind>, now: Tick) {
        let Some(sent) = self.in_flight.take() else {
            // Of a stream before: said again already.
            return;
        };
        match error {
            None => {
                self.told = Some((sent.state, sent.cause, sent.at));
                if let Some(said) = sent.hidden.and_then(|at| self.hidden.get_mut(&at)) {
                    *said = true;
                }
                self.hidden.retain(|at, said| *at > now || !*said);
            }
            // The relay has lost the stream, and will say so: report after the next welcome.
            Some(ErrorKind::NotFound) => self.connected = sent.stream != self.stream,
            // It breaks a rule: saying it again would not help.
            Some(ErrorKind::Invalid) => {
                self.told = Some((sent.state, sent.cause, sent.at));
                if let Some(at) = sent.hidden {
                    self.hidden.remove(&at);
                }
            }
            // Something in between may have said so, and may say otherwise later.
            Some(ErrorKind::Denied | ErrorKind::Unsupported) => {
                self.retry_at = now + REFUSED_AFTER;
                self.due = Some(now);
            }
            Some(_) => {
                self.retry_at = now + RETRY_AFTER;
                self.due = Some(now);
            }
        }
    }

    /// Returns what the relay knows, or will when the report on its way has arrived.
    fn known(&self) -> Option<(ReportState, u64, Tick)> {
        let sent = self.in_flight.map(|sent| (sent.state, sent.cause, sent.at));
        sent.or(self.told)
    }

    /// What is visible by now needs one look, however much it is.
    fn merge_past(&mut self, now: Tick) {
        let later = self.hidden.split_off(&(now + Duration::from_nanos(1)));
        let past = std::mem::replace(&mut self.hidden, later);
        if past.values().any(|said| !said) {
            self.hidden.insert(now, false);
        }
    }

    fn cover(&mut self, place: Place) {
        if place.cause >= self.covered.cause {
            self.covered = place;
        }
    }
}
