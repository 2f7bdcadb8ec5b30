//! Groups: some member looks at the queue of each message, and each group on each other relay looks
//! when a relay has died (C7).

use std::{collections::BTreeMap, time::Duration};

use super::{
    broker::Content,
    check::SOON,
    oracle::Note,
    plan::{ListenerPlan, Trouble},
    world::World,
};
use crate::{
    base::clock::Tick,
    sim::{groups::CLAIM, queue::MessageId},
    types::{GroupName, QueueAddress, cluster::LifeId},
};

/// The looks that groups owe after the death of a relay: by relay, group and queue, since when.
pub(super) type OwedLooks = BTreeMap<(usize, GroupName, usize), Tick>;

/// A member that leaves comes back after this time: its new stream gets a CATCH_UP.
const AWAY: Duration = Duration::from_secs(30);

/// Chooses some members that share queues, of one group or two, and now and then a listener beside
/// them.
pub(super) fn fleet(rng: &mut fastrand::Rng, queues: &[QueueAddress]) -> Vec<ListenerPlan> {
    let groups = rng.usize(1..=2);
    let beside = rng.u32(0..3) == 0;
    let mut member = |number: usize| {
        let queue = &queues[number / groups % queues.len()];
        let name = ["fleet", "other"][number % groups];
        let group = GroupName::new(name).expect("a name");
        ListenerPlan {
            group: (!beside || number > 0).then_some(group),
            ..ListenerPlan::new(rng, queue, queues)
        }
    };
    (0..queues.len().max(2) * groups).map(&mut member).collect()
}

impl World {
    /// Returns a message that no member of a group looks for in time.
    pub(super) fn late_group(&self) -> Option<(MessageId, GroupName)> {
        self.oracle.open.iter().find_map(|(message, note)| {
            let mut groups = note.groups.iter();
            let late = groups.find(|group| self.is_group_late(note, group))?;
            Some((*message, late.clone()))
        })
    }

    fn is_group_late(&self, note: &Note, group: &GroupName) -> bool {
        let Some(promise) = note.promise else {
            return false;
        };
        let all = self.members(group, note.queue);
        let forgives = all.iter().any(|number| self.listeners[*number].forgives);
        let Some(from) = self.members_well_from(&all, None).filter(|_| !forgives) else {
            return false;
        };
        let whole = self.relays[promise.relay].whole_from;
        let claims = CLAIM * u32::try_from(all.len()).expect("few");
        self.now > promise.due.max(from).max(whole) + SOON + claims
    }

    /// A relay has died: each group on each other relay that heard a frame of it owes a look at each of its
    /// queues.
    pub(super) fn owe_looks(&mut self, dead: usize) {
        self.owed_looks.retain(|(relay, ..), _| *relay != dead);
        if self.plan.forget_after < self.plan.active {
            return;
        }
        for relay in (0..self.relays.len()).filter(|relay| *relay != dead) {
            let now = self.local(relay);
            let Some(run) = &self.relays[relay].run else {
                continue;
            };
            let dead = LifeId(self.relays[dead].epoch);
            let mut received = run.node.link().received();
            if !received.any(|(life, applied, _)| life == dead && applied > 0) {
                continue;
            }
            drop(received);
            let known = run.hub.queues("", usize::MAX, now);
            let groups = run.groups.clone();
            for queue in known
                .iter()
                .filter_map(|view| self.queues.find(&view.address))
            {
                for (number, group) in &groups {
                    if self.wants(*number, queue) {
                        let key = (relay, group.clone(), queue);
                        self.owed_looks.insert(key, self.now);
                    }
                }
            }
        }
    }

    /// A member has looked at a queue.
    pub(super) fn group_looked(&mut self, number: usize, group: &GroupName, queue: usize) {
        let listener = &self.listeners[number];
        let session = listener.session.as_ref();
        let connected = session.is_some_and(|session| session.welcome().is_some());
        if connected && let Some(conn) = listener.conn {
            let relay = self.conns[conn].relay;
            self.owed_looks.remove(&(relay, group.clone(), queue));
        }
    }

    /// C7: after the death of a relay each group on each other relay looks once.
    pub(super) fn check_owed_looks(&mut self) {
        let late = self
            .owed_looks
            .iter()
            .find(|((relay, group, queue), since)| {
                let all = self.members(group, *queue);
                let claims = CLAIM * u32::try_from(all.len()).expect("few");
                let from = self.members_well_from(&all, Some(*relay));
                from.is_some_and(|from| self.now > from.max(**since) + SOON + claims)
            });
        if let Some(((relay, group, queue), _)) = late {
            let text = format!("C7: group {group} at relay {relay} does not check queue {queue}");
            self.violate(|| text);
        }
    }

    /// The last member of a group leaves its relay after a frame has stated that the group is
    /// served there, and before its get: the relay passes the work on (C11).
    pub(super) fn last_member_may_leave(&mut self, relay: usize, content: &Content) {
        let trouble = Trouble::LastMemberLeaves;
        if !self.plan.may(trouble) || self.healed || self.now < self.quiet_until {
            return;
        }
        let mut served = content.served.iter();
        let Some(number) = served.find_map(|(group, queue)| {
            let queue = self.queues.find(queue)?;
            self.only_member_at(relay, group, queue)
        }) else {
            return;
        };
        self.begins(trouble, relay);
        self.listener_ends(number, AWAY);
        // The next work on the queue would hide a lost wake-up.
        self.be_quiet(15_000);
    }

    /// Returns the member that is the only one of its group at this relay, where another relay has
    /// one.
    fn only_member_at(&self, relay: usize, group: &GroupName, queue: usize) -> Option<usize> {
        let all = self.members(group, queue).into_iter();
        let well = all.filter(|number| self.is_well(*number));
        let (here, elsewhere): (Vec<_>, Vec<_>) = well.partition(|number| {
            let conn = self.listeners[*number].conn;
            conn.is_some_and(|conn| self.conns[conn].relay == relay)
        });
        match here[..] {
            [number] if !elsewhere.is_empty() => Some(number),
            _ => None,
        }
    }

    fn members(&self, group: &GroupName, queue: usize) -> Vec<usize> {
        let members = self.plan.listeners.iter().enumerate();
        members
            .filter(|(number, plan)| {
                plan.group.as_ref() == Some(group) && self.wants(*number, queue)
            })
            .map(|(number, _)| number)
            .collect()
    }

    /// Returns since when all the members that are well now have been so, of one relay or of all.
    fn members_well_from(&self, all: &[usize], at: Option<usize>) -> Option<Tick> {
        let well = all.iter().filter(|number| self.is_well(**number));
        let from = well.filter_map(|number| {
            let conn = self.listeners[*number].conn?;
            let relay = self.conns[conn].relay;
            let whole = self.relays[relay].whole_from;
            let counts = at.is_none_or(|at| at == relay);
            counts.then(|| self.listeners[*number].ok_from.max(whole))
        });
        from.max()
    }
}
