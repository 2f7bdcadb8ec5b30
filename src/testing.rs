//! What a user needs to test a publisher or a listener without a fleet.
//!
//! [`TestRelay`] is the real relay on a free loopback port with a store in memory: wake its
//! listeners by hand, cut them off, restart it. Where no network is wanted, [`Relay`] itself runs
//! in the test's process. [`ScriptedQueue`] is a queue whose calls fail, hang and find nothing as
//! the test says. [`queue_contract`] holds a queue of one's own to what listeners rely on.
//!
//! [`Relay`]: crate::Relay

#[cfg(feature = "listener")]
pub mod queue_contract;
#[cfg(feature = "listener")]
mod scripted_queue;
#[cfg(feature = "relay")]
mod test_relay;

#[cfg(feature = "listener")]
pub use self::scripted_queue::{Call, Called, ScriptedQueue};
#[cfg(feature = "relay")]
pub use self::test_relay::TestRelay;
