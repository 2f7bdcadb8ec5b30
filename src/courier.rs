//! A transactional queue between machines: store and forward.
//!
//! Messages are sent and received inside transactions, in queues of a SQLite file. A message to
//! another machine waits in the same file until the hand-over has moved it. After a crash at any
//! point each message is on exactly one side.

mod config;
mod dead_letters;
mod forget_machine;
pub(crate) mod handover;
#[cfg(feature = "relay")]
pub(crate) mod host;
mod hosting;
mod manager;
mod message;
mod notifying;
mod recovery;
mod retention;
mod status;
mod steps;
#[cfg(test)]
mod tests;
mod transaction;

pub use rusqlite;

#[cfg(feature = "relay")]
pub use self::host::{Host, HostConfig};
pub use self::{
    config::{QueueManagerConfig, Route},
    dead_letters::DeadLetter,
    forget_machine::Forgotten,
    manager::QueueManager,
    message::{Destination, MessageId},
    status::{
        DestinationStatus, HistoryEntry, ManagerStatus, MessageState, MessageStatus, QueueStatus,
    },
    steps::ReceivedMessage,
    transaction::Transaction,
};
#[cfg(feature = "relay")]
pub(crate) use self::{handover::SenderRights, host::ReceivingStream};
