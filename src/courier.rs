//! A transactional queue between machines: store and forward.
//!
//! Messages are sent and received inside transactions, in queues of a SQLite file. A message to
//! another machine waits in the same file until the hand-over has moved it. After a crash at any
//! point each message is on exactly one side.

mod crash_point;
pub(crate) mod handover;
#[cfg(feature = "relay")]
mod host;
mod message;

#[cfg(feature = "relay")]
pub use self::host::{Host, HostConfig};
#[cfg(feature = "relay")]
pub(crate) use self::host::ReceivingStream;
pub use self::message::{Destination, MessageId};
