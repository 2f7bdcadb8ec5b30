//! The invariants during a run, with the bounds of the promise.

use std::time::Duration;

use super::{
    oracle::{Note, Sums},
    plan::Trouble,
    world::{Event, World, seconds},
};
use crate::{base::clock::Tick, relay::hub::QueueStats, types::cluster::queue_hash};

/// A wake-up over the broker arrives, and its get is issued, within this time where nothing is
/// wrong.
pub(super) const SOON: Duration = Duration::from_millis(400);
/// After a relay hears again: CATCH_UP on the queues of missed frames.
pub(super) const HEARD: Duration = Duration::from_millis(1_200);
/// On all queues.
pub(super) const HEARD_ALL: Duration = Duration::from_millis(4_500);
/// Another relay has died: on all queues, or groups look.
pub(super) const HEARD_AFTER_DEATH: Duration = Duration::from_millis(8_500);
/// Streams are told of an isolation within this time.
const TOLD: Duration = Duration::from_secs(1);
/// Two machines of one life notice each other by their next heartbeats and frames.
const CLONED: Duration = Duration::from_secs(5);
/// A queue is forgotten this much after its time.
const FORGOTTEN: Duration = Duration::from_secs(3);
/// The interval between two checks.
const EVERY: Duration = Duration::from_millis(200);
/// J9: a break of this length isolates no relay, and loses at most two heartbeats of each other one,
/// also where the broker knows the subscription 0.3 s after the connect. The third makes a peer missing.
const SHORT_BREAK: Duration = Duration::from_millis(1_600);
/// Before and after a break nothing else may happen, for J9.
const CALM: Duration = Duration::from_secs(6);

/// A short break that is watched (J9).
#[derive(Debug)]
pub(super) struct BreakWatch {
    number: u64,
    relay: usize,
    life: u64,
    since: Tick,
    resyncs_of_all: u64,
    resynced_queues: u64,
}

impl World {
    pub(super) fn check(&mut self) {
        self.after(EVERY, Event::Check);
        self.check_looks();
        self.check_owed_looks();
        self.check_silent();
        self.checks += 1;
        for relay in 0..self.relays.len() {
            self.check_told_degraded(relay);
        }
        if self.checks.is_multiple_of(5) {
            self.check_flags();
        }
        // The others visit all queues.
        if self.checks.is_multiple_of(10) {
            self.check_clones();
            self.check_forgotten();
            if self.plan.is_exact() {
                self.check_sums();
            }
        }
    }

    /// J1: each listener looks at the queue of each message after it was put.
    fn check_looks(&mut self) {
        if let Some((message, group)) = self.late_group() {
            self.violate(|| format!("J1: no member of {group} looks for message {message}"));
        }
        let late = self.oracle.open.iter().find_map(|(message, note)| {
            let mut listeners = note.listeners.iter().copied();
            let late = listeners.find(|number| self.is_late(note, *number))?;
            Some((*message, late))
        });
        if let Some((message, number)) = late {
            let queue = self.queues.messages[message].queue;
            self.violate(|| {
                format!(
                    "J1: listener {number} does not look for message {message} in queue {queue}"
                )
            });
        }
    }

    /// C2: of two machines that run one life, one ends.
    fn check_clones(&mut self) {
        for (one, first) in self.relays.iter().enumerate() {
            let Some(run) = first.run.as_ref() else {
                continue;
            };
            let clone = self
                .relays
                .iter()
                .enumerate()
                .skip(one + 1)
                .find(|(_, other)| {
                    let same = other.run.as_ref().filter(|other| other.epoch == run.epoch);
                    let since = same.map(|same| same.since.max(run.since));
                    let whole = first.whole_from.max(other.whole_from);
                    since.is_some_and(|since| self.now > since.max(whole) + CLONED)
                });
            if let Some((other, _)) = clone {
                return self.violate(|| format!("C2: relays {one} and {other} run one life"));
            }
        }
    }

    /// R3: a queue that only patterns match is forgotten, however often there are resyncs.
    fn check_forgotten(&mut self) {
        let keep = self.plan.forget_after * 13 / 10 + FORGOTTEN;
        let grouped = self.plan.listeners.iter().any(|one| one.group.is_some());
        if grouped || keep > self.plan.active {
            return;
        }
        let settled = self.all_settled(keep);
        for relay in 0..self.relays.len() {
            let kept = self.kept_entry(relay, keep);
            if let Some(view) = kept.filter(|_| settled) {
                self.violate(|| format!("R3: relay {relay} keeps an idle queue: {view:?}"));
            }
        }
    }

    /// Returns an entry that has had no cause for so long.
    fn kept_entry(&mut self, relay: usize, keep: Duration) -> Option<QueueStats> {
        let (real, now) = (self.now, self.local(relay));
        let run = self.relays[relay].run.as_mut()?;
        let mut kept = None;
        for view in run.hub.queues("", usize::MAX, now) {
            let hash = queue_hash(&view.address);
            let made = *run.entries.entry(hash).or_insert(real);
            let caused = self.oracle.caused_at.get(&hash).copied();
            let caused = caused.unwrap_or_default().max(made).max(run.fired_at);
            let mut all = self.plan.listeners.iter().flat_map(|one| &one.selectors);
            let named = all.any(|one| !one.is_pattern() && one.matches(&view.address));
            if !named && view.timers == 0 && real > caused + keep {
                kept = Some(view);
            }
        }
        kept
    }

    /// Returns whether all listeners have had their streams for this long.
    fn all_settled(&self, span: Duration) -> bool {
        let mut relays = self.relays.iter();
        let calm = relays.all(|relay| relay.paused_until + span < self.now);
        let mut all = 0..self.listeners.len();
        calm && all
            .all(|number| self.is_well(number) && self.listeners[number].ok_from + span < self.now)
    }

