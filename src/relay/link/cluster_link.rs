//! The link: ticks, frames and messages in, actions out.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{
    Action, ISOLATED_AFTER, LinkConfig, Output, READY_AFTER, REPLACE_AFTER, REPLACE_AGAIN, Resync,
    SecondMachine, UNSENT_AGAIN,
    frames::{FrameDraft, FrameSender},
    own_heartbeats::{HEARTBEAT, HeartbeatSender, fingerprint},
    peer::{Peer, PeerStats, PeerTable, Silence},
    recent_queues::RecentQueues,
};
use crate::{
    base::{backoff::about, clock::Tick, fault::planted},
    error::Result,
    types::cluster::{Frame, LifeId, queue_hash},
    wire::{
        ClusterContent, ClusterMessage, cluster_message_from_wire, cluster_message_to_wire,
        link::Heartbeat,
    },
};

/// One relay's part in a cluster. After each call the driver takes the actions until there are none.
#[derive(Debug)]
pub(crate) struct ClusterLink {
    pub(crate) config: LinkConfig,
    started_at: Tick,
    /// The client's count of connects when it was last read.
    connects: u64,
    frames: FrameSender,
    heartbeats: HeartbeatSender,
    recent: RecentQueues,
    peers: PeerTable,
    interruptions: Interruptions,
    /// C9: what streams were told. A relay that starts is degraded.
    degraded: bool,
    /// While this relay is isolated, its connection is replaced at this time.
    replace_at: Tick,
    repeated: u64,
    /// Open streams and known queues, for the list of relays.
    load: (u64, u64),
    /// The hash of the name of this relay's store; 0 if it is unknown. Set before the first heartbeat.
    pub(crate) store: u64,
    phase: Phase,
    actions: VecDeque<Action>,
}

/// C7: how often messages of peers may have been lost on this relay's own connection.
#[derive(Debug, Default)]
struct Interruptions {
    count: u64,
    /// An own heartbeat has returned that was sent after so many of them.
    settled: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// The last heartbeat is sent.
    Left,
    /// The link does nothing more.
    Ended,
}

impl ClusterLink {
    pub(crate) fn new(config: LinkConfig, now: Tick) -> Self {
        Self {
            started_at: now,
            connects: 0,
            frames: FrameSender::default(),
            heartbeats: HeartbeatSender::default(),
            recent: RecentQueues::default(),
            peers: PeerTable::default(),
            interruptions: Interruptions::default(),
            degraded: true,
            replace_at: now + REPLACE_AFTER,
            repeated: 0,
            load: (0, 0),
            store: 0,
            phase: Phase::Open,
            actions: VecDeque::new(),
            config,
        }
    }

    /// Does the work that is due at [`ClusterLink::deadline`]. The driver also calls it when the
    /// client has connected, and before it makes a frame.
    pub(crate) fn on_tick(&mut self, connects: u64, now: Tick, rng: &mut fastrand::Rng) {
        if self.phase == Phase::Ended {
            return;
        }
        self.observe(connects, now);
        if now >= self.frames.repeat_at() {
            self.repeat_frame(now);
        }
        if self.phase == Phase::Open && now >= self.heartbeats.due {
            self.heartbeats.due = now + about(HEARTBEAT, rng);
            self.send_heartbeat(false, now);
        }
        self.tell_degraded(now);
        if now >= self.replaced_at() {
            // A relay that was paused has own messages to read first.
            let is_late = now.since(self.replaced_at()) >= UNSENT_AGAIN * 10;
            self.replace_at = now + if is_late { UNSENT_AGAIN } else { REPLACE_AGAIN };
            if !is_late {
                self.actions.push_back(Action::Output(Output::Replace));
            }
        }
    }

    /// C7: the client has dropped messages that it received.
    pub(crate) fn on_drop(&mut self) {
        self.interruptions.count += 1;
    }

    /// The client did not take the bytes of an action `Publish`. A heartbeat is due again soon; a frame
    /// is repeated anyway. Returns whether it was the last heartbeat of a relay that leaves: it has not
    /// left.
    pub(crate) fn unsent(&mut self, bytes: &Bytes, now: Tick) -> bool {
        if self.phase == Phase::Ended || !self.heartbeats.take_back(fingerprint(bytes)) {
            return false;
        }
        self.heartbeats.due = now + UNSENT_AGAIN;
        // Nor may it have received all.
        self.interruptions.count += 1;
        let was_leaving = self.phase == Phase::Left;
        self.phase = Phase::Open;
        was_leaving
    }

    /// Returns the next time at which [`ClusterLink::on_tick`] has something to do.
    pub(crate) fn deadline(&self) -> Tick {
        if self.phase == Phase::Ended {
            return Tick::NEVER;
        }
        let heartbeat = match self.phase {
            Phase::Open => self.heartbeats.due,
            _ => Tick::NEVER,
        };
        let degraded = match self.degraded {
            true => Tick::NEVER,
            false => self.degraded_from(),
        };
        heartbeat
            .min(self.frames.repeat_at())
            .min(degraded)
            .min(self.replaced_at())
    }

