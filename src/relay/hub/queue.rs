//! A queue: its counters, and who listens to it.
//!
//! Its size is constant, but for a pointer for each subscriber that names it and a few timers; it buffers
//! no event. R3: a forgotten entry is marked dead, and a caller that finds it dead looks the queue up again.
//!
//! States, all under the entry's lock:
//!
//! * `nodes_version`: 0 for a new entry. The first look-up of the patterns makes the groups at the entry's
//!   start; a later one makes further groups at the head, whose members have not checked the queue.
//! * `told` is a number of joined patterns: all subscribers are owed the newest count, until one takes or
//!   joins. Then a further count has nothing to do. 0: some are not.
//! * A count owes the queue to each subscriber that is owed nothing yet: at once where they are few,
//!   otherwise by a walk of the fan-out, which brings the position before its first event (`walk_from`).
//!   While there are walks (`walks`), `unsettled` is the position after which some may not be owed, and the
//!   change has the revision `UNSETTLED`.
//! * A coordinator is made with the first group or for the sentinel (`check`), and stays until the entry is
//!   forgotten. While it has groups, new work is assigned to members.
//! * `held` counts the cursors that keep the entry. An entry without those, named subscribers, timers and
//!   groups with something to do can be forgotten (`capacity`).
//!
//! `entries` has the one path on which counters change.

pub(super) mod capacity;
pub(super) mod check;
pub(super) mod counters;
pub(super) mod entries;
pub(super) mod forgetting;
pub(super) mod listeners;
pub(super) mod timers;

use std::sync::Arc;

use super::{
    config::{SUBSCRIBERS_PER_STEP, Shared},
    coordinator::Coordinator,
    counters::{Counters, QueueHead},
    decisions::NotedDecisions,
    group::Group,
    increments::Announced,
    listeners::Listeners,
    pattern::PatternNode,
    subscription::{Owed, Subscription, SubscriptionId, WakeBatch},
    sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock, try_lock},
    timers::{QueueTimers, Timer},
    wake_builder::EncodingCache,
};
use crate::{
    base::{clock::Tick, fault::planted},
    types::{LastEvent, Notification, QueueAddress, Report, ReportState},
};

pub(crate) struct QueueEntry {
    address: QueueAddress,
    /// Orders entries with equal timers; the same in every simulated run.
    number: u64,
    pub(super) shared: Arc<Shared>,
    state: Mutex<QueueState>,
}

/// The part of an entry that its lock guards.
#[derive(Default)]
pub(super) struct QueueState {
    /// Forgotten: removed from the map, or about to be.
    pub(super) is_dead: bool,
    /// The sequence at which its counting began.
    pub(super) start: u64,
    pub(super) counters: Counters,
    /// The hub's revision when all subscribers were told of the newest count, or when this entry was
    /// made; [`UNSETTLED`] while a walk tells them (see `resume`).
    pub(super) changed_at: u64,
    /// The sequence of the newest notification.
    pub(super) notified: u64,
    pub(super) last_event: LastEvent,
    pub(super) active_at: Tick,
    /// When the last subscriber left.
    pub(super) left_at: Tick,
    /// The newest depth that a listener read, and when. [`Tick::NEVER`] means none; an `Option` would
    /// take 8 bytes more for every queue.
    pub(super) depth: (u64, Tick),
    /// Messages counted that the depth may not contain. It grows with each message; only a report
    /// that is certain to have seen messages lowers it (see `counters`).
    pub(super) since_depth: u64,
    /// Streams whose newest report on the queue is BUSY.
    pub(super) busy: u32,
    /// A listener has reported on the queue since this entry was made.
    pub(super) heard: bool,
    /// Those outside of groups, and those for whose groups there is no room.
    pub(super) outside: Listeners,
    /// The version of the nodes that were looked up last.
    nodes_version: u64,
    /// All subscribers are owed the newest count, if no pattern was joined since this number of
    /// [`Patterns::joined`](super::pattern::Patterns::joined); 0: some are not.
    pub(super) told: u64,
    /// Cursors that keep this entry: something is owed, or a listener may handle messages.
    pub(super) held: u32,
    /// The newest wake-up entry's encoding.
    pub(super) encoded: EncodingCache,
    /// The queue is in the list of those that were notified without a listener.
    pub(super) is_unserved: bool,
    /// The decisions about the queue, while an operator watches them.
    pub(super) noted: Option<Box<NotedDecisions>>,
    /// The fan-out has a walk to do, which owes the events after this position, if there is one.
    walk_pending: bool,
    walk_from: Option<Box<Counters>>,
    /// The position after which the walks that have not ended owe events.
    unsettled: Option<Box<Counters>>,
    /// The walks that have not ended.
    walks: u8,
    pub(super) timers: QueueTimers,
    pub(super) coordinator: Option<Box<Coordinator>>,
    /// Its time in the hub's order of timers; [`Tick::NEVER`]: it is not in there.
    pub(super) armed: Tick,
    /// What the other relays of a cluster know; made at the first cause in a cluster.
    pub(super) announced: Option<Box<Announced>>,
}

