//! What the relay remembers of one queue: its running totals and who listens.
//!
//! Constant in size but for one link per subscriber and its few timers; never holds an event back.
//! A record is made before its pattern subscribers are known; whoever first counts in it attaches
//! them. A forgotten one is dead: whoever finds it so looks the queue up again (R3).

use std::{sync::Arc, time::SystemTime};

use super::{
    company::{Company, Pace},
    links::{Link, Links, mark},
    place::Tally,
    sync::{Mutex, MutexGuard, lock},
    timers::{QueueTimers, Timer, Timers},
};
use crate::{
    clock::Tick,
    fault::planted,
    words::{Notification, QueueAddress, WakeReason},
};

/// Subscribers that a walk wakes in one step, and that a notification wakes by itself.
pub(super) const CHUNK: usize = 64;

/// One queue.
pub(crate) struct Record {
    address: QueueAddress,
    /// Tells records apart in the order of timers, alike in every simulated run.
    number: u64,
    pub(super) pace: Arc<Pace>,
    state: Mutex<State>,
}

/// What the record's lock guards.
pub(super) struct State {
    life: Life,
    /// Where its counting began.
    pub(super) start: u64,
    pub(super) tally: Tally,
    /// The sequence of the newest notification, and of the newest timed wake-up.
    pub(super) notified: u64,
    pub(super) newest: Newest,
    pub(super) active_at: Tick,
    /// When the last subscriber left: its token is good for as long as a queue is remembered.
    pub(super) left_at: Tick,
    /// Of the newest report that told one.
    pub(super) depth: Option<u64>,
    pub(super) links: Links,
    /// It was said that nobody listens.
    unheard: bool,
    /// A walk by the fan-out is due.
    marked: bool,
    /// A group has been here: what is counted is handed out.
    pub(super) grouped: bool,
    /// The sentinel asks somebody whose stream has not taken the question yet.
    pub(super) asks: bool,
    pub(super) timers: QueueTimers,
    pub(super) company: Option<Box<Company>>,
    pub(super) armed: Option<Tick>,
}

/// The newest notification's details, handed on with a wake-up. Without one, its texts are the empty
/// one that all share.
#[derive(Debug, Default, Clone)]
pub(super) struct Newest {
    pub(super) publisher: Arc<str>,
    pub(super) published_at: Option<SystemTime>,
    pub(super) traceparent: Arc<str>,
}

/// How far a record has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// Made; subscribers by pattern may not have been attached.
    New,
    Live,
    /// Forgotten: no longer in the map, or about to leave it.
    Dead,
}

/// Why a record did not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Attach the subscribers by pattern, then try again.
    Unattached,
    /// Look the queue up again.
    Dead,
}

/// Whom to wake.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wake {
    /// Walk the few subscribers at once.
    Here,
    /// Leave the many to the fan-out.
    Fanout,
    /// The fan-out has been told already.
    Told,
}

impl Record {
    pub(super) fn new(
        address: QueueAddress,
        number: u64,
        start: u64,
        now: Tick,
        pace: &Arc<Pace>,
    ) -> Self {
        let state = State {
            life: Life::New,
            start,
            tally: Tally::starting_at(start),
            notified: 0,
            newest: Newest::default(),
            active_at: now,
            left_at: now,
            depth: None,
            links: Links::default(),
            unheard: false,
            marked: false,
            grouped: false,
            asks: false,
            timers: QueueTimers::default(),
            company: None,
            armed: None,
        };
        Self {
            address,
            number,
            pace: Arc::clone(pace),
            state: Mutex::new(state),
        }
    }

    pub(super) fn address(&self) -> &QueueAddress {
        &self.address
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Wakes one step's subscribers from slot `from` on; returns where to go on, or `None` at the
    /// end. Subscribers are woken after the lock is released.
    pub(super) fn walk(&self, from: usize) -> Option<usize> {
        let late = planted!(self.pace.fault, MarkClearedAfterWalk);
        let mut chunk = [const { None }; CHUNK];
        let mut targets = Vec::new();
        let next = {
            let mut state = self.lock();
            if from == 0 && !late {
                state.marked = false;
            }
            let next = state.links.copy(from, &mut chunk);
            if next.is_none() && state.grouped && state.hand_out(&mut targets) {
                Some(state.links.slots())
            } else {
                next
            }
        };
        mark(&targets);
        for link in chunk.into_iter().flatten() {
            link.subscription.mark(link.cursor);
        }
        if late && next.is_none() {
            self.lock().marked = false;
        }
        next
    }

    /// Says that the walk that was due is not coming.
    pub(super) fn unmark(&self) {
        if !planted!(self.pace.fault, WalkLeavesMark) {
            self.lock().marked = false;
        }
    }

    /// Says that the subscribers by pattern have been attached.
    pub(super) fn attached(&self) {
        let mut state = self.lock();
        if state.life == Life::New {
            state.life = Life::Live;
        }
    }

    /// Marks this record dead where nobody has needed it for long enough, raising `floor` first: a
    /// queue of this name never counts again what was counted here (R3).
    pub(super) fn forget(
        self: &Arc<Self>,
        idle_since: Tick,
        timers: &Timers,
        floor: impl FnOnce(u64),
    ) -> bool {
        let mut state = self.lock();
        let timed = state.timers.len() > 0 && !planted!(self.pace.fault, ForgetWithTimer);
        if state.life == Life::Dead
            || state.links.len() > 0
            || timed
            || state.grouped
            || state.active_at.max(state.left_at) > idle_since
        {
            return false;
        }
        floor(state.tally.sequence + 1);
        if !planted!(self.pace.fault, DeadNotMarked) {
            state.life = Life::Dead;
        }
        if planted!(self.pace.fault, ForgetWithTimer) {
            state.timers = QueueTimers::default();
        }
        state.company = None;
        // Its sentinel's time may still stand in the order: a dead record would come up for ever.
        let _ = state.rearm(self, timers);
        true
    }
}

impl State {
    pub(super) fn is_dead(&self) -> bool {
        self.life == Life::Dead
    }

