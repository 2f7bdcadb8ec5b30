//! The hub under every interleaving that matters: shuttle chooses between its threads at each lock,
//! atomic and waker of the hub ([`sync`]).
//!
//! In each model a few threads notify, walk, subscribe, take, forget and resubscribe. Each event
//! has its own bit, so a listener's sum shows whether an event was lost or sent twice. In `models/`
//! listeners read the messages of a small world, report, hang and leave: groups, the sentinel,
//! reports, the end of a subscription, patterns over their limits. There is no heartbeat that would
//! heal a lost wake: a stream is polled only when it was woken. The same models must find each
//! rule's planted fault.

use super::{config, core, counters, stream, subscription, wake_builder};

mod checks;
mod listener;
mod models;
pub(super) mod sync;
mod worker;
mod world;
