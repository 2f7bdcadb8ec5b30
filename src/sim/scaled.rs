//! Listeners with the production scaler: they poll, scale, sleep and report as real listeners do.
//!
//! A get takes time in both directions, and may fail or hang. Handlers fail, hang, or crash with
//! their listener. A message in flight is kept hidden for one time-out at a time. Every second
//! listener wraps its queue in the production's retry rules ([`RetryState`]). The production also
//! decides whether a message is handled, released or poisoned ([`Attempts`]).

mod checks;
mod gets;
mod handling;
mod reports;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    queue::{Announced, MessageId},
    world::{Event, World},
};
use crate::{
    base::clock::Tick,
    error::ErrorKind,
    listener::{
        poison::{Arrival, AttemptLimits, Attempts},
        scaling::{IdleBackoff, Load, ScalePolicy, Scaler, ScalerConfig, Step, StepPolicy, TaskId},
    },
    queue::{self, RetryState},
    types::{ConnectionState, LinkState},
};

/// One queue of a listener: its scaler and the messages of its tasks.
#[derive(Debug)]
pub(super) struct Scaled {
    pub(super) scaler: Scaler,
    held: BTreeMap<TaskId, Vec<(MessageId, u64)>>,
    /// The messages that are handled or disposed of.
    in_flight: BTreeMap<(MessageId, u64), InFlight>,
    attempts: Attempts,
    /// Messages that were handled here.
    pub(super) handled: BTreeSet<MessageId>,
    /// The retries of failed gets inside the wrapper.
    tries: BTreeMap<TaskId, RetryState>,
    tick_at: Option<Tick>,
    /// The report in flight.
    report: Option<u64>,
    /// The time of the last get.
    pub(super) looked_at: Tick,
    hangs_until: Tick,
    /// Its gets fail until this time.
    pub(super) excused_until: Tick,
    /// The time of the last depth query, which counts as a poll where the policy allows no more
    /// tasks.
    depth_at: Tick,
}

/// A message that a get returned.
#[derive(Debug)]
struct InFlight {
    message: queue::Message,
    arrival: Arrival,
    /// Gets that the queue had removed from its count before this one, unknown to the listener.
    in_doubt: u32,
}

/// An event for a queue of such a listener.
#[derive(Debug, Clone)]
pub(super) enum Happens {
    /// The scaler's deadline is over.
    Step,
    /// A task starts or ends its sleep.
    Begins(TaskId),
    /// Its get reaches the queue.
    Looks(TaskId),
    /// The answer arrives; the flag says whether the get was full.
    Got(TaskId, bool, Vec<(MessageId, u64)>),
    Fails(TaskId, ErrorKind),
    Handled(TaskId, MessageId, u64),
    /// The queue has removed a get from a message's count.
    TakenBack(MessageId, u64, queue::MessageId),
    Depth(u64),
}

/// A pushed listener has polled within this time after a wake: one slow get, and the delays
/// between.
pub(super) const LOOKED: Duration = Duration::from_secs(3);
/// A listener that polls has looked within this (W4): its longest sleep, and a get that hangs.
pub(super) const POLLED: Duration = Duration::from_secs(15);
const MAX_TASKS: usize = 4;
/// The longest sleep while the relay is away; outages last longer.
const AWAY: Duration = Duration::from_secs(10);
/// After an announced end the next stream opens within this time, or the relay counts as away.
const ANNOUNCED: Duration = Duration::from_secs(15);
/// A get that hangs.
const HANG: Duration = Duration::from_secs(30);

impl World {
    /// Makes the scalers of a listener that starts.
    pub(super) fn scaled_starts(&mut self, number: usize) {
        let listener = &self.listeners[number];
        let queues = (0..self.queues.list.len())
            .filter(|queue| listener.wants(&self.queues.list[*queue].address));
        let scaled: BTreeMap<_, _> = queues
            .map(|queue| (queue, self.make_scaled(number)))
            .collect();
        self.listeners[number].scaled = scaled;
        self.scaled_step_all(number);
    }

