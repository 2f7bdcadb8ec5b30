//! The reasons for which a credential is refused.
//!
//! Each is one line for the client. No line contains a part of the credential or tells which
//! tokens, keys or principals exist.

use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// The reason for which a credential is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Denial {
    /// The call has neither an `Authorization` header nor a client certificate.
    #[error(
        "a credential is required: send `authorization: Bearer <token>` or use a client certificate"
    )]
    NoCredential,
    /// The header or the token does not have the required form.
    #[error("the credential is malformed: send `authorization: Bearer <token>`, at most 8 KiB")]
    Malformed,
    /// The token is wrong, or was revoked.
    #[error("the token is unknown or was revoked")]
    UnknownToken,
    /// The token expired.
    #[error("the token expired {} s ago by the relay's clock", ago.as_secs())]
    Expired {
        /// The time since the expiry.
        ago: Duration,
    },
    /// The token is not valid yet, or one of the clocks is wrong.
    #[error("the token becomes valid in {} s by the relay's clock", wait.as_secs())]
    NotYetValid {
        /// The time until the token is valid.
        wait: Duration,
    },
    /// No issuer of this name is configured.
    #[error("unknown issuer of the token")]
    UnknownIssuer,
    /// The token is for another service.
    #[error("wrong audience: the token is for another service")]
    WrongAudience,
    /// The algorithm is not allowed, or does not fit the key.
    #[error(
        "the token's algorithm is not allowed for its issuer: use EdDSA, ES256 or RS256 by a key of its issuer"
    )]
    Algorithm,
    /// The signature does not match.
    #[error("the token's signature is not valid")]
    BadSignature,
    /// The issuer has no such key.
    #[error("the token is signed with a key that the relay does not know")]
    UnknownKey,
    /// A part of a signed token is missing, or breaks its rule.
    #[error("the token's {part} {rule}")]
    BadClaim {
        /// The part: a claim in its own name, or what it is for.
        part: &'static str,
        /// What it must be.
        rule: &'static str,
    },
    /// The request has more than one `authorization` header.
    #[error("the request has more than one `authorization` header")]
    SeveralHeaders,
    /// No name of the certificate is mapped to a principal.
    #[error("no name of the client certificate is known to the relay")]
    UnknownCertificate,
    /// The credential names no principal, or more than one.
    #[error("the credential does not name one valid principal")]
    NoPrincipal,
    /// Too many failed attempts from this address.
    #[error("too many failed attempts from this address: retry in {} s", retry_after.as_secs().max(1))]
    TooManyFailures {
        /// The time until the address has another attempt.
        retry_after: Duration,
    },
}

impl Denial {
    /// Returns whether the caller may have guessed: it counts as a failed attempt. A credential that
    /// was valid once is no guess.
    pub(crate) const fn is_guess(self) -> bool {
        matches!(
            self,
            Self::Malformed
                | Self::UnknownToken
                | Self::UnknownIssuer
                | Self::Algorithm
                | Self::BadSignature
                | Self::UnknownKey
        )
    }
}

impl From<Denial> for Error {
    fn from(denial: Denial) -> Self {
        match denial {
            Denial::TooManyFailures { retry_after } => {
                Self::new(ErrorKind::Unavailable, denial.to_string()).with_retry_after(retry_after)
            }
            _ => Self::new(ErrorKind::Denied, denial.to_string()),
        }
    }
}