/// The place of a walk.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct WalkPlace {
    /// 0 for the subscribers that name the queue, then one more than a node's index.
    list: usize,
    after: Option<SubscriptionId>,
}

/// The revision of a change that some subscriber was not told of: later than all others.
const UNSETTLED: u64 = u64::MAX;

impl QueueEntry {
    pub(super) fn new(
        address: QueueAddress,
        number: u64,
        (start, changed_at): (u64, u64),
        now: Tick,
        shared: &Arc<Shared>,
    ) -> Self {
        let state = QueueState {
            start,
            counters: Counters::starting_at(start),
            changed_at,
            active_at: now,
            left_at: now,
            depth: (0, Tick::NEVER),
            armed: Tick::NEVER,
            ..QueueState::default()
        };
        Self {
            address,
            number,
            shared: Arc::clone(shared),
            state: Mutex::new(state),
        }
    }

    pub(super) fn address(&self) -> &QueueAddress {
        &self.address
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, QueueState> {
        lock(&self.state)
    }

    /// Locks the state if it is free.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, QueueState>> {
        try_lock(&self.state)
    }

    /// Takes the pending walk: returns the position after which it owes events, and the nodes to visit.
    /// Who joins a pattern later is told of the queue by itself.
    pub(super) fn begin_walk(&self) -> Option<(Counters, Vec<Arc<PatternNode>>)> {
        let mut state = self.lock();
        // R5: the mark is cleared before the subscribers are read.
        state.walk_pending = planted!(MarkClearedAfterWalk);
        let from = state.walk_from.take();
        if from.is_some() {
            // Set to 0 where one takes or joins from now on.
            state.told = self.shared.patterns.joined();
        }
        from.map(|from| (*from, state.outside.nodes.clone()))
    }