    /// Passes the link's state to the scalers.
    pub(super) fn scaled_linked(&mut self, number: usize) {
        let (now, chance) = (self.now, self.rng.f64());
        let listener = &mut self.listeners[number];
        let Some(session) = &listener.session else {
            return;
        };
        // The cause is for people, and the epoch for agents: they decide nothing here.
        let link = LinkState {
            cause: None,
            epoch: std::sync::Arc::default(),
            ..session.link_state()
        };
        if listener.link == link {
            return;
        }
        listener.link = link.clone();
        listener.alone_since = match link.connection {
            ConnectionState::Connected => None,
            _ if link.announced => listener.alone_since.or(Some(now + ANNOUNCED)),
            _ => listener
                .alone_since
                .map(|since| since.min(now))
                .or(Some(now)),
        };
        for scaled in listener.scaled.values_mut() {
            scaled.scaler.on_link_changed(&link, now, chance);
        }
        self.scaled_step_all(number);
    }

    /// A wake-up was handed over.
    pub(super) fn scaled_woken(&mut self, number: usize, queue: usize, sequence: u64) {
        let now = self.now;
        if let Some(scaled) = self.listeners[number].scaled.get_mut(&queue) {
            scaled.scaler.on_wake_up(sequence, now);
        }
        self.scaled_step(number, queue);
    }

    pub(super) fn scaled_event(
        &mut self,
        number: usize,
        life: u64,
        queue: usize,
        happens: Happens,
    ) {
        let listener = &self.listeners[number];
        if !listener.is_alive(life) || listener.leaving {
            return;
        }
        match happens {
            Happens::Step => {
                if let Some(scaled) = self.listeners[number].scaled.get_mut(&queue) {
                    scaled.tick_at = None;
                }
            }
            Happens::Begins(task) => self.begins(number, queue, task),
            Happens::Looks(task) => self.looks(number, queue, task),
            Happens::Got(task, full, batch) => self.has_got(number, queue, task, full, batch),
            Happens::Fails(task, kind) => self.get_fails(number, queue, task, kind),
            Happens::Handled(task, message, receipt) => {
                self.has_handled(number, queue, task, (message, receipt));
            }
            Happens::TakenBack(message, receipt, id) => {
                self.taken_back(number, queue, (message, receipt), &id);
            }
            Happens::Depth(depth) => {
                let (now, tasks) = (self.now, tasks_for(depth));
                let scaled = self.scaled(number, queue);
                scaled.depth_at = now;
                scaled.scaler.on_depth(Some((tasks, tasks)), now);
            }
        }
        self.scaled_step(number, queue);
    }

    /// Starts a task by hand: it may find messages without a notification.
    pub(super) fn looks_by_hand(&mut self, queue: usize) {
        let (now, mut who) = (self.now, 0..self.listeners.len());
        let found = who.find(|number| {
            let listener = &self.listeners[*number];
            listener.scaled.contains_key(&queue) && listener.paused_until <= now
        });
        if let Some(number) = found {
            self.machine(number, queue).start_more(1, now);
            self.scaled_step(number, queue);
        }
    }

    /// A frozen listener renews nothing: its messages become visible within one time-out.
    pub(super) fn scaled_paused(&mut self, number: usize) {
        let comes_back = self.now + self.plan.listeners[number].visibility;
        let listener = &self.listeners[number];
        if listener.paused_until <= comes_back {
            return;
        }
        let held = listener.scaled.values().flat_map(|s| s.held.values());
        for (id, receipt) in held.flatten() {
            let message = &mut self.queues.messages[*id];
            if message.gets == *receipt {
                message.visible_at = message.visible_at.min(comes_back);
            }
        }
    }

    /// The messages of a crashed listener become visible within one time-out.
    pub(super) fn scaled_lost(&mut self, number: usize) {
        let comes_back = self.now + self.plan.listeners[number].visibility;
        let scaled = std::mem::take(&mut self.listeners[number].scaled);
        for (id, receipt) in scaled.into_values().flat_map(|s| s.held).flat_map(|h| h.1) {
            let message = &mut self.queues.messages[id];
            if message.gets == receipt {
                message.visible_at = message.visible_at.min(comes_back);
                // Its stream ended before the listener, which has renewed the messages since: the
                // relay's timer is too early. Only the sentinel finds them.
                if matches!(message.announced, Announced::Due(_)) {
                    message.announced = Announced::Unannounced;
                }
            }
        }
    }

