//! Tools to test a publisher, a listener or a queue back-end without a fleet.
//!
//! [`TestRelay`] is the real relay on a free loopback port with a store in memory. A test can wake
//! its listeners, stop it and restart it. Without a network, [`Relay`] runs directly in the test's
//! process. [`queue_contract`] checks a queue back-end for the guarantees that listeners rely on.
//!
//! [`Relay`]: crate::Relay

#[cfg(feature = "listener")]
pub mod queue_contract;
#[cfg(feature = "relay")]
mod test_relay;
#[cfg(all(test, feature = "listener"))]
mod tests;

#[cfg(feature = "relay")]
pub use self::test_relay::TestRelay;
#[cfg(all(test, feature = "listener"))]
pub(crate) use self::tests::{Call, Metered, QueueUsage, ScriptedQueue};
