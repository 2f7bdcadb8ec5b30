//! The hand-over of messages from one machine to the next: three steps that leave each message on
//! exactly one side.
//!
//! The sender *offers* a message. The receiver stores it in `inbound`, where no consumer sees it, and
//! *accepts*. The sender marks it as sent, which deletes it there, and *confirms*. The receiver makes
//! it *visible*. A message can arrive again only until its sender has marked it as sent, and is
//! visible only after that: so the rows of `inbound` are all the memory of ids that exactly-once
//! needs, and no sequence number has to survive a crash. A new connection begins with the rows that
//! the receiver holds. Frames are numbered, so that a repeated or a missing one is noticed.
//!
//! The steps take the transaction, the time and randomness as arguments. The simulation runs them.

pub(crate) mod frames;
mod inbound;
pub(crate) mod outgoing;
mod policy;
pub(crate) mod receiver;
pub(crate) mod sender;
#[cfg(test)]
mod tests;

pub(crate) use self::{
    frames::{
        Accept, Hello, Numbered, OfferedMessage, ReceiverContent, ReceiverFrame, SenderContent,
        SenderFrame, Upto, Welcome, agreed_version,
    },
    inbound::bury_absent,
    policy::{Policy, SenderRights},
    receiver::ReceiverSession,
    sender::SenderSession,
};
