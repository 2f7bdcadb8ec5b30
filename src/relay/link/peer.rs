//! What this relay knows of other lives, at most 1,024: the newest frame, the gap, the newest
//! heartbeats.

use std::collections::BTreeMap;

use super::{FORGET_AFTER, MAX_PEERS, MISSING_AFTER, PATIENCE, Resync};
use crate::{
    base::{clock::Tick, fault::planted},
    types::cluster::LifeId,
    wire::{
        link::Heartbeat,
        proto::{RelayInfo, RelayState},
        span_to_wire,
    },
};

/// Another life. At most 400 bytes, with its names.
#[derive(Debug)]
pub(super) struct Peer {
    /// The newest frame that was applied.
    pub(super) applied: u64,
    gap: Option<Gap>,
    /// The number of its newest heartbeat, and the fingerprints of the last eight.
    heartbeat: u64,
    known: [u64; KNOWN],
    next_known: usize,
    /// Heartbeats so far, without copies.
    heartbeats: u64,
    /// Interruptions of this relay that a heartbeat of the peer has followed.
    settled: u64,
    /// How many own heartbeats had returned at its last message.
    heard_at_return: u64,
    heard_at: Tick,
    presence: RelayState,
    /// By its newest heartbeat, with the resyncs that its messages have caused here.
    info: RelayInfo,
}

/// From the first to the last missed frame; frames between them may have been received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gap {
    first: u64,
    last: u64,
}

/// A peer in the list of relays.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PeerStats {
    pub(crate) life: LifeId,
    pub(crate) info: RelayInfo,
}

/// What a silent peer requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Silence {
    Short,
    /// It is missing, and has counted no cause in its life: nothing of it can be lost. So a relay that
    /// fails at each start costs no checks.
    Unused,
    /// It is missing, and all of its frames have arrived.
    Missing,
    /// It is missing, and a frame may be missed.
    MissingWithGap,
    /// It is forgotten.
    Forget,
}

/// All peers; ordered, so that a run can be repeated.
#[derive(Debug, Default)]
pub(super) struct PeerTable {
    peers: BTreeMap<LifeId, Peer>,
}

/// The heartbeats whose copies are recognized. A broker may deliver each message twice, for ever.
const KNOWN: usize = 8;

impl Peer {
    /// C5: a peer starts at 0, so earlier frames of a peer that is met later are a gap.
    pub(super) fn new(settled: u64, returns: u64, now: Tick) -> Self {
        Self {
            applied: 0,
            gap: None,
            heartbeat: 0,
            known: [0; KNOWN],
            next_known: 0,
            heartbeats: 0,
            settled,
            heard_at_return: returns,
            heard_at: now,
            presence: RelayState::Present,
            info: RelayInfo::default(),
        }
    }

    /// C3: returns whether the frame is new. It may leave a gap.
    pub(super) fn on_frame(&mut self, number: u64) -> bool {
        if number <= self.applied {
            return planted!(LinkFrameAppliedTwice);
        }
        if !planted!(LinkGapForgotten) {
            self.miss(self.applied + 1, number - 1);
        }
        self.applied = number;
        true
    }

    pub(super) fn has_gap(&self) -> bool {
        self.gap.is_some()
    }

    /// Returns whether these are the bytes of a recent heartbeat; remembers them otherwise.
    pub(super) fn is_copy(&mut self, fingerprint: u64) -> bool {
        if self.known.contains(&fingerprint) {
            return true;
        }
        self.known[self.next_known] = fingerprint;
        self.next_known = (self.next_known + 1) % KNOWN;
        false
    }

    /// C5: compares the numbers, closes the gap, and returns what must be resynchronized.
    pub(super) fn on_heartbeat(&mut self, heartbeat: &Heartbeat, settled: u64) -> Option<Resync> {
        let is_back = heartbeat.heartbeat <= self.heartbeat || heartbeat.frame < self.applied;
        self.heartbeat = heartbeat.heartbeat;
        self.heartbeats += 1;
        self.settled = settled;
        self.presence = match heartbeat.leaving {
            true => RelayState::Left,
            false => RelayState::Present,
        };
        self.info = RelayInfo {
            relay_id: heartbeat.relay_id.clone(),
            version: heartbeat.version.clone(),
            streams: heartbeat.streams,
            queues: heartbeat.queues,
            degraded: heartbeat.degraded,
            resyncs: self.info.resyncs,
            ..RelayInfo::default()
        };
        if !planted!(LinkHeartbeatUnread) {
            if heartbeat.frame > self.applied {
                self.miss(self.applied + 1, heartbeat.frame);
            }
            self.applied = heartbeat.frame;
        }
        let gap = self.gap.take();
        if is_back && !planted!(LinkNumberBackTrusted) {
            self.info.resyncs += 1;
            return Some(Resync::All);
        }
        let gap = gap?;
        self.info.resyncs += 1;
        if gap.first <= heartbeat.complete_above {
            return Some(Resync::All);
        }
        let missed = |age: &u64| (gap.first..=gap.last).contains(&(heartbeat.frame - age));
        let queues = heartbeat.queue_hashes.iter().zip(&heartbeat.queue_ages);
        let missed = queues.filter(|(_, age)| missed(age));
        Some(Resync::Queues(missed.map(|(hash, _)| *hash).collect()))
    }