    pub(super) fn listeners(&self) -> usize {
        let members = match &self.company {
            Some(company) if self.grouped => company.members(),
            _ => 0,
        };
        self.links.len() + members
    }

    /// Returns whether this is the first time that nobody listens.
    pub(super) fn first_unheard(&mut self) -> bool {
        self.listeners() == 0 && !std::mem::replace(&mut self.unheard, true)
    }

    /// Refuses to count in a record that is not live.
    pub(super) fn check_live(&self) -> Result<(), Refusal> {
        match self.life {
            Life::New => Err(Refusal::Unattached),
            Life::Live => Ok(()),
            Life::Dead => Err(Refusal::Dead),
        }
    }

    /// Counts one notification that is effective at once.
    pub(super) fn count(&mut self, publisher: &Arc<str>, notification: &Notification, now: Tick) {
        self.tally.sequence += 1;
        self.tally.add(notification);
        self.notified = self.tally.sequence;
        self.active_at = now;
        self.newest.replace(publisher, notification);
    }

    /// Counts a timed wake-up; a delayed notification in it is counted now.
    pub(super) fn count_timed(&mut self, timer: Timer, now: Tick) {
        self.tally.sequence += 1;
        self.tally.add_sums(&timer.sums);
        self.active_at = now;
        if let Some(newest) = timer.newest {
            self.newest = newest;
        }
    }

    /// Counts the timers that are due; returns how many.
    pub(super) fn count_due(&mut self, now: Tick) -> u64 {
        let mut fired = 0;
        while let Some(timer) = self.timers.pop_due(now) {
            self.count_timed(timer, now);
            fired += 1;
        }
        fired
    }

    /// Tells the hub's order of this record's next timer; returns whether it is the first of all.
    #[must_use]
    pub(super) fn rearm(&mut self, record: &Arc<Record>, timers: &Timers) -> bool {
        let next = match &self.company {
            Some(company) if company.tend_at != Tick::NEVER => {
                let timer = self.timers.next().unwrap_or(Tick::NEVER);
                Some(timer.min(company.tend_at))
            }
            _ => self.timers.next(),
        };
        timers.rearm(record, &mut self.armed, next)
    }

    /// Decides who wakes the subscribers of what was just counted; where there is `more` to hand
    /// out to groups than one step may, the fan-out does.
    pub(super) fn wake(&mut self, inline: usize, more: bool) -> Wake {
        if !more && self.links.slots() <= inline.min(CHUNK) {
            Wake::Here
        } else if std::mem::replace(&mut self.marked, true) {
            Wake::Told
        } else {
            Wake::Fanout
        }
    }

    /// Returns why a subscriber at `place` is owed a wake-up, or `None` where it is not.
    pub(super) fn owed(&self, place: &Tally) -> Option<WakeReason> {
        self.head().owed(place)
    }

    /// Returns how much its lists hold room for: subscribers' slots and timers.
    #[cfg(test)]
    pub(super) fn capacities(&self) -> [usize; 3] {
        let links = &self.links;
        let [slots, free] = links.capacities();
        [slots, free, self.timers.capacity()]
    }

    pub(super) fn link(&mut self, link: Link) -> usize {
        self.links.insert(link)
    }

    /// Takes out a link; returns whether there is something to do for it.
    pub(super) fn unlink(&mut self, slot: usize, now: Tick) -> bool {
        self.links.remove(slot);
        self.left_at = now;
        if let Some(company) = &mut self.company {
            company.link_left(slot, now);
        }
        self.dismiss();
        self.company.as_ref().is_some_and(|company| company.dirty)
    }
}

impl Newest {
    pub(super) fn of(publisher: &Arc<str>, notification: &Notification) -> Self {
        Self {
            publisher: Arc::clone(publisher),
            published_at: notification.published_at,
            traceparent: Arc::clone(&notification.traceparent),
        }
    }

    /// Takes on another notification's details, without counting references where they are the
    /// same texts: a burst comes from one publisher.
    fn replace(&mut self, publisher: &Arc<str>, notification: &Notification) {
        for (kept, new) in [
            (&mut self.publisher, publisher),
            (&mut self.traceparent, &notification.traceparent),
        ] {
            if !Arc::ptr_eq(kept, new) {
                *kept = Arc::clone(new);
            }
        }
        self.published_at = notification.published_at;
    }
}
