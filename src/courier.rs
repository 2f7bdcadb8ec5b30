//! A transactional queue between machines: store and forward.
//!
//! Messages are sent and received inside transactions, in queues of a SQLite file. A message to
//! another machine waits in the same file until the hand-over has moved it. After a crash at any
//! point each message is on exactly one side.

mod config;
mod host_lock;
mod manager;
mod message;
mod notify_state;
mod notifying;
mod send_in;
mod set_aside;
mod staging;
#[cfg(test)]
mod tests;
mod transaction;

pub use rusqlite;

pub use self::{
    config::{QueueManagerConfig, Route},
    manager::QueueManager,
    message::{Destination, MessageId},
    staging::ReceivedMessage,
    transaction::Transaction,
};
