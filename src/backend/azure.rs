//! Azure Storage: accounts, signing of requests, and errors.
//!
//! The official client supports identities and signatures in a URL. Most programs and the emulator
//! use shared keys and connection strings, so this module adds them. A key or a signature is never
//! shown: not by `Debug`, not in an error, not in a logged URL. This module knows nothing of queue
//! messages. It reads the process's environment only in [`StorageAccount::from_environment`].

mod account;
mod signing;

use std::time::Duration;

use azure_core::error::ErrorKind as ClientErrorKind;

pub use self::account::StorageAccount;
pub(crate) use self::account::check_name;
#[cfg(feature = "cloud")]
pub(crate) use self::account::{CONNECTION_STRING, Credential, connection_string, endpoint};
pub(crate) use self::signing::client_options;
#[cfg(test)]
pub(crate) use self::signing::tests::signature_of;
use crate::base::request_error::{RequestError, sanitized};

impl From<azure_core::Error> for RequestError {
    fn from(error: azure_core::Error) -> Self {
        match error.kind() {
            ClientErrorKind::HttpResponse {
                status,
                error_code,
                raw_response,
            } => {
                let seconds = raw_response.as_deref().and_then(|response| {
                    let header = response.headers().get_optional_str(&"retry-after".into());
                    header?.parse().ok()
                });
                Self::Answered {
                    status: u16::from(*status),
                    code: error_code.as_deref().map(sanitized).unwrap_or_default(),
                    retry_after: seconds.map(Duration::from_secs),
                }
            }
            ClientErrorKind::Connection | ClientErrorKind::Io => {
                Self::of_connection(&error, "the connection broke")
            }
            ClientErrorKind::DataConversion => Self::Unreadable,
            _ => Self::Other {
                cause: "the request could not be made".to_owned(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_error_text_is_not_passed_on() {
        let secret = "http://host/?sig=c2lnbmF0dXJl";
        for kind in [
            ClientErrorKind::DataConversion,
            ClientErrorKind::Other,
            ClientErrorKind::Credential,
            ClientErrorKind::HttpResponse {
                status: 403.into(),
                error_code: Some("AuthenticationFailed".into()),
                raw_response: None,
            },
        ] {
            let error = azure_core::Error::with_message(kind, secret);
            let error = RequestError::from(error).about("queue `a/q`");
            assert!(!format!("{error} {error:?}").contains("sig="), "{error:?}");
        }
    }
}
