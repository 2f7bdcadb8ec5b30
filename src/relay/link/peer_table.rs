//! The peers, at most 1,024.

use std::collections::{BTreeMap, btree_map::Entry};

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

/// The effect of adding a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Added {
    /// The peer was known.
    No,
    Yes,
    /// Another one, which was present, had to make room: its frames are not followed any more.
    InPlaceOfAnother,
}

impl PeerTable {
    /// Returns the peer of this life, and whether it is new.
    pub(super) fn peer(&mut self, life: LifeId, new: impl FnOnce() -> Peer) -> (&mut Peer, Added) {
        let is_full = self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&life);
        let displaced = is_full && self.displace();
        match self.peers.entry(life) {
            Entry::Occupied(peer) => (peer.into_mut(), Added::No),
            Entry::Vacant(vacant) => {
                let added = match displaced {
                    true => Added::InPlaceOfAnother,
                    false => Added::Yes,
                };
                (vacant.insert(new()), added)
            }
        }
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
