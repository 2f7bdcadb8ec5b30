//! Callers that wait for a publisher's notifications, and their results.

use std::collections::{BTreeSet, HashMap};

use crate::{
    base::clock::Tick,
    error::{Error, Result},
    types::Accepted,
};

/// Identifies a waiting caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct WaiterId(u64);

/// The result for a waiting caller.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) waiter: WaiterId,
    pub(crate) result: Result<Vec<Accepted>>,
}

/// Waiting callers, each until its notifications are answered or its deadline passes.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    waiters: HashMap<WaiterId, Waiter>,
    deadlines: BTreeSet<(Tick, WaiterId)>,
    /// Flushes, each with the number of the last submission that it waits for.
    flushes: Vec<(WaiterId, u64)>,
    completions: Vec<Completion>,
    last: u64,
    /// Unanswered notifications of waiting callers: the sum of all `missing`.
    missing: usize,
    /// Items in all waiter lists, including those of callers that stopped waiting.
    listed: usize,
}

/// The callers to answer, each with the index of its notification.
pub(super) type WaiterList = Vec<(WaiterId, usize)>;

/// Up to this many items of callers that stopped waiting never cause a purge.
const MIN_PURGE: usize = 64;

#[derive(Debug)]
struct Waiter {
    results: Vec<Option<Accepted>>,
    missing: usize,
    deadline: Tick,
}

impl Waiters {
    /// Adds a caller that waits for `count` notifications.
    pub(super) fn add(&mut self, count: usize, deadline: Tick) -> WaiterId {
        let id = self.next_id();
        let waiter = Waiter {
            results: vec![None; count],
            missing: count,
            deadline,
        };
        self.waiters.insert(id, waiter);
        self.deadlines.insert((deadline, id));
        self.missing += count;
        if count == 0 {
            self.complete(id);
        }
        id
    }

    /// Adds a caller that waits for all submissions up to `upto`.
    pub(super) fn flush(&mut self, upto: u64) -> WaiterId {
        let id = self.next_id();
        self.flushes.push((id, upto));
        id
    }

    /// Removes a caller that no longer waits.
    pub(super) fn abandon(&mut self, id: WaiterId) {
        self.remove(id);
        self.flushes.retain(|(flush, _)| *flush != id);
    }

    /// Adds a caller to an entry's waiter list.
    pub(super) fn add_to_list(&mut self, list: &mut WaiterList, id: WaiterId, index: usize) {
        list.push((id, index));
        self.listed += 1;
    }

    /// Answers the callers of an entry that the relay counted.
    pub(super) fn accept_listed(&mut self, list: WaiterList, accepted: Accepted) {
        self.listed = self.listed.saturating_sub(list.len());
        for (id, index) in list {
            self.note_accepted(id, index, accepted);
        }
    }

    /// Answers the callers of an entry that the relay refused.
    pub(super) fn refuse_listed(&mut self, list: WaiterList, error: &Error) {
        self.listed = self.listed.saturating_sub(list.len());
        for (id, _) in list {
            self.refuse(id, error);
        }
    }

    /// Returns whether the lists are worth a purge. A purge visits all entries and list items; the
    /// callers that left since the last purge outnumber these, so its cost per caller is constant.
    pub(super) fn needs_purge(&self, entries: impl FnOnce() -> usize) -> bool {
        let left = self.listed.saturating_sub(self.missing);
        left > MIN_PURGE.max(self.missing) && left > entries()
    }

    /// Removes callers that stopped waiting from the lists.
    pub(super) fn purge<'a>(&mut self, lists: impl Iterator<Item = &'a mut WaiterList>) {
        self.listed = 0;
        for list in lists {
            list.retain(|(id, _)| self.waiters.contains_key(id));
            list.shrink_to(list.len() * 2);
            self.listed += list.len();
        }
    }

    fn note_accepted(&mut self, id: WaiterId, index: usize, accepted: Accepted) {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return;
        };
        if waiter.results[index].replace(accepted).is_none() {
            waiter.missing -= 1;
            self.missing -= 1;
        }
        if waiter.missing == 0 {
            self.complete(id);
        }
    }

    fn refuse(&mut self, id: WaiterId, error: &Error) {
        if self.remove(id).is_some() {
            self.finish(id, Err(error.clone()));
        }
    }

    /// Answers all callers and flushes with the error.
    pub(super) fn refuse_all(&mut self, error: &Error) {
        self.waiters.clear();
        self.missing = 0;
        let waiters = std::mem::take(&mut self.deadlines).into_iter();
        let flushes = std::mem::take(&mut self.flushes).into_iter();
        for id in waiters.map(|(_, id)| id).chain(flushes.map(|(id, _)| id)) {
            self.finish(id, Err(error.clone()));
        }
    }

    /// Removes the next waiter whose deadline has passed. The session answers it.
    pub(super) fn pop_expired(&mut self, now: Tick) -> Option<WaiterId> {
        let (_, id) = *self
            .deadlines
            .first()
            .filter(|(deadline, _)| *deadline <= now)?;
        self.remove(id);
        Some(id)
    }

    /// Returns the earliest deadline.
    pub(super) fn deadline(&self) -> Tick {
        let first = self.deadlines.first();
        first.map_or(Tick::NEVER, |(deadline, _)| *deadline)
    }

    /// Returns whether all submissions of some flush come before `oldest`.
    pub(super) fn has_flush_before(&self, oldest: u64) -> bool {
        self.flushes.iter().any(|(_, upto)| *upto < oldest)
    }

    /// Answers the flushes whose submissions all come before `oldest`. The first one gets the
    /// refusal of a posted notification, if any.
    pub(super) fn finish_flushes(&mut self, oldest: u64, refused: &mut Option<Error>) {
        let (finished, waiting): (Vec<_>, _) =
            self.flushes.drain(..).partition(|(_, upto)| *upto < oldest);
        self.flushes = waiting;
        for (id, _) in finished {
            self.finish(id, refused.take().map_or_else(|| Ok(Vec::new()), Err));
        }
    }

    pub(super) fn finish(&mut self, waiter: WaiterId, result: Result<Vec<Accepted>>) {
        self.completions.push(Completion { waiter, result });
    }

    pub(super) fn take_completions(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.completions)
    }

    fn complete(&mut self, id: WaiterId) {
        let Some(waiter) = self.remove(id) else {
            return;
        };
        let results = waiter.results.into_iter();
        self.finish(id, Ok(results.map(Option::unwrap_or_default).collect()));
    }

    fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        self.deadlines.remove(&(waiter.deadline, id));
        self.missing -= waiter.missing;
        Some(waiter)
    }

    fn next_id(&mut self) -> WaiterId {
        self.last += 1;
        WaiterId(self.last)
    }
}