    /// Leaves in good order: gives back the messages that it holds, and reports them (R10: a
    /// listener reports what becomes visible again).
    pub(super) fn scaled_leaves(&mut self, number: usize) {
        let queues: Vec<usize> = self.listeners[number].scaled.keys().copied().collect();
        for queue in queues {
            let scaled = self.listeners[number].scaled.get_mut(&queue);
            let held = scaled.map(|scaled| {
                scaled.scaler.stop();
                std::mem::take(&mut scaled.held)
            });
            for got in held.unwrap_or_default().into_values().flatten() {
                self.abandons(number, queue, got);
            }
            self.scaled_step(number, queue);
        }
    }

    fn make_scaled(&self, number: usize) -> Scaled {
        let limits = AttemptLimits {
            max_dequeue_count: self.plan.attempts.max,
            visibility_timeout: self.plan.listeners[number].visibility,
            poisons: true,
        };
        let config = ScalerConfig {
            max_tasks: MAX_TASKS,
            idle: IdleBackoff::default(),
            away: AWAY,
            empty_is_certain: true,
        };
        Scaled {
            scaler: Scaler::new(config, true),
            held: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            attempts: Attempts::new(limits),
            handled: BTreeSet::new(),
            tries: BTreeMap::new(),
            tick_at: None,
            report: None,
            looked_at: self.now,
            excused_until: self.now,
            hangs_until: self.now,
            depth_at: self.now,
        }
    }

    fn scaled(&mut self, number: usize, queue: usize) -> &mut Scaled {
        let scaled = self.listeners[number].scaled.get_mut(&queue);
        scaled.expect("it has a machine")
    }

    fn machine(&mut self, number: usize, queue: usize) -> &mut Scaler {
        &mut self.scaled(number, queue).scaler
    }

    fn scaled_step_all(&mut self, number: usize) {
        let queues: Vec<usize> = self.listeners[number].scaled.keys().copied().collect();
        for queue in queues {
            self.scaled_step(number, queue);
        }
    }

    /// Runs the scaler's steps until it waits.
    fn scaled_step(&mut self, number: usize, queue: usize) {
        loop {
            let (now, chance) = (self.now, self.rng.f64());
            let listener = &mut self.listeners[number];
            let life = listener.life;
            let Some(scaled) = listener.scaled.get_mut(&queue) else {
                return;
            };
            let event = |happens| Event::Scaled(number, life, queue, happens);
            match scaled.scaler.step(now, chance) {
                Step::Start(task) => self.within_millis(2, event(Happens::Begins(task))),
                Step::WakeTask(task, until) => self.at(until, event(Happens::Begins(task))),
                Step::QueryDepth => {
                    let depth = self.queues.list[queue].messages.len() as u64;
                    self.within_millis(20, event(Happens::Depth(depth)));
                }
                Step::Report(due) => self.scaled_report(number, queue, due),
                Step::Wait(at) => {
                    if at != Tick::NEVER && scaled.tick_at.is_none_or(|earlier| at < earlier) {
                        scaled.tick_at = Some(at);
                        self.at(at, event(Happens::Step));
                    }
                    return self.rouse(number, queue);
                }
            }
        }
    }

    /// Runs the tasks whose sleep is over: a real sleeping task reads its deadline again.
    fn rouse(&mut self, number: usize, queue: usize) {
        let (now, listener) = (self.now, &self.listeners[number]);
        let life = listener.life;
        let Some(scaled) = listener.scaled.get(&queue) else {
            return;
        };
        for task in scaled.scaler.tasks.due(now) {
            let event = Event::Scaled(number, life, queue, Happens::Begins(task));
            self.at(now, event);
        }
    }
}

/// Returns how many tasks a depth needs.
fn tasks_for(depth: u64) -> usize {
    let policy = StepPolicy::new([(2, 1), (4, 2)], MAX_TASKS).expect("it ascends");
    policy.tasks(&Load {
        depth,
        ..Load::default()
    })
}

impl super::listener::Listener {
    pub(super) fn is_scaled(&self) -> bool {
        !self.scaled.is_empty()
    }
}
