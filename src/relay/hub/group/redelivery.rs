//! The wake-ups of a group that a report covers, and the deadline of the others.
//!
//! A sequence is covered by a member's report of it: a get was issued after that wake-up had
//! arrived. R13: an uncovered wake-up is redelivered. Two points in time are kept, however many
//! wake-ups follow: of the oldest uncovered wake-up, and of the first one after it. So no wake-up
//! waits longer than the time-out, and the memory is constant. Takes no locks.

use std::time::Duration;

use crate::base::clock::Tick;

/// The wake-ups of a group that no report covers yet, in rounds.
#[derive(Debug, Default)]
pub(crate) struct Redelivery {
    open: Option<Pending>,
    /// The greatest sequence that a member has reported.
    covered: Option<u64>,
    /// Numbers the rounds: in each, a member is asked once.
    pub(crate) round: u64,
    /// Members that were asked in this round.
    pub(crate) tried_members: usize,
    /// R15: up to here the events after a DRAINED sequence were given to another member at once.
    expedited_up_to: u64,
}

/// Work was assigned, or waits to be, that no member has reported yet.
#[derive(Debug)]
struct Pending {
    up_to: u64,
    due: Tick,
    /// When more work came after `up_to`, and its greatest sequence so far.
    newer_work: Option<(Tick, u64)>,
}

impl Redelivery {
    /// Expects a report of this sequence within `timeout`.
    pub(crate) fn track(&mut self, up_to: u64, now: Tick, timeout: Duration) {
        match &mut self.open {
            Some(open) if open.due != Tick::NEVER => {
                if up_to > open.up_to {
                    let (_, most) = open.newer_work.get_or_insert((now, up_to));
                    *most = up_to.max(*most);
                }
            }
            _ => self.begin(up_to, now + timeout),
        }
    }

    /// Returns when another member must be asked.
    pub(crate) fn due(&self) -> Tick {
        self.open.as_ref().map_or(Tick::NEVER, |open| open.due)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns whether a report is missing and no member is left to ask in this round.
    pub(crate) fn is_given_up(&self) -> bool {
        self.is_open() && self.due() == Tick::NEVER
    }

    /// Another member was asked: its report is due by then.
    pub(crate) fn rearm(&mut self, due: Tick) {
        if let Some(open) = &mut self.open {
            open.due = due;
        }
    }

    /// All members of the round were asked: the sentinel, or the next member that joins, goes on.
    /// Work that came during this round starts a new round.
    pub(crate) fn give_up(&mut self, now: Tick, timeout: Duration) {
        match self.open.as_ref().and_then(|open| open.newer_work) {
            Some((since, up_to)) => self.begin(up_to, (since + timeout).max(now)),
            None => self.rearm(Tick::NEVER),
        }
    }

    /// A member reports `sequence`; `asked`: it took a wake-up of this round. Work after that
    /// sequence, up to `handed`, stays open.
    pub(crate) fn report(
        &mut self,
        sequence: u64,
        asked: bool,
        handed: u64,
        now: Tick,
        timeout: Duration,
    ) {
        if let Some(open) = &self.open {
            // A report of an already covered sequence may be older than the wake-up.
            let new = self.covered.is_none_or(|covered| open.up_to > covered);
            if sequence >= open.up_to && (new || asked) {
                let newer_work = open.newer_work.map_or(now, |(since, _)| since);
                self.open = None;
                if handed > sequence {
                    self.begin(handed, (newer_work + timeout).max(now));
                }
            }
        }
        self.covered = self.covered.max(Some(sequence));
    }

    /// R15: returns whether the open work, up to `head`, is pending at once, because a member
    /// without a wake-up for it reported DRAINED with a lower `sequence`. Once for each head: in
    /// dense traffic every report is a little late, and would wake one more.
    pub(crate) fn expedite(&mut self, sequence: u64, head: u64) -> bool {
        let newer = self.is_open() && head > sequence && self.expedited_up_to < head;
        if newer {
            self.expedited_up_to = head;
        }
        newer
    }

    /// Begins a new round for the open work, and at least up to this sequence.
    pub(crate) fn restart(&mut self, up_to: u64, due: Tick) {
        let open = self.open.as_ref();
        let most = open.map(|open| open.newer_work.map_or(open.up_to, |(_, most)| most));
        self.begin(up_to.max(most.unwrap_or(up_to)), due);
    }

    fn begin(&mut self, up_to: u64, due: Tick) {
        (self.round, self.tried_members) = (self.round + 1, 0);
        let newer_work = None;
        self.open = Some(Pending {
            up_to,
            due,
            newer_work,
        });
    }
}
