//! The link's messages: this relay's own, which have returned, and those of its peers.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    action::{Action, LinkFailure, PeerNotice, Resync},
    cluster_link::{ClusterLink, Phase},
    heartbeat_sender::{Return, fingerprint},
    peer::{Peer, Silence},
};
use crate::{
    base::{clock::Tick, fault::planted},
    error::Result,
    types::cluster::{ClusterContent, ClusterMessage, Frame, LifeId, RelayHeartbeat},
    wire::cluster_message_from_wire,
};

impl ClusterLink {
    /// Takes a message of the broker. `connects` is the client's count of connects, read after the
    /// message was taken from its channel: so it counts the connection that brought the message.
    ///
    /// # Errors
    /// `Invalid`, if the message breaks a rule. It counts as lost; the caller counts and logs it.
    pub(crate) fn on_message(&mut self, bytes: &Bytes, connects: u64, now: Tick) -> Result<()> {
        if self.phase == Phase::Ended {
            return Ok(());
        }
        self.observe(connects, now);
        let message = cluster_message_from_wire(bytes)?;
        match message.life == self.config.life {
            true => self.on_own(&message.content, bytes, now),
            false => self.on_peer(message, bytes, now),
        }
        self.update_isolation(now);
        Ok(())
    }

    fn on_own(&mut self, content: &ClusterContent, bytes: &Bytes, now: Tick) {
        let result = match content {
            ClusterContent::Frame(frame) => self.on_own_frame(frame.number, bytes, now),
            ClusterContent::Heartbeat(own) => self.on_own_heartbeat(own.number, bytes, now),
            ClusterContent::Unknown => Ok(()),
        };
        if let Err(failure) = result {
            self.phase = Phase::Ended;
            self.actions.push_back(Action::End(failure));
        }
    }

    fn on_own_frame(&mut self, number: u64, bytes: &Bytes, now: Tick) -> Result<(), LinkFailure> {
        if self.frames.on_return(number, bytes)? {
            self.recent.confirm(number, now);
            self.actions.push_back(Action::Confirmed(number));
        }
        Ok(())
    }

    fn on_own_heartbeat(
        &mut self,
        number: u64,
        bytes: &Bytes,
        now: Tick,
    ) -> Result<(), LinkFailure> {
        let returned = self.heartbeats.on_return(number, fingerprint(bytes))?;
        let Return::New {
            skipped,
            interruptions,
        } = returned
        else {
            return Ok(());
        };
        if skipped {
            self.interruptions.count += 1;
        }
        self.interruptions.settled = self.interruptions.settled.max(interruptions);
        self.judge_peers(now);
        Ok(())
    }

    fn judge_peers(&mut self, now: Tick) {
        let counts = (self.heartbeats.returns(), self.interruptions.count);
        for (life, silence) in self.peers.judge(counts, now) {
            match silence {
                Silence::MissingWithGap => self.actions.push_back(Action::Resync(Resync::All)),
                _ if planted!(LinkMissingNoCheck) => {}
                _ => self.actions.push_back(Action::CheckGroups(life)),
            }
        }
    }

    fn on_peer(&mut self, message: ClusterMessage, bytes: &Bytes, now: Tick) {
        match message.content {
            ClusterContent::Frame(frame) => self.on_peer_frame(message.life, frame, now),
            ClusterContent::Heartbeat(heartbeat) => {
                self.on_peer_heartbeat(message.life, &heartbeat, fingerprint(bytes), now);
            }
            ClusterContent::Unknown => {}
        }
    }

    fn on_peer_frame(&mut self, life: LifeId, frame: Frame, now: Tick) {
        let returns = self.heartbeats.returns();
        let peer = self.peer(life, now);
        if !peer.on_frame(frame.number) {
            return;
        }
        peer.heard(returns, now);
        let in_full = peer.has_gap();
        self.actions.push_back(Action::Apply {
            life,
            frame,
            in_full,
        });
    }

    fn on_peer_heartbeat(
        &mut self,
        life: LifeId,
        heartbeat: &RelayHeartbeat,
        fingerprint: u64,
        now: Tick,
    ) {
        let returns = self.heartbeats.returns();
        let settled = self.interruptions.settled;
        let (relay_id, store) = (Arc::clone(&self.config.relay_id), self.store);
        let peer = self.peer(life, now);
        if peer.is_copy(fingerprint) {
            return;
        }
        peer.heard(returns, now);
        let resync = peer.on_heartbeat(heartbeat, settled);
        let notices = peer.notices(heartbeat, (&relay_id, store));
        self.actions.extend(resync.map(Action::Resync));
        for kind in notices {
            self.actions.push_back(Action::Notice(PeerNotice {
                kind,
                life,
                relay_id: Arc::clone(&heartbeat.status.relay_id),
            }));
        }
    }

    /// Returns the peer of this life; a new one may displace another.
    fn peer(&mut self, life: LifeId, now: Tick) -> &mut Peer {
        let (returns, settled) = (self.heartbeats.returns(), self.interruptions.settled);
        let new = || Peer::new(settled, returns, now);
        let (peer, displaced) = self.peers.peer(life, new);
        if displaced {
            self.actions.push_back(Action::Resync(Resync::All));
        }
        peer
    }
}