    /// Owes the events of a walk to one step's subscribers, then assigns work to members. Returns
    /// where to continue, or ends the walk.
    pub(super) fn walk(
        self: &Arc<Self>,
        place: WalkPlace,
        events: Option<&(Counters, Vec<Arc<PatternNode>>)>,
        batch: &mut WakeBatch,
    ) -> Option<WalkPlace> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let WalkPlace { list, after } = place;
        if let Some((from, nodes)) = events
            && list <= nodes.len()
        {
            let node = list.checked_sub(1).map(|at| &nodes[at]);
            let named = std::mem::take(&mut state.outside.named);
            let owe = |one: &Arc<Subscription>| {
                let has_room = one.owe(self, state, Owed::Events(*from), batch);
                if let Some(node) = node.filter(|_| !has_room) {
                    node.set_needed();
                }
            };
            let last = match node {
                None => named.each_after(after, SUBSCRIBERS_PER_STEP, owe),
                Some(node) => node.lock().each_after(after, SUBSCRIBERS_PER_STEP, owe),
            };
            state.outside.named = named;
            let list = list + usize::from(last.is_none());
            return Some(WalkPlace { list, after: last });
        }
        if state.assign(self, batch) {
            return Some(place);
        }
        // All subscribers are marked, and a claim of a group may be open.
        if planted!(MarkClearedAfterWalk) {
            state.walk_pending = false;
        }
        state.walks -= 1;
        if state.walks == 0 {
            state.unsettled = None;
        }
        if !planted!(ResumeNumberTooNew) {
            state.settle(&self.shared.revision);
        }
        let is_first = state.rearm(self);
        drop(guard);
        if is_first {
            self.shared.timers.waker.wake();
        }
        None
    }

    /// Locks the state, after it has looked up the nodes that match the queue now.
    pub(super) fn lock_with_nodes(self: &Arc<Self>, now: Tick) -> MutexGuard<'_, QueueState> {
        let mut state = self.lock();
        let patterns = &self.shared.patterns;
        let version = patterns.version();
        let is_known = state.nodes_version > 0;
        let is_missed = match is_known {
            false => planted!(NewQueueUnmatched),
            true => planted!(NewPatternUnmatched),
        };
        if state.nodes_version != version && !is_missed && !state.is_dead {
            let nodes = patterns.matching(&self.address);
            let by_group = nodes.iter().any(|node| node.group.is_some());
            state.outside.nodes = match by_group || state.is_grouped() {
                true => {
                    // A group that is new has the events which walks have not told: its members are visited
                    // by none.
                    let mut head = state.head();
                    head.counters = state.told_position();
                    let coordinator = state.coordinator(self, now);
                    coordinator.set_nodes(self, nodes, &head, is_known)
                }
                false => nodes,
            };
            (state.nodes_version, state.told) = (version, 0);
        }
        state
    }
}

impl QueueState {
    /// Returns the listeners of the queue: those outside of groups, and members. One with several
    /// matching selectors counts for each.
    pub(super) fn listeners(&self) -> usize {
        let groups = self.coordinator.iter().flat_map(|one| one.groups());
        let members = groups.map(|group| group.members.all.len());
        self.outside.len() + members.sum::<usize>()
    }

    /// Returns whether the queue has a group, so that new work is assigned to members.
    pub(super) fn is_grouped(&self) -> bool {
        let coordinator = self.coordinator.as_ref();
        coordinator.is_some_and(|one| one.groups().next().is_some())
    }

    /// Returns the causes that this relay has counted and not told to others; of a relay alone, all.
    pub(super) fn own_causes(&self) -> u64 {
        let known = self.announced.as_ref();
        let others = known.map_or(self.start, |known| known.counters.sequence);
        self.counters.sequence.saturating_sub(others)
    }

    /// Counts one notification without a delay.
    pub(super) fn count(&mut self, publisher: &Arc<str>, notification: &Notification, now: Tick) {
        self.counters.sequence += 1;
        self.counters.add(notification);
        self.add_to_backlog(notification.messages.max(1).into());
        self.notified = self.counters.sequence;
        self.active_at = now;
        self.last_event.replace(publisher, notification);
    }

