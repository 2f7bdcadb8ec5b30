//! What several wings need of one back-end: Azure's accounts and signing, SQLite's engine.

#[cfg(feature = "azure")]
pub mod azure;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
