//! The machine of one relay in a cluster. A driver calls it for each message, at its deadline, and
//! when the hub has increments; after each call it takes the outputs.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;

use super::walks::Walks;
use crate::{
    base::{clock::Tick, fault::planted},
    error::Result,
    relay::{
        hub::Hub,
        link::{Action, ClusterLink, FrameDraft, LinkConfig, Output, PeerStats, Resync},
    },
    types::cluster::LifeId,
};

/// One relay of a cluster.
#[derive(Debug)]
pub(crate) struct ClusterNode {
    hub: Arc<Hub>,
    link: ClusterLink,
    walks: Walks,
    /// The number of the newest frame, and the position in the hub's list behind it.
    newest_frame: (u64, u64),
    confirmed_position: u64,
    frame_sent_at: Tick,
    /// The time that the newest confirmed frame took, until the driver takes it.
    confirmed_after: Option<Duration>,
    /// C14: flags were written, which the next frame states.
    flags_written: bool,
    /// What the driver does, in this order.
    outputs: VecDeque<Output>,
    leaving: Leaving,
    stats: ClusterStats,
}

/// C15: whether the relay leaves the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    No,
    /// It waits until its causes are confirmed, until this time at most.
    Until(Tick),
    /// With the same time.
    Left(Tick),
}

/// How long the end of a relay waits for the confirmation of its last causes.
const SETTLED_WITHIN: Duration = Duration::from_secs(2);

/// Totals since the start.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClusterStats {
    /// Frames sent and received, and the entries in them.
    pub(crate) frames_sent: u64,
    pub(crate) entries_sent: u64,
    pub(crate) frames_received: u64,
    pub(crate) entries_received: u64,
    /// Resyncs of named queues with the queues, and of all.
    pub(crate) resyncs: u64,
    pub(crate) resynced_queues: u64,
    pub(crate) resyncs_of_all: u64,
    /// Frames that were published again.
    pub(crate) repeated: u64,
    /// Peers that went missing.
    pub(crate) missing: u64,
    /// Times that this relay began to be degraded.
    pub(crate) degraded: u64,
    /// Messages that broke a rule and were dropped.
    pub(crate) refused: u64,
    /// Times that a queue's work was passed on to the other relays (C11).
    pub(crate) passed_on: u64,
    /// When causes of other relays may have been missed.
    pub(crate) missed: Tick,
}

impl ClusterNode {
    pub(crate) fn new(hub: Arc<Hub>, config: LinkConfig, now: Tick) -> Self {
        let link = ClusterLink::new(config, now);
        hub.set_degraded_from(link.degraded_from());
        Self {
            hub,
            link,
            walks: Walks::default(),
            newest_frame: (0, 0),
            confirmed_position: 0,
            frame_sent_at: now,
            confirmed_after: None,
            flags_written: false,
            outputs: VecDeque::new(),
            leaving: Leaving::No,
            stats: ClusterStats::default(),
        }
    }

    pub(crate) fn link(&self) -> &ClusterLink {
        &self.link
    }

    /// For what the link does alone.
    pub(crate) fn link_mut(&mut self) -> &mut ClusterLink {
        &mut self.link
    }

    /// Counts a message that broke a rule and that this machine did not get.
    pub(crate) fn count_refused(&mut self) {
        self.stats.refused += 1;
    }

    /// Takes a message of the broker. `connects` is the client's count of connects, read after the
    /// message was taken from it: so it counts the connection that brought the message.
    ///
    /// # Errors
    /// `Invalid` where the message breaks a rule; then nothing was changed.
    pub(crate) fn on_message(&mut self, bytes: &Bytes, connects: u64, now: Tick) -> Result<()> {
        let taken = self.link.on_message(bytes, connects, now);
        self.stats.refused += u64::from(taken.is_err());
        self.act(now);
        self.send_frame(now);
        self.leave_if_settled(now);
        taken
    }

    /// Does the work that is due at [`ClusterNode::deadline`], or that a connect or an increment of
    /// the hub has made due.
    pub(crate) fn on_tick(&mut self, connects: u64, now: Tick, rng: &mut fastrand::Rng) {
        let stats = self.hub.stats();
        self.link.set_load(stats.subscriptions, stats.queues);
        self.link.on_tick(connects, now, rng);
        self.act(now);
        if self.walks.due_at() <= now {
            self.walks.step(&self.hub, now);
        }
        self.send_frame(now);
        self.leave_if_settled(now);
    }

    /// The client did not take the bytes of an [`Output::Publish`].
    pub(crate) fn unsent(&mut self, bytes: &Bytes, now: Tick) {
        if self.link.unsent(bytes, now)
            && let Leaving::Left(at) = self.leaving
        {
            let is_left = |output: &Output| matches!(output, Output::Left { .. });
            self.outputs.retain(|output| !is_left(output));
            if now < at {
                self.leaving = Leaving::Until(at);
            } else {
                self.outputs.push_back(Output::Left { told: false });
            }
        }
    }

    /// C14: tells the other relays of flags that were written through this one.
    /// The caller calls [`ClusterNode::on_tick`] then.
    pub(crate) fn note_flags_written(&mut self) {
        self.flags_written = true;
    }

    /// Returns when [`ClusterNode::on_tick`] has something to do.
    pub(crate) fn deadline(&self) -> Tick {
        let frame = self.link.frame_due_at().filter(|_| self.has_content());
        let leaving = match self.leaving {
            Leaving::Until(at) => at,
            Leaving::No | Leaving::Left(_) => Tick::NEVER,
        };
        let work = self.link.deadline().min(self.walks.due_at());
        work.min(frame.unwrap_or(Tick::NEVER)).min(leaving)
    }

