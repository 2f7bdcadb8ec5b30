//! Tools that every wing stands on: time, tasks, back-off, durations, locks, secrets, small files,
//! planted faults, errors of requests to a cloud.
//!
//! Imports nothing but the error.

pub(crate) mod backoff;
pub(crate) mod causes;
pub(crate) mod clock;
pub mod duration;
#[cfg(feature = "console")]
pub(crate) mod evicting_pool;
pub(crate) mod fault;
#[cfg(any(feature = "policy-file", feature = "relay", feature = "tls"))]
#[cfg_attr(
    not(any(feature = "relay", feature = "tls")),
    allow(dead_code, reason = "a policy file is no setting")
)]
pub(crate) mod file;
#[cfg(any(
    feature = "coordination",
    all(feature = "listener", any(feature = "azure", feature = "sqlite"))
))]
pub(crate) mod fnv;
#[cfg(any(feature = "console", feature = "listener", feature = "relay"))]
pub(crate) mod histogram;
#[cfg(all(feature = "azure", feature = "store"))]
pub(crate) mod https;
pub(crate) mod log_limiter;
#[cfg(feature = "relay")]
pub(crate) mod memory;
pub(crate) mod network;
pub(crate) mod random;
#[cfg(all(feature = "azure", feature = "store"))]
pub(crate) mod request_error;
pub(crate) mod secret;
pub(crate) mod sync;
pub(crate) mod task;
pub(crate) mod text;
#[cfg(any(feature = "relay", feature = "tls"))]
pub(crate) mod tls_files;
