//! Azure Storage: whose account it is, how requests are signed and sent, what went wrong.
//!
//! The official client knows identities and signatures in a URL; shared keys and connection strings
//! are what most programs and the emulator have, so they are here. A key or a signature is never
//! shown: not by `Debug`, not in an error, not in a URL that is logged. Knows nothing of queues'
//! messages, and reads the process's environment only where it is asked to.

mod account;
mod connection_string;
mod environment;
mod error;
mod http;
mod signing;

pub use self::account::StorageAccount;
#[cfg(feature = "cloud")]
pub(crate) use self::account::{Credential, EMULATOR, EMULATOR_KEY, endpoint};
#[cfg(feature = "cloud")]
pub(crate) use self::error::words;
#[cfg(test)]
pub(crate) use self::signing::signature_of;
pub(crate) use self::{account::check_name, error::AzureError, http::client_options};