    /// Counts a timed wake-up, with the delayed notification in it.
    pub(super) fn count_timed(&mut self, timer: Timer, now: Tick) {
        self.counters.sequence += 1;
        self.counters.add_totals(&timer.counters);
        self.add_to_backlog(timer.counters.messages);
        self.active_at = now;
        if let Some(last_event) = timer.last_event {
            self.last_event = last_event;
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

    /// Moves this entry in the hub's order of timers; returns whether its next timer is the first
    /// of all.
    #[must_use]
    pub(super) fn rearm(&mut self, entry: &Arc<QueueEntry>) -> bool {
        let timer = self.timers.next().unwrap_or(Tick::NEVER);
        let coordinator = self.coordinator.as_ref();
        let reconcile_at = coordinator.map_or(Tick::NEVER, |one| one.reconcile_at);
        let next = timer.min(reconcile_at);
        let timers = &entry.shared.timers;
        timers.rearm(entry.number(), entry, &mut self.armed, next)
    }

    /// Owes a count to the subscribers, where they are few; otherwise returns whether the fan-out must walk
    /// them. `from` is the position before the count.
    pub(super) fn owe_count(
        &mut self,
        entry: &Arc<QueueEntry>,
        from: &Counters,
        batch: &mut WakeBatch,
    ) -> bool {
        let joined = entry.shared.patterns.joined();
        if self.walks == 0 && self.told == joined {
            return false;
        }
        let inline = entry.shared.config.inline.min(SUBSCRIBERS_PER_STEP);
        if self.outside.len() <= inline && self.walks == 0 {
            self.told = joined;
            self.owe_all(entry, from, batch);
            return false;
        }
        self.walk_from.get_or_insert_with(|| Box::new(*from));
        self.unsettled.get_or_insert_with(|| Box::new(*from));
        self.request_walk()
    }

    /// The fan-out has a walk to do; returns `false` where one is pending already.
    pub(super) fn request_walk(&mut self) -> bool {
        let is_new = !std::mem::replace(&mut self.walk_pending, true);
        self.walks += u8::from(is_new);
        is_new
    }

    /// Owes the events after this position to all subscribers.
    fn owe_all(&mut self, entry: &Arc<QueueEntry>, from: &Counters, batch: &mut WakeBatch) {
        let outside = std::mem::take(&mut self.outside);
        let mut owe = |one: &Arc<Subscription>| one.owe(entry, self, Owed::Events(*from), batch);
        outside.named.iter().for_each(|one| _ = owe(one));
        for node in &outside.nodes {
            for one in node.lock().iter() {
                if !owe(one) {
                    node.set_needed();
                }
            }
        }
        self.outside = outside;
    }

    /// The queue has changed, and all subscribers are marked unless a walk has them to mark. The
    /// revision is read after that, under this lock (see `resume`).
    pub(super) fn settle(&mut self, revision: &AtomicU64) {
        self.changed_at = match self.walks {
            1.. if !planted!(ResumeNumberTooNew) => UNSETTLED,
            _ => revision.load(Ordering::Relaxed),
        };
    }

    /// Returns the position of a subscriber that is owed nothing and has no cursor with a position.
    pub(super) fn told_position(&self) -> Counters {
        self.unsettled.as_ref().map_or(self.counters, |from| **from)
    }

    /// Returns whether a walk has subscribers to mark.
    pub(super) fn is_walked(&self) -> bool {
        self.walks > 0
    }

    /// Returns the capacities of its lists: subscribers and timers.
    #[cfg(test)]
    pub(super) fn capacities(&self) -> [usize; 2] {
        [self.outside.named.capacity(), self.timers.capacity()]
    }

    /// A listener left: one outside of groups may have been asked for a check. The coordinator runs next.
    pub(super) fn subscriber_left(&mut self, id: SubscriptionId, now: Tick) {
        let coordinator = self.coordinator.as_mut();
        if let Some(sentinel) = coordinator.and_then(|one| one.sentinel.as_mut()) {
            sentinel.leave(id, now);
        }
    }

    /// Starts the sentinel of a queue that has a listener, unless the sentinel is off or has somebody to ask.
    /// A check that fell due without listeners is due now. Otherwise, streams that come and go faster than
    /// the interval would put it off for ever.
    pub(super) fn guard(&mut self, entry: &QueueEntry, now: Tick) {
        let coordinator = self.coordinator.as_ref();
        let sentinel = coordinator.and_then(|one| one.sentinel.as_ref());
        let waits = sentinel.is_none_or(|check| check.due == Tick::NEVER);
        let is_off = entry.shared.config.sentinel_interval.is_zero();
        if is_off || !waits || self.listeners() == 0 {
            return;
        }
        let coordinator = self.coordinator(entry, now);
        let sentinel = coordinator.sentinel.as_mut();
        if let Some(check) = sentinel.filter(|check| check.due == Tick::NEVER) {
            (check.due, coordinator.reconcile_at) = (now, now);
        }
    }

    /// Returns the group of a listener, if it is a member here.
    pub(super) fn group_of(&mut self, listener: &Subscription) -> Option<&mut Group> {
        let name = listener.group.as_ref()?;
        let group = self.coordinator.as_mut()?.group(name)?;
        let is_known = group.members.get(listener.id).is_some();
        let is_member = is_known || self.outside.named.get(listener.id).is_none();
        is_member.then_some(group)
    }

    /// Takes a listener's report. `polled`: it polled the queue since its wake-up; otherwise the report
    /// repeats one of an earlier stream. Returns whether a check outside of groups found more than its
    /// listener's capacity.
    pub(super) fn report(
        &mut self,
        listener: &Subscription,
        report: &Report,
        polled: bool,
        now: Tick,
    ) -> bool {
        let Some(coordinator) = &mut self.coordinator else {
            return false;
        };
        let capacity = u64::from(listener.mailbox.capacity);
        let finds_more = report.state == ReportState::Busy && report.current_queue_depth > capacity;
        let (mut was_asked, mut tells) = (false, false);
        if polled && let Some(sentinel) = &mut coordinator.sentinel {
            was_asked = sentinel.asked == Some(listener.id);
            tells = sentinel.reported(now);
        }
        let group = listener.group.as_ref();
        if let Some(group) = group.and_then(|name| coordinator.group(name)) {
            group.report(listener.id, report, polled, finds_more, now);
        }
        if tells {
            self.announced().checked = true;
        }
        was_asked && finds_more
    }

    /// Asks the next listener outside of groups; returns whether there is one.
    fn ask(&mut self, entry: &Arc<QueueEntry>, now: Tick, batch: &mut WakeBatch) -> bool {
        let coordinator = self.coordinator.as_mut();
        let sentinel = coordinator.and_then(|one| one.sentinel.as_mut());
        let chosen = sentinel.and_then(|sentinel| sentinel.choose(&self.outside, now));
        let Some(chosen) = chosen else {
            return false;
        };
        // One that ends at this moment costs an interval.
        chosen.owe(entry, self, Owed::Check, batch);
        true
    }

    /// Runs the due work of groups and sentinel, and assigns pending work; returns whether more is
    /// left to assign.
    pub(super) fn reconcile(
        &mut self,
        entry: &Arc<QueueEntry>,
        now: Tick,
        batch: &mut WakeBatch,
    ) -> bool {
        let (head, others) = (self.head(), self.outside.len());
        let Some(coordinator) = &mut self.coordinator else {
            return false;
        };
        if let Some(turn_of_others) = coordinator.run_due(&head, others, now) {
            // A turn that nobody can take goes to the next one.
            let by_group = |one: &mut Box<Coordinator>| one.check_groups(&head.counters, now);
            let is_asked = turn_of_others && self.ask(entry, now, batch)
                || self.coordinator.as_mut().is_some_and(by_group);
            if !is_asked {
                self.ask(entry, now, batch);
            }
        }
        self.assign(entry, batch)
    }

    /// Assigns the groups' pending work, up to the limit of one step.
    pub(super) fn assign(&mut self, entry: &Arc<QueueEntry>, batch: &mut WakeBatch) -> bool {
        let head = self.head();
        let coordinator = self.coordinator.as_mut();
        coordinator.is_some_and(|one| one.assign(entry, &head, batch))
    }

    pub(super) fn head(&self) -> QueueHead {
        let known = self.announced.as_ref();
        QueueHead {
            counters: self.counters,
            notified: self.notified,
            resynced: known.map_or(0, |known| known.resynced),
            has_increments: self.own_causes() > 0,
        }
    }

    /// Returns the coordinator for listeners that join: a group that was kept for long enough is new
    /// to them.
    pub(super) fn coordinator(&mut self, entry: &QueueEntry, now: Tick) -> &mut Coordinator {
        let new = || Box::new(Coordinator::new(&entry.shared, entry.number(), now));
        let coordinator = self.coordinator.get_or_insert_with(new);
        coordinator.forget_kept(now);
        coordinator
    }
}
