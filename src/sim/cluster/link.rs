//! Drives the machine that joins hub and link, and watches it from outside (J8).
//!
//! The model follows a relay's own messages: which heartbeat has returned, and since when a frame
//! is unconfirmed. From this follows when the relay is isolated.

use std::{rc::Rc, time::Duration};

use bytes::Bytes;

use super::{
    broker::{Content, Kind, Packet},
    plan::Trouble,
    relay::Run,
    world::{Event, World},
};
use crate::{
    base::clock::Tick,
    relay::{cluster::ClusterStats, link::Output},
    wire::{ClusterContent, cluster_message_from_wire, cluster_message_to_wire},
};

/// A relay's own messages, by its own clock.
#[derive(Debug, Default)]
pub(super) struct OwnMessages {
    /// When each heartbeat was sent.
    heartbeats: Vec<Tick>,
    /// When the newest heartbeat was sent that has returned.
    returned: Option<Tick>,
    /// The frame in flight, and since when it is.
    frame: Option<(u64, Tick)>,
    confirmed: u64,
}

/// The older relay, where there is one.
pub(super) const OLDER: usize = 0;
/// Isolated after this time without an own message (C9).
const ISOLATED_AFTER: Duration = Duration::from_millis(3_500);

impl OwnMessages {
    fn sent(&mut self, kind: Kind, now: Tick) {
        match kind {
            Kind::Heartbeat(_) => self.heartbeats.push(now),
            Kind::Frame(number) if number > self.confirmed => {
                self.frame.get_or_insert((number, now));
            }
            Kind::Frame(_) => {}
        }
    }

    fn returned(&mut self, kind: Kind) {
        match kind {
            Kind::Heartbeat(number) => {
                let index = usize::try_from(number - 1).expect("few");
                // A copy of the life before a restoration may name a later one.
                if let Some(sent) = self.heartbeats.get(index) {
                    self.returned = self.returned.max(Some(*sent));
                }
            }
            Kind::Frame(number) => {
                self.confirmed = self.confirmed.max(number);
                self.frame.take_if(|(own, _)| *own <= number);
            }
        }
    }

    /// Returns since when the relay is isolated, or will be if nothing more arrives.
    pub(super) fn isolated_from(&self) -> Tick {
        let Some(returned) = self.returned else {
            return Tick::default();
        };
        let since = self
            .frame
            .map_or(returned, |(_, since)| since.min(returned));
        since + ISOLATED_AFTER
    }
}

/// Returns what passes between an older relay and a newer one: neither knows the fields of the other.
fn without_newer_fields(bytes: &Bytes) -> Bytes {
    let mut message = cluster_message_from_wire(bytes).expect("a relay of the model sent it");
    if let ClusterContent::Frame(frame) = &mut message.content {
        for entry in &mut frame.entries {
            entry.served_groups.clear();
            entry.checked = false;
        }
    }
    cluster_message_to_wire(&message)
}

impl World {
    /// The machine takes a message of the broker.
    pub(super) fn link_receives(&mut self, relay: usize, packet: &Packet) {
        let (now, connects) = (self.local(relay), self.broker.ports[relay].connects);
        let real = self.now;
        let Some(run) = &mut self.relays[relay].run else {
            return;
        };
        let content = &packet.content;
        for hash in &content.queues {
            self.oracle.caused_at.insert(*hash, self.now);
        }
        if content.life == run.life_id() {
            run.own.returned(content.kind);
        }
        let crosses = content.life != run.life_id() && [packet.from, relay].contains(&OLDER);
        let bytes = match self.plan.older && crosses {
            true => {
                self.totals.count("messages without newer fields", 1);
                &without_newer_fields(&packet.bytes)
            }
            false => &packet.bytes,
        };
        let taken = run.node.on_message(bytes, connects, now);
        if let Err(error) = taken {
            self.violate(|| format!("relay {relay} refuses a message: {error}"));
        }
        let receiver = (relay, self.relays[relay].life);
        let mut runs = self.relays.iter_mut().filter_map(|one| one.run.as_mut());
        if let Some(sender) = runs.find(|run| run.life_id() == content.life) {
            sender.heard_by.insert(receiver, real);
        }
        self.note_kind("received", relay, content);
        self.take_outputs(relay);
    }

