//! Who waits for a publisher's notifications, and what each is answered.

use std::collections::{BTreeSet, HashMap};

use crate::{
    clock::Tick,
    error::{Error, Result},
    words::Accepted,
};

/// Names a caller that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct WaiterId(u64);

/// A caller's answer.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) waiter: WaiterId,
    pub(crate) result: Result<Vec<Accepted>>,
}

/// Those who wait, each until its notifications are answered or its deadline passes.
#[derive(Debug, Default)]
pub(super) struct Callers {
    waiters: HashMap<WaiterId, Waiter>,
    deadlines: BTreeSet<(Tick, WaiterId)>,
    /// Who waits for all submissions up to a number.
    flushes: Vec<(WaiterId, u64)>,
    done: Vec<Done>,
    last: u64,
    /// Notifications whose caller waits: the sum of all `missing`.
    missing: usize,
    /// Notifications that stand in a list of callers, those of callers that have left included.
    listed: usize,
}

/// Whom to answer, and as which of the caller's notifications.
pub(super) type Listed = Vec<(WaiterId, usize)>;

/// So many that have left may stand in lists whatever else does.
const FEW: usize = 64;

#[derive(Debug)]
struct Waiter {
    results: Vec<Option<Accepted>>,
    missing: usize,
    deadline: Tick,
}

impl Callers {
    /// Adds one that waits for `count` notifications.
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
            self.accept(id);
        }
        id
    }

    /// Adds one that waits for all submissions up to this one.
    pub(super) fn flush(&mut self, upto: u64) -> WaiterId {
        let id = self.next_id();
        self.flushes.push((id, upto));
        id
    }

    /// Forgets one that no longer waits.
    pub(super) fn abandon(&mut self, id: WaiterId) {
        self.remove(id);
        self.flushes.retain(|(flush, _)| *flush != id);
    }

    /// Puts a caller on the list of those to answer.
    pub(super) fn list(&mut self, list: &mut Listed, id: WaiterId, index: usize) {
        list.push((id, index));
        self.listed += 1;
    }

    /// All on the list are answered: their notifications were counted.
    pub(super) fn all_accepted(&mut self, list: Listed, accepted: Accepted) {
        self.listed = self.listed.saturating_sub(list.len());
        for (id, index) in list {
            self.accepted(id, index, accepted);
        }
    }

    /// All on the list are answered: their notifications were refused.
    pub(super) fn all_on_refused(&mut self, list: Listed, error: &Error) {
        self.listed = self.listed.saturating_sub(list.len());
        for (id, _) in list {
            self.refused(id, error);
        }
    }

    /// Returns whether the lists are worth a purge, which takes as long as there are entries and
    /// places on their lists: paid for by those that left since the last one.
    pub(super) fn wants_purge(&self, entries: impl FnOnce() -> usize) -> bool {
        let left = self.listed.saturating_sub(self.missing);
        left > FEW.max(self.missing) && left > entries()
    }

    /// Takes off the lists who has left.
    pub(super) fn purge<'a>(&mut self, lists: impl Iterator<Item = &'a mut Listed>) {
        self.listed = 0;
        for list in lists {
            list.retain(|(id, _)| self.waiters.contains_key(id));
            list.shrink_to(list.len() * 2);
            self.listed += list.len();
        }
    }

    /// The caller's notification of this index was counted.
    fn accepted(&mut self, id: WaiterId, index: usize, accepted: Accepted) {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return;
        };
        if waiter.results[index].replace(accepted).is_none() {
            waiter.missing -= 1;
            self.missing -= 1;
        }
        if waiter.missing == 0 {
            self.accept(id);
        }
    }

    /// One of the caller's notifications was refused.
    fn refused(&mut self, id: WaiterId, error: &Error) {
        if self.remove(id).is_some() {
            self.finish(id, Err(error.clone()));
        }
    }

    /// Everybody is refused.
    pub(super) fn all_refused(&mut self, error: &Error) {
        self.waiters.clear();
        self.missing = 0;
        let waiters = std::mem::take(&mut self.deadlines).into_iter();
        let flushes = std::mem::take(&mut self.flushes).into_iter();
        for id in waiters.map(|(_, id)| id).chain(flushes.map(|(id, _)| id)) {
            self.finish(id, Err(error.clone()));
        }
    }

    /// Removes the next one whose deadline has passed; the caller of this answers it.
    pub(super) fn late(&mut self, now: Tick) -> Option<WaiterId> {
        let (_, id) = *self
            .deadlines
            .first()
            .filter(|(deadline, _)| *deadline <= now)?;
        self.remove(id);
        Some(id)
    }

    /// Returns when the next one has waited long enough.
    pub(super) fn deadline(&self) -> Tick {
        let first = self.deadlines.first();
        first.map_or(Tick::NEVER, |(deadline, _)| *deadline)
    }

    /// Returns whether one waits for a flush whose submissions all come before `oldest`.
    pub(super) fn flushes_before(&self, oldest: u64) -> bool {
        self.flushes.iter().any(|(_, upto)| *upto < oldest)
    }

    /// Answers the flushes whose submissions all come before `oldest`; the first of them is told of
    /// what was refused.
    pub(super) fn flushed(&mut self, oldest: u64, refused: &mut Option<Error>) {
        let (finished, waiting): (Vec<_>, _) =
            self.flushes.drain(..).partition(|(_, upto)| *upto < oldest);
        self.flushes = waiting;
        for (id, _) in finished {
            self.finish(id, refused.take().map_or_else(|| Ok(Vec::new()), Err));
        }
    }

    pub(super) fn finish(&mut self, waiter: WaiterId, result: Result<Vec<Accepted>>) {
        self.done.push(Done { waiter, result });
    }

    pub(super) fn take_done(&mut self) -> Vec<Done> {
        std::mem::take(&mut self.done)
    }

    fn accept(&mut self, id: WaiterId) {
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
