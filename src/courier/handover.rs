//! The hand-over of messages from one machine to the next: three steps that leave each message on
//! exactly one side.
//!
//! The sender *offers* messages. The receiver stores them in `inbound`, where no consumer sees them, and
//! *accepts*. The sender marks them as sent, which deletes them there, and *confirms* with its next offer.
//! The receiver makes them *visible*. A message can arrive again only until its sender has marked it as
//! sent, and is visible only after that: so the rows of `inbound` are all the memory of ids that
//! exactly-once needs, and no sequence number has to survive a crash. A new connection begins with the
//! messages that the receiver holds. One offer is on the way at a time.
//!
//! The steps take the transaction, the time and randomness as arguments. The simulation runs them. A step
//! that fails is rolled back, and its connection must end.

mod inbound;
pub(crate) mod outgoing;
mod policy;
pub(crate) mod receiver;
pub(crate) mod sender;
#[cfg(test)]
mod tests;

pub(crate) use self::{
    inbound::bury_absent,
    policy::{Policy, SenderRights},
    receiver::ReceiverSession,
    sender::SenderSession,
};

/// The version of the hand-over.
const VERSION: u32 = 1;
/// The most messages of an offer.
const OFFER: usize = 256;
/// The longest reason of the other machine, in bytes.
const MAX_REASON: usize = 512;