    fn is_late(&self, note: &Note, number: usize) -> bool {
        let listener = &self.listeners[number];
        let well = self.is_well(number) && !listener.forgives;
        let Some(promise) = note.promise.filter(|_| well) else {
            return false;
        };
        let conn = listener.conn.expect("it is well");
        let relay = &self.relays[self.conns[conn].relay];
        let whole = relay.whole_from.max(self.relays[promise.relay].whole_from);
        self.now > promise.due.max(listener.ok_from).max(whole) + SOON
    }

    /// J8: an isolated relay tells all streams at once.
    fn check_told_degraded(&mut self, relay: usize) {
        let (now, place) = (self.local(relay), &self.relays[relay]);
        let Some(run) = place
            .run
            .as_ref()
            .filter(|_| place.paused_until <= self.now)
        else {
            return;
        };
        // It may have been paused until now.
        let told_by = run.own.isolated_from() + TOLD;
        if now <= told_by || place.paused_until + TOLD > self.now {
            return;
        }
        let mut streams = run.streams.values();
        let reads = |until: Tick| until + TOLD <= self.now;
        let untold = |stream: &&super::streams::Stream| {
            reads(stream.blocked_until) && stream.degraded == Some(false)
        };
        if streams.any(|stream| untold(&stream)) {
            self.violate(|| format!("J8: relay {relay} is isolated, and a stream is not told"));
        }
    }

    /// J2: no relay counts more than was notified.
    fn check_sums(&mut self) {
        for relay in 0..self.relays.len() {
            for (queue, sums) in self.sums_of(relay) {
                let all = self.oracle.notified.get(&queue).copied();
                let all = all.unwrap_or_default();
                let more = sums.notifications > all.notifications
                    || sums.payload_size > all.payload_size
                    || sums.messages > all.messages;
                if more {
                    self.violate(|| {
                        format!(
                            "J2: relay {relay} counts too much in queue {queue}: {sums:?}, {all:?}"
                        )
                    });
                }
            }
        }
    }

    pub(super) fn sums_of(&self, relay: usize) -> Vec<(usize, Sums)> {
        let now = self.local(relay);
        let Some(run) = &self.relays[relay].run else {
            return Vec::new();
        };
        let views = run.hub.queues("", usize::MAX, now).into_iter();
        let sums = views.filter_map(|view| {
            let queue = self.queues.find(&view.address)?;
            let sums = Sums {
                notifications: view.notifications,
                payload_size: view.payload_size,
                messages: view.messages,
            };
            Some((queue, sums))
        });
        sums.collect()
    }

    /// Watches a short break of a connection in a calm time (J9).
    pub(super) fn watch_break(&mut self, relay: usize, span: Duration, trouble: Trouble) {
        let mut relays = self.relays.iter();
        let whole = relays.all(|relay| relay.whole_from < self.now);
        let calm = whole && (self.last_trouble + CALM < self.now || self.troubles == 0);
        let life = self.relays[relay].life;
        let Some(run) = &self.relays[relay].run else {
            return;
        };
        let old = run.since + CALM < self.now;
        let short = span <= SHORT_BREAK && trouble == Trouble::Break;
        // The end of an isolation resyncs all.
        let degraded = run.node.link().is_degraded(self.now);
        // A client that does not tell of its connect sends its next heartbeat a second later.
        if !short || !calm || !old || degraded || self.plan.events_hidden {
            return;
        }
        let stats = run.node.stats();
        self.broker.ports[relay].missed.clear();
        let number = self.troubles + 1;
        self.break_watch = Some(BreakWatch {
            number,
            relay,
            life,
            since: self.now,
            resyncs_of_all: stats.resyncs_of_all,
            resynced_queues: stats.resynced_queues,
        });
        self.after(span + CALM, Event::BreakSettled(number));
    }

    /// J9: after a short break only queues of missed frames were resynchronized.
    pub(super) fn check_break(&mut self, number: u64) {
        let Some(watch) = self.break_watch.take_if(|watch| watch.number == number) else {
            return;
        };
        let relay = &self.relays[watch.relay];
        let (Some(run), true) = (&relay.run, self.troubles == number) else {
            return;
        };
        let mut relays = self.relays.iter();
        let same = relays.all(|relay| relay.run.is_some() && relay.started_at < watch.since);
        if relay.life != watch.life || !same {
            return;
        }
        let stats = run.node.stats();
        let queues = stats.resynced_queues - watch.resynced_queues;
        let missed = self.broker.ports[watch.relay].missed.len() as u64;
        let all = stats.resyncs_of_all - watch.resyncs_of_all;
        self.totals.count("short breaks", 1);
        if all > 0 || queues > missed {
            self.violate(|| {
                format!(
                    "J9: after a short break {all} resyncs of all and {queues} of {missed} queues"
                )
            });
        }
    }

    /// The listener has a stream at a relay since the restoration, and its sequences are of that
    /// memory: earlier messages are not promised.
    pub(super) fn forgive(&mut self, number: usize, life: u64) {
        let now = self.now;
        let listener = &mut self.listeners[number];
        if listener.life != life || now < listener.forgives_until {
            return;
        }
        listener.forgives = false;
        for (message, note) in &mut self.oracle.open {
            if note.visible_at <= now && note.listeners.remove(&number) {
                self.excused.insert(*message);
            }
        }
        self.log
            .say(|| format!("forgiven: listener {number} at {:.3} s", seconds(now)));
    }
}
