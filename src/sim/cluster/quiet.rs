//! Quiet runs: no troubles, so that the number of wake-ups and checks is exact (J6, J7), and that a
//! message without a notification is found by the sentinel in time (J1).

use std::{collections::BTreeMap, time::Duration};

use super::{
    clients::ConnId,
    plan::{ListenerPlan, Plan},
    world::{Event, World},
};
use crate::{
    base::clock::Tick,
    sim::{
        plan::{address, seconds},
        queue::MessageId,
    },
    types::{GroupName, QueueAddress, Selector, WakeReason, WorkDetected},
};

/// What a quiet run has seen.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    /// The notification whose wake-ups are counted.
    counted: Option<Counted>,
    /// The newest check of each queue, in all relays together.
    checks: BTreeMap<usize, Check>,
    /// Messages without a notification, and when they are looked for at the latest.
    silent: BTreeMap<MessageId, Tick>,
}

/// A notification, and the wake-ups for it by group and relay.
#[derive(Debug)]
struct Counted {
    message: MessageId,
    queue: usize,
    expected: BTreeMap<(GroupName, usize), u64>,
    wakes: BTreeMap<(GroupName, usize), u64>,
}

/// A check of the sentinel: when it was sent, and when a report of the queue followed.
#[derive(Debug)]
struct Check {
    sent: Tick,
    reported: Option<Tick>,
}

/// The relays have met, and all streams are open.
const BEGINS: Duration = Duration::from_secs(14);
/// A notification is counted, or its wake-ups, for this long: less than the claim time-out.
const COUNTED: u64 = 1_800;
/// Another relay knows of a reported check after this time.
const UNDER_WAY: Duration = Duration::from_millis(200);
/// A look that the sentinel has asked for is issued within this time: a busy listener handles its
/// message first.
const LOOKS_WITHIN: Duration = Duration::from_secs(1);

impl Plan {
    /// Makes it a quiet run, with the sentinel in half of them.
    pub(super) fn into_quiet(self, rng: &mut fastrand::Rng) -> Self {
        let queues: Vec<_> = (0..rng.usize(1..=2))
            .map(|number| address(&format!("q{number}")))
            .collect();
        let sentinel = match rng.bool() {
            true => seconds(rng.u64(8..20)),
            false => Duration::ZERO,
        };
        let copies = self.servers == 2 && rng.bool();
        Self {
            quiet: true,
            older: false,
            listeners: members(rng, &queues),
            queues,
            works: Vec::new(),
            fails: false,
            troubles: Vec::new(),
            active: seconds(300),
            // The sentinel's checks go on, so a frame may be in flight at the end.
            heals: sentinel.is_zero(),
            forget_after: seconds(3_600),
            max_age: seconds(3_600),
            sentinel,
            events_hidden: false,
            jitter: rng.u64(0..8),
            copies: copies.then(|| Duration::from_millis(rng.u64(1..800))),
            ..self
        }
    }
}

/// Chooses members of one group or two.
fn members(rng: &mut fastrand::Rng, queues: &[QueueAddress]) -> Vec<ListenerPlan> {
    let groups = rng.usize(1..=2);
    let member = |number: usize| {
        let name = ["fleet", "other"][number % groups];
        ListenerPlan {
            selectors: queues.iter().map(Selector::from).collect(),
            group: Some(GroupName::new(name).expect("a name")),
            visibility: seconds(20),
            heartbeat: seconds(5),
            sticky: false,
            handling: 300,
        }
    };
    (0..groups * rng.usize(1..=4)).map(member).collect()
}

impl World {
    pub(super) fn quiet_starts(&mut self) {
        if self.plan.quiet {
            self.after(BEGINS, Event::QuietPut);
        }
    }

    /// One message, or a second one while the first is handled; now and then its publisher
    /// does not notify.
    pub(super) fn quiet_put(&mut self) {
        if self.healed {
            return;
        }
        let queue = self.rng.usize(0..self.queues.list.len());
        if !self.plan.sentinel.is_zero() && self.rng.bool() {
            self.put_silently(queue);
        } else {
            let relay = self.rng.usize(0..self.relays.len());
            if self.rng.bool() {
                self.put_at(queue, relay, Duration::ZERO);
            }
            let later = self.rng.u64(100..200);
            self.after_millis(later, Event::QuietPutAt(queue, relay));
        }
        // Each look puts the next check off.
        let longest = match self.plan.sentinel.is_zero() {
            true => 2_000,
            false => 10_000,
        };
        let gap = 300 + COUNTED + self.rng.u64(0..longest);
        self.after_millis(gap, Event::QuietPut);
    }

    /// A message whose wake-ups are counted.
    pub(super) fn quiet_put_at(&mut self, queue: usize, relay: usize) {
        let message = self.put_at(queue, relay, Duration::ZERO);
        if self.plan.sentinel.is_zero() {
            self.quiet.counted = Some(Counted {
                message,
                queue,
                expected: BTreeMap::new(),
                wakes: BTreeMap::new(),
            });
        }
        self.after_millis(COUNTED, Event::QuietCounted(message));
    }

    /// J1: from the put on the sentinel's interval is the bound.
    fn put_silently(&mut self, queue: usize) {
        let interval = self.plan.sentinel;
        let message = self.put_without_notification(queue, Duration::ZERO);
        // An interval is up to a tenth longer, and the clock runs up to a hundredth too slowly.
        let due = self.now + interval * 112 / 100 + LOOKS_WITHIN;
        self.quiet.silent.insert(message, due);
    }

