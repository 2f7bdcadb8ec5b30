//! J11: at rest watchers know the store's state, and observers the union of all acknowledgements.
//! During a run no watcher is told a state that the store never had, or an older one than before;
//! and each is told in time.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    clients::Client,
    relay::{Acked, Written},
};
use crate::{base::clock::Tick, sim::cluster::world::World, types::FlagState};

/// What the model knows of the flag.
#[derive(Debug, Default)]
pub(super) struct FlagOracle {
    /// The writes in progress, by their tasks.
    pub(super) writers: BTreeMap<u64, Writer>,
    writes: u64,
    /// The newest change of the store.
    newest: Change,
    /// The changes that were made by hand, as numbers of writes of the store.
    by_hand: BTreeSet<usize>,
    /// Sets that were answered.
    sets: Vec<Set>,
    /// The answered acknowledgements: generation, client, relay and its life.
    acked: BTreeSet<(u64, usize, usize, u64)>,
    acked_at: Tick,
}

/// A write through a relay.
#[derive(Debug, Clone, Copy)]
pub(super) struct Writer {
    pub(super) number: u64,
    pub(super) relay: usize,
}

/// A change of the store.
#[derive(Debug, Default)]
struct Change {
    /// `None` if another program made it.
    by: Option<Writer>,
    /// All watchers are told by then, if nothing is wrong.
    due: Tick,
    answered: Option<Tick>,
}

/// A set that was answered, and its number among the writes of the store.
#[derive(Debug, Clone, Copy)]
struct Set {
    began: Tick,
    answered: Tick,
    relay: usize,
    position: usize,
    generation: u64,
}

/// Where nothing is wrong: over the broker, with a read of the store, to the client.
const SOON: Duration = Duration::from_millis(1_500);
/// A relay asks twice a second, and the answers may need several pages.
const COUNTED: Duration = Duration::from_millis(2_500);
/// A store that fails, or is slow: a read may need several attempts, or wait for a write.
const FAILING: Duration = Duration::from_secs(40);
/// A relay that dies so soon after a write may not have announced it.
const ANNOUNCED: Duration = Duration::from_secs(15);

impl FlagOracle {
    /// Notes a write that begins.
    pub(super) fn begin(&mut self, relay: usize) -> Writer {
        self.writes += 1;
        Writer {
            number: self.writes,
            relay,
        }
    }
}

impl World {
    /// When the refresh has told all relays of a change that they cannot know otherwise.
    fn flag_refreshed(&self) -> Tick {
        let every = self.flags.plan.refresh;
        match every.is_zero() {
            true => Tick::NEVER,
            false => self.now + every * 102 / 100 + self.flag_reads(),
        }
    }

    /// The longest time until a read has succeeded.
    fn flag_reads(&self) -> Duration {
        match self.flags.plan.failing || self.flags.plan.slow {
            true => FAILING,
            false => Duration::ZERO,
        }
    }

    /// The store has changed.
    pub(super) fn flag_has_changed(&mut self, task: Option<u64>) {
        let by = task.and_then(|task| self.flags.oracle.writers.get(&task).copied());
        let writes = self.flags.store.writes();
        if task.is_none() {
            self.flags.oracle.by_hand.insert(writes);
        }
        self.flags.oracle.newest = Change {
            by,
            due: self.flag_refreshed(),
            answered: None,
        };
    }

    /// A write through a relay has ended.
    pub(super) fn flag_written(&mut self, written: &Written) {
        let Some(generation) = written.generation else {
            self.totals.count("flag failures", 1);
            return;
        };
        let (now, reads) = (self.now, self.flag_reads());
        // An unleash of a flag that is set is no new set.
        let position = self.flags.store.first_held(generation);
        let oracle = &mut self.flags.oracle;
        if oracle
            .newest
            .by
            .is_some_and(|by| by.number == written.writer.number)
        {
            oracle.newest.answered = Some(now);
            oracle.newest.due = now + SOON + reads;
        }
        if let Some(position) = position.filter(|_| generation > 0) {
            oracle.sets.push(Set {
                began: written.began,
                answered: now,
                relay: written.writer.relay,
                position: position + 1,
                generation,
            });
        }
    }

    /// A relay ends: it may not have announced its newest write.
    pub(super) fn flag_writer_ends(&mut self, relay: usize) {
        let refreshed = self.flag_refreshed();
        let oracle = &mut self.flags.oracle;
        oracle.sets.retain(|set| set.relay != relay);
        let whole = self.relays[relay].whole_from;
        let newest = &mut oracle.newest;
        if newest.by.is_some_and(|by| by.relay == relay)
            && newest
                .answered
                .is_none_or(|at| self.now < at.max(whole) + ANNOUNCED)
        {
            newest.due = newest.due.max(refreshed);
        }
    }

