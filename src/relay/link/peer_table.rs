//! The peers, at most 1,024.

use std::collections::BTreeMap;

use super::{
    config::MAX_PEERS,
    peer::{Peer, PeerStats, Silence},
};
use crate::{base::clock::Tick, types::cluster::LifeId};

/// All peers; ordered, so that a run can be repeated.
#[derive(Debug, Default)]
pub(super) struct PeerTable {
    peers: BTreeMap<LifeId, Peer>,
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
        let order =
            |(life, peer): (&LifeId, &Peer)| (!peer.is_settled(), peer.heard_at_return(), *life);
        let Some((is_present, _, life)) = self.peers.iter().map(order).min() else {
            return false;
        };
        self.peers.remove(&life);
        is_present
    }
}
