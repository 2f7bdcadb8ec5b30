//! The link's settings and durations.

use std::{sync::Arc, time::Duration};

use crate::types::cluster::LifeId;

/// Settings of a link.
#[derive(Debug, Clone)]
pub(crate) struct LinkConfig {
    pub(crate) life: LifeId,
    pub(crate) relay_id: Arc<str>,
    pub(crate) version: Arc<str>,
}

/// The interval of heartbeats, with a random change of a tenth.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(1);
/// An own message that has not returned after this time is an interruption, and a frame is
/// published again.
pub(super) const RETURN_WITHIN: Duration = Duration::from_millis(250);
/// Without an own message for this long a relay is isolated: three heartbeats and their jitter.
pub(super) const ISOLATED_AFTER: Duration = Duration::from_millis(3_500);
/// Without an own message for this long the connection is replaced, also one that looks well: packets to
/// the server may be lost on their way while those of the server arrive.
pub(super) const REPLACE_AFTER: Duration = Duration::from_secs(6);
/// A new connection has this long.
pub(super) const REPLACE_AGAIN: Duration = Duration::from_secs(10);
/// A heartbeat that the client did not take is due again after this time.
pub(super) const UNSENT_AGAIN: Duration = Duration::from_millis(50);
/// An isolation that begins sooner after the last one ends later, so that a link that flaps costs
/// polls and no resyncs.
pub(super) const FLAP_WITHIN: Duration = Duration::from_secs(60);
/// How long such a link must hold.
pub(super) const FLAP_HOLD: Duration = Duration::from_secs(10);
/// A relay that starts is ready after two own heartbeats, or after this time.
pub(super) const READY_AFTER: Duration = Duration::from_secs(3);
/// A queue is named in heartbeats for this long after its newest frame was confirmed: a receiver
/// that missed messages for up to 3.5 s finds all queues.
pub(super) const RECENT_FOR: Duration = Duration::from_secs(5);
/// A frame with this many notifications of one queue is followed by a pause, in which the next ones
/// are conflated.
pub(super) const BURST: u64 = 16;
pub(super) const BURST_PAUSE: Duration = Duration::from_micros(400);
/// A peer is missing after this many own heartbeats without a message of it.
pub(super) const PATIENCE: u64 = 4;
/// Nor is it missing before this time: three heartbeats and their jitter, so two may be lost.
pub(crate) const MISSING_AFTER: Duration = Duration::from_millis(3_500);
/// The most own heartbeats until a peer that was missing before is missing again.
pub(super) const MAX_PATIENCE: u64 = 32;
/// A peer that returned this many own heartbeats ago (ten minutes) has the first patience again; a
/// silent one is forgotten.
pub(super) const FORGET_AFTER: u64 = 600;
/// The most peers. 100 relays are the bound of this design; the rest is for lives that ended within
/// the last ten minutes. More appear only in forged messages.
pub(super) const MAX_PEERS: usize = 1_024;
