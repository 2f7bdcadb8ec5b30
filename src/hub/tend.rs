//! What a record's lock guards besides the counters: how groups and the sentinel are tended.
//!
//! Streams are marked under the lock, and woken when it is released. A queue without a group pays
//! for none of this on the way of a notification.

use std::time::Duration;

use super::{
    company::{Company, Head, Seat},
    group::Heard,
    mailbox::WakeBatch,
    place::Tally,
    record::{CHUNK, Record, State},
    roster::Grant,
    subscribers::Subscriber,
};
use crate::{clock::Tick, words::GroupName};

impl State {
    /// Puts a queue that has a subscriber under a sentinel, where there is one.
    pub(super) fn guard(&mut self, record: &Record, now: Tick, spread: Duration) {
        if !record.pace.sentinel.is_zero() {
            self.company(record, now).subscriber_joined(now, spread);
        }
    }

    /// Takes a member into its group; a group that is not known starts at `place`.
    pub(super) fn join(
        &mut self,
        record: &Record,
        (name, subscriber): (&GroupName, Subscriber),
        start: (Tally, bool),
        (now, spread): (Tick, Duration),
    ) -> Seat {
        self.grouped = true;
        let company = self.company(record, now);
        company.join(name, subscriber, start, (now, spread))
    }

    pub(super) fn leave(&mut self, seat: Seat, busy: bool, now: Tick) {
        self.left_at = now;
        if let Some(company) = &mut self.company {
            company.leave(seat, busy, now);
        }
    }

    /// The stream of a subscriber, by its key, or of a member has sent all it had.
    pub(super) fn ready(&mut self, place: Result<u64, Seat>, now: Tick) {
        let Some(company) = &mut self.company else {
            return;
        };
        match place {
            Ok(_) => company.subscriber_ready(now),
            Err(seat) => {
                if let Some(group) = company.group(seat) {
                    group.ready(seat.slot);
                }
            }
        }
    }

    /// Returns whether a wake-up waits for the member's stream.
    pub(super) fn is_given(&self, seat: Seat) -> bool {
        self.company
            .as_ref()
            .is_some_and(|company| company.is_given(seat))
    }

    pub(super) fn take_grant(&mut self, seat: Seat) -> Option<Grant> {
        self.company.as_mut()?.take_grant(seat)
    }

    pub(super) fn give_back(&mut self, seat: Seat, grant: Grant) {
        if let Some(group) = self.company.as_mut().and_then(|c| c.group(seat)) {
            group.give_back(seat.slot, grant);
        }
    }

    /// Takes the sentinel's check of this subscriber; `false` where there is none.
    pub(super) fn take_ask(&mut self, key: u64) -> bool {
        if !self.asks {
            return false;
        }
        let Some(company) = &mut self.company else {
            return false;
        };
        let (taken, others) = company.take_ask(key);
        self.asks = others;
        taken
    }

    pub(super) fn give_ask_back(&mut self, key: u64) {
        if let Some(company) = &mut self.company {
            company.give_ask_back(key);
            self.asks = true;
        }
    }

    /// A subscriber reports. Returns whether there is something to do for it.
    pub(super) fn report(
        &mut self,
        place: Result<u64, Seat>,
        heard: Heard,
        capacity: u32,
        now: Tick,
        batch: &mut WakeBatch,
    ) -> bool {
        let Some(company) = &mut self.company else {
            return false;
        };
        if heard.looked {
            let key = place.ok();
            self.asks |= company.looked(key, heard, capacity, &self.subscribers, now, batch);
        }
        if let Err(seat) = place {
            company.report(seat, heard, &self.tally, now);
        }
        // Its sentinel is not in the timers' order yet where the report made the record.
        company.dirty || self.armed.is_none_or(|armed| armed > company.tend_at)
    }

    /// Does what is due for groups and sentinel, and hands out what is owed; returns whether there
    /// is more to hand out.
    pub(super) fn tend(&mut self, now: Tick, batch: &mut WakeBatch) -> bool {
        let head = self.head();
        let Some(company) = &mut self.company else {
            return false;
        };
        self.asks |= company.fire(&head, &self.subscribers, now, batch);
        if self.grouped && company.groups() == 0 {
            self.grouped = false;
            self.left_at = now;
            self.dismiss();
        }
        self.grouped && self.hand_out(batch)
    }

    /// Hands out what is owed to groups, as much as one step may.
    pub(super) fn hand_out(&mut self, batch: &mut WakeBatch) -> bool {
        let head = self.head();
        let company = self.company.as_mut();
        company.is_some_and(|company| company.hand_out(&head, CHUNK, batch))
    }

    pub(super) fn head(&self) -> Head {
        let (tally, notified) = (self.tally, self.notified);
        Head { tally, notified }
    }

    fn company(&mut self, record: &Record, now: Tick) -> &mut Company {
        self.company
            .get_or_insert_with(|| Box::new(Company::new(&record.pace, record.number(), now)))
    }

    /// Gives up what nobody needs any more. A sentinel stays for as long as the queue is remembered.
    pub(super) fn dismiss(&mut self) {
        let stays = self
            .company
            .as_ref()
            .is_some_and(|company| company.has_sentinel());
        if !self.grouped && self.subscribers.len() == 0 && !stays {
            (self.company, self.asks) = (None, false);
        }
    }
}