    /// Returns whether the peer's settings are compared now: once for each life. The first heartbeat
    /// may arrive late, after its life has ended.
    pub(super) fn is_compared(&self) -> bool {
        self.heartbeats == 2 && self.presence != RelayState::Left
    }

    /// Notes a message that is no copy.
    pub(super) fn heard(&mut self, returns: u64, now: Tick) {
        if self.presence == RelayState::Missing {
            self.presence = RelayState::Present;
        }
        self.heard_at_return = returns;
        self.heard_at = now;
    }

    /// C7: judges the silence of the peer after an own heartbeat has returned.
    pub(super) fn judge(&mut self, (returns, interruptions): (u64, u64), now: Tick) -> Silence {
        let silent = returns - self.heard_at_return;
        if silent >= FORGET_AFTER {
            return Silence::Forget;
        }
        let early = silent < PATIENCE || now.since(self.heard_at) < MISSING_AFTER;
        if early || self.presence != RelayState::Present {
            return Silence::Short;
        }
        self.presence = RelayState::Missing;
        let interrupted = self.settled < interruptions && !planted!(LinkInterruptionIgnored);
        if self.gap.take().is_some() || interrupted {
            self.info.resyncs += 1;
            return Silence::MissingWithGap;
        }
        match self.applied {
            0 => Silence::Unused,
            _ => Silence::Missing,
        }
    }

    pub(super) fn stats(&self, life: LifeId, now: Tick) -> PeerStats {
        PeerStats {
            life,
            info: RelayInfo {
                epoch: life.to_string(),
                state: self.presence.into(),
                silent_for: Some(span_to_wire(now.since(self.heard_at))),
                ..self.info.clone()
            },
        }
    }

    fn miss(&mut self, first: u64, last: u64) {
        if first > last {
            return;
        }
        let first = self.gap.map_or(first, |gap| gap.first.min(first));
        self.gap = Some(Gap { first, last });
    }
}

impl PeerStats {
    pub(crate) fn is_present(&self) -> bool {
        self.info.state() == RelayState::Present
    }
}

impl PeerTable {
    /// Returns the peer of this life, and whether another one, which was present, had to make room
    /// for it: that one's frames are not followed any more.
    pub(super) fn peer(&mut self, life: LifeId, new: impl FnOnce() -> Peer) -> (&mut Peer, bool) {
        let is_full = self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&life);
        let displaced = is_full && self.displace();
        (self.peers.entry(life).or_insert_with(new), displaced)
    }

    /// Judges the silence of all peers after an own heartbeat has returned.
    pub(super) fn judge(&mut self, counts: (u64, u64), now: Tick) -> Vec<(LifeId, Silence)> {
        let mut judged = Vec::new();
        self.peers.retain(|life, peer| {
            let silence = peer.judge(counts, now);
            if matches!(silence, Silence::Missing | Silence::MissingWithGap) {
                judged.push((*life, silence));
            }
            silence != Silence::Forget
        });
        judged
    }

    pub(super) fn stats(&self, now: Tick) -> impl Iterator<Item = PeerStats> {
        self.peers
            .iter()
            .map(move |(life, peer)| peer.stats(*life, now))
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (&LifeId, &Peer)> {
        self.peers.iter()
    }

    /// Removes the peer that is silent for longest, of those that are missing or left if there are
    /// any; returns whether it was present.
    fn displace(&mut self) -> bool {
        // A resync has covered all that a missing one, or one that left, can have sent.
        let order = |(life, peer): (&LifeId, &Peer)| {
            let is_present = peer.presence == RelayState::Present;
            (is_present, peer.heard_at_return, *life)
        };
        let Some((is_present, _, life)) = self.peers.iter().map(order).min() else {
            return false;
        };
        self.peers.remove(&life);
        is_present
    }
}