    pub(crate) fn next_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// C8: all causes up to this position in the hub's list have been confirmed.
    pub(crate) fn confirmed_position(&self) -> u64 {
        self.confirmed_position
    }

    /// Returns how long a frame took until it was confirmed, once for each frame.
    pub(crate) fn take_confirmed_after(&mut self) -> Option<Duration> {
        self.confirmed_after.take()
    }

    /// C9: returns whether the relay may serve. A relay that starts without a broker may after a
    /// while. A relay that is cut off later may not, because the others may be connected.
    pub(crate) fn is_ready(&self, now: Tick) -> bool {
        self.link.is_ready(now) && !(self.link.was_connected() && self.link.is_degraded(now))
    }

    /// Returns whether all causes so far are confirmed.
    pub(crate) fn is_settled(&self) -> bool {
        !self.has_content() && !self.link.is_in_flight() && !self.hub.has_deferred_work()
    }

    /// C15: leaves the cluster as soon as all causes so far are confirmed.
    pub(crate) fn begin_leaving(&mut self, now: Tick) {
        if self.leaving == Leaving::No {
            self.leaving = Leaving::Until(now + SETTLED_WITHIN);
            self.leave_if_settled(now);
        }
    }

    /// C15: returns the lives that can take over timers, the one with the fewest streams first.
    pub(crate) fn present_lives(&self, now: Tick) -> VecDeque<LifeId> {
        let present = self.link.peers(now).filter(PeerStats::is_present);
        let mut present: Vec<_> = present.collect();
        present.sort_by_key(|peer| peer.info.streams);
        present.iter().map(|peer| peer.life).collect()
    }

    pub(crate) fn stats(&self) -> ClusterStats {
        ClusterStats {
            repeated: self.link.repeated(),
            passed_on: self.hub.increments.passed_on(),
            ..self.stats
        }
    }

    /// Returns whether there is something for a frame.
    fn has_content(&self) -> bool {
        !self.hub.increments.is_empty() || self.flags_written
    }

    /// Makes a frame of the hub's increments where one is due.
    fn send_frame(&mut self, now: Tick) {
        if self.link.frame_due_at().is_none_or(|at| now < at) || !self.has_content() {
            return;
        }
        let mut draft = FrameDraft::default();
        if std::mem::take(&mut self.flags_written) {
            draft.note_flags_written();
        }
        let mut entries = 0;
        while draft.has_room()
            && let Some(increment) = self.hub.next_increment()
        {
            draft.push_entry(increment);
            entries += 1;
        }
        let position = self.hub.increments.taken();
        if let Some(number) = self.link.send_frame(draft, now) {
            self.newest_frame = (number, position);
            self.frame_sent_at = now;
            self.stats.frames_sent += 1;
            self.stats.entries_sent += entries;
            if planted!(LinkAnswerUnconfirmed) {
                self.confirmed_position = position;
            }
        } else if !self.link.is_in_flight() {
            // The list held nothing to tell, and all causes before are confirmed.
            self.confirmed_position = position;
        }
        self.act(now);
    }

    /// C15: tells the other relays that this one leaves, after its last frame is confirmed.
    fn leave_if_settled(&mut self, now: Tick) {
        let Leaving::Until(at) = self.leaving else {
            return;
        };
        let told = self.is_settled() || planted!(LinkLeavesEarly);
        if !told && now < at {
            return;
        }
        if told {
            self.link.leave(now);
            self.act(now);
        }
        self.leaving = Leaving::Left(at);
        self.outputs.push_back(Output::Left { told });
    }

    /// Takes over the link's actions.
    fn act(&mut self, now: Tick) {
        while let Some(action) = self.link.next_action() {
            self.act_on(action, now);
        }
        self.hub.set_degraded_from(self.link.degraded_from());
    }

    fn act_on(&mut self, action: Action, now: Tick) {
        match action {
            Action::Output(output) => self.outputs.push_back(output),
            Action::Apply { frame, in_full, .. } => {
                self.stats.frames_received += 1;
                self.stats.entries_received += frame.entries.len() as u64;
                self.hub.count_peer_increments(&frame.entries, in_full, now);
                if frame.flags_written {
                    self.outputs.push_back(Output::ReadFlags);
                }
            }
            Action::Resync(Resync::Queues(hashes)) => {
                self.stats.resyncs += 1;
                self.stats.missed = now;
                self.stats.resynced_queues += hashes.len() as u64;
                self.walks.resync_queues(hashes);
                self.outputs.push_back(Output::ReadFlags);
            }
            Action::Resync(Resync::All) => {
                self.stats.resyncs_of_all += 1;
                self.stats.missed = now;
                self.walks.resync_all(now);
                self.outputs.push_back(Output::ReadFlags);
            }
            Action::CheckGroups(_) => {
                self.stats.missing += 1;
                self.stats.missed = now;
                self.walks.check_groups(now);
            }
            Action::Confirmed(number) => {
                if let (newest, position) = self.newest_frame
                    && newest == number
                {
                    self.confirmed_position = position;
                    self.confirmed_after = Some(now.since(self.frame_sent_at));
                }
            }
            Action::Degraded(degraded) => {
                self.stats.degraded += u64::from(degraded);
                self.hub.set_degraded_from(self.link.degraded_from());
                self.hub.wake_all();
            }
        }
    }
}