    /// Returns when the next frame may be made, or `None` until a message of the broker allows it.
    pub(crate) fn frame_due_at(&self) -> Option<Tick> {
        if self.phase != Phase::Open {
            return None;
        }
        self.frames.due_at(self.heartbeats.returned)
    }

    /// Sends a frame and returns its number; an empty one is not sent. Its causes are confirmed
    /// when [`Action::Confirmed`] names this number or a later one. The caller has asked
    /// [`ClusterLink::frame_due_at`].
    pub(crate) fn send_frame(&mut self, draft: FrameDraft, now: Tick) -> Option<u64> {
        if draft.is_empty() || self.frame_due_at().is_none_or(|at| now < at) {
            debug_assert!(draft.is_empty(), "no frame is due");
            return None;
        }
        let mut frame = draft.frame;
        frame.number = self.frames.number + 1;
        let counted = frame.entries.iter().filter(|entry| entry.causes > 0);
        let hashes = counted.map(|entry| queue_hash(&entry.queue));
        self.recent.add(frame.number, hashes);
        let message = ClusterMessage {
            life: self.config.life,
            content: ClusterContent::Frame(frame),
        };
        let bytes = cluster_message_to_wire(&message);
        let ClusterContent::Frame(frame) = message.content else {
            return None;
        };
        self.frames.sent(&frame, bytes.clone(), now);
        self.actions
            .push_back(Action::Output(Output::Publish(bytes)));
        Some(frame.number)
    }

    /// Sends the last heartbeat; no frame and no heartbeat follows. The caller waits until its
    /// frames are confirmed first (C15).
    pub(crate) fn leave(&mut self, now: Tick) {
        if self.phase == Phase::Open {
            self.send_heartbeat(true, now);
            self.phase = Phase::Left;
        }
    }

    /// Returns the next action, in order.
    pub(crate) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Sets the numbers of open streams and known queues, for the list of relays.
    pub(crate) fn set_load(&mut self, streams: u64, queues: u64) {
        self.load = (streams, queues);
    }

    /// C8, C9: returns whether no own message returns, so that publishers get UNAVAILABLE and listeners
    /// must poll. Exact at any time, also where a tick is late.
    pub(crate) fn is_degraded(&self, now: Tick) -> bool {
        now >= self.degraded_from()
    }

    /// Returns the time from which [`ClusterLink::is_degraded`] holds, if nothing more happens.
    pub(crate) fn degraded_from(&self) -> Tick {
        let Some(returned) = self.heartbeats.returned_sent_at else {
            return self.started_at;
        };
        let unconfirmed = self.frames.in_flight_since();
        let since = unconfirmed.map_or(returned, |since| since.min(returned));
        since + ISOLATED_AFTER
    }

    /// C9: returns whether the relay may serve. One without a broker is ready, and degraded.
    pub(crate) fn is_ready(&self, now: Tick) -> bool {
        self.heartbeats.returns >= 2 || now.since(self.started_at) >= READY_AFTER
    }

    /// Returns whether an own heartbeat has ever returned.
    pub(crate) fn was_connected(&self) -> bool {
        self.heartbeats.returns > 0
    }

