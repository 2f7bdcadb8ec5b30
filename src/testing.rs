//! Tools to test a publisher, a listener or a queue back-end without a fleet.
//!
//! [`TestRelay`] is the real relay on a free loopback port with a store in memory. A test can wake
//! its listeners, stop it and restart it. Without a network, [`Relay`] runs directly in the test's
//! process. [`ScriptedQueue`] is a queue whose calls fail, hang or find nothing according to a
//! script, and [`Metered`] counts the transactions of a queue. [`queue_contract`] checks a queue
//! back-end for the guarantees that listeners rely on.
//!
//! [`Relay`]: crate::Relay

#[cfg(feature = "listener")]
mod metered;
#[cfg(feature = "listener")]
pub mod queue_contract;
#[cfg(feature = "listener")]
mod scripted_queue;
#[cfg(feature = "relay")]
mod test_relay;

#[cfg(feature = "relay")]
pub use self::test_relay::TestRelay;
#[cfg(feature = "listener")]
pub use self::{
    metered::{Metered, QueueUsage},
    scripted_queue::{Call, Called, ScriptedQueue},
};
