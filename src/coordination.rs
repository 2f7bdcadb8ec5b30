//! Coordination on blob storage: flags, leases, unique ids, removal of expired blobs.

#[cfg(feature = "coordination")]
#[cfg_attr(
    not(all(feature = "nats", feature = "relay")),
    allow(dead_code, unused_imports, reason = "only relays have watchers")
)]
pub mod flag;
#[cfg(feature = "coordination")]
pub mod lease;
pub mod release;
#[cfg(feature = "sweep")]
pub mod sweep;
#[cfg(feature = "coordination")]
pub mod unique_id;
