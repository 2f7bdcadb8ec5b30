//! This relay's heartbeats: when they are sent, and which have returned.
//!
//! Their returns are the link's clock: peers are judged by them (C7), and so is this relay's own
//! connection (C7, C9). A paused relay therefore judges no peer by the messages of its pause.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;

use super::{RETURN_WITHIN, SecondMachine};
use crate::base::{clock::Tick, fnv::fnv1a};

/// The interval of heartbeats, with a random change of a tenth.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(1);

/// The numbers of this relay's heartbeats.
#[derive(Debug, Default)]
pub(super) struct HeartbeatSender {
    /// The newest heartbeats, at most [`KEPT`].
    sent: VecDeque<Sent>,
    /// The newest that was sent.
    last: u64,
    /// The newest that has returned, and when it was sent.
    pub(super) returned: u64,
    pub(super) returned_sent_at: Option<Tick>,
    /// How many have returned; copies are not counted.
    pub(super) returns: u64,
    /// The newest that did not return in time.
    overdue: u64,
    pub(super) due: Tick,
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    number: u64,
    at: Tick,
    fingerprint: u64,
    /// How many interruptions there were before it was sent.
    interruptions: u64,
}

/// An own heartbeat that the broker delivered, for the first time and in order.
#[derive(Debug)]
pub(super) struct Return {
    /// An earlier one has not returned, and this was not noticed before.
    pub(super) skipped: bool,
    pub(super) interruptions: u64,
}

/// Own heartbeats that are recognized: those of one minute. An older one changes nothing.
const KEPT: usize = 64;

impl HeartbeatSender {
    pub(super) fn next_number(&self) -> u64 {
        self.last + 1
    }

    pub(super) fn sent(&mut self, fingerprint: u64, interruptions: u64, now: Tick) {
        self.last += 1;
        if self.sent.len() == KEPT {
            self.sent.pop_front();
        }
        self.sent.push_back(Sent {
            number: self.last,
            at: now,
            fingerprint,
            interruptions,
        });
    }

    /// The newest heartbeat was not sent, if these are its bytes: its number is free again.
    pub(super) fn take_back(&mut self, fingerprint: u64) -> bool {
        let newest = self
            .sent
            .pop_back_if(|sent| sent.fingerprint == fingerprint);
        self.last -= u64::from(newest.is_some());
        newest.is_some()
    }

    /// Returns whether a heartbeat is newly overdue.
    pub(super) fn check_overdue(&mut self, now: Tick) -> bool {
        let judged = self.overdue.max(self.returned);
        let mut newer = self.sent.iter().rev();
        // Earlier ones are overdue as well.
        let newest = newer.find(|sent| now.since(sent.at) >= RETURN_WITHIN);
        match newest {
            Some(sent) if sent.number > judged => {
                self.overdue = sent.number;
                true
            }
            _ => false,
        }
    }

    /// `None` for a copy, and for one that returns after a later one.
    ///
    /// # Errors
    /// If this relay has not sent it.
    pub(super) fn on_return(
        &mut self,
        number: u64,
        fingerprint: u64,
    ) -> Result<Option<Return>, SecondMachine> {
        if number > self.last {
            return Err(SecondMachine);
        }
        let sent = self.sent.iter().find(|sent| sent.number == number);
        let Some(&sent) = sent else {
            return Ok(None);
        };
        if sent.fingerprint != fingerprint {
            return Err(SecondMachine);
        }
        if number <= self.returned {
            return Ok(None);
        }
        let skipped = number > self.returned.max(self.overdue) + 1;
        self.returned = number;
        self.returned_sent_at = Some(sent.at);
        self.returns += 1;
        Ok(Some(Return {
            skipped,
            interruptions: sent.interruptions,
        }))
    }
}

/// Two heartbeats with one fingerprint count as copies. By chance that is one in 2^61.
pub(super) fn fingerprint(bytes: &Bytes) -> u64 {
    fnv1a(bytes.iter().copied())
}