    /// Returns how often a frame was published again.
    pub(crate) fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Returns whether the newest frame is not confirmed yet.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.frames.in_flight_since().is_some()
    }

    pub(crate) fn peers(&self, now: Tick) -> impl Iterator<Item = PeerStats> {
        self.peers.stats(now)
    }

    #[cfg(test)]
    pub(super) fn peer_table(&self) -> &PeerTable {
        &self.peers
    }

    #[cfg(test)]
    pub(crate) fn newest_frame(&self) -> u64 {
        self.frames.number
    }

    /// Returns the newest applied frame of each peer, and whether there is a gap.
    #[cfg(test)]
    pub(crate) fn received(&self) -> impl Iterator<Item = (LifeId, u64, bool)> {
        let peers = self.peers.iter();
        peers.map(|(life, peer)| (*life, peer.applied, peer.has_gap()))
    }

    /// C7: notes interruptions before a message or a tick is handled.
    fn observe(&mut self, connects: u64, now: Tick) {
        if connects != self.connects {
            self.connects = connects;
            self.interruptions.count += 1;
            self.frames.wait_for(self.heartbeats.next_number());
            self.heartbeats.due = now;
            self.replace_at = now + REPLACE_AGAIN;
        }
        let overdue = [
            self.heartbeats.check_overdue(now),
            self.frames.check_overdue(now),
        ];
        if overdue.contains(&true) {
            self.interruptions.count += 1;
        }
        self.tell_degraded(now);
    }

    /// Returns when a connection that is open and delivers no own message is replaced.
    fn replaced_at(&self) -> Tick {
        (self.degraded_from() + (REPLACE_AFTER - ISOLATED_AFTER)).max(self.replace_at)
    }

    fn tell_degraded(&mut self, now: Tick) {
        let degraded = self.is_degraded(now);
        if std::mem::replace(&mut self.degraded, degraded) == degraded {
            return;
        }
        // Lives may have come and gone in the isolation.
        if !degraded && !planted!(LinkIsolationEndTrusted) {
            self.actions.push_back(Action::Resync(Resync::All));
        }
        if !degraded || !planted!(LinkIsolationUntold) {
            self.actions.push_back(Action::Degraded(degraded));
        }
    }

    fn repeat_frame(&mut self, now: Tick) {
        if let Some(bytes) = self.frames.repeat(now)
            && !planted!(LinkFrameNotRepeated)
        {
            self.repeated += 1;
            self.actions
                .push_back(Action::Output(Output::Publish(bytes)));
        }
    }

    /// The frame in flight goes first, because the heartbeat names its number.
    fn send_heartbeat(&mut self, leaving: bool, now: Tick) {
        self.repeat_frame(now);
        self.recent.expire(now);
        let (queue_hashes, queue_ages) = self.recent.list(self.frames.number);
        let heartbeat = Heartbeat {
            heartbeat: self.heartbeats.next_number(),
            frame: self.frames.number,
            complete_above: self.recent.complete_above,
            queue_hashes,
            queue_ages,
            leaving,
            store: self.store,
            relay_id: self.config.relay_id.to_string(),
            version: self.config.version.to_string(),
            streams: self.load.0,
            queues: self.load.1,
            degraded: self.is_degraded(now),
        };
        let bytes = cluster_message_to_wire(&ClusterMessage {
            life: self.config.life,
            content: ClusterContent::Heartbeat(heartbeat),
        });
        self.heartbeats
            .sent(fingerprint(&bytes), self.interruptions.count, now);
        self.actions
            .push_back(Action::Output(Output::Publish(bytes)));
    }

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
        if message.life == self.config.life {
            self.on_own(&message.content, bytes, now);
        } else {
            self.on_peer(message, bytes, now);
        }
        self.tell_degraded(now);
        Ok(())
    }

    fn on_own(&mut self, content: &ClusterContent, bytes: &Bytes, now: Tick) {
        let result = match content {
            ClusterContent::Frame(frame) => self.on_own_frame(frame.number, bytes, now),
            ClusterContent::Heartbeat(own) => self.on_own_heartbeat(own.heartbeat, bytes, now),
            ClusterContent::Unknown => Ok(()),
        };
        if let Err(SecondMachine) = result {
            self.phase = Phase::Ended;
            self.actions.push_back(Action::Output(Output::End));
        }
    }

    fn on_own_frame(&mut self, number: u64, bytes: &Bytes, now: Tick) -> Result<(), SecondMachine> {
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
    ) -> Result<(), SecondMachine> {
        if let Some(returned) = self.heartbeats.on_return(number, fingerprint(bytes))? {
            self.interruptions.count += u64::from(returned.skipped);
            let settled = &mut self.interruptions.settled;
            *settled = returned.interruptions.max(*settled);
            self.judge_peers(now);
        }
        Ok(())
    }

    fn judge_peers(&mut self, now: Tick) {
        let counts = (self.heartbeats.returns, self.interruptions.count);
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
        let returns = self.heartbeats.returns;
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
        heartbeat: &Heartbeat,
        fingerprint: u64,
        now: Tick,
    ) {
        let returns = self.heartbeats.returns;
        let settled = self.interruptions.settled;
        let peer = self.peer(life, now);
        if peer.is_copy(fingerprint) {
            return;
        }
        peer.heard(returns, now);
        let resync = peer.on_heartbeat(heartbeat, settled);
        let is_compared = peer.is_compared();
        self.actions.extend(resync.map(Action::Resync));
        if is_compared {
            self.compare_settings(life, heartbeat);
        }
    }

    fn compare_settings(&mut self, life: LifeId, heartbeat: &Heartbeat) {
        let relay_id = &heartbeat.relay_id;
        let stores = [heartbeat.store, self.store];
        let mut warn = |is_so: bool, text: &str| {
            if is_so {
                let text = format!("another relay of the cluster {text} ({relay_id}, life {life})");
                self.actions.push_back(Action::Output(Output::Warn(text)));
            }
        };
        warn(
            **relay_id == *self.config.relay_id,
            "has the id of this one: give each its own relay_id, or requests for one of them reach \
             the other",
        );
        warn(
            stores[0] != stores[1] && !stores.contains(&0),
            "uses another store: a flag that is set through one is not known to the other",
        );
    }

    /// Returns the peer of this life; a new one may displace another.
    fn peer(&mut self, life: LifeId, now: Tick) -> &mut Peer {
        let (returns, settled) = (self.heartbeats.returns, self.interruptions.settled);
        let new = || Peer::new(settled, returns, now);
        let (peer, displaced) = self.peers.peer(life, new);
        if displaced {
            self.actions.push_back(Action::Resync(Resync::All));
        }
        peer
    }
}