    /// A watcher is told a state.
    pub(super) fn check_flag_told(&mut self, stream: usize, state: &FlagState) {
        let stream = &mut self.flags.streams[stream];
        let number = stream.client;
        let client = &mut self.flags.clients[number];
        let first = !std::mem::replace(&mut stream.told, true);
        // A new watcher that has missed a set is told "not set" before it.
        if first && !state.set {
            return;
        }
        // Position 0 is the empty store, and the others follow the writes.
        let (found, newest) = self.flags.store.find(state, client.position.max(1) - 1);
        let found = match client.position == 0 && !state.set {
            true => Some(0),
            false => found.map(|index| index + 1),
        };
        if let Some(found) = found {
            client.position = found;
            if state.set {
                (client.newest_set, stream.newest_set) = (found, found);
            }
            return;
        }
        // A relay may know the set without a later change of its author or reason.
        let last = self
            .flags
            .store
            .last_held(state.generation)
            .map_or(0, |index| index + 1);
        if state.set && last >= client.position {
            client.newest_set = client.newest_set.max(last);
            stream.newest_set = stream.newest_set.max(last);
            return;
        }
        // A set that was cleared by hand leaves no trace in the store. One that was made by hand has no
        // number.
        let by_hand = &self.flags.oracle.by_hand;
        let traceless = by_hand.contains(&(last + 1)) || by_hand.contains(&client.newest_set);
        let old = newest.map(|index| index + 1).filter(|_| state.set);
        if let Some(old) = old.filter(|_| traceless) {
            client.newest_set = client.newest_set.max(old);
            stream.newest_set = stream.newest_set.max(old);
            return;
        }
        let what = match old.is_some() || !state.set {
            true => "an older state than before",
            false => "a state that the store never had",
        };
        self.violate(|| format!("J11: watcher {number} is told {what}: {{{state:?}}}"));
    }

    /// An observer is told a number: no more than all listeners that have acknowledged.
    pub(super) fn check_flag_count(&mut self, number: usize) {
        let Some((generation, count, _)) = self.flags.clients[number].count else {
            return;
        };
        let all = self.flag_acks_of(generation, |_, _| true);
        if count as usize > all {
            self.violate(|| format!("J11: observer {number} counts too many: {count} of {all}"));
        }
    }

    /// Counts the listeners whose acknowledgement of a generation these lives have.
    fn flag_acks_of(&self, generation: u64, has: impl Fn(usize, u64) -> bool) -> usize {
        let acked = self.flags.oracle.acked.range((generation, 0, 0, 0)..);
        let acked = acked.take_while(|(of, ..)| *of == generation);
        let listeners = acked.filter(|(_, _, relay, life)| has(*relay, *life));
        listeners
            .map(|(_, client, ..)| client)
            .collect::<BTreeSet<_>>()
            .len()
    }

    /// A relay has answered an acknowledgement.
    pub(super) fn flag_ack_answered(&mut self, acked: &Acked) {
        if !acked.counted {
            return self.flag_acks_again(acked.client, acked.generation, acked.attempt);
        }
        self.totals.count("flag acknowledgements", 1);
        let noted = [acked.relay as u64, acked.client as u64, acked.generation];
        self.log.note(self.now, "flag is acknowledged", &noted);
        self.flag_finishes(acked.client);
        let oracle = &mut self.flags.oracle;
        let one = (acked.generation, acked.client, acked.relay, acked.life);
        oracle.acked.insert(one);
        oracle.acked_at = self.now;
    }

    /// The invariants that hold in time.
    pub(in crate::sim::cluster) fn check_flags(&mut self) {
        if !self.flags.plan.enabled {
            return;
        }
        self.check_watchers();
        self.check_sets();
        self.check_observers();
    }

    /// Each watcher knows the store's state, a time after its newest change.
    fn check_watchers(&mut self) {
        let newest = &self.flags.oracle.newest;
        if newest.due > self.now {
            return;
        }
        let present = self.flags.store.present();
        let writer = newest.by.map(|by| self.relays[by.relay].whole_from);
        let due = newest.due.max(writer.unwrap_or_default());
        let late = self.flags.clients.iter().position(|client| {
            let Some((relay, opened)) = self.flag_watches_since(client) else {
                return false;
            };
            let known = opened.max(self.relays[relay].whole_from) + SOON + self.flag_reads();
            let told = client.told.as_ref().filter(|told| told.set);
            self.now > due.max(known) && told != present.as_ref()
        });
        if let Some(number) = late {
            let told = self.flags.clients[number].told.clone();
            self.violate(|| {
                format!(
                    "J11: watcher {number} does not know the flag: {{{told:?}, not {present:?}}}"
                )
            });
        }
    }