    /// A listener has issued a get.
    pub(super) fn quiet_looked(&mut self, queue: usize) {
        let of = |message: MessageId| self.queues.messages[message].queue;
        let before = self.quiet.silent.len();
        self.quiet.silent.retain(|message, _| of(*message) != queue);
        let found = before - self.quiet.silent.len();
        self.totals.count("silent puts", found as u64);
    }

    pub(super) fn check_silent(&mut self) {
        let mut silent = self.quiet.silent.iter();
        if let Some((message, _)) = silent.find(|(_, due)| self.now > **due) {
            let message = *message;
            self.violate(|| format!("J1: the sentinel does not find message {message}"));
        }
    }

    /// J6: a relay has counted the notification. Where it has an idle member, it alone wakes one.
    pub(super) fn quiet_counted(&mut self, relay: usize, message: MessageId) {
        let queue = match &self.quiet.counted {
            Some(counted) if counted.message == message => counted.queue,
            _ => return,
        };
        let mut expected = BTreeMap::new();
        for group in self.groups_of(queue) {
            let idle = self.members_at(relay, &group, queue).any(|(_, idle)| idle);
            for at in 0..self.relays.len() {
                let has_members = self.members_at(at, &group, queue).next().is_some();
                let wakes = has_members && (at == relay || !idle);
                expected.insert((group.clone(), at), u64::from(wakes));
            }
            let name = if idle { "taken by one" } else { "taken by all" };
            self.totals.count(name, 1);
        }
        if let Some(counted) = &mut self.quiet.counted {
            counted.expected = expected;
        }
    }

    fn groups_of(&self, queue: usize) -> Vec<GroupName> {
        let members = self.plan.listeners.iter().enumerate();
        let groups = members.filter(|(number, _)| self.wants(*number, queue));
        let mut groups: Vec<_> = groups.filter_map(|(_, plan)| plan.group.clone()).collect();
        groups.sort();
        groups.dedup();
        groups
    }

    /// Returns the members of a group at a relay, each with whether it is idle there.
    fn members_at<'w>(
        &'w self,
        relay: usize,
        group: &'w GroupName,
        queue: usize,
    ) -> impl Iterator<Item = (ConnId, bool)> + 'w {
        let run = self.relays[relay].run.as_ref();
        let streams = run.into_iter().flat_map(|run| run.streams.keys().copied());
        let address = &self.queues.list[queue].address;
        streams.filter_map(move |id| {
            let number = self.conns[id].listener.0;
            let member = self.plan.listeners[number].group.as_ref() == Some(group);
            let idle = self.conns[id].hidden.is_idle(address);
            (member && self.wants(number, queue)).then_some((id, idle))
        })
    }

    /// A stream sends wake-ups.
    pub(super) fn quiet_wakes(&mut self, relay: usize, id: ConnId, work: &[WorkDetected]) {
        let number = self.conns[id].listener.0;
        let group = self.plan.listeners[number].group.clone();
        for one in work {
            let address = one.queue.as_address();
            let Some(queue) = address.and_then(|address| self.queues.find(&address)) else {
                continue;
            };
            if one.reason == WakeReason::Sentinel {
                self.quiet_check(queue);
            }
            let counted = self.quiet.counted.as_mut();
            if let Some(counted) = counted.filter(|counted| counted.queue == queue)
                && let Some(group) = &group
                && one.reason != WakeReason::Reassigned
                && !counted.expected.is_empty()
            {
                *counted.wakes.entry((group.clone(), relay)).or_default() += 1;
            }
        }
    }

    pub(super) fn check_counted(&mut self, message: MessageId) {
        let counted = &mut self.quiet.counted;
        let Some(counted) = counted.take_if(|counted| counted.message == message) else {
            return;
        };
        let differs = counted.expected.iter().find_map(|(key, expected)| {
            let wakes = counted.wakes.get(key).copied().unwrap_or_default();
            (wakes != *expected).then(|| (key.clone(), wakes, *expected))
        });
        if let Some(((group, relay), wakes, expected)) = differs {
            self.violate(|| {
                format!(
                    "J6: message {message} wakes {wakes} members of {group} at relay {relay}, not {expected}"
                )
            });
        }
    }

    /// J7: a relay asks a listener for a check. The exception is a check whose report is under way.
    fn quiet_check(&mut self, queue: usize) {
        let now = self.now;
        let check = Check {
            sent: now,
            reported: None,
        };
        // A relay's clock may be a hundredth too fast.
        let least = self.plan.sentinel * 88 / 100;
        self.totals.count("checks", 1);
        let Some(before) = self.quiet.checks.insert(queue, check) else {
            return;
        };
        let known = before.reported.is_some_and(|at| at + UNDER_WAY < now);
        if known && before.sent + least > now {
            self.violate(|| {
                format!(
                    "J7: queue {queue} is checked {:?} after the last check",
                    now.since(before.sent)
                )
            });
        }
    }

    /// A relay has taken a report of a queue.
    pub(super) fn quiet_reported(&mut self, queue: &QueueAddress) {
        let now = self.now;
        if let Some(queue) = self.queues.find(queue)
            && let Some(check) = self.quiet.checks.get_mut(&queue)
        {
            check.reported.get_or_insert(now);
        }
    }
}
