//! Azure Storage: accounts, signing of requests, and errors.
//!
//! The official client supports identities and signatures in a URL. Most programs and the emulator
//! use shared keys and connection strings, so this module adds them. A key or a signature is never
//! shown: not by `Debug`, not in an error, not in a logged URL. This module knows nothing of queue
//! messages. It reads the process's environment only in [`StorageAccount::from_environment`].

mod account;
mod connection_string;
mod environment;
mod error;
mod http;
mod signing;

pub use self::account::StorageAccount;
#[cfg(test)]
pub(crate) use self::signing::signature_of;
pub(crate) use self::{account::check_name, http::client_options};
#[cfg(feature = "cloud")]
pub(crate) use self::{
    account::{Credential, endpoint},
    environment::{ACCOUNT, CONNECTION_STRING, KEY, connection_string},
};