    /// R21 in a cluster: a watcher that was there is told each answered set, or a later one, a time
    /// after both relays are whole again.
    fn check_sets(&mut self) {
        let wait = SOON + self.flag_reads();
        let sets = std::mem::take(&mut self.flags.oracle.sets);
        for set in sets {
            let (mut waits, mut missed) = (set.answered + wait >= self.now, None);
            let last = self.flags.store.last_held(set.generation);
            let ended_by = last.map_or(0, |index| index + 1) + 1;
            let by_hand = &self.flags.oracle.by_hand;
            let (by_hand, has_number) = (
                by_hand.contains(&ended_by),
                !by_hand.contains(&set.position),
            );
            for (number, client) in self.flags.clients.iter().enumerate() {
                let Some((relay, opened)) = self.flag_watches_since(client) else {
                    continue;
                };
                let stream = client.stream.map(|stream| &self.flags.streams[stream]);
                let told = stream.map_or(0, |stream| stream.newest_set);
                // One that was made by hand, and found by an unleash, is missed if it is over before the
                // relay has read it.
                if opened + wait >= set.began || told >= set.position || !has_number {
                    continue;
                }
                let whole = self.relays[relay].whole_from;
                let whole = whole.max(self.relays[set.relay].whole_from);
                // A clearing by hand leaves no trace: the set is missed where it is over before the relay
                // has read it.
                if by_hand {
                    continue;
                }
                match set.answered.max(whole) + wait < self.now {
                    true => missed = Some(number),
                    false => waits = true,
                }
            }
            if let Some(number) = missed {
                self.violate(|| format!("J11: watcher {number} is not told of a set: {{{set:?}}}"));
            }
            match waits {
                true => self.flags.oracle.sets.push(set),
                false => self.totals.count("flag sets", 1),
            }
        }
    }

    /// Each observer knows the acknowledgements of all relays, a time after the newest one.
    fn check_observers(&mut self) {
        let present = self.flags.store.present();
        let Some(generation) = present.map(|state| state.generation) else {
            return;
        };
        let whole = self.relays.iter().map(|relay| relay.whole_from).max();
        let alone = self.relays.iter().all(|relay| relay.epoch_is_alone);
        let oracle = &self.flags.oracle;
        let since = oracle
            .acked_at
            .max(oracle.newest.due)
            .max(whole.unwrap_or_default());
        if !alone || since > self.now {
            return;
        }
        let lives = |relay: usize, life: u64| {
            self.relays[relay].life == life && self.relays[relay].run.is_some()
        };
        let all = self.flag_acks_of(generation, lives);
        let behind = |client: &Client| {
            let opened = self.flag_watches_since(client).map(|(_, opened)| opened);
            let since = opened.map(|opened| opened.max(since) + COUNTED + self.flag_reads());
            let count = client.count.filter(|(of, ..)| *of == generation);
            let counted = count.map_or(0, |(_, acknowledged, _)| acknowledged as usize);
            client.observer && since.is_some_and(|since| self.now > since) && counted < all
        };
        let late = self.flags.clients.iter().position(behind);
        if let Some(number) = late {
            let count = self.flags.clients[number].count;
            self.violate(|| format!("J11: observer {number} does not count {all}: {{{count:?}}}"));
        }
    }

    /// At rest: all watchers and observers are there, and know all.
    pub(in crate::sim::cluster) fn check_flags_at_rest(&mut self) {
        if !self.flags.plan.enabled {
            return;
        }
        self.check_flags();
        let away = self
            .flags
            .clients
            .iter()
            .position(|client| self.flag_watches_since(client).is_none());
        if let Some(number) = away {
            self.violate(|| format!("J11: client {number} has no stream"));
        }
        let watching = self
            .flags
            .clients
            .iter()
            .filter(|client| !client.observer)
            .count();
        let counts = |client: &&Client| client.observer && client.count.is_some();
        let wrong = self.flags.clients.iter().filter(counts).find_map(|client| {
            let (_, _, watchers) = client.count?;
            (watchers as usize != watching).then_some(watchers)
        });
        if let Some(watchers) = wrong {
            self.violate(|| format!("J11: an observer counts {watchers} watchers of {watching}"));
        }
        self.totals.count("flags at rest", 1);
    }
}
