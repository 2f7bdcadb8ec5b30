//! What several wings need of one back-end: Azure's accounts and signing, SQLite's engine.

#[cfg(feature = "azure")]
#[cfg_attr(
    not(all(feature = "cloud", feature = "listener")),
    allow(dead_code, unused_imports, reason = "a wing uses a part of it")
)]
pub mod azure;
#[cfg(feature = "sqlite")]
#[cfg_attr(
    not(feature = "courier"),
    allow(dead_code, unused_imports, reason = "a wing uses a part of it")
)]
pub(crate) mod sqlite;