    /// The machine does the work that is due.
    pub(super) fn link_ticks(&mut self, relay: usize, life: u64) {
        let (now, connects) = (self.local(relay), self.broker.ports[relay].connects);
        let real = self.now;
        let Some(run) = self.relays[relay].run_of(life) else {
            return;
        };
        if run.link_at.is_none_or(|at| at > real) {
            return;
        }
        run.link_at = None;
        run.node.on_tick(connects, now, &mut self.rng);
        self.take_outputs(relay);
    }

    /// Publishes what the machine has to send, answers publishers, and plans the next call.
    pub(super) fn take_outputs(&mut self, relay: usize) {
        let now = self.local(relay);
        loop {
            let Some(run) = &mut self.relays[relay].run else {
                return;
            };
            let Some(output) = run.node.next_output() else {
                break;
            };
            match output {
                Output::Publish(bytes) => {
                    if !self.broker.ports[relay].connected {
                        run.node.unsent(&bytes, now);
                        continue;
                    }
                    let content = Rc::new(Content::read(&bytes));
                    run.own.sent(content.kind, now);
                    self.note_kind("sends", relay, &content);
                    let frame = matches!(content.kind, Kind::Frame(_));
                    self.publish(relay, bytes, Rc::clone(&content));
                    self.last_member_may_leave(relay, &content);
                    if frame && self.strikes(Trouble::CrashBeforeConfirmed) {
                        self.crash_at_once(relay);
                    }
                }
                Output::End if self.is_cloned(relay) => {
                    self.log
                        .say(|| format!("relay {relay} ends: it has a clone"));
                    return self.relay_crashes(relay);
                }
                Output::End => {
                    self.violate(|| format!("C2: relay {relay} ends as if it had a clone"));
                }
                Output::Left { told } => self.leaves(relay, told),
                Output::ReadFlags => self.read_flags(relay),
                Output::Warn(_) | Output::Replace => {}
            }
        }
        self.answer_publishers(relay);
        self.arm_link(relay);
    }

    /// Returns whether two machines run, or have run, the life of this relay.
    fn is_cloned(&self, relay: usize) -> bool {
        !self.relays[relay].epoch_is_alone
    }

    /// Plans the machine's next call, and registers for the increments of the hub.
    fn arm_link(&mut self, relay: usize) {
        let waker = self.relays[relay].increments_waker();
        let Some(run) = &mut self.relays[relay].run else {
            return;
        };
        run.hub.increments.waker.register(&waker);
        let due = run.node.deadline();
        let at = self.relays[relay].clock.real(due).max(self.now);
        self.link_at(relay, at);
    }

    /// The hub has increments, or the client has connected.
    pub(super) fn link_soon(&mut self, relay: usize) {
        let soon = Duration::from_micros(self.rng.u64(1..300));
        self.link_at(relay, self.now + soon);
    }

    fn link_at(&mut self, relay: usize, at: Tick) {
        if at == Tick::NEVER {
            return;
        }
        let life = self.relays[relay].life;
        let Some(run) = &mut self.relays[relay].run else {
            return;
        };
        if run.link_at.is_none_or(|earlier| at < earlier) {
            run.link_at = Some(at);
            self.at(at, Event::Link(relay, life));
        }
    }

    /// Adds the totals of a relay's machine that has ended.
    pub(super) fn count_stats(&mut self, run: &Run) {
        let ClusterStats {
            frames_sent,
            resyncs,
            resyncs_of_all,
            missing,
            ..
        } = run.node.stats();
        self.totals.count("frames", frames_sent);
        self.totals.count("resyncs", resyncs);
        self.totals.count("resyncs of all", resyncs_of_all);
        self.totals.count("missing", missing);
    }

    fn note_kind(&mut self, what: &str, relay: usize, content: &Content) {
        let of = u64::try_from(content.life.0 & 0xffff).expect("small");
        let (kind, number) = match content.kind {
            Kind::Frame(number) => (0, number),
            Kind::Heartbeat(number) => (1, number),
        };
        self.log
            .note(self.now, what, &[relay as u64, of, kind, number]);
    }
}
